package explain

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/facts"
)

func table(t *testing.T) *facts.Table {
	t.Helper()
	out, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// questions are kept with their whole answers: IMGSMITH_UPDATE=1 writes them anew.
var questions = map[string]Query{
	"rtx4090-driver535":  {GPU: "RTX 4090", Driver: "535.104.05"},
	"h200-driver580":     {GPU: "H200", Driver: "580.159.04"},
	"v100-driver590":     {GPU: "V100", Driver: "590"},
	"tf221-rtx5090":      {TensorFlow: "2.21", GPU: "RTX 5090"},
	"h100-driver535":     {GPU: "H100", Driver: "535.104.05", TensorFlow: "2.19.1"},
	"driver470":          {Driver: "470.82.01", Class: "geforce", ComputeCapability: "8.6"},
	"cuda125":            {CUDA: "12.5"},
	"cudnn92":            {CuDNN: "9.2.1"},
	"python312":          {Python: "3.12"},
	"image125-geforce":   {Base: "nvidia/cuda:12.5.1-cudnn-runtime-ubuntu22.04", GPU: "RTX 4090", Driver: "535.104.05"},
	"tensorflow215":      {TensorFlow: "2.15.1"},
	"driver-alone":       {Driver: "515.65.01"},
	"debian12-tf221":     {Base: "debian:12", TensorFlow: "2.21.0"},
	"rtx3090-everything": {GPU: "RTX 3090", Driver: "550.54.15", TensorFlow: "2.20.0", CUDA: "12.8", CuDNN: "9.8", Python: "3.11"},
}

func TestGolden(t *testing.T) {
	tab := table(t)
	for name, q := range questions {
		t.Run(name, func(t *testing.T) {
			a, err := Explain(tab, q)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := WriteText(&got, a); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".txt")
			if os.Getenv("IMGSMITH_UPDATE") != "" {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

// Every statement names a source, whatever the question.
func TestSourced(t *testing.T) {
	tab := table(t)
	for name, q := range questions {
		a, err := Explain(tab, q)
		if err != nil {
			t.Fatal(err)
		}
		check := func(l Line) {
			if len(l.Sources) == 0 || l.Sources[0].Source == "" {
				t.Errorf("%s: no source: %s", name, l.Text)
			}
		}
		for _, s := range a.Sections {
			for _, l := range s.Lines {
				check(l)
			}
		}
		for _, r := range a.Releases {
			for _, l := range r.Reasons {
				check(l)
			}
		}
	}
}

// verdictOf returns the verdict about a release.
func verdictOf(t *testing.T, a *Answer, release string) Verdict {
	t.Helper()
	for _, r := range a.Releases {
		if r.TensorFlow == release {
			return r.Verdict
		}
	}
	t.Fatalf("no verdict about %s", release)
	return ""
}

// The four answers that must be right whatever else changes.
func TestKnownAnswers(t *testing.T) {
	tab := table(t)
	for _, tc := range []struct {
		q    Query
		want map[string]Verdict
		says []string
	}{
		{Query{GPU: "RTX 4090", Driver: "535.104.05"}, map[string]Verdict{"2.21.0": Works, "2.19.1": Works, "2.15.1": Works, "2.12.1": Works},
			[]string{"capability 8.9", "R535, which supports CUDA 12.2 natively", "every CUDA 12.x", "520.61.05"}},
		{Query{GPU: "H100", Driver: "535.104.05"}, map[string]Verdict{"2.19.1": Unproved, "2.17.1": Unproved, "2.16.2": Works},
			[]string{"1149 of its 1430 GPU modules", "PTX only, of language 8.5", "older than 555.42.02"}},
		{Query{GPU: "H200", Driver: "580.159.04"}, map[string]Verdict{"2.21.0": Works, "2.19.1": Works, "2.16.2": Works, "2.15.1": Warned},
			[]string{"capability 9.0", "Hopper", "CUDA 13.0 natively"}},
		{Query{GPU: "V100", Driver: "590"}, map[string]Verdict{"2.21.0": Refused, "2.19.1": Refused, "2.15.1": Refused, "2.4.4": Refused},
			[]string{"R580", "no longer knows Volta"}},
		{Query{TensorFlow: "2.21", GPU: "RTX 5090"}, map[string]Verdict{"2.21": Unproved}, []string{"12.0", "CUDA 12.8 and driver 570.26", "#111958"}},
	} {
		a, err := Explain(tab, tc.q)
		if err != nil {
			t.Fatal(err)
		}
		for release, want := range tc.want {
			if got := verdictOf(t, a, release); got != want {
				t.Errorf("%+v: TensorFlow %s %s, want %s", tc.q, release, got, want)
			}
		}
		var text bytes.Buffer
		if err := WriteText(&text, a); err != nil {
			t.Fatal(err)
		}
		for _, s := range tc.says {
			if !strings.Contains(text.String(), s) {
				t.Errorf("%+v: the answer does not say %q", tc.q, s)
			}
		}
	}
}

func TestUnknown(t *testing.T) {
	tab := table(t)
	if _, err := Explain(tab, Query{}); !errors.Is(err, ErrEmpty) {
		t.Errorf("empty query: %v", err)
	}
	for _, q := range []Query{{GPU: "Voodoo 2"}, {TensorFlow: "9.9"}, {Driver: "new"}, {ComputeCapability: "4.2"}, {CUDA: "twelve"}, {CUDA: "99.1"}, {CuDNN: "1.0"}, {CuDNN: "x"}, {Python: "2.7"}, {Python: "-"}} {
		var u *UnknownError
		if _, err := Explain(tab, q); !errors.As(err, &u) || !errors.Is(err, facts.ErrUnknown) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
