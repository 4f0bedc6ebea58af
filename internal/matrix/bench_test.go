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

// BenchmarkFacts is the part of BenchmarkLint that does not depend on the matrix.
func BenchmarkFacts(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := facts.Embedded(); err != nil {
			b.Fatal(err)
		}
	}
}
