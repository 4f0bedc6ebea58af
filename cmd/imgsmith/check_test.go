package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/elf"
	"imgsmith/internal/facts"
	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/static"
	"imgsmith/internal/view"
)

// pipRoot unpacks stubs of the real wheels of a release, in pip's layout, with the C library of a Debian 12.
func pipRoot(t *testing.T, release string) string {
	t.Helper()
	var wheels struct {
		Sets   map[string][]string
		Wheels map[string][]rootfs.Node
	}
	var base struct{ Base []rootfs.Node }
	for name, into := range map[string]any{"pip-wheels.json.gz": &wheels, "tensorflow-2.19.1-cp311.json.gz": &base} {
		f, err := os.Open(filepath.Join("../../internal/validate/static/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(json.NewDecoder(z).Decode(into), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	nodes := append(base.Base, rootfs.Node{Path: "etc/os-release", Type: rootfs.Regular, Data: []byte("ID=debian\n")}, rootfs.Node{Path: "lib64", Type: rootfs.Symlink, Link: "usr/lib/x86_64-linux-gnu"})
	for _, w := range wheels.Sets[release] {
		for _, n := range wheels.Wheels[w] {
			n.Path = "usr/local/lib/python3.11/site-packages/" + n.Path
			nodes = append(nodes, n)
		}
	}
	for _, n := range nodes {
		unpack(t, filepath.Join(root, n.Path), n)
	}
	return root
}

func unpack(t *testing.T, file string, n rootfs.Node) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	switch {
	case n.Type == rootfs.Dir:
		err = errors.Join(err, os.MkdirAll(file, 0o755))
	case n.Type == rootfs.Symlink:
		err = errors.Join(err, os.Symlink(n.Link, file))
	case n.ELF != nil && n.ELF.Type == "ET_DYN" && n.ELF.Class == 64:
		b, serr := elf.StubLibrary(*n.ELF)
		err = errors.Join(err, serr, os.WriteFile(file, b, 0o755))
	default:
		err = errors.Join(err, os.WriteFile(file, n.Data, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// imgsmith runs a command line as a user does.
func imgsmith(t *testing.T, args ...string) (stdout string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, env: func(string) string { return "" }}
	cmd := a.root()
	cmd.SetArgs(append([]string{"--store", filepath.Join(t.TempDir(), "none")}, args...))
	code = a.finish(cmd.ExecuteContext(t.Context()))
	return out.String() + errs.String(), code
}

// TestCheckCommand runs the command on trees of real wheels, in every format.
func TestCheckCommand(t *testing.T) {
	broken := pipRoot(t, "2.21.0")
	out, code := imgsmith(t, "check", "dir:"+broken, "--trace", "libcusolver.so.11")
	for _, w := range []string{"the files are wrong", "failed static.dlopen: libcusolver.so.11", "the file is at /usr/local/lib/python3.11/site-packages/nvidia/cusolver/lib/libcusolver.so.11",
		"found    tensorflow 2.21.0", "trace      no place has it", "1 failed (exit 3)"} {
		if code != exitFailed || !strings.Contains(out, w) {
			t.Errorf("exit %d, no %q in:\n%.6000s", code, w, out)
		}
	}
	out, code = imgsmith(t, "check", broken, "--format", "sarif")
	var sarif struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct{ Rules []struct{ ID string } }
			}
			Results []struct {
				RuleID, Level string
				Message       struct{ Text string }
				Locations     []map[string]any
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &sarif); err != nil || code != exitFailed {
		t.Fatalf("exit %d, %v", code, err)
	}
	told := false
	for _, r := range sarif.Runs[0].Results {
		told = told || r.RuleID == "static.dlopen" && r.Level == "error" && strings.Contains(r.Message.Text, "Remedy: the file is at ") && len(r.Locations) == 1
		if !slices.ContainsFunc(sarif.Runs[0].Tool.Driver.Rules, func(x struct{ ID string }) bool { return x.ID == r.RuleID }) {
			t.Errorf("rule %s is not listed", r.RuleID)
		}
	}
	if !told || sarif.Version != "2.1.0" {
		t.Errorf("SARIF %s lacks the finding", sarif.Version)
	}
	out, _ = imgsmith(t, "check", broken, "--format", "junit")
	var junit struct {
		Suites []struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Cases    []struct {
				Class   string `xml:"classname,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(out), &junit); err != nil || len(junit.Suites) != 1 || junit.Suites[0].Failures == 0 || junit.Suites[0].Tests != len(junit.Suites[0].Cases) {
		t.Errorf("JUnit %v: %+v", err, junit)
	}
	out, _ = imgsmith(t, "check", broken, "--json")
	d, err := report.ReadJSON(strings.NewReader(out))
	if err != nil || d.ExitCode != exitFailed || d.Entries[0].Check == nil || d.Entries[0].Check.Entry == "" {
		t.Errorf("JSON %v: %+v", err, d)
	}
	if _, code = imgsmith(t, "check", t.TempDir()); code != exitNotProved {
		t.Errorf("a directory without TensorFlow ends with %d", code)
	}
	if _, code = imgsmith(t, "check", broken, "--format", "xml"); code != exitUsage {
		t.Errorf("an unknown format ends with %d", code)
	}
	if out, code = imgsmith(t, "check", broken, "--max-files", "10"); code != exitError || !strings.Contains(out, "--max-files") {
		t.Errorf("too many files end with %d: %s", code, out)
	}
}

// TestControlCharacters keeps names of an image from acting on a terminal.
func TestControlCharacters(t *testing.T) {
	root := pipRoot(t, "2.16.2")
	if err := os.WriteFile(filepath.Join(root, "usr/local/lib/python3.11/site-packages/libe\x1b[2Jvil.so"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"terminal", "sarif", "junit", "json"} {
		if out, _ := imgsmith(t, "check", root, "--format", format); strings.Contains(out, "\x1b") || !strings.Contains(out, "vil.so") {
			t.Errorf("%s: control characters, or the file is not told", format)
		}
	}
}

// TestChild compares an image with the layers of the base that imgsmith made.
func TestChild(t *testing.T) {
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	lay, err := layout.Shipped("wheels")
	if err != nil {
		t.Fatal(err)
	}
	at, err := lay.At(layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	m := manifest{SchemaVersion: 1, Target: matrix.Target{Entry: "quickstart"}, Layers: []manifestLayer{{DiffID: "sha256:1"}, {DiffID: "sha256:2"}}}
	file := rootfs.Node{Path: manifestPath, Type: rootfs.Regular, Data: []byte("{}")}
	layers := func(ids ...string) []view.Layer {
		var out []view.Layer
		for _, id := range ids {
			l := view.Layer{DiffID: "sha256:" + id, CreatedBy: "step " + id}
			if id == "last" {
				l.Nodes = rootfs.Layer{file}
			}
			out = append(out, l)
		}
		return out
	}
	harmless := view.Layer{CreatedBy: "COPY app", Nodes: rootfs.Layer{{Path: "app/main.py", Type: rootfs.Regular}}}
	touching := view.Layer{CreatedBy: "pip install torch", Nodes: rootfs.Layer{{Path: at.Site + "/torch/x.so", Type: rootfs.Regular}, {Path: "usr/lib/x86_64-linux-gnu/libz.so.1", Type: rootfs.Regular}}}
	for name, c := range map[string]struct {
		layers  []view.Layer
		outcome validate.Outcome
		words   string
	}{
		"itself":           {layers("base", "1", "2", "cache", "last"), validate.OutcomePassed, "is entry quickstart"},
		"harmless child":   {append(layers("base", "1", "2", "last"), harmless), validate.OutcomePassed, "1 layers with 1 changes, of which 0 touch"},
		"touching child":   {append(layers("base", "1", "2", "last"), harmless, touching), validate.OutcomePassed, "2 layers with 3 changes, of which 2 touch"},
		"squashed":         {layers("all", "last"), validate.OutcomeFailed, "does not name the image's own layers"},
		"order of another": {layers("base", "2", "1", "last"), validate.OutcomeFailed, "does not name"},
	} {
		var nodes []rootfs.Layer
		for _, l := range c.layers {
			nodes = append(nodes, l.Nodes)
		}
		tree, err := rootfs.Apply(nodes...)
		if err != nil {
			t.Fatal(err)
		}
		x := checking{table: table, img: view.Image{Layers: c.layers, Tree: tree}, in: static.Input{Expect: static.Expect{Venv: at.Venv, CUDARoot: at.CUDARoot, SitePackages: at.Site}}}
		got := x.child(m)
		if len(got) != 1 || got[0].Outcome != c.outcome || !strings.Contains(got[0].Message, c.words) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"6GB": 6e9, "1.5 GiB": 3 << 29, "100": 100, "2M": 2 << 20, "": 0, "-1GB": 0, "x": 0, "1XB": 0} {
		if got, err := parseSize(s); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d %v", s, got, err)
		}
	}
}
