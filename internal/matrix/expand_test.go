package matrix

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const product = `name: p
schema_version: 1
defaults: {user: "1000", memory: {growth: on, allocator: cuda_malloc_async}}
entry_name: tf{tensorflow}-py{python}-{base}
impossible: drop
axes:
  tensorflow: ["2.16..2.17", "2.19.1"]
  base: [debian:12, ubuntu:24.04]
  python: auto
exclude:
  - {tensorflow: "2.16", base: ubuntu:24.04, reason: nobody asked for it}
  - {tensorflow: "2.30..2.31", reason: not there}
include:
  - {name: own, tensorflow: "2.18.0", base: debian:12, python: "3.11"}
`

func TestProduct(t *testing.T) {
	r := mustLoad(t, product)
	all := r.Lint(embedded(t), nil)
	var got []string
	for _, e := range r.Entries {
		got = append(got, fmt.Sprintf("%s: %s %s %s %s line %d", e.Name, e.TensorFlow.Version, e.Base, e.Python.Version, e.User, e.Line("tensorflow")))
	}
	want := []string{
		"tf2.16-py3.11-debian-12: 2.16 debian:12 3.11 1000 line 7",
		"tf2.17-py3.11-debian-12: 2.17 debian:12 3.11 1000 line 7",
		"tf2.17-py3.12-ubuntu-24.04: 2.17 ubuntu:24.04 3.12 1000 line 7",
		"tf2.19.1-py3.11-debian-12: 2.19.1 debian:12 3.11 1000 line 7",
		"tf2.19.1-py3.12-ubuntu-24.04: 2.19.1 ubuntu:24.04 3.12 1000 line 7",
		"own: 2.18.0 debian:12 3.11 1000 line 14",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(r.Dropped) != 1 || r.Dropped[0].Rule != "exclude" || r.Dropped[0].Reason != "nobody asked for it" || r.Dropped[0].Line != 11 {
		t.Errorf("dropped %+v", r.Dropped)
	}
	if len(all) != 1 || all[0].Rule != "exclude-unused" || all[0].Line != 12 || Refused(all) {
		t.Errorf("findings %v", all)
	}
	if d := cmp.Diff(map[string]string{"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_GPU_ALLOCATOR": "cuda_malloc_async"}, r.Entries[0].Variables()); d != "" {
		t.Error(d)
	}
}

// TestDrop: cells that cannot work leave the product when the recipe says so, with the rule's reason and source.
func TestDrop(t *testing.T) {
	const text = "name: d\nbase: ubuntu:24.04\nimpossible: %s\naxes: {tensorflow: [\"2.15\", \"2.19\"], python: auto}\n"
	r := mustLoad(t, fmt.Sprintf(text, "drop"))
	if all := r.Lint(embedded(t), nil); len(all) != 0 {
		t.Errorf("findings %v", all)
	}
	if len(r.Entries) != 1 || r.Entries[0].Name != "d-2.19" || len(r.Dropped) != 1 || r.Dropped[0].Rule != "python-range" ||
		!strings.Contains(r.Dropped[0].Reason, "has no wheel for Python 3.12") || r.Dropped[0].Source == "" {
		t.Errorf("entries %v, dropped %+v", r.Entries, r.Dropped)
	}
	r = mustLoad(t, fmt.Sprintf(text, "refuse"))
	if all := r.Lint(embedded(t), nil); !Refused(all) || len(r.Entries) != 2 {
		t.Errorf("findings %v", all)
	}
	r = mustLoad(t, "name: d\nimpossible: drop\naxes: {tensorflow: [\"2.15\"], python: [\"3.13\"]}\n")
	if all := r.Lint(embedded(t), nil); !Refused(all) || all[0].Rule != "no-entry" {
		t.Errorf("no entry is left, findings %v", all)
	}
}

// TestAllow: an override lifts the refusal, keeps the finding, and is recorded; one that lifts nothing is told.
func TestAllow(t *testing.T) {
	r := mustLoad(t, "name: a\ntensorflow: \"2.15.1\"\ncuda: \"12.2\"\ncudnn: \"8.8\"\nallow:\n  - {rule: cudnn-minor, reason: patched build}\n  - {rule: start-gate, reason: no gate}\n")
	all := r.Lint(embedded(t), nil)
	if Refused(all) {
		t.Errorf("refused: %v", all)
	}
	if d := cmp.Diff([]Override{{"cudnn-minor", "patched build"}}, Overrides("a", all)); d != "" {
		t.Error(d)
	}
	if f := all[len(all)-1]; f.Rule != "allow-unused" || f.Line != 7 || f.Severity != Note {
		t.Errorf("got %v", all)
	}
}

// TestBounded: a product of a billion cells is refused before it is expanded, with the count and the axis to cut.
func TestBounded(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"name: a\naxes: {tensorflow: \"2.0..2.999\", python: \"3.0..3.999\", cuda: \"12.0..12.999\"}\n",
			"r.yaml:2:8: the axes make 1000000000 cells, a recipe may have 10000; cut the axis tensorflow, which has 1000 values"},
		{"name: a\naxes: {python: \"3.0..3.9\", cuda: \"0.0..0.99999999\", cudnn: \"9.0..9.99999999\", tensorflow: \"2.0..2.99999999\"}\n",
			"the axes make 10000000000000000000000000 cells"},
		{"name: a\naxes: {user: [" + strings.TrimSuffix(strings.Repeat("\"u\", ", 10001), ", ") + "]}\n", "the axes make 10001 cells"},
	} {
		_, err := Load("r.yaml", []byte(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v\nwant %s", err, tc.want)
		}
	}
}

