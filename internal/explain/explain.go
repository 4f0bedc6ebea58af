// Package explain answers questions about versions in words: what a GPU, a driver, a CUDA release, a TensorFlow
// release, a Python or an image goes with, and why, each sentence with its sources. Verdicts about a release
// come from the rules of internal/matrix; explain may be more careful than lint, never less. It is pure.
package explain

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/matrix"
)

// SchemaVersion is the version of the answer's JSON form.
const SchemaVersion = 1

// Query names what is known. Every field may be empty, not all of them.
type Query struct {
	TensorFlow        string `json:"tensorflow,omitempty"`
	CUDA              string `json:"cuda,omitempty"`
	CuDNN             string `json:"cudnn,omitempty"`
	Python            string `json:"python,omitempty"`
	GPU               string `json:"gpu,omitempty"`
	ComputeCapability string `json:"compute_capability,omitempty"`
	Class             string `json:"class,omitempty"`
	Driver            string `json:"driver,omitempty"`
	Base              string `json:"base,omitempty"` // image reference
}

// Verdict is the word for a release.
type Verdict string

// The verdicts, from the best on.
const (
	Works    Verdict = "works"
	Warned   Verdict = "works, with a warning"
	Unproved Verdict = "unproved" // nothing known for it or a report against it: published only with proof
	Refused  Verdict = "does not work"
)

// Line is one statement with its sources.
type Line struct {
	Text    string           `json:"text"`
	Sources []facts.Evidence `json:"sources"`
}

// Section is a group of statements.
type Section struct {
	Title string `json:"title"`
	Lines []Line `json:"lines"`
}

// Release is the verdict about one TensorFlow release under the query.
type Release struct {
	TensorFlow string   `json:"tensorflow"`
	CUDA       string   `json:"cuda"`
	CuDNN      string   `json:"cudnn"`
	Verdict    Verdict  `json:"verdict"`
	Reasons    []Line   `json:"reasons,omitempty"`
	Remedies   []string `json:"remedies,omitempty"`
}

// Answer is what the facts say to a query.
type Answer struct {
	SchemaVersion int       `json:"schema_version"`
	Query         Query     `json:"query"`
	Summary       string    `json:"summary"`
	Sections      []Section `json:"sections"`
	Releases      []Release `json:"releases"` // newest first
}

// ErrEmpty says that a query names nothing.
var ErrEmpty = errors.New("nothing to explain: name at least one of tensorflow, cuda, cudnn, python, gpu, compute_capability, driver, base")

// UnknownError says that the table has no row for a value of the query.
type UnknownError struct {
	Key, Value string
	Known      []string // values that the table has, may be empty
}

// Error names the value.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%s %q is not in the facts", e.Key, e.Value)
}

// Unwrap makes it a facts.ErrUnknown.
func (e *UnknownError) Unwrap() error { return facts.ErrUnknown }

// Remedy names what is known.
func (e *UnknownError) Remedy() string {
	if len(e.Known) == 0 {
		return ""
	}
	return "known are " + strings.Join(e.Known, ", ")
}

// Explain answers a query. A value that the table does not know is an *UnknownError.
func Explain(table *facts.Table, q Query) (*Answer, error) {
	if q == (Query{}) {
		return nil, ErrEmpty
	}
	x := &explainer{t: table, q: q}
	for _, step := range []func() error{x.gpu, x.driver, x.cuda, x.cudnn, x.tensorflow, x.python, x.base} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	x.releases()
	return &Answer{SchemaVersion: SchemaVersion, Query: q, Summary: x.summary(), Sections: x.sections, Releases: x.found}, nil
}

type explainer struct {
	t        *facts.Table
	q        Query
	board    facts.GPU
	cc       string
	class    string
	image    facts.Image
	sections []Section
	found    []Release
}

// section begins a group of statements.
func (x *explainer) section(format string, args ...any) {
	x.sections = append(x.sections, Section{Title: fmt.Sprintf(format, args...)})
}

// say adds a statement to the last section.
func (x *explainer) say(e facts.Evidence, format string, args ...any) {
	s := &x.sections[len(x.sections)-1]
	s.Lines = append(s.Lines, Line{fmt.Sprintf(format, args...), []facts.Evidence{e}})
}

// releases judges every minor's newest release, or the one that is asked for, by the rules of lint.
func (x *explainer) releases() {
	asked := x.q.TensorFlow
	var list []string
	if asked != "" {
		list = []string{asked}
	} else {
		seen := map[string]bool{}
		for _, r := range x.t.Releases() {
			tf, err := x.t.TensorFlow(r)
			if err == nil && !seen[tf.Latest] && tf.Latest == r {
				seen[r] = true
				list = append(list, r)
			}
		}
		slices.Reverse(list)
	}
	for _, r := range list {
		x.found = append(x.found, x.judge(r))
	}
}

