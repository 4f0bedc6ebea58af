package probe

import "encoding/json"

// SchemaVersion is the version of the document that probe.py prints and Decode accepts.
const SchemaVersion = 1

// Names of the steps, in the order in which they run. Each is a process of its own.
const (
	StepSystem      = "system"         // what the container gave us
	StepNVML        = "nvml"           // L1
	StepDriver      = "driver"         // L2
	StepLibraries   = "libraries"      // L3: dlopen of the loader's set
	StepRuntime     = "runtime"        // L3: libcudart, allocation and copy
	StepCuDNN       = "cudnn"          // L3: version, handle, sub-libraries
	StepCuBLAS      = "cublas"         // L3: handle
	StepTensorFlow  = "tensorflow"     // L4: import, build info, devices
	StepMatmul      = "op.matmul"      // L4: cuBLAS
	StepConvolution = "op.convolution" // L4: cuDNN
	StepXLA         = "op.xla"         // L4: ptxas and libdevice
	StepFFT         = "op.fft"         // L4: cuFFT
	StepSolver      = "op.solver"      // L4: cuSOLVER
)

// NoCall is the RC of a call that could not be made: the library or the symbol is missing, see Error.
const NoCall = -1

// Observation is what the probe saw, raw facts only. A section is nil when its step reported nothing; what
// became of the process is in Steps. A section may be partial when its process died on the way.
type Observation struct {
	SchemaVersion int         `json:"schema_version"`
	Nonce         string      `json:"nonce"`
	Seconds       float64     `json:"seconds"` // wall clock of all steps
	Steps         []Step      `json:"steps"`
	System        *System     `json:"system"`
	NVML          *NVML       `json:"nvml"`
	Driver        *Driver     `json:"driver"`
	Libraries     *Libraries  `json:"libraries"`
	Runtime       *Runtime    `json:"runtime"`
	CuDNN         *CuDNN      `json:"cudnn"`
	CuBLAS        *CuBLAS     `json:"cublas"`
	TensorFlow    *TensorFlow `json:"tensorflow"`
	Ops           []Op        `json:"ops"`
}

// Step returns the step of that name, or a step that was never started.
func (o Observation) Step(name string) Step {
	for _, s := range o.Steps {
		if s.Name == name {
			return s
		}
	}
	return Step{Name: name, NotRun: "the probe reported no such step"}
}

// Op returns the operation of that step name ("op.matmul"), or nil when the step reported nothing.
func (o Observation) Op(name string) *Op {
	for i := range o.Ops {
		if o.Ops[i].Name == name {
			return &o.Ops[i]
		}
	}
	return nil
}

// Step is what became of one process.
type Step struct {
	Name        string   `json:"name"`
	NotRun      string   `json:"not_run,omitempty"` // why it was not started; empty when it was
	Finished    bool     `json:"finished"`          // it said that it came to its end
	ExitCode    *int     `json:"exit_code"`         // nil when killed by a signal or never started
	Signal      int      `json:"signal,omitempty"`  // number, 0 for none
	SignalName  string   `json:"signal_name,omitempty"`
	TimedOut    bool     `json:"timed_out,omitempty"` // killed at its own deadline
	Seconds     float64  `json:"seconds"`
	Exception   string   `json:"exception,omitempty"`    // "Type: message" of an exception that ended the step
	Garbage     int      `json:"garbage,omitempty"`      // report lines that could not be read
	StdoutTail  string   `json:"stdout_tail,omitempty"`  // what libraries printed
	StderrTail  string   `json:"stderr_tail,omitempty"`  // last bytes, bounded
	StderrBytes int64    `json:"stderr_bytes,omitempty"` // all that was written
	Evidence    []string `json:"evidence,omitempty"`     // lines of all of stderr that name a library, CUDA, cuDNN or an error; bounded
}

// Clean says that the process came to its end without an exception and exited 0. An image that ends the
// process early with code 0 is not clean.
func (s Step) Clean() bool {
	return s.NotRun == "" && s.Exception == "" && s.Finished && !s.TimedOut && s.ExitCode != nil && *s.ExitCode == 0
}

