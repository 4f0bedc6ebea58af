//go:build cgo

// Package nvml reads the host's GPUs through NVIDIA's management library. It is the only package with cgo and
// is meant for a process of its own: a driver that lacks a symbol ends whoever calls it, so every call is
// looked up first and a missing one is noted, not made.
package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"imgsmith/internal/gpu"
)

// fakeSymbol is exported by the stub libraries of the fake-GPU kit only.
const fakeSymbol = "imgsmith_fake_gpu"

// Session is an initialised library.
type Session struct{ lib nvml.Interface }

// Open loads libnvidia-ml.so.1 by the loader's rules and initialises it. Errors are *gpu.Failure.
func Open() (*Session, error) {
	lib := nvml.New()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
		return &Session{lib: lib}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, &gpu.Failure{Kind: gpu.NoDriver, Call: "dlopen libnvidia-ml.so.1", Code: int(ret), Message: "library not found"}
	default:
		return nil, &gpu.Failure{Kind: gpu.InitFailed, Call: "nvmlInit_v2", Code: int(ret), Message: message(lib, ret)}
	}
}

// Close shuts the library down.
func (s *Session) Close() {
	if s.has("nvmlShutdown") {
		s.lib.Shutdown()
	}
}

func (s *Session) has(symbol string) bool { return s.lib.Extensions().LookupSymbol(symbol) == nil }

func message(lib nvml.Interface, ret nvml.Return) string {
	if lib.Extensions().LookupSymbol("nvmlErrorString") != nil {
		return fmt.Sprintf("code %d", ret)
	}
	return lib.ErrorString(ret)
}

// Inventory reads every device. A value that the driver lacks or refuses is nil and named in Missing.
func (s *Session) Inventory() (gpu.Inventory, error) {
	inv := gpu.Inventory{Source: "nvml-host", Fake: s.has(fakeSymbol)}
	if s.has("nvmlSystemGetDriverVersion") {
		if v, ret := s.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			inv.DriverVersion = v
		}
	}
	if s.has("nvmlSystemGetNVMLVersion") {
		if v, ret := s.lib.SystemGetNVMLVersion(); ret == nvml.SUCCESS {
			inv.NVMLVersion = v
		}
	}
	if s.has("nvmlSystemGetCudaDriverVersion_v2") {
		if v, ret := s.lib.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS {
			inv.DriverCUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
	devices, err := s.handles()
	if err != nil {
		return inv, err
	}
	for i, d := range devices {
		inv.Devices = append(inv.Devices, s.device(i, d))
	}
	return inv, nil
}

// handles returns the devices by index; without them there is no inventory.
func (s *Session) handles() ([]nvml.Device, error) {
	for _, f := range []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"} {
		if !s.has(f) {
			return nil, &gpu.Failure{Kind: gpu.CallFailed, Call: f, Code: int(nvml.ERROR_FUNCTION_NOT_FOUND), Message: "the driver lacks it"}
		}
	}
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, &gpu.Failure{Kind: gpu.CallFailed, Call: "nvmlDeviceGetCount_v2", Code: int(ret), Message: message(s.lib, ret)}
	}
	var out []nvml.Device
	for i := range n {
		d, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, &gpu.Failure{Kind: gpu.CallFailed, Call: fmt.Sprintf("nvmlDeviceGetHandleByIndex_v2(%d)", i), Code: int(ret), Message: message(s.lib, ret)}
		}
		out = append(out, d)
	}
	return out, nil
}

// ask makes a call when the driver has it; what could not be had is named.
func (s *Session) ask(d *gpu.Device, symbol string, call func() nvml.Return) {
	if !s.has(symbol) {
		d.Missing = append(d.Missing, symbol+": the driver lacks it")
		return
	}
	if ret := call(); ret != nvml.SUCCESS {
		d.Missing = append(d.Missing, fmt.Sprintf("%s: %s (code %d)", symbol, message(s.lib, ret), ret))
	}
}

// keep stores v only when the call succeeded.
func keep[T, V any](dst **T, v V, conv func(V) T, ret nvml.Return) nvml.Return {
	if ret == nvml.SUCCESS {
		x := conv(v)
		*dst = &x
	}
	return ret
}

func same[T any](v T) T { return v }

