package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"imgsmith/internal/validate"
)

type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Name    string       `xml:"name,attr"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string     `xml:"classname,attr"`
		Name    string     `xml:"name,attr"`
		Failure *junitText `xml:"failure,omitempty"`
		Error   *junitText `xml:"error,omitempty"`
		Skipped *junitText `xml:"skipped,omitempty"`
		Output  string     `xml:"system-out,omitempty"`
	}
	junitText struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes one suite an entry and one case a finding. What is not known is an error, never a pass.
func WriteJUnit(w io.Writer, d Document) error {
	all := junitSuites{Name: d.Tool + " " + d.Command}
	for _, e := range d.Entries {
		s := junitSuite{Name: plain(e.Name)}
		for _, f := range findingsOf(e) {
			s.add(f)
		}
		if len(s.Cases) == 0 {
			s.add(validate.Finding{Check: string(e.Stage), Outcome: validate.OutcomeUnknown, Message: "nothing was checked: " + e.Reason})
		}
		all.Suites = append(all.Suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("writing JUnit: %w", err)
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return fmt.Errorf("writing JUnit: %w", err)
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return fmt.Errorf("writing JUnit: %w", err)
	}
	return nil
}

func (s *junitSuite) add(f validate.Finding) {
	c := junitCase{Class: f.Check, Name: plain(f.Subject)}
	if c.Name == "" {
		c.Name = plain(f.Message)
	}
	text := &junitText{Message: sentence(f), Text: plain(strings.Join(f.Evidence, " | "))}
	switch f.Outcome {
	case validate.OutcomePassed:
		c.Output = sentence(f)
	case validate.OutcomeFailed:
		c.Failure = text
		s.Failures++
	case validate.OutcomeNotRun:
		c.Skipped = text
		s.Skipped++
	default:
		c.Error = text
		s.Errors++
	}
	s.Tests++
	s.Cases = append(s.Cases, c)
}
