package matrix

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustLoad(t *testing.T, text string) *Recipe {
	t.Helper()
	r, err := Load("r.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return r
}

const full = `name: all
base: debian:12
platform: linux/amd64
python: {version: "3.11", from: base}
tensorflow: "2.19.1"
cuda: "12.5"
cudnn: auto
supplier: wheels
layout: test/broken.yaml
packages: {Scikit_Learn: "1.5.0"}
environment: {A: "1", EMPTY: ""}
user: "1000:1000"
bytecode: off
constraints: off
compression: {algorithm: gzip}
fleet:
  - {gpu: H200, driver: "580.159.04"}
  - {compute_capability: "9.0", class: datacenter}
staging: reg/staging
publish: {repository: reg/tf, tags: ["{tensorflow}-py{python}"]}
`

func TestLoadFull(t *testing.T) {
	e := mustLoad(t, full).Entries[0]
	want := Entry{Name: "all", Base: "debian:12", Platform: "linux/amd64", Python: Python{"3.11", "base"}, TensorFlow: TensorFlow{Version: "2.19.1"},
		CUDA: "12.5", CuDNN: "auto", Supplier: "wheels", Layout: "test/broken.yaml", Packages: map[string]string{"scikit-learn": "1.5.0"},
		Environment: map[string]string{"A": "1", "EMPTY": ""}, User: "1000:1000", Compression: Compression{Algorithm: "gzip", Level: "passthrough"},
		Fleet:  []FleetMember{{GPU: "H200", Driver: "580.159.04", Line: 17, Column: 6}, {ComputeCapability: "9.0", Class: "datacenter", Line: 18, Column: 6}},
		Flavor: "runtime", Staging: "reg/staging", Publish: &Publish{"reg/tf", []string{"{tensorflow}-py{python}"}}, File: "r.yaml", Lines: e.Lines, Columns: e.Columns}
	if d := cmp.Diff(want, e); d != "" {
		t.Error(d)
	}
	for key, line := range map[string]int{"name": 1, "python": 4, "environment": 11, "publish": 20} {
		if e.Line(key) != line || e.Column(key) != 1 {
			t.Errorf("%s is at %d:%d, expected %d:1", key, e.Line(key), e.Column(key), line)
		}
	}
}

func TestLoadDefaults(t *testing.T) {
	e := mustLoad(t, "name: least\n").Entries[0]
	if e.Platform != "linux/amd64" || e.Supplier != "wheels" || e.Layout != "wheels" || !e.Bytecode || !e.Constraints ||
		e.Compression != (Compression{Algorithm: "zstd", Level: "default"}) || e.Publish != nil {
		t.Errorf("defaults are %+v", e)
	}
	var inc *IncompleteError
	if !errors.As(e.Incomplete(), &inc) || len(inc.Keys) != 3 {
		t.Errorf("incomplete is %v", e.Incomplete())
	}
	if err := mustLoad(t, full).Entries[0].Incomplete(); err != nil {
		t.Error(err)
	}
	if got := mustLoad(t, "name: a\nbytecode: false\nbase: null\n").Entries[0]; got.Bytecode || got.Base != "" {
		t.Errorf("got %+v", got)
	}
}

func TestLoadInclude(t *testing.T) {
	r := mustLoad(t, `name: demo
tensorflow: "2.19.1"
environment: {A: "1"}
include:
  - name: good
  - name: broken
    layout: layouts/broken.yaml
    environment: {B: "2"}
  - name: cpu
    tensorflow: {wheel: wheels/tensorflow-2.19.1-cp311-cp311-linux_x86_64.whl, sha256: `+strings.Repeat("a", 64)+`}
`)
	if len(r.Entries) != 3 || r.Name != "demo" {
		t.Fatalf("got %+v", r)
	}
	good, broken, cpu := r.Entries[0], r.Entries[1], r.Entries[2]
	if good.Name != "good" || good.Environment["A"] != "1" || good.Line("tensorflow") != 2 || good.Line("name") != 5 || good.Line("cuda") != 5 {
		t.Errorf("good is %+v", good)
	}
	if broken.Layout != "layouts/broken.yaml" || broken.Line("layout") != 7 || len(broken.Environment) != 1 || broken.Environment["B"] != "2" {
		t.Errorf("broken is %+v", broken)
	}
	if cpu.TensorFlow.Version != "2.19.1" || cpu.TensorFlow.Wheel == "" || cpu.Line("tensorflow") != 10 {
		t.Errorf("cpu is %+v", cpu)
	}
}

// TestLoadRefused gives for every bad recipe the place and a part of the message.
func TestLoadRefused(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", "r.yaml: the file is empty"},
		{"# nothing\n", "r.yaml: the file is empty"},
		{"just text\n", "r.yaml:1:1: expected keys with values, found text"},
		{"- a\n", "r.yaml:1:1: expected keys with values, found a list"},
		{"cuda: auto\n", "r.yaml:1:1: the recipe has no name"},
		{"name: a\npyhton: \"3.11\"\n", "r.yaml:2:1: unknown key \"pyhton\" in the recipe; did you mean \"python\"?\n     2 | pyhton: \"3.11\"\n       | ^"},
		{"name: a\nzzzzzzz: 1\n", "r.yaml:2:1: unknown key \"zzzzzzz\" in the recipe; known keys: name, base"},
		{"name: a\nname: b\n", "r.yaml:2:1: reading YAML: mapping key \"name\" already defined at [1:1]"},
		{"name: a\npython: 3.10\n", "r.yaml:2:9: python: 3.10 is a number for YAML, which would change 3.10 to 3.1; write \"3.10\""},
		{"name: a\ncuda: 12.5\n", "r.yaml:2:7: cuda: 12.5 is a number"},
		{"name: a\ncuda: newest\n", `r.yaml:2:7: cuda: "newest" is no version; write a version such as "12.5" or auto`},
		{"name: a\npython: \"3.11.2\"\n", `r.yaml:2:9: python: "3.11.2" is not valid; write major.minor`},
		{"name: a\npython: {from: os}\n", "python has no version"},
		{"name: a\npython: {version: \"3.11\", from: conda}\n", `python.from: "conda" is not known; it is one of os, base`},
		{"name: a\ntensorflow: latest\n", `tensorflow: "latest" is not valid`},
		{"name: a\ntensorflow: {wheel: x.whl}\n", `"x.whl" is no wheel file name`},
		{"name: a\ntensorflow: {wheel: tensorflow-2.19.1-py3-none-any.whl}\n", "tensorflow has no sha256"},
		{"name: a\ntensorflow: {wheel: tensorflow-2.19.1-py3-none-any.whl, sha256: ABC}\n", `tensorflow.sha256: "ABC" is not valid`},
		{"name: A B\n", `r.yaml:1:7: name: "A B" is not valid`},
		{"name: [a]\n", "r.yaml:1:7: name must be text, found a list"},
		{"name: \"a\\nb\"\n", "name must be one line of text"},
		{"name: &x a\n", "found an anchor or alias (not supported"},
		{"name: a\nbase: *x\n", "an anchor or alias"},
		{"name: !!str a\n", "found a YAML tag"},
		{"name: a\n---\nname: b\n", "r.yaml:3:1: a second document begins here"},
		{"name: a\x00b\n", "r.yaml:1:8: a NUL byte"},
		{"name: a\nbase: [\n", "r.yaml:2:7: reading YAML"},
		{"name: a\n\tbase: b\n", "r.yaml:2:1: reading YAML"},
		{"name: \xff\n", "the file is not UTF-8"},
		{"name: a\npackages: {numpy: 1.26}\n", "packages.numpy: 1.26 is a number"},
		{"name: a\npackages: {numpy: \">=1\"}\n", `packages.numpy: ">=1" is no version`},
		{"name: a\npackages: {numpy: \"1.26\", NumPy: \"1.25\"}\n", "names the same package as another key"},
		{"name: a\npackages: {tensorflow: \"2.19.1\"}\n", "packages names tensorflow itself"},
		{"name: a\npackages: {\"../x\": \"1\"}\n", "is no package name"},
		{"name: a\nenvironment: {\"A B\": x}\n", "is no variable name"},
		{"name: a\nenvironment: {A: true}\n", "environment.A must be text, found true or false"},
		{"name: a\nbytecode: maybe\n", `bytecode: "maybe" is not known; it is one of on, off`},
		{"name: a\ncompression: xz\n", "it is one of zstd, gzip"},
		{"name: a\ncompression: {algorithm: gzip, level: better}\n", "it is one of passthrough, default"},
		{"name: a\nfleet: {gpu: H200}\n", "r.yaml:2:9: fleet must be a list"},
		{"name: a\nfleet: [{}]\n", "a machine of the fleet says nothing"},
		{"name: a\nfleet: [{compute_capability: \"9\"}]\n", "compute_capability: \"9\" is not valid"},
		{"name: a\npublish: {tags: [x]}\n", "publish has no repository"},
		{"name: a\npublish: {repository: r, tags: [\"{oops}\"]}\n", `tag "{oops}" has a name that is not known`},
		{"name: a\npublish: {repository: r, tags: [\"-x\"]}\n", "which is no valid tag"},
		{"name: a\ninclude: []\n", "include must be a list with at least one entry"},
		{"name: a\ninclude:\n  - tensorflow: \"2.19.1\"\n", "r.yaml:3:5: an entry of include has no name"},
		{"name: a\ninclude:\n  - name: b\n    include: []\n", `r.yaml:4:5: unknown key "include" in an entry of include`},
		{"name: a\ninclude:\n  - b\n", "an item of include must be keys with values, found text"},
		{strings.Repeat("[", 100000), "nested too deeply"},
		{strings.Repeat("{a: ", 50000), "nested too deeply"},
		{strings.Repeat("- ", 100000) + "a", "nested too deeply"},
		{strings.Repeat("? ", 100000) + "a", "nested too deeply"},
		{"name: a\n" + strings.Repeat("#", 1<<20), "more than a recipe may have; the limit is 1 MiB"},
	} {
		_, err := Load("r.yaml", []byte(tc.text))
		var le *LoadError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.60q:\n got %v\nwant %s", tc.text, err, tc.want)
		}
	}
}

