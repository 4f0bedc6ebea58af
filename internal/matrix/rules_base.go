package matrix

import (
	"fmt"
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

// image judges a base that brings CUDA itself: what is in it, whether it exists, and whether two providers meet.
func image(c *check) {
	if c.e.Base == "" {
		return
	}
	if f, ok := c.facts.FaultyImage(c.e.Base); ok {
		c.add("base", "image-fault", Refuse, f.Evidence, "base: debian:12 with supplier: wheels", "base %s: %s", c.e.Base, f.Reason)
		return
	}
	if c.image == nil {
		c.unknownTag()
		return
	}
	i := *c.image
	if !i.Exists {
		c.add("base", "base-tag", Warn, i.Evidence, c.imageFor(), "base %s is not among the tags that were made: %s", c.e.Base, i.Missing)
	} else if i.EndOfLife {
		m := c.facts.ImageTagsMove()
		c.add("base", "base-tag", Warn, m.Evidence, c.imageFor(), "base %s is at the end of its life; %s", c.e.Base, m.Reason)
	}
	if c.e.Supplier == SupplierWheels || c.e.Supplier == SupplierAndCUDA {
		c.add("base", "cuda-provider", Refuse, i.Evidence, "base: ubuntu:"+i.Ubuntu+" with supplier: wheels, or supplier: apt",
			"base %s brings CUDA %s, supplier %s brings it again: the loader's path decides which is used", c.e.Base, i.CUDA, c.e.Supplier)
	}
	c.libraries(i)
}

// unknownTag tells of a CUDA image whose contents are not in the facts; nothing is refused for that.
func (c *check) unknownTag() {
	name, tag, _ := strings.Cut(c.e.Base, ":")
	if name != "nvidia/cuda" && !strings.HasSuffix(name, "/nvidia/cuda") || tag == "" || strings.Contains(c.e.Base, "@") {
		return
	}
	m := c.facts.ImageTagsMove()
	c.add("base", "base-tag", Warn, m.Evidence, c.imageFor(), "base %s is not among the tags whose contents are known", c.e.Base)
}

// libraries refuses a base that lacks members of the set which the release opens.
func (c *check) libraries(i facts.Image) {
	if c.e.Supplier != SupplierApt || !c.stated() || c.known != nil {
		return
	}
	if i.CuDNN == "" && auto(c.e.CuDNN) {
		c.add("base", "library-set", Refuse, i.Evidence, c.imageFor(), "base %s holds no cuDNN, and the recipe names none: TensorFlow %s opens libcudnn.so.%d",
			c.e.Base, c.e.TensorFlow.Version, c.tf.CuDNNMajor)
	}
	if i.Flavor == "base" {
		c.add("base", "library-set", Refuse, i.Evidence, c.imageFor(), "base %s holds the runtime library of CUDA only: TensorFlow %s opens %s too",
			c.e.Base, c.e.TensorFlow.Version, strings.Join(c.tf.DlopenSet[1:], ", "))
	}
	if len(i.Lacks) > 0 {
		c.add("base", "xla-tools", Note, i.Evidence, "", "base %s lacks %s: jit-compiled functions fail until the compiler package is added", c.e.Base, strings.Join(i.Lacks, " and "))
	}
	s, err := c.facts.Sonames(i.CUDA)
	if err != nil || facts.Major(i.CUDA) != c.tf.CUDAMajor {
		return
	}
	for _, soname := range c.tf.DlopenSet {
		short := strings.TrimPrefix(strings.SplitN(soname, ".so", 2)[0], "lib")
		if have, ok := s.Libraries[short]; ok && have != soname {
			rule := "library-set"
			if short == "curand" {
				rule = "curand"
			}
			c.add("base", rule, Refuse, s.Evidence, c.imageFor(), "CUDA %s has %s, TensorFlow %s opens %s", i.CUDA, have, c.e.TensorFlow.Version, soname)
		}
	}
}

// imageFor names the images that hold what the release needs, or a plain base.
func (c *check) imageFor() string {
	const plain = "base: debian:12 with supplier: wheels"
	if !c.stated() || c.known != nil {
		return plain
	}
	var good []string
	for _, ref := range c.facts.Images() {
		i, err := c.facts.Image(ref)
		if err != nil || !i.Exists || facts.Major(i.CUDA) != c.tf.CUDAMajor || facts.Compare(facts.Minor(i.CUDA), c.tf.CUDATested) < 0 ||
			facts.Major(i.CuDNN) != c.tf.CuDNNMajor || facts.Compare(facts.Minor(i.CuDNN), c.cudnnFloor()) < 0 {
			continue
		}
		if c.tf.CUDAOnly && facts.Minor(i.CUDA) != c.tf.CUDATested {
			continue
		}
		if !slices.ContainsFunc(good, func(g string) bool { return strings.HasPrefix(g, "nvidia/cuda:"+i.CUDA) }) {
			good = append(good, ref)
		}
	}
	if len(good) == 0 {
		return plain
	}
	return "base: " + good[0]
}

func (c *check) cudnnFloor() string {
	if c.tf.CuDNNCompiled != "" {
		return facts.Minor(c.tf.CuDNNCompiled)
	}
	return c.tf.CuDNNTested
}

// variant judges whether the cuDNN version has a build for the CUDA major.
func variant(c *check) {
	if !c.judged(c.cuda) || c.cudnn == "" || facts.Major(c.cudnn) != c.tf.CuDNNMajor || facts.Major(c.cuda) != c.tf.CUDAMajor {
		return
	}
	v, err := c.facts.CuDNNVariant(c.cudnn, facts.Major(c.cuda))
	if err != nil || v.Exists {
		return
	}
	has := "from " + v.Min + " on"
	if v.Max != "" {
		has = v.Min + " to " + v.Max
	}
	c.add("cudnn", "cudnn-variant", Refuse, v.Evidence, fmt.Sprintf("cudnn: %q", c.tf.CuDNNTested), "cuDNN %s has no build for CUDA %d: there are builds of %s", c.cudnn, facts.Major(c.cuda), has)
}

// flavor refuses what the supplier cannot bring.
func flavor(c *check) {
	if c.e.Flavor == FlavorDevel && c.e.Supplier != SupplierApt {
		c.add("flavor", "flavor", Refuse, own("the compiler wheel of CUDA 12 holds ptxas and libraries, no nvcc"), "flavor: runtime",
			"flavor devel needs supplier apt: NVIDIA's wheels hold no compiler driver")
	}
}

// pythonAuto refuses auto where the base does not say what it provides.
func pythonAuto(c *check) {
	if c.e.Python.Version != Auto {
		return
	}
	c.add("python", "python-auto", Refuse, own("its operating system table"), `python: "3.11"`, "python: auto, and what base %q provides is not known", c.e.Base)
}