func TestAxesRefused(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"axes: {}", "axes names no axis"},
		{"axes: [a]", "axes must be keys with values, found a list"},
		{"axes: {tensorflow: []}", "axis tensorflow has no value"},
		{"axes: {tensorflow: 2.10}", `tensorflow: 2.10 is a number for YAML, which would change 3.10 to 3.1; write "2.10"`},
		{"axes: {tensorflow: \"2.21..2.15\"}", `tensorflow: "2.21..2.15" is no range; write MAJOR.MINOR..MAJOR.MINOR of one major, the lower first`},
		{"axes: {tensorflow: \"2.9..3.1\"}", "is no range"},
		{"axes: {tensorflow: \"2.9..\"}", "is no range"},
		{"axes: {tensorflow: [\"2.15\", \"2.15\"]}", "axis tensorflow has 2.15 twice"},
		{"axes: {tensorflw: [\"2.15\"]}", `unknown key "tensorflw" in axes; did you mean "tensorflow"?`},
		{"tensorflow: \"2.15\"\naxes: {tensorflow: [\"2.15\"]}", "tensorflow is an axis and a default"},
		{"user: a\ndefaults: {user: b}", "user is among the defaults and at the top"},
		{"defaults: {name: b}", `unknown key "name" in defaults`},
		{"exclude: []", "exclude has no meaning without axes"},
		{"axes: {python: auto}\nexclude: [{python: auto}]", "an item of exclude has no reason"},
		{"axes: {python: auto}\nexclude: [{reason: x}]", "an item of exclude names no axis"},
		{"axes: {python: auto}\nexclude: [{cuda: \"12.5\", reason: x}]", `unknown key "cuda" in an item of exclude`},
		{"axes: {python: auto}\nexclude: [{python: auto, reason: x}]", "no cell is left"},
		{"axes: {python: auto}\nentry_name: \"{nope}\"", `entry_name: "{nope}" has a name that is not known`},
		{"schema_version: 2", "schema_version is not known; this build reads version 1"},
		{"schema_version: \"1\"", "schema_version is not known"},
		{"allow: [{rule: nope, reason: x}]", `allow: there is no rule "nope"`},
		{"allow: [{rule: cuda-minr, reason: x}]", `did you mean "cuda-minor"?`},
		{"allow: [{rule: platform, reason: x}]", `allow: rule "platform" cannot be overridden`},
		{"allow: [{rule: cuda-minor}]", "an item of allow has no reason"},
		{"allow: x", "allow must be a list, found text"},
		{"labels: {imgsmith.entry: x}", `labels: "imgsmith.entry" is set by imgsmith itself`},
		{"policy: {thresholds: {memory_ratio_min: \"1\"}}", "policy.thresholds.memory_ratio_min must be a number, found text"},
		{"policy: {thresholds: {memory_ratio_min: -1}}", "is out of range"},
		{"policy: {thresholds: {nope: 1}}", `unknown key "nope" in policy.thresholds`},
		{"memory: {allocator: mine}", `memory.allocator: "mine" is not known`},
		{"os_packages: [\"a b\"]", `os_packages: "a b" is not valid`},
		{"os_packages: [curl, curl]", "os_packages names curl twice"},
		{"flavor: big", "it is one of runtime, devel, jupyter"},
		{"keras: old", "it is one of legacy, auto"},
	} {
		_, err := Load("r.yaml", []byte("name: a\n"+tc.text+"\n"))
		var le *LoadError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q:\n got %v\nwant %s", tc.text, err, tc.want)
		}
	}
}