func TestLoadReportsAllProblems(t *testing.T) {
	_, err := Load("r.yaml", []byte("name: a\npython: 3.11\ncudaa: x\ncudnn: 9.3\n"))
	var le *LoadError
	if !errors.As(err, &le) || len(le.Problems) != 3 || le.Problems[0].Line != 2 || le.Problems[1].Line != 3 || le.Problems[2].Line != 4 {
		t.Errorf("got %v", err)
	}
	_, err = Load("r.yaml", []byte("name: a\ncuda: 12.5\ninclude: [{name: b}, {name: c}]\n"))
	if !errors.As(err, &le) || len(le.Problems) != 1 {
		t.Errorf("a shared problem is not reported once: %v", err)
	}
}

// TestLoadMutations cuts and garbles a good recipe: Load must answer, never panic, and errors keep their type.
func TestLoadMutations(t *testing.T) {
	refused := 0
	for i := 0; i < len(full); i++ {
		for _, m := range []string{full[:i], full[:i] + "\x00" + full[i:], full[:i] + "{" + full[i:], full[:i] + "\n- " + full[i+1:], full[:i] + ":" + full[i+1:]} {
			r, err := Load("r.yaml", []byte(m))
			var le *LoadError
			switch {
			case err != nil && !errors.As(err, &le):
				t.Fatalf("%q: error %T", m, err)
			case err != nil:
				refused++
			case len(r.Entries) != 1:
				t.Fatalf("%q: %d entries", m, len(r.Entries))
			}
		}
	}
	if refused < len(full) {
		t.Errorf("only %d mutations refused", refused)
	}
}

func TestChecksum(t *testing.T) {
	a := Checksum([]byte("name: a\nbase: b\n"))
	for _, same := range []string{"name: a\r\nbase: b\r\n", "\xef\xbb\xbfname: a\nbase: b", "name: a\nbase: b\n\n\n"} {
		if Checksum([]byte(same)) != a {
			t.Errorf("%q has another checksum", same)
		}
	}
	if Checksum([]byte("name: a\nbase: c\n")) == a {
		t.Error("another recipe has the same checksum")
	}
}

func TestQuickstartRecipe(t *testing.T) {
	raw, err := os.ReadFile("../../recipes/quickstart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Load("quickstart.yaml", raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Entries[0].Incomplete(); err != nil {
		t.Error(err)
	}
	if f := Lint(r.Entries, embedded(t), []string{"wheels"}); len(f) != 0 {
		t.Errorf("findings: %v", f)
	}
	cuda, cudnn := r.Entries[0].Pair(embedded(t))
	if got := fmt.Sprintf("%s %s/%s", r.Entries[0].TensorFlow.Version, cuda, cudnn); got != "2.19.1 12.5/9.3" {
		t.Errorf("it is %s", got)
	}
}
