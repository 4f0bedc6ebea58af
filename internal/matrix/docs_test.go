package matrix

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const docsFile = "../../docs/recipe.md"

// ruleTable is the table of the rules as docs/recipe.md has it.
func ruleTable() string {
	var b strings.Builder
	b.WriteString("| no. | rule | what must hold | severity | overridable | remedy |\n|---|---|---|---|---|---|\n")
	for _, r := range Rules() {
		number := "–"
		if r.Number > 0 {
			number = fmt.Sprint(r.Number)
		}
		var severities []string
		for _, s := range r.Severities {
			severities = append(severities, string(s))
		}
		override := map[bool]string{true: "yes", false: "no"}[r.Override]
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s | %s |\n", number, r.ID, r.Title, strings.Join(severities, ", "), override, r.Remedy)
	}
	return b.String()
}

// TestDocs: the table of rules in the documentation is the one of the code, and every key is explained.
func TestDocs(t *testing.T) {
	data, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if *update {
		start, end := strings.Index(text, "| no. | rule |"), strings.Index(text, "\n## Lock")
		if start < 0 || end < start {
			t.Fatal("docs/recipe.md has no table of rules")
		}
		text = text[:start] + ruleTable() + text[end:]
		if err := os.WriteFile(docsFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(text, ruleTable()) {
		t.Error("the table of rules is not that of the code: run go test ./internal/matrix -run TestDocs -update")
	}
	for _, key := range append(entryKeys(), topKeys()...) {
		if !strings.Contains(text, "`"+key+"`") {
			t.Errorf("key %s is not explained", key)
		}
	}
	for _, name := range tagNames() {
		if !strings.Contains(text, "`{"+name+"}`") {
			t.Errorf("tag name %s is not explained", name)
		}
	}
}

// TestRules: the 23 rules of the list are all there; ids are unique; each says what to do.
func TestRules(t *testing.T) {
	numbers, ids := map[int]bool{}, map[string]bool{}
	for _, r := range Rules() {
		if ids[r.ID] || r.ID == "" || r.Title == "" || r.Remedy == "" || len(r.Severities) == 0 {
			t.Errorf("rule %+v", r)
		}
		ids[r.ID], numbers[r.Number] = true, true
	}
	for n := 1; n <= 23; n++ {
		if !numbers[n] {
			t.Errorf("no rule has number %d", n)
		}
	}
}

// TestPipFacts: the file of the package facts parses, and every row has a source.
func TestPipFacts(t *testing.T) {
	p := pips()
	if p.SchemaVersion != 1 || len(p.LayoutFaults) < 2 || len(p.Tags) != 3 || p.Keras.From != "2.16" || len(p.CuDNNPins) == 0 || len(p.Limits) == 0 {
		t.Fatalf("got %+v", p)
	}
	for _, f := range p.LayoutFaults {
		if f.Source == "" || f.Confidence == "" || len(f.Releases) == 0 {
			t.Errorf("row %+v", f)
		}
	}
}
