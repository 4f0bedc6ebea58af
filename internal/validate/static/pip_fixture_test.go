package static

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/rootfs"
)

// pipFixture holds the ELF facts of the real wheels of several releases; testdata/README.md says how it is made.
const pipFixture = "testdata/pip-wheels.json.gz"

// pipWheels is the content of pipFixture. Paths are relative to site-packages.
type pipWheels struct {
	Sets   map[string][]string      `json:"sets"`   // release to file names of wheels
	Wheels map[string][]rootfs.Node `json:"wheels"` // file name to its ELF files and metadata directory
}

// TestWriteWheelFacts writes the facts of one wheel beside it, so that a wheel can be fetched, read and removed
// before the next one; it runs on demand only.
func TestWriteWheelFacts(t *testing.T) {
	file := os.Getenv("IMGSMITH_TEST_WHEEL")
	if file == "" || !*update {
		t.Skip("needs -update and IMGSMITH_TEST_WHEEL, a wheel")
	}
	nodes := slices.DeleteFunc(wheelNodes(t, file), func(n rootfs.Node) bool { return n.Type == rootfs.Regular && n.ELF == nil })
	for i := range nodes {
		nodes[i].Path = strings.TrimPrefix(nodes[i].Path, "./")
	}
	b, err := json.Marshal(nodes)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".json", b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWritePipFixture joins what TestWriteWheelFacts wrote: one RELEASE.set file with wheel names a line, and the
// facts of every wheel, all in one directory.
func TestWritePipFixture(t *testing.T) {
	dir := os.Getenv("IMGSMITH_TEST_WHEEL_FACTS")
	if dir == "" || !*update {
		t.Skip("needs -update and IMGSMITH_TEST_WHEEL_FACTS, a directory with *.set and *.whl.json")
	}
	out := pipWheels{Sets: map[string][]string{}, Wheels: map[string][]rootfs.Node{}}
	sets, err := filepath.Glob(filepath.Join(dir, "*.set"))
	if err != nil || len(sets) == 0 {
		t.Fatalf("no set in %s: %v", dir, err)
	}
	for _, s := range sets {
		b, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Fields(string(b))
		out.Sets[strings.TrimSuffix(filepath.Base(s), ".set")] = names
		for _, w := range names {
			b, err := os.ReadFile(filepath.Join(dir, w+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var nodes []rootfs.Node
			if err := json.Unmarshal(b, &nodes); err != nil {
				t.Fatal(err)
			}
			out.Wheels[w] = nodes
		}
	}
	var sb strings.Builder
	z := gzip.NewWriter(&sb)
	if err := json.NewEncoder(z).Encode(out); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), os.WriteFile(pipFixture, []byte(sb.String()), 0o644)); err != nil {
		t.Fatal(err)
	}
}
