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
	Line       int      `json:"line"`
	Column     int      `json:"column"`
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
	if f.Source != "" {
		s += " [" + f.Source + "]"
	}
	return s
}

// Refused tells whether any finding refuses its entry.
func Refused(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Refuse || f.Severity == RefuseStart })
}

// Lint judges entries against the facts, without network and daemon. layouts are the names of the image
// layouts that exist; nil leaves names unchecked. An empty result means that nothing is known against any
// entry. Findings come in the order of the entries.
func Lint(entries []Entry, table *facts.Table, layouts []string) []Finding {
	var out []Finding
	for _, e := range entries {
		c := &check{e: e, facts: table, layouts: layouts}
		c.tf, c.known = table.TensorFlow(e.TensorFlow.Version)
		c.cuda, c.cudnn = e.Pair(table)
		for _, rule := range rules() {
			rule(c)
		}
		out = append(out, c.findings...)
	}
	return append(out, lintTogether(entries, table)...)
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
	findings    []Finding
}

// rules are run in this order on every entry.
func rules() []func(*check) {
	return []func(*check){
		platform, supplier, layoutName, release, pythonRange, base,
		cudaMajor, cudaMinor, cudnn, cudnnFault, wheelSet,
		packages, environment, fleet,
	}
}

// add notes a finding at the place of a recipe key. CUDA and cuDNN that the recipe does not state follow from
// its tensorflow.
func (c *check) add(key, rule string, s Severity, ev facts.Evidence, nearest, format string, args ...any) {
	if _, stated := c.e.Lines[key]; !stated && (key == "cuda" || key == "cudnn") {
		key = "tensorflow"
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
	v := TagValues{TensorFlow: e.TensorFlow.Version, Python: e.Python.Version, Entry: e.Name}
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
