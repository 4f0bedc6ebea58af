package validate

import "fmt"

// Grade says how strong the proof is: who launched, whether caged, and who saw the GPU from outside.
type Grade struct {
	Launcher     string `json:"launcher"`      // docker, replay
	Caged        bool   `json:"caged"`         // the container could reach nothing
	HostObserved bool   `json:"host_observed"` // NVML was read outside the container
	FakeGPU      bool   `json:"fake_gpu"`      // a fake-GPU kit took part: proves the pipeline, not the image
	Replayed     bool   `json:"replayed"`      // a recording was judged, nothing ran
}

// Clearance is the permission to tag one digest. It is made by Judgement.Clearance only; the zero value
// permits nothing.
type Clearance struct {
	digest string
	grade  Grade
}

// Digest is the manifest digest that may be tagged; empty for the zero value.
func (c Clearance) Digest() string { return c.digest }

// Grade is the strength of the proof behind the clearance.
func (c Clearance) Grade() Grade { return c.grade }

// Signable tells whether evidence under this clearance may be signed and published beyond a loopback
// registry: never for a fake GPU.
func (c Clearance) Signable() bool { return c.digest != "" && !c.grade.FakeGPU }

// NotClearedError says why a judged digest may not be tagged.
type NotClearedError struct {
	Digest  string
	Outcome Outcome
	Reason  string
}

func (e *NotClearedError) Error() string {
	return fmt.Sprintf("%s is not cleared: %s (%s)", e.Digest, e.Outcome, e.Reason)
}

// Clearance returns the permission to tag the judged digest, or a NotClearedError. Every stage must have
// passed, the run must be caged, seen from the host, and live.
func (j Judgement) Clearance() (Clearance, error) {
	v := j.verdict
	refuse := func(why string) (Clearance, error) {
		return Clearance{}, &NotClearedError{Digest: v.Digest, Outcome: v.Outcome, Reason: why}
	}
	if v.Digest == "" {
		return refuse("nothing was judged")
	}
	if v.Outcome != OutcomePassed {
		return refuse(v.Reason)
	}
	if len(v.Layers) != len(Layers()) {
		return refuse("a stage is missing")
	}
	for i, l := range Layers() {
		if v.Layers[i].Layer != l || v.Layers[i].Outcome != OutcomePassed {
			return refuse(fmt.Sprintf("stage %s: %s", l, v.Layers[i].Outcome))
		}
	}
	switch {
	case v.Grade.Replayed:
		return refuse("a recording proves nothing new")
	case !v.Grade.Caged:
		return refuse("the run was not caged")
	case !v.Grade.HostObserved:
		return refuse("no observer outside the container saw the GPU")
	}
	return Clearance{digest: v.Digest, grade: v.Grade}, nil
}
