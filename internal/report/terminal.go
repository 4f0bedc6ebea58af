package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"imgsmith/internal/validate"
)

// WriteTerminal writes the summary that a person reads. Meaning is in words, never in colour alone.
func WriteTerminal(w io.Writer, d Document) error {
	p := &printer{w: w}
	if d.Fake {
		p.line("FAKE GPU: this run proves the pipeline, not an image. Nothing leaves this machine, nothing is signed.")
	}
	for _, e := range d.Entries {
		p.entry(e)
	}
	for _, x := range d.Dropped {
		p.line("%s: left out (%s, line %d): %s", x.Name, x.Rule, x.Line, x.Reason)
	}
	p.plan(d.Plan)
	for _, c := range d.Changes {
		p.line("  %s", c)
	}
	p.line("%s", summary(d))
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", a...)
	}
}

func (p *printer) entry(e Entry) {
	p.line("%s: %s", e.Name, words(e))
	for _, f := range e.Lint {
		p.line("  %s [%s] %s: %s", f.Place, f.Severity, f.Rule, f.Message)
		if f.Excerpt != "" {
			p.line("%s", f.Excerpt)
		}
		p.field("remedy", f.Remedy)
		p.field("nearest", f.Nearest)
		p.field("source", f.Source)
		p.field("allowed", f.Allowed)
	}
	if e.Image != nil {
		p.line("  image    %s (%d layers, %.0f MB)", e.Image.Reference, len(e.Image.Layers), float64(e.Image.Size)/1e6)
	}
	p.layers(e)
	p.check(e.Check)
	p.field("reason", e.Reason)
	p.field("remedy", e.Remedy)
	for _, r := range e.Published {
		p.line("  tag      %s", r)
	}
}

func (p *printer) field(name, v string) {
	if v != "" {
		p.line("  %-8s %s", name, strings.ReplaceAll(strings.TrimSpace(v), "\n", "\n           "))
	}
}

// layers prints one line a stage, and under it what did not pass.
func (p *printer) layers(e Entry) {
	var rs []validate.LayerResult
	switch {
	case e.Verdict != nil:
		rs = e.Verdict.Layers
	case e.Static != nil:
		rs = []validate.LayerResult{*e.Static}
	}
	for _, r := range rs {
		n := len(r.Findings)
		switch {
		case r.Outcome == validate.OutcomePassed:
			p.line("  %-10s passed (%d checks)", r.Layer, n)
		case r.Outcome == validate.OutcomeNotRun:
			p.line("  %-10s not run: %s", r.Layer, r.Reason)
		default:
			p.line("  %-10s %s", r.Layer, r.Outcome)
		}
		for _, f := range r.Findings {
			if f.Outcome != validate.OutcomePassed || f.Note && e.Check != nil { // notes are what check was asked for
				p.finding(f)
			}
		}
	}
}

func (p *printer) finding(f validate.Finding) {
	word := f.Outcome.String()
	if f.Note {
		word = "note"
	}
	p.line("    %s %s: %s: %s", word, f.Check, plain(f.Subject), plain(f.Message))
	var compared []string
	if f.Expected != "" {
		compared = append(compared, "expected "+f.Expected)
	}
	if f.Observed != "" {
		compared = append(compared, "observed "+oneLine(f.Observed))
	}
	if len(compared) > 0 {
		p.line("      %s", strings.Join(compared, ", "))
	}
	if f.Layer != "" {
		p.line("      layer    %s", strings.TrimSpace(f.Layer+" "+oneLine(f.Origin)))
	}
	if f.Remedy != "" {
		p.line("      remedy   %s", f.Remedy)
	}
	for i, l := range f.Evidence {
		if i == 6 {
			p.line("      … %d more lines in the document (--json)", len(f.Evidence)-i)
			break
		}
		p.line("      | %s", plain(l))
	}
}

// check prints what was recognised, and the traces that were asked for.
func (p *printer) check(c *Check) {
	if c == nil {
		return
	}
	for _, f := range c.Found {
		p.line("  found    %s %s (%s)", f.Name, f.Version, plain(f.From))
	}
	p.field("entry", c.Entry)
	for _, l := range c.Lint {
		p.line("    %s %s: %s", l.Severity, l.Rule, oneLine(l.Message))
	}
	for _, l := range c.Trace {
		p.line("  trace    %s", plain(l))
	}
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// plain writes control characters of names as escapes: an image must not move the cursor of who checks it.
func plain(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strings.Trim(strconv.Quote(s), `"`)
}

func oneLine(s string) string {
	s = plain(strings.Join(strings.Fields(s), " "))
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// words is the sentence for an entry's result.
func words(e Entry) string {
	switch e.Result {
	case ResultOK:
		if e.Stage == StageStatic {
			return "the files are right; nothing was run"
		}
		return "nothing to refuse"
	case ResultStaged:
		return "built, static check passed, staged; not verified"
	case ResultProved:
		return "proved: every layer passed; no publish repository is named, nothing published"
	case ResultPublished:
		return "proved and published"
	case ResultRefused:
		return "refused: this entry cannot work"
	case ResultFailed:
		if e.Check != nil {
			return "the files are wrong"
		}
		return fmt.Sprintf("failed at %s, nothing published", failedAt(e))
	case ResultNotProved:
		if e.Check != nil {
			return "cannot be told: " + e.Reason
		}
		return "built, static check passed, not proved: " + e.Reason + ", nothing published"
	case ResultError:
		return fmt.Sprintf("error at stage %s, nothing published", e.Stage)
	}
	return "unknown: nothing was decided, nothing published"
}

// failedAt names the layer that failed, or the stage where there is no verdict.
func failedAt(e Entry) string {
	if e.Verdict != nil {
		for _, l := range e.Verdict.Layers {
			if l.Outcome == validate.OutcomeFailed {
				return "layer " + string(l.Layer)
			}
		}
	}
	return "stage " + string(e.Stage)
}

func summary(d Document) string {
	n := map[Result]int{}
	for _, e := range d.Entries {
		n[e.Result]++
	}
	var parts []string
	for _, r := range []Result{ResultPublished, ResultProved, ResultStaged, ResultOK, ResultNotProved, ResultFailed, ResultRefused, ResultError, ResultUnknown} {
		if n[r] > 0 {
			name := strings.ReplaceAll(string(r), "_", " ")
			if r == ResultUnknown {
				name = "unknown"
			}
			parts = append(parts, fmt.Sprintf("%d %s", n[r], name))
		}
	}
	return fmt.Sprintf("%d entries: %s (exit %d)", len(d.Entries), strings.Join(parts, ", "), d.ExitCode)
}
