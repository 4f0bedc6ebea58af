package matrix

import (
	"fmt"
	"slices"

	"imgsmith/internal/facts"
)

// machine is a member of the fleet while it is judged.
type machine struct {
	*check
	FleetMember
}

func (m machine) add(rule string, s Severity, ev facts.Evidence, nearest, format string, args ...any) {
	m.addAt(m.Line, m.Column, rule, s, ev, nearest, format, args...)
}

func fleet(c *check) {
	for _, f := range c.e.Fleet {
		m := machine{c, f}
		if m.Line == 0 {
			m.Line, m.Column = c.e.Line("fleet"), c.e.Column("fleet")
		}
		if !m.name() || !c.judged(c.cuda) {
			continue
		}
		m.driverFloor()
		m.gate()
		if m.ComputeCapability == "" {
			continue
		}
		m.driverCeiling()
		if m.capability() {
			m.code()
		}
		m.variantNeed()
		m.cudnnCap()
	}
}

// name fills in capability and class from the GPU's name.
func (m *machine) name() bool {
	if m.GPU == "" {
		return true
	}
	g, err := m.facts.GPU(m.GPU)
	switch {
	case err != nil && m.ComputeCapability == "":
		near := nearest(m.GPU, m.facts.GPUs())
		if near != "" {
			near = "gpu: " + near
		}
		m.add("fleet-gpu", Refuse, own("its facts table"), near, "GPU %q is not known; write its compute_capability instead", m.GPU)
		return false
	case err != nil:
		return true
	case m.ComputeCapability != "" && m.ComputeCapability != g.ComputeCapability:
		m.add("fleet-gpu", Refuse, g.Evidence, fmt.Sprintf("compute_capability: %q", g.ComputeCapability), "%s has compute capability %s, not %s",
			g.Name, g.ComputeCapability, m.ComputeCapability)
		return false
	}
	m.ComputeCapability = g.ComputeCapability
	if m.Class == "" {
		m.Class = g.Class
	}
	return true
}

func (m *machine) driverFloor() {
	if m.Driver == "" {
		return
	}
	f, err := m.facts.DriverFloor(facts.Major(m.cuda))
	if err != nil || facts.Compare(m.Driver, f.Driver) >= 0 {
		m.firstDriver()
		return
	}
	// The images of NVIDIA carry the package of forward compatibility; ours do not.
	if m.image != nil && m.Class != "" {
		fc := m.facts.ForwardCompat(m.cuda, m.Driver, m.Class)
		switch fc.Verdict {
		case facts.Yes:
			m.add("forward-compatibility", Warn, fc.Evidence, "", "driver %s is below %s, which CUDA %d needs: it runs by forward compatibility only (%s)", m.Driver, f.Driver, f.CUDAMajor, fc.Reason)
			return
		case facts.Unknown:
			m.add("forward-compatibility", Unproved, fc.Evidence, fmt.Sprintf("driver: %q", f.Driver), "driver %s is below %s, which CUDA %d needs, and %s", m.Driver, f.Driver, f.CUDAMajor, fc.Reason)
			return
		}
		m.refuseDriver("forward-compatibility", fc.Evidence, f.Driver, fmt.Sprintf("driver %s is below %s, which CUDA %d needs, and forward compatibility does not help: %s", m.Driver, f.Driver, f.CUDAMajor, fc.Reason))
		return
	}
	m.refuseDriver("driver-floor", f.Evidence, f.Driver, fmt.Sprintf("driver %s is below %s, which CUDA %d needs", m.Driver, f.Driver, f.CUDAMajor))
}

// firstDriver refuses a driver that is older than the GPU. A branch alone counts from its first release on.
func (m *machine) firstDriver() {
	f, ok := m.facts.FirstDriver(m.GPU, m.ComputeCapability)
	if !ok || facts.Compare(m.Driver, f.Driver) >= 0 {
		return
	}
	if !f.Board && facts.Major(m.Driver) >= facts.Major(f.Driver) {
		return // the branch that came with the toolkit knows the architecture, its first release perhaps too
	}
	m.refuseDriver("driver-floor", f.Evidence, f.Driver, fmt.Sprintf("driver %s is older than %s, the first that knows this GPU", m.Driver, f.Driver))
}

// gate evaluates the start condition of a base that has one.
func (m *machine) gate() {
	if m.image == nil || m.Driver == "" {
		return
	}
	g := m.facts.StartGate(*m.image, m.Driver, m.Class)
	if g.Verdict == facts.No {
		near := "base: ubuntu:" + m.image.Ubuntu + " with supplier: wheels"
		if g.Bypass != "" {
			near += fmt.Sprintf(", or environment: {%s: \"1\"}", g.Bypass)
		}
		if m.e.Environment[g.Bypass] == "1" {
			return
		}
		m.add("start-gate", RefuseStart, g.Evidence, near, "%s", g.Reason)
	}
}

// variantNeed tells what a new architecture needs from CUDA and driver for cuDNN to have code for it.
func (m *machine) variantNeed() {
	n, ok := m.facts.CuDNNNeed(m.ComputeCapability)
	if ok && facts.Compare(m.cuda, n.CUDA) < 0 {
		m.add("cudnn-variant", Unproved, n.Evidence, fmt.Sprintf("cuda: %q", n.CUDA), "cuDNN has code for compute capability %s in its builds for CUDA %s and newer, this entry has %s", m.ComputeCapability, n.CUDA, m.cuda)
	}
}

func (m *machine) refuseDriver(rule string, ev facts.Evidence, driver, message string) {
	m.add(rule, Refuse, ev, fmt.Sprintf("driver: %q", driver), "%s", message)
}

