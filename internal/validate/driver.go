package validate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/gpu"
	"imgsmith/internal/validate/probe"
)

// driver judges L2: which libcuda answered, and whether it works on the devices of this host.
func driver(ev Evidence, ex Expect) []Finding {
	o, d := ev.Observation, (*probe.Driver)(nil)
	if o != nil {
		d = o.Driver
	}
	if d == nil {
		return []Finding{unclear("driver.library", "libcuda.so.1", "the step reported nothing", "see the step's stderr")}
	}
	if !d.Library.Opened {
		return []Finding{fail("driver.library", d.Library.Name, "the driver library is not in the container", "injected by the container toolkit", d.Library.Error,
			"NVIDIA_DRIVER_CAPABILITIES must contain compute")}
	}
	fs := []Finding{whoseDriver(d), call("driver.init", "cuInit", d.Init)}
	if !d.Init.OK() {
		return fs
	}
	fs = append(fs, driverVersion(d, ev.Host), deviceCount(d, o))
	for _, dev := range d.Devices {
		fs = append(fs, driverDevice(dev, ev.Host)...)
	}
	return fs
}

// whoseDriver demands exactly one libcuda, and not one out of a stubs or compat directory.
func whoseDriver(d *probe.Driver) Finding {
	const id = "driver.library"
	where := strings.Join(d.Mapped, " ")
	switch {
	case len(d.Mapped) == 0:
		return unclear(id, d.Library.Name, "no libcuda is mapped", "see the step's stderr")
	case len(d.Mapped) > 1:
		return fail(id, d.Library.Name, "more than one libcuda is mapped", "one", where, "remove driver libraries from the image")
	case slices.Contains(strings.Split(path.Dir(d.Mapped[0]), "/"), "stubs"):
		return fail(id, d.Library.Name, "a stub library answers for the driver", "the host's driver", where, "take the stubs directory off the loader path")
	}
	return pass(id, d.Library.Name, where)
}

func call(id, name string, c probe.Call) Finding {
	if !c.OK() {
		return fail(id, name, "the call failed", "0", rc(c), "")
	}
	return pass(id, name, "0")
}

func driverVersion(d *probe.Driver, h *gpu.Inventory) Finding {
	const id = "driver.version"
	got := cudaNumber(d.Version.Value)
	switch {
	case !d.Version.OK():
		return fail(id, "cuDriverGetVersion", "the call failed", "0", rc(d.Version.Call), "")
	case h == nil:
		return unclear(id, "cuDriverGetVersion", "no host view to compare with", "read NVML on the host")
	case h.DriverCUDA != got:
		return fail(id, "cuDriverGetVersion", "another driver than the host's answers", h.DriverCUDA, got,
			"remove forward-compatibility or driver libraries from the image")
	}
	return pass(id, "cuDriverGetVersion", got)
}

func deviceCount(d *probe.Driver, o *probe.Observation) Finding {
	const id = "driver.count"
	want := int64(0)
	if o.NVML != nil {
		want = o.NVML.Count.Value
	}
	if !d.Count.OK() || d.Count.Value < 1 || d.Count.Value != want || int64(len(d.Devices)) != want {
		return fail(id, "cuDeviceGetCount", "CUDA and NVML do not see the same devices", fmt.Sprint(want), fmt.Sprintf("%s, %d", rc(d.Count.Call), d.Count.Value),
			"check CUDA_VISIBLE_DEVICES in the image's environment")
	}
	return pass(id, "cuDeviceGetCount", fmt.Sprint(want))
}

func driverDevice(dev probe.DriverDevice, h *gpu.Inventory) []Finding {
	subject := fmt.Sprintf("device %d (%s)", dev.Ordinal, dev.Name.Value)
	fs := []Finding{call("driver.context", "cuDevicePrimaryCtxRetain "+subject, dev.ContextRetain)}
	if h == nil {
		return append(fs, unclear("driver.identity", subject, "no host view to compare with", "read NVML on the host"))
	}
	i := slices.IndexFunc(h.Devices, func(x gpu.Device) bool { return x.UUID == dev.UUID.Value })
	switch {
	case i < 0:
		fs = append(fs, fail("driver.identity", subject, "CUDA shows a GPU that the host does not have", "a UUID of this host", dev.UUID.Value, "the image may carry its own driver library"))
	case h.Devices[i].ComputeCapability != dev.ComputeCapability.Value:
		fs = append(fs, fail("driver.identity", subject, "compute capability differs", h.Devices[i].ComputeCapability, dev.ComputeCapability.Value, "the image may carry its own driver library"))
	default:
		fs = append(fs, pass("driver.identity", subject, dev.UUID.Value))
	}
	return fs
}
