package derive

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"

	"imgsmith/internal/facts"
)

// TestRealWheels compares the table with the wheels in a directory. make facts-check fetches them one at a time
// and runs this test on each.
func TestRealWheels(t *testing.T) {
	dir := os.Getenv("IMGSMITH_FACTS_WHEELS")
	if dir == "" {
		t.Skip("IMGSMITH_FACTS_WHEELS names no directory with real TensorFlow wheels; make facts-check fetches them")
	}
	files, err := filepath.Glob(filepath.Join(dir, "tensorflow-*.whl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no TensorFlow wheel in %s: %v", dir, err)
	}
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		o, err := Wheel(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if out := os.Getenv("IMGSMITH_FACTS_OUT"); out != "" {
			keep(t, out, o, table)
		}
		diffs, err := Check(table, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range diffs {
			t.Errorf("TensorFlow %s: %s", o.Version, d)
		}
		t.Logf("TensorFlow %s compared, %d libraries", o.Version, o.Libraries.Count)
	}
}

func keep(t *testing.T, dir string, o *Observed, table *facts.Table) {
	t.Helper()
	doc, err := Make(o, table)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, o.Version+".yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}
