package validate

import (
	"encoding/json"
	"fmt"
	"strings"

	"imgsmith/internal/validate/probe"
)

// operations are the computations of L4 with what each of them proves.
func operations() []struct{ Name, Proves string } {
	return []struct{ Name, Proves string }{
		{probe.StepMatmul, "cuBLAS"}, {probe.StepConvolution, "cuDNN"}, {probe.StepXLA, "ptxas and libdevice"},
		{probe.StepFFT, "cuFFT"}, {probe.StepSolver, "cuSOLVER"},
	}
}

// tensorflow judges L4: the package is the entry's, it lists the GPU, and every operation really ran there.
func tensorflow(ev Evidence, ex Expect) []Finding {
	o := ev.Observation
	if o == nil || o.TensorFlow == nil {
		why := "nothing was reported"
		if o != nil {
			why = stepReason(o.Step(probe.StepTensorFlow))
		}
		return []Finding{fail("tensorflow.import", "import tensorflow", "TensorFlow cannot be imported", "imports", why, "see the step's stderr")}
	}
	fs := append(buildInfo(o.TensorFlow, ex), listed(o))
	if fs[len(fs)-1].Outcome != OutcomePassed {
		return fs
	}
	for _, op := range operations() {
		fs = append(fs, operation(o, op.Name, op.Proves, ex)...)
	}
	return append(fs, seenFromOutside(ev, ex))
}

// seenFromOutside demands that the host saw memory in use on a GPU while the image ran: an image can print
// anything, the host's own NVML it cannot change. A fake GPU's memory never moves; it proves nothing anyway.
func seenFromOutside(ev Evidence, ex Expect) Finding {
	const id = "tensorflow.host-activity"
	if grade(ev).FakeGPU {
		return pass(id, "NVML on the host", "not asked of a fake GPU")
	}
	if len(ev.Activity) == 0 {
		return unclear(id, "NVML on the host", "the host did not watch the run", "run imgsmith on the GPU host with libexec/imgsmith/imgsmith-nvml beside it")
	}
	for _, a := range ev.Activity {
		if a.Samples > 1 && a.MemoryMax >= a.MemoryMin+ex.Thresholds.MemoryUsedMin {
			return pass(id, a.UUID, fmt.Sprintf("memory in use rose by %d MiB, utilisation up to %d %%, %d samples", (a.MemoryMax-a.MemoryMin)>>20, a.UtilizationMax, a.Samples))
		}
	}
	return fail(id, "NVML on the host", "no GPU of this host was used while the image said that it computed", fmt.Sprintf(">= %d MiB more in use", ex.Thresholds.MemoryUsedMin>>20),
		fmt.Sprintf("%d MiB", (ev.Activity[0].MemoryMax-ev.Activity[0].MemoryMin)>>20), "another process may have held the memory before; keep the GPU free while verifying")
}

// buildInfo compares at the precision that the build info has: CUDA major.minor, cuDNN major.
func buildInfo(t *probe.TensorFlow, ex Expect) []Finding {
	const id = "tensorflow.build"
	var fs []Finding
	if t.Version != ex.TensorFlow {
		fs = append(fs, fail(id, "tf.__version__", "not the TensorFlow of this entry", ex.TensorFlow, t.Version, "another package is in front on sys.path"))
	} else {
		fs = append(fs, pass(id, "tf.__version__", t.Version))
	}
	if t.BuiltWithCUDA == nil || !*t.BuiltWithCUDA {
		return append(fs, fail(id, "tf.test.is_built_with_cuda", "a build for the CPU", "true", "false", "install the CUDA build of TensorFlow"))
	}
	for _, k := range []struct{ key, want string }{{"cuda_version", prefix(ex.CUDABuilt, 2)}, {"cudnn_version", prefix(ex.CuDNN, 1)}} {
		got := text(t.BuildInfo[k.key])
		n := strings.Count(k.want, ".") + 1
		if prefix(got, n) != k.want {
			fs = append(fs, fail(id, k.key, "the wheel was built for another version", k.want, got, "correct the facts of this release"))
		} else {
			fs = append(fs, pass(id, k.key, got))
		}
	}
	return fs
}

// text reads a build-info value that may be a string or a number.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return strings.TrimSpace(string(raw))
}

