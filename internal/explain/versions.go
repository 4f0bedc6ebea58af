package explain

import (
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

func (x *explainer) cuda() error {
	c := x.q.CUDA
	if c == "" {
		return nil
	}
	if !facts.Dotted(c) {
		return &UnknownError{"cuda", c, x.t.CUDASets()}
	}
	x.section("CUDA %s", c)
	if k, err := x.t.Toolkit(c); err == nil {
		x.say(k.Evidence, "It came with driver %s. That is not its floor.", k.BundledDriver)
	}
	f, err := x.t.DriverFloor(facts.Major(c))
	if err != nil {
		return &UnknownError{"cuda", c, x.t.CUDASets()}
	}
	x.say(f.Evidence, "Every driver from %s on runs it.", f.Driver)
	if s, err := x.t.Sonames(c); err == nil {
		var names []string
		for _, lib := range []string{"cudart", "cublas", "cufft", "cusolver", "cusparse"} {
			names = append(names, s.Libraries[lib])
		}
		x.say(s.Evidence, "Its libraries are %s.", strings.Join(names, ", "))
	}
	if x.q.Driver != "" && x.class != "" && facts.Compare(x.q.Driver, f.Driver) < 0 {
		fc := x.t.ForwardCompat(c, x.q.Driver, x.class)
		x.say(fc.Evidence, "Forward compatibility with %s: %s, %s.", fc.Package, fc.Verdict, fc.Reason)
	}
	var images []string
	for _, ref := range x.t.Images() {
		if i, err := x.t.Image(ref); err == nil && facts.Minor(i.CUDA) == facts.Minor(c) && !i.EndOfLife {
			images = append(images, ref+" (cuDNN "+i.CuDNN+")")
		}
	}
	if len(images) > 0 {
		i, _ := x.t.Image(strings.Fields(images[0])[0])
		x.say(i.Evidence, "Images: %s.", strings.Join(images, ", "))
	}
	return nil
}

func (x *explainer) cudnn() error {
	v := x.q.CuDNN
	if v == "" {
		return nil
	}
	if !facts.Dotted(v) {
		return &UnknownError{"cudnn", v, nil}
	}
	f, err := x.t.CuDNN(facts.Major(v))
	if err != nil {
		return &UnknownError{"cudnn", v, nil}
	}
	x.section("cuDNN %s", v)
	members := slices.Clone(f.Members)
	for _, l := range f.Later {
		if facts.Compare(v, l.Since) >= 0 {
			members = append(members, l.Soname)
		}
	}
	x.say(f.Evidence, "TensorFlow opens %s, and that opens %s.", f.Soname, strings.Join(members, ", "))
	x.say(x.t.CuDNNABI(), "It serves every TensorFlow that was compiled with the same major and a minor not above it; the patch does not matter.")
	var have []string
	var e facts.Evidence
	for _, major := range x.majors() {
		if b, err := x.t.CuDNNVariant(v, major); err == nil && b.Exists {
			have = append(have, "cuda"+string(rune('0'+major/10))+string(rune('0'+major%10)))
			e = b.Evidence
		}
	}
	if len(have) > 0 {
		x.say(e, "There are builds for %s; each works with its own CUDA major only.", strings.Join(have, " and "))
	}
	return nil
}

func (x *explainer) tensorflow() error {
	v := x.q.TensorFlow
	if v == "" {
		return nil
	}
	if reason, e, old := x.t.TooOld(v); old {
		x.section("TensorFlow %s", v)
		x.say(e, "It cannot be built: %s.", reason)
		return nil
	}
	tf, err := x.t.TensorFlow(v)
	if err != nil {
		return &UnknownError{"tensorflow", v, x.t.Releases()}
	}
	x.section("TensorFlow %s", v)
	if tf.Inferred {
		x.say(tf.Evidence, "%s is not in the facts; those of %s are used.", v, tf.Minor)
	}
	x.say(tf.Evidence, "It is for Python %s to %s and was tested with CUDA %s and cuDNN %s.", tf.PythonMin, tf.PythonMax, tf.CUDATested, tf.CuDNNTested)
	if tf.CuDNNCompiled != "" {
		x.say(tf.CuDNNEvidence, "It was compiled with cuDNN %s: an older minor lists the GPU and fails at the first convolution.", tf.CuDNNCompiled)
	}
	if f, err := x.t.DriverFloor(tf.CUDAMajor); err == nil {
		x.say(f.Evidence, "CUDA %d needs driver %s or newer.", tf.CUDAMajor, f.Driver)
	}
	x.say(tf.DlopenEvidence, "It opens %s; when one does not load, it goes on without a GPU.", strings.Join(tf.DlopenSet, ", "))
	x.say(tf.GPUCodeEvidence, "It has machine code for compute capability %s and PTX for %s; the lowest is %s.",
		strings.Join(tf.SASS, ", "), strings.Join(tf.PTX, ", "), tf.MinComputeCapability)
	if x.cc != "" {
		x.code(tf)
	}
	if s := tf.Search; s.Kind != "" && len(s.Lacks) > 0 {
		x.say(s.Evidence, "Its own search path (%s) lacks the pip directories of %s: in the plain pip layout it finds no GPU; one CUDA directory works.", s.Kind, strings.Join(s.Lacks, ", "))
	}
	x.say(tf.Evidence, "Its wheel needs glibc %s; numpy %s, protobuf %s.", tf.MinGlibc, orAny(tf.NumPy), orAny(tf.Protobuf))
	return nil
}

func orAny(spec string) string {
	if spec == "" {
		return "any"
	}
	return spec
}

// code says what of a release's code the GPU runs.
func (x *explainer) code(tf facts.TensorFlow) {
	c := x.t.Code(tf, x.cc)
	switch {
	case c.Kind == facts.CodeNative && c.PTXOnly > 0:
		x.say(c.Evidence, "On %s it runs machine code for %s, except in %d of %d modules, which have PTX %s only: these need a driver that knows CUDA %s (%s or newer).",
			x.cc, c.For, c.PTXOnly, c.Modules, c.PTXISA, c.PTXCUDA, c.Driver)
	case c.Kind == facts.CodeNative:
		x.say(c.Evidence, "On %s it runs machine code for %s.", x.cc, c.For)
	case c.Kind == facts.CodePTX:
		x.say(c.Evidence, "On %s it has only PTX for %s, which the driver must compile at the first run: driver %s or newer.", x.cc, c.For, c.Driver)
		x.say(x.t.PTXRule().Evidence, "The reason: %s.", x.t.PTXRule().Reason)
	case c.Kind == facts.CodeBelow:
		x.say(c.Evidence, "%s is below its minimum.", x.cc)
	default:
		x.say(c.Evidence, "It has no code that %s runs.", x.cc)
	}
}

func (x *explainer) python() error {
	p := x.q.Python
	if p == "" {
		return nil
	}
	if !facts.Dotted(p) {
		return &UnknownError{"python", p, nil}
	}
	minors := x.t.ReleasesFor(p)
	if len(minors) == 0 {
		return &UnknownError{"python", p, nil}
	}
	tf, err := x.t.TensorFlow(minors[len(minors)-1])
	if err != nil {
		return err
	}
	x.section("Python %s", p)
	x.say(tf.Evidence, "TensorFlow %s to %s have wheels for it.", minors[0], minors[len(minors)-1])
	if bases := x.t.BasesWith(p); len(bases) > 0 {
		if o, err := x.t.OSOfReference(bases[0]); err == nil {
			x.say(o.Evidence, "Bases that provide it: %s.", strings.Join(bases, ", "))
		}
	}
	return nil
}