// TestBadFiles is what a file can be that is no recipe; every answer has a place or a size.
func TestBadFiles(t *testing.T) {
	bomb := "name: a\na: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'i'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), ", "))
	}
	for name, tc := range map[string]struct{ text, want string }{
		"empty":        {"", "the file is empty"},
		"tab":          {"name: a\n\tbase: b\n", "r.yaml:2:1: reading YAML"},
		"duplicate":    {"name: a\ncuda: auto\ncuda: auto\n", `r.yaml:3:1: reading YAML: mapping key "cuda" already defined`},
		"10 MiB":       {"name: a\n" + strings.Repeat("# filler\n", 10<<20/9), "more than a recipe may have; the limit is 1 MiB"},
		"alias bomb":   {bomb, "r.yaml:2:1: unknown key"},
		"platform":     {"name: a\nplatform: {os: linux}\n", "platform must be text"},
		"invalid tag":  {"name: a\npublish: {repository: r, tags: [\"a b\"]}\n", "which is no valid tag"},
		"wrong types":  {"name: a\nfleet: yes\nbytecode: [1]\nuser: 1000\n", "r.yaml:4:7: user: 1000 is a number"},
		"merge key":    {"name: a\n<<: {b: c}\n", "r.yaml:2:1"},
		"not a number": {"name: a\ncuda: .nan\n", "r.yaml:2:7"},
	} {
		_, err := Load("r.yaml", []byte(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %.400v\nwant %s", name, err, tc.want)
		}
	}
	r := mustLoad(t, "name: a\nplatform: plan9/vax\ntensorflow: \"2.19.1\"\n")
	if all := r.Lint(embedded(t), nil); !Refused(all) || all[0].Rule != "platform" || all[0].Line != 2 {
		t.Errorf("impossible platform: %v", all)
	}
}

// FuzzLoad: whatever the bytes, Load answers with a recipe or with problems that have a message.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{full, product, "name: a\naxes: {tensorflow: \"2.1..2.9\"}\n", "a: &a [*a]\n", "? a\n: b\n", "name: a\ninclude: [{name: b}]\n", "- - - a", "\xef\xbb\xbfname: a\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, problems := Read("r.yaml", data)
		for _, p := range problems {
			if p.Message == "" || p.File != "r.yaml" {
				t.Errorf("%q: problem %+v", data, p)
			}
		}
		if r == nil && len(problems) == 0 {
			t.Errorf("%q: no recipe and no problem", data)
		}
		if r != nil && len(r.Entries)+len(r.Dropped) > maxCells+maxEntries {
			t.Errorf("%q: %d entries", data, len(r.Entries))
		}
	})
}

// FuzzRange: a range that is read has bounds in order, and its text means the same again.
func FuzzRange(f *testing.F) {
	for _, seed := range []string{"2.15..2.21", "3.9..3.9", "..", "2..3", "2.1...2.3", "02.1..2.3", "2.-1..2.3", "999999999999.1..1.2", "2.1 .. 2.3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		major, from, to, ok := parseRange(s)
		if !ok {
			return
		}
		if major < 0 || from < 0 || from > to || to > math.MaxInt32 {
			t.Errorf("%q: %d.%d..%d", s, major, from, to)
		}
		m, a, b, again := parseRange(fmt.Sprintf("%d.%d..%d.%d", major, from, major, to))
		if !again || m != major || a != from || b != to {
			t.Errorf("%q is another range when written again", s)
		}
	})
}
