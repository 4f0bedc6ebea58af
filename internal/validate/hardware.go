package validate

import (
	"fmt"
	"slices"
	"strings"

	"imgsmith/internal/gpu"
	"imgsmith/internal/validate/probe"
)

// pass and its siblings make findings; they keep the judging code to one line a check.
func pass(id, subject, msg string) Finding {
	return Finding{Check: id, Outcome: OutcomePassed, Subject: subject, Message: msg}
}

func fail(id, subject, msg, expected, observed, remedy string) Finding {
	return Finding{Check: id, Outcome: OutcomeFailed, Subject: subject, Message: msg, Expected: expected, Observed: observed, Remedy: remedy}
}

func unclear(id, subject, msg, remedy string) Finding {
	return Finding{Check: id, Outcome: OutcomeInconclusive, Subject: subject, Message: msg, Remedy: remedy}
}

// hardware judges L1: the launch itself, the devices as NVML shows them inside, and the host's own view.
func hardware(ev Evidence, ex Expect) []Finding {
	fs := launched(ev)
	if fs[len(fs)-1].Outcome != OutcomePassed {
		return fs
	}
	o := ev.Observation
	fs = append(fs, nodes(o), nvmlInside(o))
	if ev.Host == nil {
		return append(fs, unclear("hardware.host-view", "NVML", "no observer outside the container: "+reasonOr(ev.HostErr, "not read"),
			"run imgsmith on the GPU host with libexec/imgsmith/imgsmith-nvml beside it"))
	}
	fs = append(fs, health(*ev.Host), driverFloor(*ev.Host, ex))
	if o.NVML == nil {
		return fs
	}
	for _, d := range o.NVML.Devices {
		fs = append(fs, agrees(d, *ev.Host, ex)...)
	}
	return fs
}

// launched judges the run as a run: did it start, end, and say something readable.
func launched(ev Evidence) []Finding {
	const id = "hardware.launch"
	t := ev.Transcript
	switch {
	case t.StartError != "":
		return []Finding{unclear(id, "container", "the daemon could not start it: "+t.StartError,
			"make `docker run --rm --gpus all` work on this host: NVIDIA driver, container toolkit, CDI specification")}
	case t.HostStuck:
		return []Finding{unclear(id, "container", "the container could not be killed: the driver holds it", "restart the host; look for Xid messages in its kernel log")}
	case t.ImageDigest != ev.Digest:
		return []Finding{fail(id, "image", "another image ran", ev.Digest, t.ImageDigest, "report this: the launcher must run the judged digest")}
	case ev.Observation == nil:
		return []Finding{unclear(id, "probe", fmt.Sprintf("no readable report (exit code %d, timed out %v, killed for memory %v): %s",
			t.ExitCode, t.TimedOut, t.OOMKilled, ev.ObservationErr), "see the transcript's stderr in the document")}
	}
	return []Finding{pass(id, "container", "started with the device request, ended, and reported")}
}

func nodes(o *probe.Observation) Finding {
	const id = "hardware.device-nodes"
	if o.System == nil {
		return unclear(id, "/dev", "the probe did not report the system", "see the transcript's stderr in the document")
	}
	var seen []string
	for _, d := range o.System.Devices {
		name := strings.TrimPrefix(d.Path, "/dev/nvidia")
		if name == d.Path || name == "" || strings.Trim(name, "0123456789") != "" {
			continue
		}
		if d.OpenErrno != 0 && o.System.FakeWatermark == "" {
			return fail(id, d.Path, "the device node cannot be opened", "readable and writable", d.OpenError,
				"a device cgroup or file mode keeps the container's user out")
		}
		seen = append(seen, d.Path)
	}
	if len(seen) == 0 {
		return fail(id, "/dev/nvidia*", "no GPU device node in the container", "at least one", "none", "check --gpus and the container toolkit")
	}
	return pass(id, strings.Join(seen, " "), "present")
}

func nvmlInside(o *probe.Observation) Finding {
	const id = "hardware.nvml"
	n := o.NVML
	switch {
	case n == nil:
		return unclear(id, "nvmlInit_v2", "the step reported nothing: "+stepReason(o.Step(probe.StepNVML)), "see the step's stderr")
	case !n.Library.Opened:
		return fail(id, n.Library.Name, "NVML is not in the container", "injected by the container toolkit", n.Library.Error,
			"NVIDIA_DRIVER_CAPABILITIES must contain utility")
	case !n.Init.OK():
		return fail(id, "nvmlInit_v2", "NVML does not start", "0", rc(n.Init), "check the driver with nvidia-smi on the host")
	case !n.Count.OK() || n.Count.Value < 1 || int64(len(n.Devices)) != n.Count.Value:
		return fail(id, "nvmlDeviceGetCount_v2", "no GPU, or not all could be asked", "at least 1", fmt.Sprintf("%s, %d", rc(n.Count.Call), n.Count.Value), "check --gpus")
	}
	return pass(id, "nvmlInit_v2", fmt.Sprintf("%d GPU, driver %s", n.Count.Value, n.DriverVersion.Value))
}

