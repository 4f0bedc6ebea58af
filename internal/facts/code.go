package facts

import (
	"slices"
	"strconv"
	"strings"
)

// CodeKind says what of a release's GPU code a GPU can run.
type CodeKind string

// The kinds of code.
const (
	CodeNative CodeKind = "machine code" // SASS of the same major with a minor not above the GPU's
	CodePTX    CodeKind = "PTX"          // the driver compiles it at the first run
	CodeNone   CodeKind = "none"
	CodeBelow  CodeKind = "below the minimum" // the release refuses the GPU whatever code there is
)

// Code is the code of a TensorFlow release that a compute capability runs.
type Code struct {
	Kind CodeKind
	For  string // capability the code was made for; empty when there is none
	// Driver is, for PTX, the driver that came with the toolkit that made it: an older one cannot compile it.
	// Empty where that toolkit is not in the table.
	Driver string
	Evidence
}

// Code returns the code of a release that a GPU of a compute capability runs. It does not say that this was
// shown to work: see UnprovedGPU.
func (t *Table) Code(tf TensorFlow, capability string) Code {
	out := Code{Kind: CodeNone, Evidence: tf.GPUCodeEvidence}
	if tf.MinComputeCapability != "" && Compare(capability, tf.MinComputeCapability) < 0 {
		out.Kind = CodeBelow
		return out
	}
	best := func(list []string, same bool) string {
		found := ""
		for _, c := range list {
			if Compare(c, capability) <= 0 && (!same || Major(c) == Major(capability)) && Compare(c, found) > 0 {
				found = c
			}
		}
		return found
	}
	if out.For = best(tf.SASS, true); out.For != "" {
		out.Kind = CodeNative
		return out
	}
	if out.For = best(tf.PTX, false); out.For != "" {
		out.Kind = CodePTX
		if k, err := t.Toolkit(tf.CUDATested); err == nil {
			out.Driver = k.BundledDriver
		}
	}
	return out
}

// ReleasesWithCode returns the newest patch of every minor whose machine code a compute capability runs, oldest
// first, without those whose CUDA major no longer knows the architecture.
func (t *Table) ReleasesWithCode(capability string) []string {
	a, err := t.Architecture(capability)
	var out []string
	for _, r := range t.tensorflow.TensorFlow {
		if r.Exact {
			continue
		}
		tf := t.release(r.Releases[len(r.Releases)-1], r)
		if err == nil && a.LastCUDAMajor != 0 && tf.CUDAMajor > a.LastCUDAMajor {
			continue
		}
		if t.Code(tf, capability).Kind == CodeNative {
			out = append(out, tf.Release)
		}
	}
	return out
}

func join(p []int) string {
	s := make([]string, 0, len(p))
	for _, n := range p {
		s = append(s, strconv.Itoa(n))
	}
	return strings.Join(s, ".")
}

// Capabilities returns every compute capability that a GPU in the table has, in order.
func (t *Table) Capabilities() []string {
	var out []string
	for _, g := range t.gpu.GPUs {
		if !slices.Contains(out, g.ComputeCapability) {
			out = append(out, g.ComputeCapability)
		}
	}
	slices.SortFunc(out, Compare)
	return out
}
