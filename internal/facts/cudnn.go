package facts

import "slices"

// CuDNNRelease is a release of cuDNN and the CUDA releases (up to 8.4) or majors that it was built for.
type CuDNNRelease struct {
	Version  string   `yaml:"version"`
	CUDA     []string `yaml:"cuda"`
	Note     string   `yaml:"note"`
	Evidence `yaml:",inline"`
}

// CuDNNVariant says whether a cuDNN version has a build for a CUDA major.
type CuDNNVariant struct {
	Exists   bool
	Min, Max string // the versions that have one; Max empty: no end known
	Evidence
}

// CuDNNNeed is what cuDNN needs from CUDA and driver to have code for a range of compute capabilities.
type CuDNNNeed struct {
	Min      string `yaml:"min"`
	Max      string `yaml:"max"`
	CUDA     string `yaml:"cuda"`   // lowest CUDA release
	Driver   string `yaml:"driver"` // lowest driver
	Evidence `yaml:",inline"`
}

// CuDNNReleases returns the releases in the table, oldest first.
func (t *Table) CuDNNReleases() []CuDNNRelease {
	out := slices.Clone(t.cuda.CuDNNReleases)
	for i := range out {
		out[i].CUDA = slices.Clone(out[i].CUDA)
	}
	return out
}

// CuDNNVariant answers for a cuDNN version (two to four parts) and a CUDA major; ErrUnknown for a CUDA major
// that is not in the table.
func (t *Table) CuDNNVariant(cudnn string, cudaMajor int) (CuDNNVariant, error) {
	for _, v := range t.cuda.CuDNNVariants {
		if v.CUDAMajor != cudaMajor {
			continue
		}
		// "9.10" without a patch means some 9.10.x: it exists when the minor reaches into the range.
		upTo := v.Max
		if n := len(parts(cudnn)); n < len(parts(upTo)) && n > 0 {
			upTo = join(parts(upTo)[:n])
		}
		exists := Compare(cudnn, v.Min) >= 0 && (v.Max == "" || Compare(cudnn, upTo) <= 0)
		return CuDNNVariant{Exists: exists, Min: v.Min, Max: v.Max, Evidence: v.Evidence}, nil
	}
	return CuDNNVariant{}, unknown("cuDNN builds for CUDA %d", cudaMajor)
}

// CuDNNDriver returns the lowest driver that cuDNN's builds for a CUDA major support, or ErrUnknown.
func (t *Table) CuDNNDriver(cudaMajor int) (DriverFloor, error) {
	for _, f := range t.cuda.CuDNNDrivers {
		if f.CUDAMajor == cudaMajor {
			return f, nil
		}
	}
	return DriverFloor{}, unknown("driver floor of cuDNN for CUDA %d", cudaMajor)
}

// CuDNNNeed returns what a compute capability needs for cuDNN; false when nothing special is known.
func (t *Table) CuDNNNeed(capability string) (CuDNNNeed, bool) {
	for _, n := range t.cuda.CuDNNGPUs {
		if Compare(capability, n.Min) >= 0 && Compare(capability, n.Max) <= 0 {
			return n, true
		}
	}
	return CuDNNNeed{}, false
}

// CuDNNMajorRule returns the evidence that a build for one CUDA major works with no other.
func (t *Table) CuDNNMajorRule() Evidence { return t.cuda.CuDNNRules.CUDAMajor }
