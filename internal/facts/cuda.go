package facts

import (
	"maps"
	"slices"
)

// Wheel is a distribution of NVIDIA's with the version that belongs to a CUDA release.
type Wheel struct {
	Distribution string // normalized name
	Version      string // exact version, or a prefix match "9.8.*"
}

// DriverFloor is the lowest Linux driver that runs every minor release of a CUDA major.
type DriverFloor struct {
	CUDAMajor int    `yaml:"cuda_major"`
	Driver    string `yaml:"driver"`
	Evidence  `yaml:",inline"`
}

// Toolkit is a CUDA release and the driver it was released with.
type Toolkit struct {
	CUDA          string `yaml:"cuda"`
	BundledDriver string `yaml:"bundled_driver"`
	Evidence      `yaml:",inline"`
}

// CuDNNFamily is the library set of a cuDNN major.
type CuDNNFamily struct {
	Major    int      `yaml:"major"`
	Soname   string   `yaml:"soname"`
	Members  []string `yaml:"members"` // sub-libraries that every release of the major has
	Later    []Member `yaml:"later"`   // sub-libraries that came with a minor
	Evidence `yaml:",inline"`
}

// Member is a sub-library that exists from a version on.
type Member struct {
	Soname string `yaml:"soname"`
	Since  string `yaml:"since"`
}

// CuDNNCap is the newest cuDNN that works below a compute capability.
type CuDNNCap struct {
	Below    string `yaml:"below_compute_capability"`
	Max      string `yaml:"max_cudnn"`
	Evidence `yaml:",inline"`
}

// CuDNNFault is a reported fault of a cuDNN minor with TensorFlow releases from one on.
type CuDNNFault struct {
	CuDNN          string `yaml:"cudnn"`
	TensorFlowFrom string `yaml:"tensorflow_from"`
	Reason         string `yaml:"reason"`
	Nearest        string `yaml:"nearest"`
	Evidence       `yaml:",inline"`
}

type wheelSet struct {
	CUDA     string            `yaml:"cuda"`
	Packages map[string]string `yaml:"packages"`
	Evidence `yaml:",inline"`
}

type cudnnWheel struct {
	CUDA         string `yaml:"cuda"`
	CuDNN        string `yaml:"cudnn"`
	Distribution string `yaml:"distribution"`
	Version      string `yaml:"version"`
	Evidence     `yaml:",inline"`
}

type cudaFile struct {
	SchemaVersion int           `yaml:"schema_version"`
	DriverFloors  []DriverFloor `yaml:"driver_floors"`
	Toolkits      []Toolkit     `yaml:"toolkits"`
	WheelSets     []wheelSet    `yaml:"wheel_sets"`
	CuDNNWheels   []cudnnWheel  `yaml:"cudnn_wheels"`
	PTXISAs       []struct {
		ISA      string `yaml:"isa"`
		CUDA     string `yaml:"cuda"`
		Evidence `yaml:",inline"`
	} `yaml:"ptx_isas"`
	CuDNNFamilies []CuDNNFamily `yaml:"cudnn_families"`
	CuDNNRules    struct {
		ABI       Evidence `yaml:"abi"`
		CUDAMajor Evidence `yaml:"cuda_major"`
		PreTuring CuDNNCap `yaml:"pre_turing"`
	} `yaml:"cudnn_rules"`
	CuDNNFaults []CuDNNFault `yaml:"cudnn_faults"`
	Sonames     []struct {
		Min       string            `yaml:"min"`
		Max       string            `yaml:"max"`
		Libraries map[string]string `yaml:"libraries"`
		Evidence  `yaml:",inline"`
	} `yaml:"sonames"`
	CuDNNReleases []CuDNNRelease `yaml:"cudnn_releases"`
	CuDNNVariants []struct {
		CUDAMajor int    `yaml:"cuda_major"`
		Min       string `yaml:"min"`
		Max       string `yaml:"max"`
		Evidence  `yaml:",inline"`
	} `yaml:"cudnn_variants"`
	CuDNNDrivers []DriverFloor `yaml:"cudnn_drivers"`
	CuDNNGPUs    []CuDNNNeed   `yaml:"cudnn_gpus"`
}