// System is what the container gave the process.
type System struct {
	Python           string            `json:"python"` // "3.11.2"
	Executable       string            `json:"executable"`
	Implementation   string            `json:"implementation"`
	UID              int               `json:"uid"`
	GID              int               `json:"gid"`
	Groups           []int             `json:"groups"`
	EnvNames         []string          `json:"env_names"` // sorted
	Env              map[string]string `json:"env"`       // of a short list without secrets
	Kernel           string            `json:"kernel"`
	Machine          string            `json:"machine"`
	Libc             string            `json:"libc"` // "glibc 2.36"
	OSRelease        string            `json:"os_release"`
	CPUs             int               `json:"cpus"`
	Devices          []DeviceNode      `json:"devices"`            // /dev/nvidia* and /dev/dxg
	Mounts           []Mount           `json:"mounts"`             // those that look like driver files, and /, /tmp, /dev/shm
	DriverModule     string            `json:"driver_module"`      // first line of /proc/driver/nvidia/version
	CapEff           string            `json:"cap_eff"`            // hex as the kernel prints it
	NoNewPrivs       string            `json:"no_new_privs"`       // "0" | "1"
	Seccomp          string            `json:"seccomp"`            // "0" | "1" | "2"
	Limits           map[string]string `json:"limits"`             // "nproc": "soft/hard"
	PidsMax          string            `json:"pids_max"`           // cgroup, empty when not readable
	ShmBytes         int64             `json:"shm_bytes"`          // size of /dev/shm
	TmpBytes         int64             `json:"tmp_bytes"`          // free in the probe's own directory
	Interfaces       []string          `json:"interfaces"`         // network interfaces seen
	RootWritable     bool              `json:"root_writable"`      // a file could be made in /
	FakeWatermark    string            `json:"fake_watermark"`     // value of IMGSMITH_FAKE_GPU, empty on a real host
	DriverFilesEmpty []string          `json:"driver_files_empty"` // zero-byte libcuda/libnvidia files in the usual directories
}

// DeviceNode is one device file and what opening it for read and write gave.
type DeviceNode struct {
	Path      string `json:"path"`
	Mode      string `json:"mode"` // octal permission bits
	UID       int    `json:"uid"`
	GID       int    `json:"gid"`
	Major     int    `json:"major"`
	Minor     int    `json:"minor"`
	OpenErrno int    `json:"open_errno"` // 0: it opened
	OpenError string `json:"open_error,omitempty"`
}

// Mount is one line of the mount table.
type Mount struct {
	Target  string `json:"target"`
	Root    string `json:"root"` // path inside the mounted file system: the host's path of a bind
	FSType  string `json:"fstype"`
	Options string `json:"options"`
}

// Library is one dlopen.
type Library struct {
	Name   string   `json:"name"` // as asked for
	Opened bool     `json:"opened"`
	Error  string   `json:"error,omitempty"`  // dlerror text
	Mapped []string `json:"mapped,omitempty"` // files that this dlopen newly mapped, real paths
	Path   string   `json:"path,omitempty"`   // the mapped file that answers to the name, empty when not told apart
	Size   int64    `json:"size,omitempty"`   // bytes of Path
}

// Call is one call of a C function. RC is the library's own return code or NoCall; nil means that the probe
// never came to it. The zero value is not a success.
type Call struct {
	RC    *int   `json:"rc"`
	Name  string `json:"name,omitempty"`  // the library's name for RC, for example "CUDA_ERROR_NO_DEVICE"
	Error string `json:"error,omitempty"` // why the call could not be made
}

// OK says that the call was made and returned 0.
func (c Call) OK() bool { return c.RC != nil && *c.RC == 0 }

// Code returns the return code, NoCall when there is none.
func (c Call) Code() int {
	if c.RC == nil {
		return NoCall
	}
	return *c.RC
}

// Int is a call that answers a number. Value means nothing unless OK.
type Int struct {
	Call
	Value int64 `json:"value"`
}