func (m *machine) driverCeiling() {
	a, err := m.facts.Architecture(m.ComputeCapability)
	if err != nil || m.Driver == "" || a.LastDriverBranch == 0 || facts.Major(m.Driver) <= a.LastDriverBranch {
		return
	}
	m.add("driver-ceiling", Refuse, a.Evidence, fmt.Sprintf("a driver of branch R%d", a.LastDriverBranch),
		"driver %s no longer knows %s (%s): the last branch is R%d", m.Driver, a.Name, m.ComputeCapability, a.LastDriverBranch)
}

// capability refuses a GPU that release or toolkit cannot use; false ends the judgement of its code.
func (m *machine) capability() bool {
	if facts.Compare(m.ComputeCapability, m.tf.MinComputeCapability) < 0 {
		m.add("compute-capability", Refuse, m.tf.GPUCodeEvidence, m.releaseFor(), "compute capability %s is below %s, the lowest that TensorFlow %s has code for",
			m.ComputeCapability, m.tf.MinComputeCapability, m.e.TensorFlow.Version)
		return false
	}
	if u, ok := m.facts.UnprovedGPU(m.ComputeCapability); ok {
		m.add("gpu-unproved", Unproved, u.Evidence, "", "compute capability %s with TensorFlow %s: %s", m.ComputeCapability, m.e.TensorFlow.Version, u.Reason)
		return false
	}
	a, err := m.facts.Architecture(m.ComputeCapability)
	switch {
	case err != nil:
		m.add("gpu-unproved", Unproved, own("its facts table"), "", "compute capability %s is not known", m.ComputeCapability)
		return false
	case a.LastCUDAMajor != 0 && facts.Major(m.cuda) > a.LastCUDAMajor:
		m.add("compute-capability", Refuse, a.Evidence, m.releaseFor(), "CUDA %s has no support for %s (%s)", m.cuda, a.Name, m.ComputeCapability)
		return false
	case a.FirstCUDA != "" && facts.Compare(facts.Minor(m.cuda), a.FirstCUDA) < 0:
		m.add("gpu-unproved", Unproved, a.Evidence, "", "CUDA %s is older than %s (%s), which came with %s: its libraries have no code of their own for it",
			m.cuda, a.Name, m.ComputeCapability, a.FirstCUDA)
		return false
	}
	return true
}

// code looks for machine code that runs on the GPU. PTX is compiled by the driver, which must know its language
// version: a release without machine code is refused on an older driver, one with some modules that are PTX only
// is unproved there, because the rest works and nobody has shown what a program would miss.
func (m *machine) code() {
	cc, release := m.ComputeCapability, m.e.TensorFlow.Version
	code := m.facts.Code(m.tf, cc)
	old := m.Driver != "" && code.Driver != "" && facts.Compare(m.Driver, code.Driver) < 0
	switch {
	case code.Kind == facts.CodeNone || code.Kind == facts.CodeBelow:
		m.add("compute-capability", Refuse, m.tf.GPUCodeEvidence, m.releaseFor(), "TensorFlow %s has neither machine code nor PTX for compute capability %s", release, cc)
	case code.Kind == facts.CodePTX && old:
		m.refuseDriver("ptx-driver", code.Evidence, code.Driver, fmt.Sprintf(
			"TensorFlow %s has only PTX for compute capability %s, and driver %s is older than %s, which came with CUDA %s, the first that compiles it", release, cc, m.Driver, code.Driver, code.PTXCUDA))
	case code.Kind == facts.CodePTX:
		m.add("ptx-only", Warn, m.tf.GPUCodeEvidence, m.releaseFor(), "TensorFlow %s has only PTX for compute capability %s: the first run compiles for minutes", release, cc)
	case old:
		m.add("ptx-modules", Unproved, code.Evidence, fmt.Sprintf("driver: %q", code.Driver),
			"TensorFlow %s has %d of its %d GPU modules for compute capability %s as PTX only, of language %s; driver %s is older than %s (CUDA %s), the first that compiles it: operations in these modules fail at their first call",
			release, code.PTXOnly, code.Modules, cc, code.PTXISA, m.Driver, code.Driver, code.PTXCUDA)
	}
}

func (m *machine) cudnnCap() {
	limit := m.facts.CuDNNCap()
	if m.cudnn != "" && facts.Compare(m.ComputeCapability, limit.Below) < 0 && facts.Compare(m.cudnn, limit.Max) > 0 {
		m.add("cudnn-cap", Refuse, limit.Evidence, fmt.Sprintf("cudnn: %q", limit.Max), "cuDNN %s no longer works below compute capability %s; the last that does is %s",
			m.cudnn, limit.Below, limit.Max)
	}
}

// releaseFor names the newest release with machine code for the GPU, or nothing.
func (m *machine) releaseFor() string {
	releases := m.facts.Releases()
	for i := len(releases) - 1; i >= 0; i-- {
		tf, err := m.facts.TensorFlow(releases[i])
		if err != nil {
			continue
		}
		a, err := m.facts.Architecture(m.ComputeCapability)
		if err != nil || (a.LastCUDAMajor != 0 && tf.CUDAMajor > a.LastCUDAMajor) {
			continue
		}
		if slices.ContainsFunc(tf.SASS, func(s string) bool {
			return facts.Major(s) == facts.Major(m.ComputeCapability) && facts.Compare(s, m.ComputeCapability) <= 0
		}) {
			return fmt.Sprintf("tensorflow: %q", releases[i])
		}
	}
	return ""
}
