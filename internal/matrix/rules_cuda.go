package matrix

import (
	"fmt"
	"strings"

	"imgsmith/internal/facts"
)

// judged tells whether the CUDA and cuDNN rules have something to compare.
func (c *check) judged(value string) bool { return c.stated() && c.known == nil && value != "" }

func cudaMajor(c *check) {
	if c.judged(c.cuda) && facts.Major(c.cuda) != c.tf.CUDAMajor {
		c.add("cuda", "cuda-major", Refuse, c.tf.DlopenEvidence, fmt.Sprintf("cuda: %q", c.tf.CUDATested),
			"TensorFlow %s opens libraries of CUDA %d, CUDA %s has others", c.e.TensorFlow.Version, c.tf.CUDAMajor, c.cuda)
	}
}

func cudaMinor(c *check) {
	if !c.judged(c.cuda) || facts.Major(c.cuda) != c.tf.CUDAMajor {
		return
	}
	near := fmt.Sprintf("cuda: %q", c.tf.CUDATested)
	if c.image != nil && auto(c.e.CUDA) {
		near = c.imageFor()
	}
	switch d := facts.Compare(facts.Minor(c.cuda), c.tf.CUDATested); {
	case d < 0:
		c.add("cuda", "cuda-minor", Refuse, c.tf.Evidence, near, "CUDA %s is older than %s, which TensorFlow %s was built with",
			c.cuda, c.tf.CUDATested, c.e.TensorFlow.Version)
	case d > 0 && c.tf.CUDAOnly:
		c.add("cuda", "cuda-minor", Refuse, c.tf.DlopenEvidence, near, "TensorFlow %s opens a library that only CUDA %s has",
			c.e.TensorFlow.Version, c.tf.CUDATested)
	case d > 0 && c.tf.Extra.Style != "range": // with ranges the wheel itself allows newer minors
		c.add("cuda", "cuda-pair", Warn, c.tf.Evidence, near, "CUDA %s works by rule, but TensorFlow %s was tested with %s",
			c.cuda, c.e.TensorFlow.Version, c.tf.CUDATested)
	}
}

func cudnn(c *check) {
	if !c.judged(c.cudnn) {
		return
	}
	near := fmt.Sprintf("cudnn: %q", c.tf.CuDNNTested)
	if c.image != nil && auto(c.e.CuDNN) {
		near = c.imageFor()
	}
	if facts.Major(c.cudnn) != c.tf.CuDNNMajor {
		c.add("cudnn", "cudnn-major", Refuse, c.facts.CuDNNABI(), near, "TensorFlow %s opens libcudnn.so.%d, cuDNN %s is another major",
			c.e.TensorFlow.Version, c.tf.CuDNNMajor, c.cudnn)
		return
	}
	floor := facts.Minor(c.tf.CuDNNCompiled)
	switch {
	case floor != "" && facts.Compare(facts.Minor(c.cudnn), floor) < 0:
		c.add("cudnn", "cudnn-minor", Refuse, c.facts.CuDNNABI(), near,
			"cuDNN %s is older than %s, which TensorFlow %s was compiled with: the GPU is listed and the first convolution fails",
			c.cudnn, c.tf.CuDNNCompiled, c.e.TensorFlow.Version)
	case floor == "" && facts.Compare(facts.Minor(c.cudnn), c.tf.CuDNNTested) < 0:
		c.add("cudnn", "cudnn-minor", Unproved, c.tf.CuDNNEvidence, near, "cuDNN %s is older than %s, which TensorFlow %s was tested with; what it was compiled with is not known",
			c.cudnn, c.tf.CuDNNTested, c.e.TensorFlow.Version)
	}
}

func cudnnFault(c *check) {
	if !c.judged(c.cudnn) {
		return
	}
	if f, ok := c.facts.CuDNNFault(c.cudnn, c.tf.Minor); ok {
		c.add("cudnn", "cudnn-fault", Warn, f.Evidence, f.Nearest, "cuDNN %s with TensorFlow %s: %s reported", c.cudnn, c.e.TensorFlow.Version, f.Reason)
	}
}

// wheelSet refuses a CUDA minor for which NVIDIA's wheels are not known: supplier wheels could not build it.
func wheelSet(c *check) {
	if c.e.Supplier != SupplierWheels || c.image != nil || !c.judged(c.cuda) || facts.Major(c.cuda) != c.tf.CUDAMajor {
		return
	}
	if _, err := c.facts.CUDAWheels(c.cuda, c.cudnn); err == nil {
		return
	}
	var near []string
	for _, s := range c.facts.CUDASets() {
		if facts.Major(s) == c.tf.CUDAMajor && facts.Compare(s, c.tf.CUDATested) >= 0 {
			near = append(near, fmt.Sprintf("cuda: %q", s))
		}
	}
	c.add("cuda", "wheel-set", Refuse, own("NVIDIA's wheels in its facts table"), strings.Join(near, " or "),
		"no set of NVIDIA's wheels is known for CUDA %s; there are sets for %s", c.cuda, strings.Join(c.facts.CUDASets(), ", "))
}
