package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"imgsmith/internal/component"
	"imgsmith/internal/fakegpu"
	"imgsmith/internal/report"
	"imgsmith/internal/validate"
)

// TestAlteredLayersAreNotStaged alters one layer of a store in which all are made: it must be made again, so that
// the staged image is the same as before.
func TestAlteredLayersAreNotStaged(t *testing.T) {
	r := need(t).filled(t)
	recipe := r.recipe("good", fakegpu.Good, "")
	build := func() report.Image {
		t.Helper()
		p := r.imgsmith("build", "--stage-only", "--json", "--matrix", recipe)
		d := p.document()
		if d.ExitCode != 0 || d.Entries[0].Image == nil {
			t.Fatalf("exit code %d\n%s", d.ExitCode, p.err.String())
		}
		return *d.Entries[0].Image
	}
	first := build()
	var layer report.Layer
	for _, l := range first.Layers {
		if l.Name == "cudnn" {
			layer = l
		}
	}
	blob := filepath.Join(r.store, "blobs", "sha256", strings.TrimPrefix(layer.Digest, "sha256:"))
	good, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	const zero = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for name, alter := range map[string]func() error{
		"nothing": func() error { return nil },
		"content, with the old length and time": func() error {
			st, err := os.Stat(blob)
			if err != nil {
				return err
			}
			bad := bytes.Clone(good)
			bad[len(bad)/2] ^= 1
			if err := os.WriteFile(blob, bad, 0o644); err != nil {
				return err
			}
			return os.Chtimes(blob, st.ModTime(), st.ModTime())
		},
		"diffID of the record": func() error {
			n := 0
			files, err := filepath.Glob(filepath.Join(r.store, "components", "*.json"))
			for _, f := range files {
				data, rerr := os.ReadFile(f)
				if rerr != nil {
					return rerr
				}
				if bytes.Contains(data, []byte(layer.DiffID)) {
					n++
					err = os.WriteFile(f, bytes.ReplaceAll(data, []byte(layer.DiffID), []byte(zero)), 0o644)
				}
			}
			if n != 1 {
				return fmt.Errorf("%d records have the diffID", n)
			}
			return err
		},
	} {
		if err := alter(); err != nil {
			t.Fatal(err)
		}
		again := build()
		if again.Digest != first.Digest || again.Reused != (name == "nothing") {
			t.Errorf("%s: digest %s, everything reused %v; before %s", name, again.Digest, again.Reused, first.Digest)
		}
		for _, l := range again.Layers {
			if want := name != "nothing" && l.Name == "cudnn"; l.Made != want {
				t.Errorf("%s: layer %s made %v", name, l.Name, l.Made)
			}
		}
		now, err := os.ReadFile(blob)
		if err != nil || fmt.Sprintf("sha256:%x", sha256.Sum256(now)) != layer.Digest {
			t.Errorf("%s: the store's blob is not the layer: %v", name, err)
		}
	}
}

// TestMutatedTreesFailBeforeStaging puts one more layer on a good image: the static stage, after which a failed
// image is not staged, must name it.
func TestMutatedTreesFailBeforeStaging(t *testing.T) {
	r := need(t).filled(t)
	recipe := r.recipe("good", fakegpu.Good, "")
	if p := r.imgsmith("build", "--stage-only", "--matrix", recipe); p.wait() != 0 {
		t.Fatal(p.err.String())
	}
	a := &app{stdout: io.Discard, stderr: io.Discard, env: os.Getenv, flags: globalFlags{store: r.store}}
	s, err := a.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close() //nolint:errcheck // no engine was started
	rec, _, err := loadRecipe(recipe, s.facts)
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{s: s, bases: map[string]string{"debian:12": "oci-layout:" + r.f.base}, dir: filepath.Dir(recipe), seen: map[string]*base{}}
	if b.targets, err = s.loadTargets(rec, true, true); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		entries        func(site string) []component.Entry
		check, subject string
	}{
		"nothing": {nil, "", ""},
		"a link replaced by a directory": {func(string) []component.Entry {
			return []component.Entry{component.Directory("usr/local/cuda", 0o755), component.File("usr/local/cuda/x", 0o644, nil)}
		}, "static.layers", "/usr/local/cuda"},
		"a second dist-info": {func(site string) []component.Entry {
			return []component.Entry{component.File(site+"/tensorflow-9.9.9.dist-info/METADATA", 0o644, []byte("Name: tensorflow\nVersion: 9.9.9\n"))}
		}, "static.packages", "tensorflow"},
		"a directory replaced by a link": {func(site string) []component.Entry {
			return []component.Entry{component.Symlink(site+"/tensorflow", "/tmp")}
		}, "static.layers", "/opt/venv/"},
	} {
		var re report.Entry
		p, err := b.make(t.Context(), rec.Entries[0], &re)
		if err != nil {
			t.Fatal(err)
		}
		w := &preparer{s: s, p: p, lay: p.layout, opts: p.specs[0].Options}
		if c.entries != nil {
			es := c.entries(p.layout.Site)
			more, _, err := s.store.EnsureLayer(t.Context(), entriesKey(es, w.opts), "mutation", es, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			p.layers = append(p.layers, more)
		}
		if err := w.compose(); err != nil {
			t.Fatal(err)
		}
		got, _, err := s.static(p)
		if err != nil {
			t.Fatal(err)
		}
		if c.entries == nil {
			if got.Outcome != validate.OutcomePassed {
				t.Fatalf("the good image does not pass: %+v", got)
			}
			continue
		}
		if got.Outcome != validate.OutcomeFailed {
			t.Errorf("%s: the static stage says %s", name, got.Outcome)
		}
		names(t, got.Findings, c.check, c.subject)
	}
}
