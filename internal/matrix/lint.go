package matrix

import (
	"fmt"
	"slices"

	"imgsmith/internal/facts"
)

// Severity is what a finding means for the entry.
type Severity string

// The severities, from the worst on. Refuse and RefuseStart end with exit code 2; Unproved means staging only,
// published with proof on that GPU class; Warn stops nothing.
const (
	Refuse      Severity = "refuse"       // cannot work, for a known reason
	RefuseStart Severity = "refuse-start" // valid image, but the declared fleet cannot start it
	Unproved    Severity = "unproved"     // nothing is known against it, nothing for it either
	Warn        Severity = "warn"
	Note        Severity = "note" // worth knowing, never a reason to stop
)

// Finding is one thing the facts say about an entry.
type Finding struct {
	Entry      string   `json:"entry"`
	Rule       string   `json:"rule"` // stable id
	Severity   Severity `json:"severity"`
	Message    string   `json:"message"`
	Remedy     string   `json:"remedy,omitempty"`
	Nearest    string   `json:"nearest,omitempty"` // recipe line of the nearest entry that would work
	Source     string   `json:"source"`
	Confidence string   `json:"confidence,omitempty"`
	File       string   `json:"file"`
	Allowed    string   `json:"allowed,omitempty"` // the recipe's reason for overriding the rule
	Line       int      `json:"line"`
	Column     int      `json:"column"`
	Excerpt    string   `json:"excerpt,omitempty"` // the line with a mark below the column, for faults of the file
}

// String is one line for a terminal: place, severity, rule, message, nearest entry and source.
func (f Finding) String() string {
	s := fmt.Sprintf("%s:%d:%d: entry %q: %s (%s): %s", f.File, f.Line, f.Column, f.Entry, f.Severity, f.Rule, f.Message)
	if f.Nearest != "" {
		s += "; nearest that works: " + f.Nearest
	}
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	if f.Allowed != "" {
		s += "; overridden: " + f.Allowed
	}
	if f.Source != "" {
		s += " [" + f.Source + "]"
	}
	return s
}

// refuses tells whether the finding stops its entry: an override lifts it.
func (f Finding) refuses() bool {
	return f.Allowed == "" && (f.Severity == Refuse || f.Severity == RefuseStart)
}

// Refused tells whether any finding refuses its entry.
func Refused(findings []Finding) bool { return slices.ContainsFunc(findings, Finding.refuses) }

// Lint judges entries against the facts, without network and daemon. layouts are the names of the image
// layouts that exist; nil leaves names unchecked. An empty result means that nothing is known against any
// entry. Findings come in the order of the entries.
func Lint(entries []Entry, table *facts.Table, layouts []string) []Finding {
	var out []Finding
	for _, e := range entries {
		c := newCheck(e, table, layouts)
		for _, rule := range rules() {
			rule(c)
		}
		c.override()
		out = append(out, c.findings...)
	}
	out = append(out, lintTogether(entries, table)...)
	remedies := map[string]string{}
	for _, r := range Rules() {
		remedies[r.ID] = r.Remedy
	}
	for i := range out {
		out[i].Remedy = remedies[out[i].Rule]
	}
	return out
}

func newCheck(e Entry, table *facts.Table, layouts []string) *check {
	c := &check{e: e, facts: table, layouts: layouts}
	c.tf, c.known = table.TensorFlow(e.TensorFlow.Version)
	if i, err := table.Image(e.Base); err == nil {
		c.image = &i
	}
	c.cuda, c.cudnn = e.Pair(table)
	if c.image != nil { // what the image brings is there, whatever the recipe thinks
		if auto(e.CUDA) {
			c.cuda = c.image.CUDA
		}
		if auto(e.CuDNN) && c.image.CuDNN != "" {
			c.cudnn = c.image.CuDNN
		}
	}
	return c
}

// override marks the findings that the recipe overrides, and tells of overrides that have nothing to do.
func (c *check) override() {
	for _, a := range c.e.Allow {
		used := false
		for i := range c.findings {
			if c.findings[i].Rule == a.Rule {
				c.findings[i].Allowed, used = a.Reason, true
			}
		}
		if !used && a.Rule != "" {
			c.addAt(a.Line, a.Column, "allow-unused", Note, own("overrides are kept in lock, labels and documents"), "", "nothing is found by rule %s, which allow overrides", a.Rule)
		}
	}
}