// DriverFloor returns the floor of a CUDA major, or ErrUnknown.
func (t *Table) DriverFloor(cudaMajor int) (DriverFloor, error) {
	for _, f := range t.cuda.DriverFloors {
		if f.CUDAMajor == cudaMajor {
			return f, nil
		}
	}
	return DriverFloor{}, unknown("driver floor of CUDA %d", cudaMajor)
}

// Toolkit returns the row of a CUDA release: an exact "12.5.1", or the oldest row of a minor "12.5".
func (t *Table) Toolkit(cuda string) (Toolkit, error) {
	for _, k := range t.cuda.Toolkits {
		if k.CUDA == cuda || (Minor(cuda) == cuda && Minor(k.CUDA) == cuda) {
			return k, nil
		}
	}
	return Toolkit{}, unknown("CUDA toolkit %s", cuda)
}

// CUDAWheels returns NVIDIA's wheels of a CUDA minor and the cuDNN wheel of a version, sorted by distribution.
// cudnn is major.minor, with the patch of the tested pair when there is one and else any patch, or a full
// four-part version. NCCL is not among them: its floor belongs to the TensorFlow release (Extra).
// ErrUnknown when no set of that CUDA minor is in the table.
func (t *Table) CUDAWheels(cuda, cudnn string) ([]Wheel, error) {
	for _, s := range t.cuda.WheelSets {
		if s.CUDA != Minor(cuda) {
			continue
		}
		var out []Wheel
		for _, name := range slices.Sorted(maps.Keys(s.Packages)) {
			out = append(out, Wheel{name, s.Packages[name]})
		}
		out = append(out, t.cudnnWheel(s.CUDA, cudnn))
		slices.SortFunc(out, func(a, b Wheel) int {
			if a.Distribution < b.Distribution {
				return -1
			}
			return 1
		})
		return out, nil
	}
	return nil, unknown("wheels of CUDA %s", cuda)
}

// CUDASets returns the CUDA minors whose wheels are in the table, oldest first.
func (t *Table) CUDASets() []string {
	var out []string
	for _, s := range t.cuda.WheelSets {
		out = append(out, s.CUDA)
	}
	return out
}

func (t *Table) cudnnWheel(cuda, cudnn string) Wheel {
	w := Wheel{Distribution: "nvidia-cudnn-cu" + cuda[:2], Version: cudnn}
	for _, c := range t.cuda.CuDNNWheels {
		if c.CUDA == cuda {
			w.Distribution = c.Distribution
			if c.CuDNN == cudnn {
				w.Version = c.Version
			}
		}
	}
	if n := len(parts(w.Version)); n < 4 {
		w.Version += ".*"
	}
	return w
}

// CuDNN returns the library set of a cuDNN major, or ErrUnknown.
func (t *Table) CuDNN(major int) (CuDNNFamily, error) {
	for _, f := range t.cuda.CuDNNFamilies {
		if f.Major == major {
			f.Members, f.Later = slices.Clone(f.Members), slices.Clone(f.Later)
			return f, nil
		}
	}
	return CuDNNFamily{}, unknown("cuDNN %d", major)
}

// CuDNNABI returns the evidence of the version rule: same major, minor not below the compiled one, patch
// ignored.
func (t *Table) CuDNNABI() Evidence { return t.cuda.CuDNNRules.ABI }

// CuDNNCap returns the newest cuDNN for old GPUs.
func (t *Table) CuDNNCap() CuDNNCap { return t.cuda.CuDNNRules.PreTuring }

// CuDNNFault returns a reported fault of a cuDNN version with a TensorFlow release, if there is one.
func (t *Table) CuDNNFault(cudnn, tensorflow string) (CuDNNFault, bool) {
	for _, f := range t.cuda.CuDNNFaults {
		if Minor(cudnn) == f.CuDNN && Compare(tensorflow, f.TensorFlowFrom) >= 0 {
			return f, true
		}
	}
	return CuDNNFault{}, false
}

// PTXToolkit returns the first CUDA release whose driver compiles a version of the PTX language, or ErrUnknown.
func (t *Table) PTXToolkit(isa string) (string, Evidence, error) {
	for _, p := range t.cuda.PTXISAs {
		if p.ISA == isa {
			return p.CUDA, p.Evidence, nil
		}
	}
	return "", Evidence{}, unknown("PTX %s", isa)
}
