package explain

import (
	"fmt"
	"strings"

	"imgsmith/internal/facts"
)

func (x *explainer) gpu() error {
	x.cc, x.class = x.q.ComputeCapability, x.q.Class
	if x.q.GPU != "" {
		g, err := x.t.GPU(x.q.GPU)
		if err != nil && x.cc == "" {
			return &UnknownError{"gpu", x.q.GPU, x.t.GPUs()}
		}
		if err == nil {
			x.board, x.cc, x.class = g, g.ComputeCapability, g.Class
			x.section("The GPU")
			x.say(g.Evidence, "%s has compute capability %s and is of class %s.", g.Name, g.ComputeCapability, g.Class)
		}
	}
	if x.cc == "" {
		return nil
	}
	if len(x.sections) == 0 {
		x.section("The GPU")
	}
	a, err := x.t.Architecture(x.cc)
	if err != nil {
		return &UnknownError{"compute_capability", x.cc, x.t.Capabilities()}
	}
	if a.FirstCUDA != "" {
		x.say(a.Evidence, "Its architecture is %s; the first CUDA release that knows it is %s.", a.Name, a.FirstCUDA)
	} else {
		x.say(a.Evidence, "Its architecture is %s.", a.Name)
	}
	if a.LastCUDAMajor != 0 {
		x.say(a.Evidence, "CUDA %d is the last that knows it.", a.LastCUDAMajor)
	}
	if f, ok := x.t.FirstDriver(x.q.GPU, x.cc); ok {
		x.say(f.Evidence, "The first driver that knows it is %s.", f.Driver)
	}
	if c, ok := x.t.DriverCeiling(x.cc); ok {
		x.say(c.Evidence, "The last driver branch that knows it is R%d; newer drivers do not see the GPU.", c.Branch)
	}
	if u, ok := x.t.UnprovedGPU(x.cc); ok {
		x.say(u.Evidence, "No TensorFlow release in the facts was shown to work on it: %s.", u.Reason)
	}
	x.cudnnOfGPU()
	return nil
}

func (x *explainer) cudnnOfGPU() {
	if limit := x.t.CuDNNCap(); facts.Compare(x.cc, limit.Below) < 0 {
		x.say(limit.Evidence, "cuDNN must not be newer than %s on it.", limit.Max)
	}
	if n, ok := x.t.CuDNNNeed(x.cc); ok {
		x.say(n.Evidence, "cuDNN has code for it from CUDA %s and driver %s on.", n.CUDA, n.Driver)
	}
}

func (x *explainer) driver() error {
	d := x.q.Driver
	if d == "" {
		return nil
	}
	if !facts.Dotted(d) {
		return &UnknownError{"driver", d, nil}
	}
	x.section("The driver")
	x.native(d)
	if c, ok := x.t.DriverCeiling(x.cc); ok && facts.Major(d) > c.Branch {
		x.say(c.Evidence, "Driver %s no longer knows %s: install a driver of branch R%d.", d, c.Architecture, c.Branch)
	}
	if f, ok := x.t.FirstDriver(x.q.GPU, x.cc); ok && facts.Compare(d, f.Driver) < 0 {
		x.say(f.Evidence, "Driver %s is older than %s, the first that knows this GPU.", d, f.Driver)
	}
	for _, major := range x.majors() {
		f, err := x.t.DriverFloor(major)
		if err != nil {
			continue
		}
		switch {
		case facts.Compare(d, f.Driver) >= 0:
			x.say(f.Evidence, "It runs every CUDA %d.x: minor-version compatibility begins at %s.", major, f.Driver)
		case x.class == "":
			x.say(f.Evidence, "It is below %s, from which on CUDA %d.x runs.", f.Driver, major)
		default:
			x.say(f.Evidence, "It is below %s, from which on CUDA %d.x runs%s", f.Driver, major, x.forward(major, d))
		}
	}
	x.say(x.t.NewerRunsOlder(), "A driver newer than a toolkit always runs it: only the GPU sets a ceiling.")
	return nil
}

