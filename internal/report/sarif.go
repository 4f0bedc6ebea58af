package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"imgsmith/internal/validate"
)

// The parts of SARIF 2.1.0 that are written.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		Kind         string            `json:"kind"`
		Level        string            `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations,omitempty"`
		Fingerprints map[string]string `json:"partialFingerprints"`
	}
	sarifLocation struct {
		Physical *struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
		} `json:"physicalLocation,omitempty"`
		Logical []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifLogical struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	}
)

// WriteSARIF writes what did not pass, and notes, as SARIF 2.1.0 for tools that show findings beside code.
func WriteSARIF(w io.Writer, d Document) error {
	run := sarifRun{Results: []sarifResult{}}
	name, version, _ := strings.Cut(d.Tool, " ")
	run.Tool.Driver = sarifDriver{Name: name, Version: version, Rules: []sarifRule{}}
	for _, e := range d.Entries {
		for _, f := range findingsOf(e) {
			if f.Outcome == validate.OutcomePassed && !f.Note {
				continue
			}
			run.Results = append(run.Results, sarifOf(e, f))
			if !slices.ContainsFunc(run.Tool.Driver.Rules, func(r sarifRule) bool { return r.ID == f.Check }) {
				run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: f.Check})
			}
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}); err != nil {
		return fmt.Errorf("writing SARIF: %w", err)
	}
	return nil
}

func sarifOf(e Entry, f validate.Finding) sarifResult {
	r := sarifResult{RuleID: f.Check, Kind: "fail", Level: "error", Message: sarifText{sentence(f)}, Fingerprints: map[string]string{"imgsmith/v1": e.Name + "|" + f.Check + "|" + f.Subject}}
	switch {
	case f.Note:
		r.Kind, r.Level = "informational", "none"
	case f.Outcome != validate.OutcomeFailed:
		r.Kind, r.Level = "review", "none"
	}
	var l sarifLocation
	if file, ok := strings.CutPrefix(f.Subject, "/"); ok {
		l.Physical = &struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
		}{}
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
