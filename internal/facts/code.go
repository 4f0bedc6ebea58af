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

// Code is the code of a TensorFlow release that a compute capability runs. Kind speaks for the release as a whole;
// a release of kind CodeNative may still hold modules that this GPU can only take as PTX (PTXOnly above 0): a
// driver older than Driver cannot compile those, and the operations in them fail at their first call.
type Code struct {
	Kind CodeKind
	For  string // capability the code was made for; empty when there is none
	// Driver is the first driver that compiles the PTX that this GPU needs: the one that came with the toolkit of
	// its language version, or with the tested toolkit where the version was not read. Empty: no PTX is needed,
	// or the toolkit is not in the table.
	Driver  string
	PTXCUDA string // that toolkit's CUDA release
	Modules int    // modules of the release that this GPU can run; 0: not read from the wheel
	PTXOnly int    // of these, how many it can run as PTX only
	Without int    // modules that hold nothing this GPU runs: the operations in them fail
	PTXISA  string // highest version of the PTX language among the latter
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
	if out.For = bestCode(tf.SASS, capability, true); out.For != "" {
		out.Kind = CodeNative
	} else if out.For = bestCode(tf.PTX, capability, false); out.For != "" {
		out.Kind = CodePTX
	} else {
		return out
	}
	for _, m := range tf.Modules {
		native := bestCode(m.SASS, capability, true) != ""
		if !native && bestCode(m.PTX, capability, false) == "" {
			out.Without += m.Count
			continue
		}
		out.Modules += m.Count
		if native {
			continue
		}
		out.PTXOnly += m.Count
		if Compare(m.PTXISA, out.PTXISA) > 0 {
			out.PTXISA = m.PTXISA
		}
	}
	if out.Kind == CodePTX || out.PTXOnly > 0 {
		out.PTXCUDA = tf.CUDATested
		if cuda, _, err := t.PTXToolkit(out.PTXISA); err == nil {
			out.PTXCUDA = cuda
		}
		if k, err := t.Toolkit(out.PTXCUDA); err == nil {
			out.Driver = k.BundledDriver
		}
	}
	return out
}

// bestCode returns the highest capability of a list that a GPU runs: of the same major for machine code, any
// that is not above the GPU's for PTX. PTX for one architecture ("9.0a") runs on that one only.
func bestCode(list []string, capability string, same bool) string {
	found := ""
	for _, c := range list {
		if !Dotted(c) {
			if c = strings.TrimRight(c, "abcdefghijklmnopqrstuvwxyz"); c != capability {
				continue
			}
		}
		if Compare(c, capability) <= 0 && (!same || Major(c) == Major(capability)) && Compare(c, found) > 0 {
			found = c
		}
	}
	return found
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
