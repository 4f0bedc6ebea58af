package validate

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed thresholds.yaml
var thresholdsYAML []byte

// Thresholds are the limits that the judge compares with; data with sources in thresholds.yaml.
type Thresholds struct {
	MaxRelative    map[string]float64 `yaml:"max_relative" json:"max_relative"`           // per operation, no TF32
	MaxRelativeTF  map[string]float64 `yaml:"max_relative_tf32" json:"max_relative_tf32"` // per operation, TF32 allowed
	MemoryUsedMin  uint64             `yaml:"memory_used_min" json:"memory_used_min"`     // bytes that a run must take on the GPU
	CuDNNCompute   []string           `yaml:"cudnn_compute" json:"cudnn_compute"`         // prefixes of cuDNN calls that compute
	MemoryRatioMin float64            `yaml:"memory_ratio_min" json:"memory_ratio_min"`   // container's memory total over the host's
	MemoryRatioMax float64            `yaml:"memory_ratio_max" json:"memory_ratio_max"`
}

// DefaultThresholds returns the embedded limits.
func DefaultThresholds() (Thresholds, error) {
	var t Thresholds
	if err := yaml.UnmarshalWithOptions(thresholdsYAML, &t, yaml.Strict()); err != nil {
		return Thresholds{}, fmt.Errorf("reading the embedded thresholds: %w", err)
	}
	return t, nil
}

// With returns the limits with those of a recipe by name in place. A recipe may tighten a limit; a looser one, or a
// name that is not known, is an error: what is proved must mean the same for every recipe.
func (t Thresholds) With(own map[string]float64) (Thresholds, error) {
	for name, v := range own {
		var have float64
		upper := false
		switch name {
		case "memory_ratio_min":
			have, t.MemoryRatioMin = t.MemoryRatioMin, v
		case "memory_ratio_max":
			have, t.MemoryRatioMax, upper = t.MemoryRatioMax, v, true
		case "memory_used_min":
			have, t.MemoryUsedMin = float64(t.MemoryUsedMin), uint64(v)
		default:
			return t, fmt.Errorf("policy.thresholds: %s is no limit that a recipe sets", name)
		}
		if v < have != upper && v != have {
			return t, fmt.Errorf("policy.thresholds: %s: %g is looser than %g; a recipe can only tighten it", name, v, have)
		}
	}
	return t, nil
}

// Expect is the prediction that observations are compared with: what the entry's facts say must be seen.
type Expect struct {
	Entry                string     `json:"entry"`
	TensorFlow           string     `json:"tensorflow"`     // version of the wheel
	CUDA                 string     `json:"cuda"`           // toolkit of the image, major.minor
	CUDABuilt            string     `json:"cuda_built"`     // CUDA that the wheel was compiled with, major.minor
	CuDNN                string     `json:"cudnn"`          // package version in the image
	CuDNNCompiled        string     `json:"cudnn_compiled"` // minor that the wheel was compiled with, empty when unknown
	CUDARoot             string     `json:"cuda_root"`      // directory that every CUDA library must be mapped from
	DlopenSet            []string   `json:"dlopen_set"`     // sonames that TensorFlow opens, the host's not among them
	CuDNNFamily          []string   `json:"cudnn_family"`   // sub-libraries of the cuDNN package
	DriverFloor          string     `json:"driver_floor"`   // lowest driver for this CUDA major
	MinComputeCapability string     `json:"min_compute_capability"`
	Thresholds           Thresholds `json:"thresholds"`
}

// atLeast compares dotted numbers part by part; a missing part counts as zero. ok is false when a part of
// either is not a number.
func atLeast(have, want string) (yes, ok bool) {
	h, w := strings.Split(have, "."), strings.Split(want, ".")
	for i := 0; i < max(len(h), len(w)); i++ {
		a, okA := part(h, i)
		b, okB := part(w, i)
		if !okA || !okB {
			return false, false
		}
		if a != b {
			return a > b, true
		}
	}
	return true, true
}

func part(s []string, i int) (int, bool) {
	if i >= len(s) {
		return 0, true
	}
	n, err := strconv.Atoi(s[i])
	return n, err == nil
}

// prefix returns the first n dotted parts of a version.
func prefix(v string, n int) string {
	p := strings.Split(v, ".")
	return strings.Join(p[:min(n, len(p))], ".")
}

// cudaNumber writes a CUDA version number (12050) as major.minor.
func cudaNumber(n int64) string { return fmt.Sprintf("%d.%d", n/1000, n%1000/10) }

// cudnnNumber writes a cuDNN version number as major.minor.patch: 8907 before cuDNN 9, 90300 from 9 on.
func cudnnNumber(n int64) string {
	if n < 10000 {
		return fmt.Sprintf("%d.%d.%d", n/1000, n%1000/100, n%100)
	}
	return fmt.Sprintf("%d.%d.%d", n/10000, n%10000/100, n%100)
}
