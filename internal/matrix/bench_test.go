package matrix

import (
	"fmt"
	"strings"
	"testing"

	"imgsmith/internal/facts"
)

// thousand is a recipe whose axes make 1,000 cells.
func thousand() []byte {
	var users []string
	for i := range 10 {
		users = append(users, fmt.Sprintf("%q", fmt.Sprint(1000+i)))
	}
	return []byte(`name: thousand
schema_version: 1
base: debian:12
fleet: [{gpu: H200, driver: "580.159.04"}, {gpu: RTX 4090, driver: "535.104.05"}]
packages: {numpy: "1.26.4"}
publish: {repository: team/tensorflow, tags: ["{entry}"]}
impossible: drop
axes:
  tensorflow: "2.17..2.21"
  python: "3.9..3.13"
  cuda: [auto, "12.5", "12.6", "12.8"]
  user: [` + strings.Join(users, ", ") + "]\n")
}

// BenchmarkLint is the work of imgsmith lint on 1,000 cells: facts, loading, expansion, rules. The figure in
// docs/recipe.md comes from here.
func BenchmarkLint(b *testing.B) {
	data := thousand()
	b.ReportAllocs()
	for b.Loop() {
		table, err := facts.Embedded()
		if err != nil {
			b.Fatal(err)
		}
		r, problems := Read("r.yaml", data)
		if len(problems) > 0 {
			b.Fatal(problems)
		}
		r.Lint(table, nil)
		if n := len(r.Entries) + len(r.Dropped); n != 1000 {
			b.Fatalf("%d cells", n)
		}
	}
}

// BenchmarkLock is what plan reads beside the recipe: the lock of 1,000 entries with 50 wheels each.
func BenchmarkLock(b *testing.B) {
	r, err := Load("r.yaml", thousand())
	if err != nil {
		b.Fatal(err)
	}
	var targets []Target
	for _, e := range r.Entries {
		t := sampleTarget()
		t.Entry, t.Wheels = e.Name, nil
		for i := range 50 {
			t.Wheels = append(t.Wheels, Wheel{Name: fmt.Sprintf("package-%d", i), Version: "1.2.3", File: fmt.Sprintf("package_%d-1.2.3-py3-none-any.whl", i), SHA256: strings.Repeat("a", 64), Size: 1 << 20})
		}
		targets = append(targets, t)
	}
	data, err := NewLock(r, targets, nil).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		l, err := LoadLock("r.lock.yaml", data)
		if err != nil || len(l.Targets) != 1000 {
			b.Fatal(err)
		}
	}
}

// BenchmarkFacts is the part of BenchmarkLint that does not depend on the matrix.
func BenchmarkFacts(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := facts.Embedded(); err != nil {
			b.Fatal(err)
		}
	}
}
