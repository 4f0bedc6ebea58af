package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"imgsmith/internal/wheel/wheeltest"
)

// command runs one command line and returns exit code, standard output and standard error.
func command(t *testing.T, words ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, env: func(string) string { return "" }}
	cmd := a.root()
	cmd.SetArgs(words)
	code = a.finish(cmd.ExecuteContext(t.Context()))
	return code, out.String(), errs.String()
}

func TestExplainCommand(t *testing.T) {
	code, out, _ := command(t, "explain", "gpu=RTX 4090", "driver=535.104.05")
	if code != exitOK || !strings.HasPrefix(out, "TensorFlow on RTX 4090 with driver 535.104.05 — works: 2.21.0") || !strings.Contains(out, "\nSources\n  [1] ") {
		t.Errorf("%d\n%s", code, out)
	}
	code, out, _ = command(t, "explain", "tensorflow==2.21", "gpu=RTX 5090", "--json")
	var answer struct {
		SchemaVersion int `json:"schema_version"`
		Releases      []struct{ Verdict string }
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || code != exitOK || answer.SchemaVersion != 1 || answer.Releases[0].Verdict != "unproved" {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	for _, words := range [][]string{{"gpu=Voodoo"}, {"colour=blue"}, {"gpu"}, {"driver=535", "driver=550"}, {"tensorflow=9.9"}, {"driver="}, {}} {
		if code, out, errs := command(t, append([]string{"explain"}, words...)...); code != exitUsage || out != "" || errs == "" {
			t.Errorf("%v: %d %q %q", words, code, out, errs)
		}
	}
}

func TestFactsDeriveCommand(t *testing.T) {
	dir := t.TempDir()
	w := wheeltest.Wheel{Name: "not-tensorflow", Version: "1.0"}
	data, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, w.FileName())
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := command(t, "facts", "derive", file); code != exitError || out != "" || !strings.Contains(errs, "not a TensorFlow wheel") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, _, _ := command(t, "facts", "derive"); code != exitUsage {
		t.Errorf("no wheel: %d", code)
	}
}

// A new release in an overlay is known to explain and lint without another program.
func TestFactsOverlay(t *testing.T) {
	dir := t.TempDir()
	row := `schema_version: 1
tensorflow:
  - minor: "2.22"
    releases: ["2.22.0"]
    python: {min: "3.10", max: "3.13"}
    cuda: {tested: "12.5", major: 12}
    cudnn: {tested: "9.3", major: 9, compiled: "9.3.0"}
    gpu_code: {sass: ["8.0", "9.0"], ptx: ["9.0"], min_compute_capability: "8.0"}
    min_glibc: "2.27"
    dlopen_set: cuda12-cudnn9
    source: "a test"
    confidence: verified
`
	if err := os.WriteFile(filepath.Join(dir, "tf.yaml"), []byte(row), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command(t, "explain", "tensorflow=2.22.0"); code != exitUsage || !strings.Contains(errs, "known are 2.4.0") {
		t.Errorf("without the overlay: %d %q", code, errs)
	}
	if code, out, errs := command(t, "--facts", dir, "explain", "tensorflow=2.22.0", "gpu=T4"); code != exitOK || !strings.Contains(out, "does not work") || !strings.Contains(out, "a test (verified)") {
		t.Errorf("%d %q\n%s", code, errs, out)
	}
	recipe := filepath.Join(dir, "r.yml")
	if err := os.WriteFile(recipe, []byte("name: a\nbase: debian:12\npython: \"3.11\"\ntensorflow: \"2.22.0\"\nfleet: [{gpu: A100, driver: \"550.54.15\"}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := command(t, "--facts", dir, "lint", recipe); code != exitOK {
		t.Errorf("lint: %d %s %s", code, out, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "tf.yaml"), []byte(strings.Replace(row, "dlopen_set: cuda12-cudnn9", "dlopen_set: nobody-knows", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command(t, "--facts", dir, "lint", recipe); code != exitUsage || !strings.Contains(errs, "nobody-knows") || !strings.Contains(errs, "remedy:") {
		t.Errorf("bad overlay: %d %q", code, errs)
	}
}
