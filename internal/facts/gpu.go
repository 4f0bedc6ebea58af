package facts

import "strings"

// GPU is a board by its short name.
type GPU struct {
	Name                string   `yaml:"name"`
	ComputeCapability   string   `yaml:"compute_capability"` // major.minor
	Class               string   `yaml:"class"`              // datacenter | geforce | workstation | embedded
	FirstDriver         string   `yaml:"first_driver"`       // version or branch; empty: not sourced, see Table.FirstDriver
	FirstDriverEvidence Evidence `yaml:"first_driver_evidence"`
	Evidence            `yaml:",inline"`
}

// Architecture is what toolkits and drivers know about a range of compute capabilities.
type Architecture struct {
	Min              string `yaml:"min"`
	Max              string `yaml:"max"`
	Name             string `yaml:"name"`
	FirstCUDA        string `yaml:"first_cuda"`         // empty: not sourced
	LastCUDAMajor    int    `yaml:"last_cuda_major"`    // 0: no limit known
	LastDriverBranch int    `yaml:"last_driver_branch"` // 0: no limit known
	Evidence         `yaml:",inline"`
}

// UnprovedGPU is a range of compute capabilities on which no release in the table was shown to work.
type UnprovedGPU struct {
	Min      string `yaml:"min"`
	Max      string `yaml:"max"`
	Reason   string `yaml:"reason"`
	Evidence `yaml:",inline"`
}

type gpuFile struct {
	SchemaVersion int            `yaml:"schema_version"`
	GPUs          []GPU          `yaml:"gpus"`
	Architectures []Architecture `yaml:"architectures"`
	Unproved      []UnprovedGPU  `yaml:"unproved"`
}

// GPU returns a board by name, ignoring case and the words that product names put before it ("NVIDIA H200",
// "NVIDIA GeForce RTX 4090"), or ErrUnknown.
func (t *Table) GPU(name string) (GPU, error) {
	want := shortGPU(name)
	for _, g := range t.gpu.GPUs {
		if shortGPU(g.Name) == want {
			return g, nil
		}
	}
	return GPU{}, unknown("GPU %q", name)
}

// GPUs returns the names in the table.
func (t *Table) GPUs() []string {
	var out []string
	for _, g := range t.gpu.GPUs {
		out = append(out, g.Name)
	}
	return out
}

// Architecture returns what is known about a compute capability, or ErrUnknown.
func (t *Table) Architecture(capability string) (Architecture, error) {
	for _, a := range t.gpu.Architectures {
		if Compare(capability, a.Min) >= 0 && Compare(capability, a.Max) <= 0 {
			return a, nil
		}
	}
	return Architecture{}, unknown("compute capability %s", capability)
}

// UnprovedGPU tells whether no release was shown to work on a compute capability, and why.
func (t *Table) UnprovedGPU(capability string) (UnprovedGPU, bool) {
	for _, u := range t.gpu.Unproved {
		if Compare(capability, u.Min) >= 0 && Compare(capability, u.Max) <= 0 {
			return u, true
		}
	}
	return UnprovedGPU{}, false
}

func shortGPU(name string) string {
	s := strings.ToLower(strings.TrimSpace(name))
	for _, prefix := range []string{"nvidia ", "geforce ", "tesla "} {
		s = strings.TrimPrefix(s, prefix)
	}
	return s
}
