package matrix

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"imgsmith/internal/facts"
)

type golden struct {
	ID    string `yaml:"id"`
	Entry struct {
		Platform    string            `yaml:"platform"`
		TensorFlow  string            `yaml:"tensorflow"`
		Python      string            `yaml:"python"`
		CUDA        string            `yaml:"cuda"`
		CuDNN       string            `yaml:"cudnn"`
		Base        string            `yaml:"base"`
		Supplier    string            `yaml:"supplier"`
		Note        string            `yaml:"note"`
		Packages    map[string]string `yaml:"packages"`
		Environment map[string]string `yaml:"environment"`
		OS          struct {
			Name string `yaml:"name"`
		} `yaml:"os"`
		Fleet []struct {
			Capability string `yaml:"compute_capability"`
			Driver     string `yaml:"driver"`
			Class      string `yaml:"class"`
			Model      string `yaml:"model"`
		} `yaml:"fleet"`
	} `yaml:"entry"`
	Expect string `yaml:"expect"`
	Why    string `yaml:"why"`
}

func (g golden) matrixEntry() Entry {
	e := Entry{Name: g.ID, File: "goldens.yaml", Platform: g.Entry.Platform, TensorFlow: TensorFlow{Version: g.Entry.TensorFlow},
		Python: Python{Version: g.Entry.Python, From: PythonOS}, CUDA: g.Entry.CUDA, CuDNN: g.Entry.CuDNN, Base: g.Entry.Base,
		Supplier: g.Entry.Supplier, Packages: g.Entry.Packages, Environment: g.Entry.Environment, Lines: map[string]int{"name": 1}}
	if e.Supplier == "" && e.Base == "" {
		e.Supplier = SupplierWheels
	}
	if e.TensorFlow.Version == "any" {
		e.TensorFlow.Version = ""
	}
	switch g.Entry.OS.Name { // an operating system is stated by its image
	case "centos7":
		e.Base = "centos:7"
	case "ubuntu22.04":
		e.Base = "ubuntu:22.04"
	}
	for i, f := range g.Entry.Fleet {
		e.Fleet = append(e.Fleet, FleetMember{ComputeCapability: f.Capability, Driver: f.Driver, Class: f.Class, GPU: f.Model, Line: i + 2, Column: 1})
	}
	return e
}

// worst returns the answer that findings amount to, in the words of the golden file.
func worst(findings []Finding) string {
	for _, s := range []Severity{Refuse, RefuseStart, Unproved, Warn} {
		for _, f := range findings {
			if f.Severity == s {
				return string(s)
			}
		}
	}
	return "build"
}

func TestGoldens(t *testing.T) {
	var file struct {
		Answers map[string]string `yaml:"answers"`
		Cases   []golden          `yaml:"cases"`
	}
	readYAML(t, "testdata/version-goldens.yaml", &file)
	table := embedded(t)
	covered := 0
	for _, g := range file.Cases {
		t.Run(g.ID, func(t *testing.T) {
			covered++
			findings := Lint([]Entry{g.matrixEntry()}, table, nil)
			if g.Entry.Note != "" { // this case is about the start gate alone
				findings = slices.DeleteFunc(findings, func(f Finding) bool { return f.Rule != "start-gate" })
			}
			if got := worst(findings); got != g.Expect {
				t.Errorf("got %s, expected %s (%s)\n%v", got, g.Expect, g.Why, findings)
			}
			for _, f := range findings {
				if f.Rule == "" || f.Source == "" || f.Line == 0 || f.Message == "" || f.Remedy == "" || f.Entry != g.ID {
					t.Errorf("finding is not complete: %+v", f)
				}
				if f.Severity == Refuse && f.Nearest == "" && f.Rule != "driver-ceiling" {
					t.Errorf("refusal without a nearest entry: %s", f)
				}
			}
		})
	}
	if covered != 38 {
		t.Errorf("%d cases, expected 38", covered)
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

func embedded(t *testing.T) *facts.Table {
	t.Helper()
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestNearestWorks takes the nearest entry that a refusal names and judges that one: it must not be refused for
// the same rule again.
func TestNearestWorks(t *testing.T) {
	table := embedded(t)
	for _, tc := range []struct{ key, recipe string }{
		{"cuda", "tensorflow: \"2.15\"\ncuda: \"11.8\"\n"},
		{"cuda", "tensorflow: \"2.15\"\ncuda: \"12.0\"\n"},
		{"cudnn", "tensorflow: \"2.18.0\"\ncudnn: \"9.1.0.70\"\n"},
		{"python", "tensorflow: \"2.19.1\"\npython: \"3.13\"\n"},
		{"python", "tensorflow: \"2.21.0\"\npython: \"3.9\"\n"},
		{"tensorflow", "tensorflow: \"2.3.0\"\n"},
		{"tensorflow", "tensorflow: \"3.9.0\"\n"},
		{"platform", "tensorflow: \"2.19.1\"\nplatform: linux/arm64\n"},
		{"base", "tensorflow: \"2.19.1\"\nbase: alpine:3.20\n"},
		{"layout", "tensorflow: \"2.19.1\"\nlayout: wheel\n"},
	} {
		r := mustLoad(t, "name: a\n"+tc.recipe)
		findings := Lint(r.Entries, table, []string{"wheels"})
		if len(findings) == 0 || findings[0].Nearest == "" {
			t.Errorf("%q: no refusal with a nearest entry: %v", tc.recipe, findings)
			continue
		}
		rule, fix := findings[0].Rule, strings.Split(findings[0].Nearest, ", or ")[0]
		var lines []string
		for _, l := range strings.Split(strings.TrimSpace("name: a\n"+tc.recipe), "\n") {
			if !strings.HasPrefix(l, strings.SplitN(fix, ":", 2)[0]+":") {
				lines = append(lines, l)
			}
		}
		fixed := strings.Join(append(lines, fix), "\n") + "\n"
		for _, f := range Lint(mustLoad(t, fixed).Entries, table, []string{"wheels"}) {
			if f.Rule == rule {
				t.Errorf("%q: nearest %q is refused again: %s", tc.recipe, fix, f)
			}
		}
	}
}