func listed(o *probe.Observation) Finding {
	const id = "tensorflow.devices"
	n := int64(0)
	if o.NVML != nil {
		n = o.NVML.Count.Value
	}
	got := len(o.TensorFlow.GPUs)
	if got == 0 || int64(got) != n {
		f := fail(id, "tf.config.list_physical_devices", "TensorFlow does not list the GPU and would compute on the CPU", fmt.Sprint(n), fmt.Sprint(got),
			"a library of its dlopen set is missing: see the evidence")
		f.Evidence = o.Step(probe.StepTensorFlow).Evidence
		return f
	}
	return pass(id, "tf.config.list_physical_devices", fmt.Sprint(got))
}

func operation(o *probe.Observation, name, proves string, ex Expect) []Finding {
	id := "tensorflow." + name
	step, op := o.Step(name), o.Op(name)
	if op == nil || !step.Clean() || len(op.Errors) > 0 || len(op.Results) == 0 {
		why := stepReason(step)
		if op != nil && len(op.Errors) > 0 {
			why = op.Errors[0].Type + ": " + op.Errors[0].Message
		}
		f := fail(id, proves, "the operation did not succeed on the GPU", "a result", why, "")
		f.Evidence = step.Evidence
		return []Finding{f}
	}
	var fs []Finding
	for _, r := range op.Results {
		fs = append(fs, placed(id, r), compared(id, name, op, r, ex))
	}
	fs = append(fs, usedMemory(id, op))
	if name == probe.StepConvolution {
		fs = append(fs, cudnnCalled(id, op, ex))
	}
	for _, m := range op.Mapped {
		if isMember(m, ex) && !strings.HasPrefix(m, ex.CUDARoot+"/") {
			fs = append(fs, from(id, proves, m, ex))
		}
	}
	return fs
}

func placed(id string, r probe.OpResult) Finding {
	device := r.GPUBacking
	if device == "" {
		device = r.GPUDevice
	}
	if !strings.HasSuffix(device, "GPU:0") {
		return fail(id, r.Name, "the result is not on the GPU: the operation fell back", "…/device:GPU:0", device,
			"a library that this operation needs is missing or does not work: see the step's stderr")
	}
	return pass(id, r.Name, "on "+device)
}

// compared measures against the CPU's result; when TF32 is on, or not known to be off, its wider limit holds.
func compared(id, name string, op *probe.Op, r probe.OpResult, ex Expect) Finding {
	limits := ex.Thresholds.MaxRelativeTF
	if op.TF32 != nil && !*op.TF32 {
		limits = ex.Thresholds.MaxRelative
	}
	limit, known := limits[name]
	switch {
	case !known:
		return unclear(id, r.Name, "no limit is known for this operation", "add it to the thresholds")
	case !r.Compared || !r.ElementsEqual || r.CPUNonFinite > 0:
		return unclear(id, r.Name, "the result could not be compared with the CPU's", "see the step's stderr")
	case r.NonFinite > 0 || !(r.MaxRel <= limit):
		return fail(id, r.Name, "the GPU's result is wrong", fmt.Sprintf("relative error <= %g", limit), fmt.Sprintf("%g, %d not finite", r.MaxRel, r.NonFinite), "")
	}
	return pass(id, r.Name, fmt.Sprintf("relative error %.2g <= %g", r.MaxRel, limit))
}

func usedMemory(id string, op *probe.Op) Finding {
	if op.MemoryNow == nil {
		return unclear(id, "memory", "memory information could not be had", "see the step's stderr")
	}
	if *op.MemoryNow <= 0 {
		return fail(id, "memory", "no GPU memory is in use with the result alive", "> 0", fmt.Sprint(*op.MemoryNow), "")
	}
	return pass(id, "memory", fmt.Sprintf("%d bytes in use", *op.MemoryNow))
}

// cudnnCalled counts the calls that compute: asking for a version or a handle is logged too and proves nothing.
func cudnnCalled(id string, op *probe.Op, ex Expect) Finding {
	n := 0
	for name, c := range op.CuDNNCalls {
		for _, prefix := range ex.Thresholds.CuDNNCompute {
			if strings.HasPrefix(name, prefix) {
				n += c
			}
		}
	}
	if n == 0 {
		return fail(id, "cuDNN API log", "the convolution did not compute with cuDNN", strings.Join(ex.Thresholds.CuDNNCompute, " or "), fmt.Sprintf("none in %d bytes of log", op.CuDNNLog), "")
	}
	return pass(id, "cuDNN API log", fmt.Sprintf("%d computing calls", n))
}