// Text is a call that answers a string. Value means nothing unless OK.
type Text struct {
	Call
	Value string `json:"value"`
}

// NVML is L1 as the container sees it.
type NVML struct {
	Library       Library      `json:"library"`
	Init          Call         `json:"init"`
	DriverVersion Text         `json:"driver_version"`
	NVMLVersion   Text         `json:"nvml_version"`
	CUDAVersion   Int          `json:"cuda_version"` // 13000 for 13.0
	Count         Int          `json:"count"`
	Devices       []NVMLDevice `json:"devices"`
	Fake          bool         `json:"fake"` // the library exports the fake kit's own symbol
}

// NVMLDevice is one device by NVML index. Memory is in bytes.
type NVMLDevice struct {
	Index             int  `json:"index"`
	Handle            Call `json:"handle"`
	UUID              Text `json:"uuid"`
	Name              Text `json:"name"`
	MemoryTotal       Int  `json:"memory_total"`
	MemoryUsed        Int  `json:"memory_used"`
	UtilizationGPU    Int  `json:"utilization_gpu"` // percent
	UtilizationMemory Int  `json:"utilization_memory"`
	PState            Int  `json:"pstate"`
	ComputeCapability Text `json:"compute_capability"` // "9.0"
	ECCMode           Int  `json:"ecc_mode"`           // current
	ECCUncorrected    Int  `json:"ecc_uncorrected"`    // volatile
	RemapCorrectable  Int  `json:"remap_correctable"`
	RemapUncorrected  Int  `json:"remap_uncorrected"`
	RemapPending      Int  `json:"remap_pending"`
	RemapFailed       Int  `json:"remap_failed"`
	MIGMode           Int  `json:"mig_mode"` // current
	ComputeMode       Int  `json:"compute_mode"`
	TemperatureC      Int  `json:"temperature_c"`
	PowerMilliwatts   Int  `json:"power_milliwatts"`
}

// Driver is L2: libcuda through the loader's own search.
type Driver struct {
	Library Library        `json:"library"`
	Init    Call           `json:"init"`    // cuInit
	Version Int            `json:"version"` // cuDriverGetVersion, 13000 for 13.0
	Count   Int            `json:"count"`
	Devices []DriverDevice `json:"devices"`
	Mapped  []string       `json:"mapped"` // libcuda files in /proc/self/maps afterwards
	Fake    bool           `json:"fake"`
}

// DriverDevice is one device by CUDA ordinal.
type DriverDevice struct {
	Ordinal           int  `json:"ordinal"`
	Get               Call `json:"get"`
	Name              Text `json:"name"`
	UUID              Text `json:"uuid"` // "GPU-…" or "MIG-…" is not told apart here: always "GPU-"
	ComputeCapability Text `json:"compute_capability"`
	TotalMemory       Int  `json:"total_memory"` // bytes
	ContextRetain     Call `json:"context_retain"`
	ContextRelease    Call `json:"context_release"`
}

// Libraries is the dlopen of every soname that the host asked for, each by its bare name.
type Libraries struct {
	Opened []Library `json:"opened"`
}

// Runtime is libcudart at work on device 0.
type Runtime struct {
	Library        Library  `json:"library"`
	RuntimeVersion Int      `json:"runtime_version"` // 12050 for 12.5
	DriverVersion  Int      `json:"driver_version"`
	DeviceCount    Int      `json:"device_count"`
	Malloc         Call     `json:"malloc"`
	Memset         Call     `json:"memset"`
	CopyToDevice   Call     `json:"copy_to_device"`
	CopyToHost     Call     `json:"copy_to_host"`
	CopyEqual      *bool    `json:"copy_equal"`   // what came back is what was sent; nil when not reached
	MemsetEqual    *bool    `json:"memset_equal"` // what came back is what memset wrote
	Free           Call     `json:"free"`
	Mapped         []string `json:"mapped"`
}

