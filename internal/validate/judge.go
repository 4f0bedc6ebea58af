package validate

import (
	"fmt"

	"imgsmith/internal/gpu"
	"imgsmith/internal/launch"
	"imgsmith/internal/validate/probe"
)

// Evidence is everything that was observed for one digest. A nil part was not had; the reason stands beside it.
type Evidence struct {
	Digest         string             // manifest digest the evidence is about
	Static         LayerResult        // the static stage's findings
	Transcript     *launch.Transcript // what the launch returned
	NotLaunched    string             // why nothing was launched
	Observation    *probe.Observation // what the probe printed
	ObservationErr string             // why it could not be read
	Host           *gpu.Inventory     // NVML outside the container, before the run
	HostErr        string             // why there is none
	Activity       []gpu.Activity     // what the host saw of each GPU while the image ran
	KeepGoing      bool               // judge later layers although one failed; never gives a clearance
}

// Verdict is the outcome of every stage for one digest.
type Verdict struct {
	Digest      string        `json:"digest"`
	Outcome     Outcome       `json:"outcome"`
	Reason      string        `json:"reason,omitempty"`
	HostAtFault bool          `json:"host_at_fault,omitempty"` // the image is not to blame
	Grade       Grade         `json:"grade"`
	Layers      []LayerResult `json:"layers"`
}

// Judgement is a verdict that Judge made. It cannot be written by hand, so a clearance cannot either.
type Judgement struct{ verdict Verdict }

// Verdict returns a copy of what was decided.
func (j Judgement) Verdict() Verdict {
	v := j.verdict
	v.Layers = append([]LayerResult(nil), j.verdict.Layers...)
	return v
}

// Judge compares the evidence with the prediction, stage by stage. The first stage that does not pass ends
// it: later ones read "not run".
func Judge(ev Evidence, ex Expect) Judgement {
	v := Verdict{Digest: ev.Digest, Grade: grade(ev)}
	results := []LayerResult{staticResult(ev.Static)}
	checks := []struct {
		layer Layer
		run   func(Evidence, Expect) []Finding
	}{
		{LayerHardware, hardware}, {LayerDriver, driver}, {LayerCUDA, cuda}, {LayerTensorFlow, tensorflow},
	}
	for _, c := range checks {
		last := results[len(results)-1]
		switch {
		case blocked(results) && !ev.KeepGoing:
			results = append(results, NotRun(c.layer, fmt.Sprintf("stage %s did not pass", last.notPassed(results))))
		case ev.Transcript == nil:
			results = append(results, NotRun(c.layer, reasonOr(ev.NotLaunched, "the image was not launched")))
		default:
			results = append(results, NewLayerResult(c.layer, c.run(ev, ex)))
		}
	}
	v.Layers = results
	v.Outcome, v.Reason = overall(results)
	v.HostAtFault = v.Outcome != OutcomeFailed && hostAtFault(ev)
	return Judgement{verdict: v}
}

// staticResult never lets an empty static stage through.
func staticResult(r LayerResult) LayerResult {
	r.Layer = LayerStatic
	if r.Outcome == OutcomePassed && len(r.Findings) == 0 {
		r.Outcome, r.Reason = OutcomeInconclusive, "no check ran"
	}
	return r
}

func blocked(rs []LayerResult) bool {
	for _, r := range rs {
		if r.Outcome != OutcomePassed {
			return true
		}
	}
	return false
}

// notPassed names the first stage that did not pass.
func (r LayerResult) notPassed(rs []LayerResult) Layer {
	for _, x := range rs {
		if x.Outcome != OutcomePassed {
			return x.Layer
		}
	}
	return r.Layer
}

// overall is failed when a stage failed, passed when all passed, and otherwise the first other outcome.
func overall(rs []LayerResult) (Outcome, string) {
	for _, r := range rs {
		if r.Outcome == OutcomeFailed {
			return OutcomeFailed, fmt.Sprintf("stage %s failed", r.Layer)
		}
	}
	for _, r := range rs {
		if r.Outcome != OutcomePassed {
			return r.Outcome, fmt.Sprintf("stage %s: %s", r.Layer, reasonOr(r.Reason, r.Outcome.String()))
		}
	}
	return OutcomePassed, ""
}

func reasonOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// grade records who launched and who looked; any sign of a fake marks all of it.
func grade(ev Evidence) Grade {
	g := Grade{HostObserved: ev.Host != nil}
	if t := ev.Transcript; t != nil {
		g.Launcher, g.Caged, g.Replayed = t.Launcher, t.Caged, t.Launcher == "replay"
	}
	if ev.Host != nil {
		g.FakeGPU = ev.Host.Fake
		g.Replayed = g.Replayed || ev.Host.Source == "recording"
	}
	if o := ev.Observation; o != nil {
		g.FakeGPU = g.FakeGPU || o.System != nil && o.System.FakeWatermark != "" ||
			o.NVML != nil && o.NVML.Fake || o.Driver != nil && o.Driver.Fake || o.TensorFlow != nil && o.TensorFlow.Fake
	}
	return g
}

// hostAtFault says that something outside the image stopped the proof.
func hostAtFault(ev Evidence) bool {
	if ev.HostErr != "" && ev.Host == nil {
		return true
	}
	if t := ev.Transcript; t != nil && (t.StartError != "" || t.HostStuck) {
		return true
	}
	return ev.Host != nil && len(sick(*ev.Host)) > 0
}
