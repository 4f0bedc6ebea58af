package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"imgsmith/internal/validate"
)

// The parts of SARIF 2.1.0 that findings about an image need; those of lint are in sarif.go.
type (
	findingSARIFLog struct {
		Schema  string            `json:"$schema"`
		Version string            `json:"version"`
		Runs    []findingSARIFRun `json:"runs"`
	}
	findingSARIFRun struct {
		Tool struct {
			Driver findingSARIFDriver `json:"driver"`
		} `json:"tool"`
		Results []findingSARIFResult `json:"results"`
	}
	findingSARIFDriver struct {
		Name    string             `json:"name"`
		Version string             `json:"version"`
		Rules   []findingSARIFRule `json:"rules"`
	}
	findingSARIFRule struct {
		ID string `json:"id"`
	}
	findingSARIFText struct {
		Text string `json:"text"`
	}
	findingSARIFResult struct {
		RuleID       string                 `json:"ruleId"`
		Kind         string                 `json:"kind"`
		Level        string                 `json:"level"`
		Message      findingSARIFText       `json:"message"`
		Locations    []findingSARIFLocation `json:"locations,omitempty"`
		Fingerprints map[string]string      `json:"partialFingerprints"`
	}
	findingSARIFLocation struct {
		Physical *struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
		} `json:"physicalLocation,omitempty"`
		Logical []findingSARIFLogical `json:"logicalLocations,omitempty"`
	}
	findingSARIFLogical struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	}
)

// WriteFindingsSARIF writes what did not pass, and notes, as SARIF 2.1.0 for tools that show findings beside code.
func WriteFindingsSARIF(w io.Writer, d Document) error {
	run := findingSARIFRun{Results: []findingSARIFResult{}}
	name, version, _ := strings.Cut(d.Tool, " ")
	run.Tool.Driver = findingSARIFDriver{Name: name, Version: version, Rules: []findingSARIFRule{}}
	for _, e := range d.Entries {
		for _, f := range findingsOf(e) {
			if f.Outcome == validate.OutcomePassed && !f.Note {
				continue
			}
			run.Results = append(run.Results, findingSARIFOf(e, f))
			if !slices.ContainsFunc(run.Tool.Driver.Rules, func(r findingSARIFRule) bool { return r.ID == f.Check }) {
				run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, findingSARIFRule{ID: f.Check})
			}
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(findingSARIFLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []findingSARIFRun{run}}); err != nil {
		return fmt.Errorf("writing SARIF: %w", err)
	}
	return nil
}

func findingSARIFOf(e Entry, f validate.Finding) findingSARIFResult {
	r := findingSARIFResult{RuleID: f.Check, Kind: "fail", Level: "error", Message: findingSARIFText{sentence(f)}, Fingerprints: map[string]string{"imgsmith/v1": e.Name + "|" + f.Check + "|" + f.Subject}}
	switch {
	case f.Note:
		r.Kind, r.Level = "informational", "none"
	case f.Outcome != validate.OutcomeFailed:
		r.Kind, r.Level = "review", "none"
	}
	var l findingSARIFLocation
	if file, ok := strings.CutPrefix(f.Subject, "/"); ok {
		l.Physical = &struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
		}{}
		l.Physical.Artifact.URI = escapePath(file)
	} else if f.Subject != "" {
		l.Logical = append(l.Logical, findingSARIFLogical{f.Subject, "resource"})
	}
	for _, x := range []findingSARIFLogical{{f.Layer, "layer"}, {f.Origin, "step"}} {
		if x.Name != "" {
			l.Logical = append(l.Logical, x)
		}
	}
	r.Locations = []findingSARIFLocation{l}
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