// CuDNN is cuDNN's front library and its family.
type CuDNN struct {
	Library       Library   `json:"library"`
	Version       Int       `json:"version"`        // 90300 for 9.3.0
	CudartVersion Int       `json:"cudart_version"` // CUDA that cuDNN was built with, 12050
	Create        Call      `json:"create"`         // cudnnCreate
	Destroy       Call      `json:"destroy"`
	SubLibraries  []Library `json:"sub_libraries"`
	Mapped        []string  `json:"mapped"`
}

// CuBLAS is one handle.
type CuBLAS struct {
	Library Library  `json:"library"`
	Create  Call     `json:"create"` // cublasCreate_v2
	Version Int      `json:"version"`
	Destroy Call     `json:"destroy"`
	Mapped  []string `json:"mapped"`
}

// TensorFlow is what the package says of itself.
type TensorFlow struct {
	Version       string                     `json:"version"`
	GitVersion    string                     `json:"git_version"`
	File          string                     `json:"file"` // tensorflow.__file__
	NumPy         string                     `json:"numpy"`
	NumPyFile     string                     `json:"numpy_file"`
	ImportSeconds float64                    `json:"import_seconds"`
	BuildInfo     map[string]json.RawMessage `json:"build_info"` // tf.sysconfig.get_build_info()
	BuiltWithCUDA *bool                      `json:"built_with_cuda"`
	GPUs          []TFDevice                 `json:"gpus"` // nil when the list could not be had
	Mapped        []string                   `json:"mapped"`
	Errors        []Failure                  `json:"errors"`
	Fake          bool                       `json:"fake"` // the package carries the fake kit's watermark
}

// TFDevice is one physical GPU that TensorFlow lists.
type TFDevice struct {
	Name              string `json:"name"` // "/physical_device:GPU:0"
	DeviceName        string `json:"device_name"`
	ComputeCapability string `json:"compute_capability"`
}

// Failure is one exception that was caught and noted.
type Failure struct {
	Where   string `json:"where"`
	Type    string `json:"type"`
	Message string `json:"message"` // bounded
}

// Op is one operation on the GPU and the same on the CPU with the same input. Fields after an error are
// empty. Errors are computed by the probe: MaxAbs is max |gpu-cpu|, MaxRel is MaxAbs over ReferenceMax.
type Op struct {
	Name         string         `json:"name"` // step name
	GPUs         int            `json:"gpus"` // physical GPUs that TensorFlow listed in this process
	MemoryGrowth bool           `json:"memory_growth"`
	TF32         *bool          `json:"tf32"`
	Results      []OpResult     `json:"results"`
	MemoryNow    *int64         `json:"memory_now"`  // bytes, get_memory_info("GPU:0") with the result alive
	MemoryPeak   *int64         `json:"memory_peak"` // bytes
	Mapped       []string       `json:"mapped"`
	CuDNNCalls   map[string]int `json:"cudnn_calls"` // API log: function name to count; convolution only
	CuDNNLog     int64          `json:"cudnn_log"`   // bytes of that log
	Errors       []Failure      `json:"errors"`
}

// OpResult is one result tensor (the solver has two).
type OpResult struct {
	Name          string  `json:"name"`
	DType         string  `json:"dtype"`
	Elements      int     `json:"elements"`
	GPUDevice     string  `json:"gpu_device"`         // tensor.device
	GPUBacking    string  `json:"gpu_backing_device"` // tensor.backing_device
	CPUDevice     string  `json:"cpu_device"`
	CPUBacking    string  `json:"cpu_backing_device"`
	GPUSeconds    float64 `json:"gpu_seconds"` // first call, copy to the host included
	CPUSeconds    float64 `json:"cpu_seconds"`
	Compared      bool    `json:"compared"`
	NonFinite     int     `json:"non_finite"` // elements of the GPU result that are NaN or infinite
	CPUNonFinite  int     `json:"cpu_non_finite"`
	MaxAbs        float64 `json:"max_abs"`
	MaxRel        float64 `json:"max_rel"`
	ReferenceMax  float64 `json:"reference_max"`  // largest magnitude of the CPU result
	ElementsEqual bool    `json:"elements_equal"` // same number of elements
}