// Overrides are the rules that the findings of an entry override, each once, for lock, labels and documents.
func Overrides(entry string, findings []Finding) []Override {
	var out []Override
	for _, f := range findings {
		o := Override{f.Rule, f.Allowed}
		if f.Entry == entry && f.Allowed != "" && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	return out
}

// Lint settles a recipe and judges its entries. Cells that cannot work leave the entries when the recipe says so,
// each with its reason; what was overridden stays.
func (r *Recipe) Lint(table *facts.Table, layouts []string) []Finding {
	r.Settle(table)
	findings := Lint(r.Entries, table, layouts)
	if r.Impossible == DropCells {
		findings = r.drop(findings)
	}
	for _, x := range r.Excludes {
		if x.Used == 0 {
			findings = append(findings, r.note(x.Line, x.Column, "exclude-unused", Note, "this exclude matches no cell"))
		}
	}
	if len(r.Entries) == 0 {
		findings = append(findings, r.note(0, 0, "no-entry", Refuse, "no cell of the recipe can work"))
	}
	return findings
}

func (r *Recipe) note(line, column int, rule string, s Severity, message string) Finding {
	known, _ := RuleByID(rule)
	return Finding{Entry: r.Name, Rule: rule, Severity: s, Message: message, Remedy: known.Remedy, Source: own("the recipe itself").Source, File: r.File, Line: line, Column: column}
}

// drop takes refused cells out of the entries and their findings out of the list.
func (r *Recipe) drop(findings []Finding) []Finding {
	first := map[string]Finding{}
	for _, f := range findings {
		if _, seen := first[f.Entry]; f.refuses() && !seen {
			first[f.Entry] = f
		}
	}
	gone := map[string]bool{}
	r.Entries = slices.DeleteFunc(r.Entries, func(e Entry) bool {
		f, refused := first[e.Name]
		if !refused || e.Cell == nil || f.Rule == "entry-name" || f.Rule == "entry-tag" {
			return false
		}
		gone[e.Name] = true
		r.Dropped = append(r.Dropped, Dropped{Name: e.Name, Cell: e.Cell, Rule: f.Rule, Reason: f.Message, Source: f.Source, Line: f.Line})
		return true
	})
	return slices.DeleteFunc(findings, func(f Finding) bool { return gone[f.Entry] })
}

// Pair returns CUDA and cuDNN of an entry as versions: what it states, or for auto what its TensorFlow release
// was tested with. Empty when neither is known.
func (e Entry) Pair(table *facts.Table) (cuda, cudnn string) {
	tf, err := table.TensorFlow(e.TensorFlow.Version)
	cuda, cudnn = e.CUDA, e.CuDNN
	if cuda == "" || cuda == Auto {
		cuda = ""
		if err == nil {
			cuda = tf.CUDATested
		}
	}
	if cudnn == "" || cudnn == Auto {
		cudnn = ""
		if err == nil {
			cudnn = tf.CuDNNTested
		}
	}
	return cuda, cudnn
}

// check is the state of judging one entry.
type check struct {
	e           Entry
	facts       *facts.Table
	layouts     []string
	tf          facts.TensorFlow
	known       error // nil when tf is in the table
	cuda, cudnn string
	image       *facts.Image // of a base that brings CUDA itself, else nil
	findings    []Finding
}

// rules are run in this order on every entry.
func rules() []func(*check) {
	return []func(*check){
		platform, supplier, layoutName, flavor, release, pythonAuto, pythonRange, base, image,
		cudaMajor, cudaMinor, cudnn, cudnnFault, variant, wheelSet, extra, extraRange,
		packages, limits, pipTags, keras, environment, fleet,
	}
}

// add notes a finding at the place of a recipe key. CUDA and cuDNN that the recipe does not state follow from
// its tensorflow.
func (c *check) add(key, rule string, s Severity, ev facts.Evidence, nearest, format string, args ...any) {
	if _, stated := c.e.Lines[key]; !stated && (key == "cuda" || key == "cudnn") {
		key = "tensorflow"
		if c.image != nil {
			key = "base"
		}
	}
	c.addAt(c.e.Line(key), c.e.Column(key), rule, s, ev, nearest, format, args...)
}

func (c *check) addAt(line, column int, rule string, s Severity, ev facts.Evidence, nearest, format string, args ...any) {
	c.findings = append(c.findings, Finding{Entry: c.e.Name, Rule: rule, Severity: s, Message: fmt.Sprintf(format, args...),
		Nearest: nearest, Source: ev.Source, Confidence: ev.Confidence, File: c.e.File, Line: line, Column: column})
}

// own is the evidence of rules that follow from what this program can do, not from the world.
func own(what string) facts.Evidence { return facts.Evidence{Source: "imgsmith: " + what} }

// lintTogether finds entries that collide with each other.
func lintTogether(entries []Entry, table *facts.Table) []Finding {
	var out []Finding
	names, tags := map[string]Entry{}, map[string]Entry{}
	for _, e := range entries {
		c := &check{e: e}
		if first, dup := names[e.Name]; dup {
			c.add("name", "entry-name", Refuse, own("entries are told apart by name"), "another name",
				"line %d has an entry of the same name", first.Line("name"))
		} else {
			names[e.Name] = e
		}
		for _, tag := range e.lintTags(table) {
			if first, dup := tags[tag]; dup {
				c.add("publish", "entry-tag", Refuse, own("one tag names one image"), `tags: ["{entry}"]`,
					"entry %q (line %d) publishes the same tag %s", first.Name, first.Line("publish"), tag)
			} else {
				tags[tag] = e
			}
		}
		out = append(out, c.findings...)
	}
	return out
}

// lintTags expands the entry's tags as far as they are known before resolution.
func (e Entry) lintTags(table *facts.Table) []string {
	if e.Publish == nil {
		return nil
	}
	v := TagValues{TensorFlow: e.TensorFlow.Version, Python: e.Python.Version, Entry: e.Name, Base: e.Base, Flavor: e.Flavor}
	v.CUDA, v.CuDNN = e.Pair(table)
	v.CUDA = facts.Minor(v.CUDA)
	var out []string
	for _, template := range e.Publish.Tags {
		if tag, err := ExpandTag(template, v); err == nil {
			out = append(out, e.Publish.Repository+":"+tag)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Findings gives everything that is wrong with a recipe in one list, in file order: what is not well formed, and
// what the rules say about the entries that could be read. r may be nil.
func Findings(r *Recipe, problems []*Problem, table *facts.Table, layouts []string) []Finding {
	known, _ := RuleByID("recipe")
	var out []Finding
	for _, p := range problems {
		f := Finding{Entry: "recipe", Rule: known.ID, Severity: Refuse, Message: p.Message, Remedy: p.Remedy, Source: own("the schema of recipes").Source,
			File: p.File, Line: p.Line, Column: p.Column, Excerpt: p.Excerpt}
		if f.Remedy == "" {
			f.Remedy = known.Remedy
		}
		if r != nil && r.Name != "" {
			f.Entry = r.Name
		}
		out = append(out, f)
	}
	if r != nil {
		out = append(out, r.Lint(table, layouts)...)
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return out
}