func (x *explainer) judge(release string) Release {
	e := matrix.Entry{
		Name: "query", Platform: matrix.DefaultPlatform, Supplier: matrix.SupplierWheels, Layout: matrix.DefaultLayout, File: "query",
		TensorFlow: matrix.TensorFlow{Version: release}, CUDA: x.q.CUDA, CuDNN: x.q.CuDNN, Base: x.q.Base, Lines: map[string]int{}, Columns: map[string]int{},
	}
	e.Python = matrix.Python{Version: x.q.Python, From: matrix.PythonOS}
	if x.image.Exists { // it brings its own CUDA
		e.Supplier = matrix.SupplierApt
		if e.CuDNN == "" {
			e.CuDNN = x.image.CuDNN
		}
		if e.CUDA == "" {
			e.CUDA = x.image.CUDA
		}
	}
	if x.cc != "" || x.q.Driver != "" {
		e.Fleet = []matrix.FleetMember{{GPU: x.q.GPU, ComputeCapability: x.cc, Class: x.class, Driver: x.q.Driver, Line: 1, Column: 1}}
	}
	out := Release{TensorFlow: release, CUDA: e.CUDA, CuDNN: e.CuDNN, Verdict: Works}
	if tf, err := x.t.TensorFlow(release); err == nil {
		if out.CUDA == "" {
			out.CUDA = tf.CUDATested
		}
		if out.CuDNN == "" {
			out.CuDNN = tf.CuDNNTested
		}
	}
	findings := matrix.Lint([]matrix.Entry{e}, x.t, nil)
	slices.SortStableFunc(findings, func(a, b matrix.Finding) int { return rank(verdictOfFinding(b)) - rank(verdictOfFinding(a)) })
	for _, f := range findings {
		if f.Severity != matrix.Note || x.q.TensorFlow != "" {
			out.add(f)
		}
	}
	x.modules(&out)
	return out
}

// modules adds what the counted modules say about the GPU, where the rule about old drivers has not said it.
func (x *explainer) modules(r *Release) {
	tf, err := x.t.TensorFlow(r.TensorFlow)
	if err != nil || x.cc == "" || r.Verdict == Refused {
		return
	}
	c := x.t.Code(tf, x.cc)
	old := x.q.Driver != "" && c.Driver != "" && facts.Compare(x.q.Driver, c.Driver) < 0
	if c.Kind == facts.CodeNative && c.PTXOnly > 0 && !old {
		text := fmt.Sprintf("%d of the %d modules that this GPU runs hold PTX %s only, which needs driver %s or newer", c.PTXOnly, c.Modules, c.PTXISA, c.Driver)
		r.Reasons = append(r.Reasons, Line{text, []facts.Evidence{c.Evidence}})
	}
	if c.Without > 0 && c.Without*10 > c.Modules {
		r.Reasons = append(r.Reasons, Line{fmt.Sprintf("%d modules hold nothing that this GPU runs: the operations in them fail", c.Without), []facts.Evidence{c.Evidence}})
	}
}

// onlySupply is the rule about what imgsmith itself can put into an image. A question about versions is not
// answered with no because of it.
const onlySupply = "wheel-set"

func verdictOfFinding(f matrix.Finding) Verdict {
	switch {
	case f.Rule == onlySupply, f.Severity == matrix.Warn:
		return Warned
	case f.Severity == matrix.Refuse, f.Severity == matrix.RefuseStart:
		return Refused
	case f.Severity == matrix.Unproved:
		return Unproved
	}
	return Works
}

func rank(v Verdict) int { return slices.Index([]Verdict{Works, Warned, Unproved, Refused}, v) }

// add lets a finding worsen the verdict.
func (r *Release) add(f matrix.Finding) {
	v := verdictOfFinding(f)
	if rank(v) > rank(r.Verdict) {
		r.Verdict = v
	}
	r.Reasons = append(r.Reasons, Line{fmt.Sprintf("%s (rule %s)", f.Message, f.Rule), []facts.Evidence{{Source: f.Source, Confidence: f.Confidence}}})
	if f.Nearest != "" && !slices.Contains(r.Remedies, f.Nearest) && v != Works {
		r.Remedies = append(r.Remedies, f.Nearest)
	}
}

// summary is the answer in one sentence.
func (x *explainer) summary() string {
	if len(x.found) == 1 {
		r := x.found[0]
		s := fmt.Sprintf("TensorFlow %s with CUDA %s and cuDNN %s%s: %s", r.TensorFlow, r.CUDA, r.CuDNN, x.where(), r.Verdict)
		if len(r.Reasons) > 0 && r.Verdict != Works {
			s += ", because " + r.Reasons[0].Text
		}
		return s + "."
	}
	by := map[Verdict][]string{}
	for _, r := range x.found {
		by[r.Verdict] = append(by[r.Verdict], r.TensorFlow)
	}
	var out []string
	for _, v := range []Verdict{Works, Warned, Unproved, Refused} {
		if len(by[v]) > 0 {
			out = append(out, fmt.Sprintf("%s: %s", v, strings.Join(by[v], ", ")))
		}
	}
	return fmt.Sprintf("TensorFlow%s — %s.", x.where(), strings.Join(out, "; "))
}

// where repeats the machine of the query.
func (x *explainer) where() string {
	var out string
	switch {
	case x.board.Name != "":
		out = " on " + x.board.Name
	case x.cc != "":
		out = " on compute capability " + x.cc
	}
	if x.q.Driver != "" {
		out += " with driver " + x.q.Driver
	}
	return out
}
