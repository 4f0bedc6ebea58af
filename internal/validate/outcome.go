// Package validate turns evidence into a verdict: the static stage and the four verification layers, five
// outcomes, and the clearance without which nothing is tagged. Judging is pure: it reads no clock, file,
// environment or daemon; what was observed is handed to it. It neither launches nor publishes.
package validate

import "fmt"

// Outcome is the answer of a check, a layer or a whole verdict. The zero value is unknown, which never passes.
type Outcome uint8

// The five outcomes.
const (
	OutcomeUnknown      Outcome = iota // nothing said anything: the zero value
	OutcomePassed                      // observed and as expected
	OutcomeFailed                      // observed and not as expected
	OutcomeNotRun                      // the question was not asked; a reason stands beside it
	OutcomeInconclusive                // asked, but the answer proves neither
)

// names are the words in documents, in the order of the constants.
func (o Outcome) names() []string {
	return []string{"unknown", "passed", "failed", "not_run", "inconclusive"}
}

// String returns the word used in documents.
func (o Outcome) String() string {
	if n := o.names(); int(o) < len(n) {
		return n[o]
	}
	return "unknown"
}

// MarshalText writes the word used in documents.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the word used in documents; any other word is an error.
func (o *Outcome) UnmarshalText(b []byte) error {
	for i, n := range o.names() {
		if n == string(b) {
			*o = Outcome(i)
			return nil
		}
	}
	return fmt.Errorf("outcome %q: not one of %v", b, o.names())
}

// Finding is one answer of one check, with the evidence for it.
type Finding struct {
	Check    string   `json:"check"` // stable id, for example "static.link.dangling"
	Outcome  Outcome  `json:"outcome"`
	Subject  string   `json:"subject,omitempty"` // file, soname, call or operation
	Message  string   `json:"message"`
	Expected string   `json:"expected,omitempty"`
	Observed string   `json:"observed,omitempty"`
	Remedy   string   `json:"remedy,omitempty"`
	Evidence []string `json:"evidence,omitempty"` // what was seen, line by line
	Note     bool     `json:"note,omitempty"`     // passed, and still worth reading
	Layer    string   `json:"layer,omitempty"`    // digest of the image layer that holds the subject
	Origin   string   `json:"origin,omitempty"`   // component or build step that the layer comes from
}

// Layer names the static stage and the four verification layers, in the order in which they run.
type Layer string

// The stages of proof.
const (
	LayerStatic     Layer = "static"
	LayerHardware   Layer = "hardware"   // L1
	LayerDriver     Layer = "driver"     // L2
	LayerCUDA       Layer = "cuda"       // L3
	LayerTensorFlow Layer = "tensorflow" // L4
)

// Layers lists the stages in running order.
func Layers() []Layer {
	return []Layer{LayerStatic, LayerHardware, LayerDriver, LayerCUDA, LayerTensorFlow}
}

// LayerResult is what one stage found. Reason says why when the outcome is not passed or failed.
type LayerResult struct {
	Layer    Layer     `json:"layer"`
	Outcome  Outcome   `json:"outcome"`
	Reason   string    `json:"reason,omitempty"`
	Findings []Finding `json:"findings"`
}

// NewLayerResult derives a layer's outcome from its findings: failed when one failed, else inconclusive when
// one is neither passed nor failed, else passed. No findings at all is inconclusive: zero checks prove nothing.
func NewLayerResult(l Layer, findings []Finding) LayerResult {
	r := LayerResult{Layer: l, Outcome: OutcomePassed, Findings: findings}
	if len(findings) == 0 {
		r.Outcome, r.Reason = OutcomeInconclusive, "no check ran"
		return r
	}
	for _, f := range findings {
		switch f.Outcome {
		case OutcomeFailed:
			r.Outcome, r.Reason = OutcomeFailed, ""
			return r
		case OutcomePassed:
		default:
			r.Outcome, r.Reason = OutcomeInconclusive, fmt.Sprintf("%s: %s", f.Check, f.Message)
		}
	}
	return r
}

// NotRun is the result of a stage that was not asked.
func NotRun(l Layer, reason string) LayerResult {
	return LayerResult{Layer: l, Outcome: OutcomeNotRun, Reason: reason}
}
