package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"imgsmith/internal/validate"
)

// WriteFindingsSARIF writes what did not pass, and notes, as SARIF 2.1.0 for tools that show findings beside code.
func WriteFindingsSARIF(w io.Writer, d Document) error {
	var results []sarifResult
	var rules []sarifDescriptor
	for _, e := range d.Entries {
		for _, f := range findingsOf(e) {
			if f.Outcome == validate.OutcomePassed && !f.Note {
				continue
			}
			results = append(results, sarifFinding(e, f))
			if !slices.ContainsFunc(rules, func(r sarifDescriptor) bool { return r.ID == f.Check }) {
				rules = append(rules, sarifDescriptor{ID: f.Check})
			}
		}
	}
	return writeSARIF(w, d.Tool, rules, results)
}

func sarifFinding(e Entry, f validate.Finding) sarifResult {
	r := sarifResult{RuleID: f.Check, Kind: "fail", Level: "error", Message: sarifText{sentence(f)}, Fingerprints: map[string]string{"imgsmith/v1": e.Name + "|" + f.Check + "|" + f.Subject}}
	switch {
	case f.Note:
		r.Kind, r.Level = "informational", "none"
	case f.Outcome != validate.OutcomeFailed:
		r.Kind, r.Level = "review", "none"
	}
	var l sarifLocation
	if file, ok := strings.CutPrefix(f.Subject, "/"); ok {
		l.Physical = &sarifPhysical{}
		l.Physical.Artifact.URI = escapePath(file)
	} else if f.Subject != "" {
		l.Logical = append(l.Logical, sarifLogical{f.Subject, "resource"})
	}
	for _, x := range []sarifLogical{{f.Layer, "layer"}, {f.Origin, "step"}} {
		if x.Name != "" {
			l.Logical = append(l.Logical, x)
		}
	}
	r.Locations = []sarifLocation{l}
	return r
}

// escapePath writes a path as a relative URI.
func escapePath(p string) string {
	var sb strings.Builder
	for i := range len(p) {
		switch c := p[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("/-._~+@", c) >= 0:
			sb.WriteByte(c)
		default:
			fmt.Fprintf(&sb, "%%%02X", c)
		}
	}
	return sb.String()
}

// sentence is a finding in one text: message, what was expected and seen, remedy.
func sentence(f validate.Finding) string {
	s := f.Message
	if f.Expected != "" {
		s += "; expected " + f.Expected
	}
	if f.Observed != "" {
		s += "; observed " + oneLine(f.Observed)
	}
	if f.Remedy != "" {
		s += ". Remedy: " + f.Remedy
	}
	return plain(s)
}

// findingsOf are all findings of an entry: of the verdict where there is one, else of the static stage.
func findingsOf(e Entry) []validate.Finding {
	var out []validate.Finding
	switch {
	case e.Verdict != nil:
		for _, l := range e.Verdict.Layers {
			out = append(out, l.Findings...)
		}
	case e.Static != nil:
		out = e.Static.Findings
	}
	return out
}