func (s *Session) device(i int, h nvml.Device) gpu.Device {
	d := gpu.Device{Index: i}
	s.ask(&d, "nvmlDeviceGetUUID", func() (ret nvml.Return) { d.UUID, ret = h.GetUUID(); return })
	s.ask(&d, "nvmlDeviceGetName", func() (ret nvml.Return) { d.Name, ret = h.GetName(); return })
	s.ask(&d, "nvmlDeviceGetCudaComputeCapability", func() nvml.Return {
		major, minor, ret := h.GetCudaComputeCapability()
		if ret == nvml.SUCCESS {
			d.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
		}
		return ret
	})
	s.ask(&d, "nvmlDeviceGetMemoryInfo", func() nvml.Return {
		m, ret := h.GetMemoryInfo()
		if ret == nvml.SUCCESS {
			d.MemoryTotal = m.Total
		}
		return keep(&d.MemoryUsed, m.Used, same, ret)
	})
	s.ask(&d, "nvmlDeviceGetUtilizationRates", func() nvml.Return {
		u, ret := h.GetUtilizationRates()
		return keep(&d.UtilizationGPU, u.Gpu, same, ret)
	})
	s.ask(&d, "nvmlDeviceGetPerformanceState", func() nvml.Return {
		p, ret := h.GetPerformanceState()
		return keep(&d.PState, p, func(p nvml.Pstates) int { return int(p) }, ret)
	})
	s.health(&d, h)
	s.ask(&d, "nvmlDeviceGetTemperature", func() nvml.Return {
		t, ret := h.GetTemperature(nvml.TEMPERATURE_GPU)
		return keep(&d.TemperatureC, t, same, ret)
	})
	s.ask(&d, "nvmlDeviceGetPowerUsage", func() nvml.Return {
		p, ret := h.GetPowerUsage()
		return keep(&d.PowerMilliwatts, p, same, ret)
	})
	for _, p := range s.processes(&d, h) {
		d.Processes = append(d.Processes, p.PID)
	}
	return d
}

func (s *Session) health(d *gpu.Device, h nvml.Device) {
	s.ask(d, "nvmlDeviceGetTotalEccErrors", func() nvml.Return {
		n, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		return keep(&d.ECCUncorrected, n, same, ret)
	})
	s.ask(d, "nvmlDeviceGetRemappedRows", func() nvml.Return {
		_, _, pending, failed, ret := h.GetRemappedRows()
		keep(&d.RowRemapFailed, failed, same, ret)
		return keep(&d.RowRemapPending, pending, same, ret)
	})
	s.ask(d, "nvmlDeviceGetRetiredPagesPendingStatus", func() nvml.Return {
		p, ret := h.GetRetiredPagesPendingStatus()
		return keep(&d.RetiredPagePending, p, func(p nvml.EnableState) bool { return p == nvml.FEATURE_ENABLED }, ret)
	})
	s.ask(d, "nvmlDeviceGetMigMode", func() nvml.Return {
		current, _, ret := h.GetMigMode()
		return keep(&d.MIGMode, current, func(m int) bool { return m == nvml.DEVICE_MIG_ENABLE }, ret)
	})
}

// processes asks the newest of the three versions of the call that the driver has.
func (s *Session) processes(d *gpu.Device, h nvml.Device) []gpu.SampleProcess {
	symbol := "nvmlDeviceGetComputeRunningProcesses"
	for _, v := range []string{"_v3", "_v2"} {
		if s.has(symbol + v) {
			symbol += v
			break
		}
	}
	var out []gpu.SampleProcess
	s.ask(d, symbol, func() nvml.Return {
		list, ret := h.GetComputeRunningProcesses()
		for _, p := range list {
			m := p.UsedGpuMemory
			if m == ^uint64(0) { // "not available"
				m = 0
			}
			out = append(out, gpu.SampleProcess{PID: p.Pid, Memory: m})
		}
		return ret
	})
	return out
}

// Sample reads the few numbers that change while something runs.
func (s *Session) Sample() (gpu.Sample, error) {
	devices, err := s.handles()
	if err != nil {
		return gpu.Sample{}, err
	}
	var out gpu.Sample
	for i, h := range devices {
		d := gpu.Device{Index: i}
		s.ask(&d, "nvmlDeviceGetUUID", func() (ret nvml.Return) { d.UUID, ret = h.GetUUID(); return })
		s.ask(&d, "nvmlDeviceGetMemoryInfo", func() nvml.Return {
			m, ret := h.GetMemoryInfo()
			return keep(&d.MemoryUsed, m.Used, same, ret)
		})
		s.ask(&d, "nvmlDeviceGetUtilizationRates", func() nvml.Return {
			u, ret := h.GetUtilizationRates()
			return keep(&d.UtilizationGPU, u.Gpu, same, ret)
		})
		out.Devices = append(out.Devices, gpu.SampleDevice{UUID: d.UUID, MemoryUsed: d.MemoryUsed, UtilizationGPU: d.UtilizationGPU, Processes: s.processes(&d, h)})
	}
	return out, nil
}