// agrees compares one device as seen inside with the host's own reading of it.
func agrees(d probe.NVMLDevice, h gpu.Inventory, ex Expect) []Finding {
	i := slices.IndexFunc(h.Devices, func(x gpu.Device) bool { return x.UUID == d.UUID.Value })
	if i < 0 {
		return []Finding{fail("hardware.identity", d.UUID.Value, "the container shows a GPU that the host does not have", "a UUID of this host", d.UUID.Value,
			"the image may carry its own NVML library")}
	}
	host := h.Devices[i]
	fs := []Finding{pass("hardware.identity", host.UUID, host.Name+" seen from both sides")}
	if d.Name.Value != host.Name {
		fs = append(fs, fail("hardware.identity", d.UUID.Value, "names differ", host.Name, d.Name.Value, "the image may carry its own NVML library"))
	}
	ratio := 0.0
	if host.MemoryTotal > 0 {
		ratio = float64(d.MemoryTotal.Value) / float64(host.MemoryTotal)
	}
	if ratio < ex.Thresholds.MemoryRatioMin || ratio > ex.Thresholds.MemoryRatioMax {
		fs = append(fs, fail("hardware.memory", d.UUID.Value, "memory total differs", fmt.Sprint(host.MemoryTotal), fmt.Sprint(d.MemoryTotal.Value), "compare nvidia-smi on host and in the container"))
	} else {
		fs = append(fs, pass("hardware.memory", d.UUID.Value, fmt.Sprintf("%d MiB", host.MemoryTotal>>20)))
	}
	return append(fs, capability(host, ex))
}

func capability(d gpu.Device, ex Expect) Finding {
	const id = "hardware.compute-capability"
	if ex.MinComputeCapability == "" {
		return unclear(id, d.UUID, "no minimum is known for this TensorFlow release", "add the release to the facts")
	}
	yes, ok := atLeast(d.ComputeCapability, ex.MinComputeCapability)
	switch {
	case !ok:
		return unclear(id, d.UUID, "the host did not say the compute capability: "+d.ComputeCapability, "update the driver")
	case !yes:
		return fail(id, d.UUID, "the GPU is older than the wheel's code", ">= "+ex.MinComputeCapability, d.ComputeCapability, "use an older TensorFlow or a newer GPU")
	}
	return pass(id, d.UUID, d.ComputeCapability)
}

func driverFloor(h gpu.Inventory, ex Expect) Finding {
	const id = "hardware.driver-floor"
	yes, ok := atLeast(h.DriverVersion, ex.DriverFloor)
	switch {
	case ex.DriverFloor == "" || !ok:
		return unclear(id, "driver", fmt.Sprintf("cannot compare driver %q with floor %q", h.DriverVersion, ex.DriverFloor), "read the driver version on the host")
	case !yes:
		return unclear(id, "driver", fmt.Sprintf("driver %s of this host is below the floor %s of CUDA %s", h.DriverVersion, ex.DriverFloor, prefix(ex.CUDA, 1)),
			"update the driver of this host, or build an entry with an older CUDA major")
	}
	return pass(id, "driver", h.DriverVersion+" >= "+ex.DriverFloor)
}

// health is inconclusive for a sick card: the host's fault, never the image's.
func health(h gpu.Inventory) Finding {
	if s := sick(h); len(s) > 0 {
		f := unclear("hardware.health", "GPU", "the card is not healthy: "+strings.Join(s, "; "), "reset or replace the card, then verify again")
		f.Evidence = s
		return f
	}
	return pass("hardware.health", "GPU", fmt.Sprintf("%d device(s) without uncorrectable ECC errors or pending remaps", len(h.Devices)))
}

func sick(h gpu.Inventory) []string {
	var out []string
	for _, d := range h.Devices {
		if d.ECCUncorrected != nil && *d.ECCUncorrected > 0 {
			out = append(out, fmt.Sprintf("%s: %d uncorrectable ECC errors", d.UUID, *d.ECCUncorrected))
		}
		if d.RowRemapPending != nil && *d.RowRemapPending {
			out = append(out, d.UUID+": row remapping pending")
		}
		if d.RowRemapFailed != nil && *d.RowRemapFailed {
			out = append(out, d.UUID+": row remapping failed")
		}
		if d.RetiredPagePending != nil && *d.RetiredPagePending {
			out = append(out, d.UUID+": page retirement pending")
		}
	}
	return out
}

// rc prints a call's answer.
func rc(c probe.Call) string {
	switch {
	case c.Error != "":
		return c.Error
	case c.Name != "":
		return fmt.Sprintf("%d %s", c.Code(), c.Name)
	}
	return fmt.Sprint(c.Code())
}

// stepReason says in a few words how a step's process ended.
func stepReason(s probe.Step) string {
	switch {
	case s.NotRun != "":
		return s.NotRun
	case s.TimedOut:
		return fmt.Sprintf("killed after %.0f s", s.Seconds)
	case s.Signal != 0:
		return "killed by " + reasonOr(s.SignalName, fmt.Sprint("signal ", s.Signal))
	case s.Exception != "":
		return s.Exception
	case s.ExitCode != nil && *s.ExitCode != 0:
		return fmt.Sprintf("exit code %d", *s.ExitCode)
	case !s.Finished:
		return "it ended without saying so"
	}
	return "ended normally"
}
