package report

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
)

// SARIFRule describes a rule for readers of SARIF.
type SARIFRule struct{ ID, Title, Remedy string }

// The parts of SARIF 2.1.0 that are written here. The libraries for it write every index and offset that is not
// there as -1, which readers then have to ignore.
type (
	sarifText struct {
		Text string `json:"text"`
	}
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
		Name    string            `json:"name"`
		Version string            `json:"version"`
		Rules   []sarifDescriptor `json:"rules"`
	}
	sarifDescriptor struct {
		ID               string     `json:"id"`
		ShortDescription *sarifText `json:"shortDescription,omitempty"`
		Help             *sarifText `json:"help,omitempty"`
	}
	sarifResult struct {
		RuleID       string             `json:"ruleId"`
		Kind         string             `json:"kind,omitempty"`
		Level        string             `json:"level"`
		Message      sarifText          `json:"message"`
		Locations    []sarifLocation    `json:"locations,omitempty"`
		Suppressions []sarifSuppression `json:"suppressions,omitempty"`
		Fingerprints map[string]string  `json:"partialFingerprints,omitempty"`
		Properties   map[string]string  `json:"properties,omitempty"`
	}
	sarifSuppression struct {
		Kind          string `json:"kind"`
		Justification string `json:"justification"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	}
	sarifRegion struct {
		Line   int `json:"startLine"`
		Column int `json:"startColumn"`
	}
	sarifLogical struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	}
)

// writeSARIF writes one run.
func writeSARIF(w io.Writer, tool string, rules []sarifDescriptor, results []sarifResult) error {
	run := sarifRun{Results: append([]sarifResult{}, results...)}
	name, version, _ := strings.Cut(tool, " ")
	run.Tool.Driver = sarifDriver{Name: name, Version: version, Rules: append([]sarifDescriptor{}, rules...)}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}); err != nil {
		return fmt.Errorf("writing SARIF: %w", err)
	}
	return nil
}

// WriteSARIF writes the findings of lint as a SARIF 2.1.0 log. What was overridden is a suppressed result.
func WriteSARIF(w io.Writer, d Document, rules []SARIFRule) error {
	var known []sarifDescriptor
	for _, r := range rules {
		known = append(known, sarifDescriptor{r.ID, &sarifText{r.Title}, &sarifText{r.Remedy}})
	}
	var results []sarifResult
	for _, e := range d.Entries {
		for _, f := range e.Lint {
			results = append(results, sarif(e.Name, f))
		}
	}
	return writeSARIF(w, d.Tool, known, results)
}

func sarif(entry string, f LintFinding) sarifResult {
	text := fmt.Sprintf("entry %s: %s", entry, f.Message)
	for _, more := range []struct{ name, value string }{{"nearest that works", f.Nearest}, {"remedy", f.Remedy}, {"source", f.Source}} {
		if more.value != "" {
			text += ". " + more.name + ": " + more.value
		}
	}
	r := sarifResult{RuleID: f.Rule, Level: sarifLevel(f.Severity), Message: sarifText{text},
		Properties: map[string]string{"severity": f.Severity, "entry": entry, "source": f.Source}}
	if f.Allowed != "" {
		r.Suppressions = []sarifSuppression{{"inSource", f.Allowed}}
	}
	file, line, column := splitPlace(f.Place)
	l := sarifPhysical{}
	l.Artifact.URI = filepath.ToSlash(file)
	if line > 0 {
		l.Region = &sarifRegion{line, max(column, 1)}
	}
	r.Locations = []sarifLocation{{Physical: &l}}
	return r
}

func sarifLevel(severity string) string {
	switch severity {
	case "refuse", "refuse-start":
		return "error"
	case "warn", "unproved":
		return "warning"
	}
	return "note"
}

// splitPlace reads FILE:LINE:COLUMN; a place without numbers is the whole file.
func splitPlace(place string) (file string, line, column int) {
	parts := strings.Split(place, ":")
	if len(parts) < 3 {
		return place, 0, 0
	}
	line, err1 := strconv.Atoi(parts[len(parts)-2])
	column, err2 := strconv.Atoi(parts[len(parts)-1])
	if err1 != nil || err2 != nil {
		return place, 0, 0
	}
	return strings.Join(parts[:len(parts)-2], ":"), line, column
}
