package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"imgsmith/internal/fakegpu"
)

// TestTwoBuildsShareAStore starts two builds that need the same steps: who has the engine and who has the lock of
// a layer must not wait for each other.
func TestTwoBuildsShareAStore(t *testing.T) {
	r := need(t).filled(t)
	removed := 0
	files, err := filepath.Glob(filepath.Join(r.store, "components", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(`"name": "bytecode-`)) || bytes.Contains(data, []byte(`"name": "loader-cache"`)) || bytes.Contains(data, []byte(`"name": "venv"`)) {
			removed++
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if removed < 3 {
		t.Fatalf("%d steps to run: this test sees nothing", removed)
	}
	recipe := r.recipe("good", fakegpu.Good, "")
	var digests []string
	both := []*process{r.imgsmith("build", "--stage-only", "--json", "--matrix", recipe), r.imgsmith("build", "--stage-only", "--json", "--matrix", recipe)}
	for _, p := range both {
		d := p.document()
		if d.ExitCode != 0 || d.Entries[0].Image == nil {
			t.Fatalf("exit code %d\n%s", d.ExitCode, p.err.String())
		}
		digests = append(digests, d.Entries[0].Image.Digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("the two builds staged %v", digests)
	}
}
