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

type sarifText struct {
	Text string `json:"text"`
}

type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool struct {
		Driver sarifDriver `json:"driver"`
	} `json:"tool"`
	Results []sarifResult `json:"results"`
}

type sarifDriver struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Rules   []sarifDescriptor `json:"rules"`
}

type sarifDescriptor struct {
	ID               string    `json:"id"`
	ShortDescription sarifText `json:"shortDescription"`
	Help             sarifText `json:"help"`
}

type sarifResult struct {
	RuleID       string             `json:"ruleId"`
	Level        string             `json:"level"`
	Message      sarifText          `json:"message"`
	Locations    []sarifLocation    `json:"locations"`
	Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	Properties   map[string]string  `json:"properties"`
}

type sarifSuppression struct {
	Kind          string `json:"kind"`
	Justification string `json:"justification"`
}

type sarifLocation struct {
	Physical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	} `json:"physicalLocation"`
}

type sarifRegion struct {
	Line   int `json:"startLine"`
	Column int `json:"startColumn"`
}

// WriteSARIF writes the findings of lint as a SARIF 2.1.0 log. What was overridden is a suppressed result.
func WriteSARIF(w io.Writer, d Document, rules []SARIFRule) error {
	run := sarifRun{Results: []sarifResult{}}
	name, version, _ := strings.Cut(d.Tool, " ")
	run.Tool.Driver = sarifDriver{Name: name, Version: version}
	for _, r := range rules {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifDescriptor{r.ID, sarifText{r.Title}, sarifText{r.Remedy}})
	}
	for _, e := range d.Entries {
		for _, f := range e.Lint {
			run.Results = append(run.Results, sarif(e.Name, f))
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}); err != nil {
		return fmt.Errorf("writing SARIF: %w", err)
	}
	return nil
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
	l := sarifLocation{}
	l.Physical.Artifact.URI = filepath.ToSlash(file)
	if line > 0 {
		l.Physical.Region = &sarifRegion{line, max(column, 1)}
	}
	r.Locations = []sarifLocation{l}
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
