package derive

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Headers are the versions in the headers that a TensorFlow wheel brings. Empty: the wheel has no such header.
type Headers struct {
	CUDA         string   `yaml:"cuda,omitempty" json:"cuda,omitempty"`                      // cuda.h, major.minor
	CUDNN        string   `yaml:"cudnn,omitempty" json:"cudnn,omitempty"`                    // cudnn_version.h or cudnn.h, three parts
	NCCL         string   `yaml:"nccl,omitempty" json:"nccl,omitempty"`                      // nccl.h, three parts
	Config       Config   `yaml:"cuda_config,omitempty" json:"cuda_config"`                  // cuda_config.h
	Capabilities []string `yaml:"capabilities,flow,omitempty" json:"capabilities,omitempty"` // of cuda_config.h, major.minor
}

// Config is what cuda_config.h says: version suffixes of the sonames, by short name of the library, and the
// version of CUDA.
type Config struct {
	CUDA    string            `yaml:"cuda,omitempty" json:"cuda,omitempty"`
	Sonames map[string]string `yaml:"sonames,omitempty" json:"sonames,omitempty"` // "cufft": "11"
}

// BuildInfo is what build_info.py says of the GPU build.
type BuildInfo struct {
	Found        bool     `yaml:"-" json:"found"`
	IsCUDA       bool     `yaml:"is_cuda_build" json:"is_cuda_build"`
	CUDA         string   `yaml:"cuda_version,omitempty" json:"cuda_version,omitempty"`
	CuDNN        string   `yaml:"cudnn_version,omitempty" json:"cudnn_version,omitempty"` // often the major only
	Capabilities []string `yaml:"cuda_compute_capabilities,flow,omitempty" json:"cuda_compute_capabilities,omitempty"`
	TensorRT     bool     `yaml:"is_tensorrt_build,omitempty" json:"is_tensorrt_build"`
}

var (
	define       = regexp.MustCompile(`(?m)^\s*#\s*define\s+(\w+)\s+(.+?)\s*$`)
	infoPair     = regexp.MustCompile(`['"](\w+)['"]\s*[,:]\s*(\[[^\]]*\]|['"][^'"]*['"]|True|False)`)
	infoWord     = regexp.MustCompile(`['"]([^'"]*)['"]`)
	architecture = regexp.MustCompile(`^(?:sm_|compute_)?(\d+)[a-z]?$`)
)

// defines returns the object-like macros of a header.
func defines(text []byte) map[string]string {
	out := map[string]string{}
	for _, m := range define.FindAllSubmatch(text, -1) {
		if _, have := out[string(m[1])]; !have {
			out[string(m[1])] = strings.Trim(string(m[2]), `"`)
		}
	}
	return out
}

// three joins a major, minor and patch macro; empty when one of them is no number.
func three(d map[string]string, major, minor, patch string) string {
	var out []string
	for _, name := range []string{major, minor, patch} {
		n, err := strconv.Atoi(d[name])
		if err != nil {
			return ""
		}
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ".")
}

// read takes from one header what its name promises.
func (h *Headers) read(base string, text []byte) {
	d := defines(text)
	switch base {
	case "cuda.h":
		if n, err := strconv.Atoi(d["CUDA_VERSION"]); err == nil {
			h.CUDA = fmt.Sprintf("%d.%d", n/1000, n%1000/10)
		}
	case "cudnn_version.h", "cudnn.h":
		if v := three(d, "CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"); v != "" {
			h.CUDNN = v
		}
	case "nccl.h":
		if v := three(d, "NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"); v != "" {
			h.NCCL = v
		}
	case "cuda_config.h":
		h.readConfig(d)
	}
}

func (h *Headers) readConfig(d map[string]string) {
	h.Config.CUDA = d["TF_CUDA_VERSION"]
	h.Config.Sonames = map[string]string{}
	for _, lib := range []string{"cudart", "cublas", "cufft", "curand", "cusolver", "cusparse", "cudnn", "cupti"} {
		if v := d["TF_"+strings.ToUpper(lib)+"_VERSION"]; v != "" {
			h.Config.Sonames[lib] = v
		}
	}
	if v := h.Config.Sonames["cublas"]; v != "" {
		h.Config.Sonames["cublasLt"] = v // built and versioned together
	}
	h.Capabilities = nil
	for _, w := range strings.Split(d["TF_CUDA_COMPUTE_CAPABILITIES"], ",") {
		if m := architecture.FindStringSubmatch(strings.TrimSpace(strings.ReplaceAll(w, ".", ""))); m != nil {
			if n, err := strconv.ParseUint(m[1], 10, 16); err == nil {
				h.Capabilities = append(h.Capabilities, Capability(uint32(n)))
			}
		}
	}
}

// parseBuildInfo reads the assignment in build_info.py without running it.
func parseBuildInfo(text []byte) BuildInfo {
	b := BuildInfo{Found: true}
	for _, m := range infoPair.FindAllSubmatch(text, -1) {
		value := string(m[2])
		word := strings.Trim(value, `'"`)
		switch string(m[1]) {
		case "is_cuda_build":
			b.IsCUDA = value == "True"
		case "is_tensorrt_build":
			b.TensorRT = value == "True"
		case "cuda_version":
			b.CUDA = word
		case "cudnn_version":
			b.CuDNN = word
		case "cuda_compute_capabilities":
			for _, w := range infoWord.FindAllStringSubmatch(value, -1) {
				b.Capabilities = append(b.Capabilities, w[1])
			}
		}
	}
	return b
}
