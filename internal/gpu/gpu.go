// Package gpu holds what an observer outside the container saw of the host's GPUs, as plain values. Reading
// them is gpu/nvml's work.
package gpu

// Inventory is one reading of a host.
type Inventory struct {
	Source        string   `json:"source"`         // "nvml-host", "control-container", "recording"
	Fake          bool     `json:"fake,omitempty"` // a fake-GPU kit answered: never proof
	DriverVersion string   `json:"driver_version"` // for example "580.159.04"
	DriverCUDA    string   `json:"driver_cuda"`    // highest CUDA the driver supports, "13.0"
	NVMLVersion   string   `json:"nvml_version,omitempty"`
	Devices       []Device `json:"devices"`
}

// Device is one GPU. Unknown numbers are nil, never zero.
type Device struct {
	Index              int      `json:"index"`
	UUID               string   `json:"uuid"`
	Name               string   `json:"name"`
	ComputeCapability  string   `json:"compute_capability"` // "9.0"
	MemoryTotal        uint64   `json:"memory_total"`       // bytes
	MemoryUsed         *uint64  `json:"memory_used,omitempty"`
	UtilizationGPU     *uint32  `json:"utilization_gpu,omitempty"` // percent
	PState             *int     `json:"pstate,omitempty"`
	ECCUncorrected     *uint64  `json:"ecc_uncorrected,omitempty"` // volatile
	RowRemapPending    *bool    `json:"row_remap_pending,omitempty"`
	RowRemapFailed     *bool    `json:"row_remap_failed,omitempty"`
	RetiredPagePending *bool    `json:"retired_page_pending,omitempty"`
	MIGMode            *bool    `json:"mig_mode,omitempty"`
	TemperatureC       *uint32  `json:"temperature_c,omitempty"`
	PowerMilliwatts    *uint32  `json:"power_milliwatts,omitempty"`
	Processes          []uint32 `json:"processes,omitempty"` // compute processes, host pids
	Missing            []string `json:"missing,omitempty"`   // NVML calls that this driver lacks or refused, with the code
}