func (x *explainer) native(d string) {
	b, err := x.t.DriverBranch(d)
	switch {
	case err != nil || b.NativeCUDA == "":
		x.say(facts.Evidence{Source: "the facts have no row", Confidence: "unknown"}, "Which CUDA release R%d supports natively is not known.", facts.Major(d))
	default:
		x.say(b.Evidence, "Driver %s is of branch R%d, which supports CUDA %s natively; that is what nvidia-smi prints, not an installed toolkit.", d, b.Branch, b.NativeCUDA)
	}
}

// majors are the CUDA majors that the TensorFlow releases in the table open.
func (x *explainer) majors() []int {
	var out []int
	for _, r := range x.t.Releases() {
		if tf, err := x.t.TensorFlow(r); err == nil && (len(out) == 0 || out[len(out)-1] != tf.CUDAMajor) {
			out = append(out, tf.CUDAMajor)
		}
	}
	return out
}

// forward says whether the compatibility package helps where a driver is below the floor.
func (x *explainer) forward(major int, driver string) string {
	newest := ""
	for _, s := range x.t.CUDASets() {
		if facts.Major(s) == major && facts.Compare(s, newest) > 0 {
			newest = s
		}
	}
	if newest == "" {
		return "."
	}
	f := x.t.ForwardCompat(newest, driver, x.class)
	switch f.Verdict {
	case facts.Yes:
		return fmt.Sprintf("; with the package %s it runs CUDA %s (%s).", f.Package, newest, f.Reason)
	case facts.No:
		return fmt.Sprintf("; %s does not help: %s.", f.Package, f.Reason)
	}
	return fmt.Sprintf("; whether %s helps is not known: %s.", f.Package, f.Reason)
}

func (x *explainer) base() error {
	if x.q.Base == "" {
		return nil
	}
	x.section("The base image")
	if r, faulty := x.t.FaultyImage(x.q.Base); faulty {
		x.say(r.Evidence, "%s: %s.", x.q.Base, r.Reason)
	}
	i, err := x.t.Image(x.q.Base)
	if err != nil {
		return x.plainBase()
	}
	x.image = i
	holds := []string{"CUDA " + i.CUDA}
	if i.CuDNN != "" {
		holds = append(holds, "cuDNN "+i.CuDNN)
	}
	if i.NCCL != "" {
		holds = append(holds, "NCCL "+i.NCCL)
	}
	if !i.Exists {
		x.say(i.Evidence, "%s does not exist: %s.", x.q.Base, i.Missing)
		return nil
	}
	x.say(i.Evidence, "%s holds %s on Ubuntu %s.", x.q.Base, strings.Join(holds, ", "), i.Ubuntu)
	if len(i.Lacks) > 0 {
		x.say(i.Evidence, "It lacks %s, which XLA needs.", strings.Join(i.Lacks, " and "))
	}
	m := x.t.ImageTagsMove()
	if i.EndOfLife {
		x.say(i.Evidence, "Its life has ended: mirror it, or take a plain base.")
	}
	x.say(m.Evidence, "Pin it by digest: %s.", m.Reason)
	if x.q.Driver != "" {
		g := x.t.StartGate(i, x.q.Driver, x.class)
		text := map[facts.Verdict]string{facts.Yes: "The container runtime starts it", facts.No: "The container runtime refuses to start it", facts.Unknown: "Whether the container runtime starts it is not known"}[g.Verdict]
		if g.Verdict == facts.No {
			g.Reason += fmt.Sprintf("; a plain base has no such gate, and %s=1 switches it off", g.Bypass)
		}
		x.say(g.Evidence, "%s: %s.", text, g.Reason)
		if g.Fails {
			x.say(g.Evidence, "CUDA then fails in it: the driver is below the floor of CUDA %d, and this class of GPU has no forward compatibility.", facts.Major(i.CUDA))
		}
	}
	return nil
}

func (x *explainer) plainBase() error {
	o, err := x.t.OSOfReference(x.q.Base)
	if err != nil {
		x.say(facts.Evidence{Source: "the facts have no row", Confidence: "unknown"}, "What %s holds is not in the facts.", x.q.Base)
		return nil
	}
	if o.Libc != "glibc" {
		x.say(o.Evidence, "%s has %s: TensorFlow has no wheel for it.", x.q.Base, o.Libc)
		return nil
	}
	x.say(o.Evidence, "%s has glibc %s and provides Python %s; it has no start gate.", x.q.Base, o.Glibc, strings.Join(o.Pythons, ", "))
	return nil
}
