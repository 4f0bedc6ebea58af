package validate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"imgsmith/internal/validate"
	"imgsmith/internal/validate/probe"
	"imgsmith/internal/validate/validatetest"
)

func TestJudgeGood(t *testing.T) {
	j := validate.Judge(validatetest.Good(), validatetest.Expectation(t))
	if v := j.Verdict(); v.Outcome != validate.OutcomePassed {
		t.Fatalf("outcome %s: %s", v.Outcome, v.Reason)
	}
	c, err := j.Clearance()
	if err != nil || c.Digest() != validatetest.Digest || !c.Signable() {
		t.Fatalf("clearance %v %v, want one that signs", c, err)
	}
}

// TestJudge_Faults breaks one thing at a time: the layer and the check must be the right ones, and nothing
// after that layer may have run.
func TestJudge_Faults(t *testing.T) {
	cases := []struct {
		name    string
		change  func(*validate.Evidence)
		layer   validate.Layer
		outcome validate.Outcome
		check   string
		host    bool
	}{
		{"static stage empty", func(e *validate.Evidence) { e.Static = validate.LayerResult{Outcome: validate.OutcomePassed} }, validate.LayerStatic, validate.OutcomeInconclusive, "", false},
		{"static stage unknown", func(e *validate.Evidence) { e.Static = validate.LayerResult{} }, validate.LayerStatic, validate.OutcomeUnknown, "", false},
		{"not launched", func(e *validate.Evidence) { e.Transcript, e.NotLaunched = nil, "no GPU" }, validate.LayerHardware, validate.OutcomeNotRun, "", false},
		{"daemon refused", func(e *validate.Evidence) { e.Transcript.StartError = "could not select device driver" }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.launch", true},
		{"host stuck", func(e *validate.Evidence) { e.Transcript.HostStuck = true }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.launch", true},
		{"another image ran", func(e *validate.Evidence) { e.Transcript.ImageDigest = "sha256:2" }, validate.LayerHardware, validate.OutcomeFailed, "hardware.launch", false},
		{"no report", func(e *validate.Evidence) { e.Observation, e.ObservationErr = nil, "truncated" }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.launch", false},
		{"no device node", func(e *validate.Evidence) { e.Observation.System.Devices = nil }, validate.LayerHardware, validate.OutcomeFailed, "hardware.device-nodes", false},
		{"control node only", func(e *validate.Evidence) { e.Observation.System.Devices = e.Observation.System.Devices[1:] }, validate.LayerHardware, validate.OutcomeFailed, "hardware.device-nodes", false},
		{"node not opened", func(e *validate.Evidence) { e.Observation.System.Devices[0].OpenErrno = 1 }, validate.LayerHardware, validate.OutcomeFailed, "hardware.device-nodes", false},
		{"no NVML", func(e *validate.Evidence) { e.Observation.NVML.Library = probe.Library{} }, validate.LayerHardware, validate.OutcomeFailed, "hardware.nvml", false},
		{"NVML init", func(e *validate.Evidence) { e.Observation.NVML.Init = validatetest.Code(18, "driver mismatch") }, validate.LayerHardware, validate.OutcomeFailed, "hardware.nvml", false},
		{"NVML never asked", func(e *validate.Evidence) { e.Observation.NVML.Init = probe.Call{} }, validate.LayerHardware, validate.OutcomeFailed, "hardware.nvml", false},
		{"no host view", func(e *validate.Evidence) { e.Host, e.HostErr = nil, "no helper" }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.host-view", true},
		{"another card", func(e *validate.Evidence) { e.Observation.NVML.Devices[0].UUID = validatetest.Words("GPU-2") }, validate.LayerHardware, validate.OutcomeFailed, "hardware.identity", false},
		{"less memory", func(e *validate.Evidence) { e.Observation.NVML.Devices[0].MemoryTotal = validatetest.Number(75 << 30) }, validate.LayerHardware, validate.OutcomeFailed, "hardware.memory", false},
		{"old driver", func(e *validate.Evidence) { e.Host.DriverVersion = "470.82.01" }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.driver-floor", false},
		{"old card", func(e *validate.Evidence) { e.Host.Devices[0].ComputeCapability = "5.2" }, validate.LayerHardware, validate.OutcomeFailed, "hardware.compute-capability", false},
		{"ECC errors", func(e *validate.Evidence) { e.Host.Devices[0].ECCUncorrected = validatetest.Ptr(uint64(2)) }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.health", true},
		{"remap failed", func(e *validate.Evidence) { e.Host.Devices[0].RowRemapFailed = validatetest.Ptr(true) }, validate.LayerHardware, validate.OutcomeInconclusive, "hardware.health", true},
		{"no driver library", func(e *validate.Evidence) { e.Observation.Driver.Library = probe.Library{} }, validate.LayerDriver, validate.OutcomeFailed, "driver.library", false},
		{"stub driver", func(e *validate.Evidence) {
			e.Observation.Driver.Mapped = []string{"/usr/local/cuda-12.5/lib64/stubs/libcuda.so"}
		}, validate.LayerDriver, validate.OutcomeFailed, "driver.library", false},
		{"two drivers", func(e *validate.Evidence) {
			e.Observation.Driver.Mapped = append(e.Observation.Driver.Mapped, "/x/libcuda.so.1")
		}, validate.LayerDriver, validate.OutcomeFailed, "driver.library", false},
		{"cuInit 34", func(e *validate.Evidence) {
			e.Observation.Driver.Init = validatetest.Code(34, "CUDA_ERROR_STUB_LIBRARY")
		}, validate.LayerDriver, validate.OutcomeFailed, "driver.init", false},
		{"compat driver", func(e *validate.Evidence) { e.Observation.Driver.Version = validatetest.Number(12080) }, validate.LayerDriver, validate.OutcomeFailed, "driver.version", false},
		{"hidden device", func(e *validate.Evidence) { e.Observation.Driver.Count = validatetest.Number(0) }, validate.LayerDriver, validate.OutcomeFailed, "driver.count", false},
		{"no context", func(e *validate.Evidence) { e.Observation.Driver.Devices[0].ContextRetain = validatetest.Code(2, "") }, validate.LayerDriver, validate.OutcomeFailed, "driver.context", false},
		{"missing cuFFT", func(e *validate.Evidence) { e.Observation.Libraries.Opened[1].Opened = false }, validate.LayerCUDA, validate.OutcomeFailed, "cuda.libraries", false},
		{"cuFFT not tried", func(e *validate.Evidence) { e.Observation.Libraries.Opened = e.Observation.Libraries.Opened[:1] }, validate.LayerCUDA, validate.OutcomeInconclusive, "cuda.libraries", false},
		{"second provider", func(e *validate.Evidence) {
			e.Observation.CuDNN.Library.Path = "/usr/lib/x86_64-linux-gnu/libcudnn.so.9"
		}, validate.LayerCUDA, validate.OutcomeFailed, "cuda.cudnn", false},
		{"wrong runtime", func(e *validate.Evidence) { e.Observation.Runtime.RuntimeVersion = validatetest.Number(12040) }, validate.LayerCUDA, validate.OutcomeFailed, "cuda.runtime", false},
		{"driver too old for runtime", func(e *validate.Evidence) {
			e.Observation.Runtime.DeviceCount = probe.Int{Call: validatetest.Code(35, "")}
		}, validate.LayerCUDA, validate.OutcomeFailed, "cuda.runtime", false},
		{"copy differs", func(e *validate.Evidence) { e.Observation.Runtime.CopyEqual = validatetest.Ptr(false) }, validate.LayerCUDA, validate.OutcomeFailed, "cuda.runtime", false},
		{"copy not made", func(e *validate.Evidence) { e.Observation.Runtime.CopyEqual = nil }, validate.LayerCUDA, validate.OutcomeInconclusive, "cuda.runtime", false},
		{"old cuDNN", func(e *validate.Evidence) { e.Observation.CuDNN.Version = validatetest.Number(90100) }, validate.LayerCUDA, validate.OutcomeFailed, "cuda.cudnn", false},
		{"sub-library missing", func(e *validate.Evidence) { e.Observation.CuDNN.SubLibraries[0].Opened = false }, validate.LayerCUDA, validate.OutcomeFailed, "cuda.cudnn", false},
		{"cuBLAS handle", func(e *validate.Evidence) { e.Observation.CuBLAS.Create = validatetest.Code(1, "") }, validate.LayerCUDA, validate.OutcomeFailed, "cuda.cublas", false},
		{"import fails", func(e *validate.Evidence) { e.Observation.TensorFlow = nil }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.import", false},
		{"other version", func(e *validate.Evidence) { e.Observation.TensorFlow.Version = "2.18.0" }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.build", false},
		{"CPU build", func(e *validate.Evidence) { e.Observation.TensorFlow.BuiltWithCUDA = validatetest.Ptr(false) }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.build", false},
		{"built for another CUDA", func(e *validate.Evidence) { e.Observation.TensorFlow.BuildInfo["cuda_version"] = []byte(`"12.3"`) }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.build", false},
		{"no GPU listed", func(e *validate.Evidence) { e.Observation.TensorFlow.GPUs = nil }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.devices", false},
		{"convolution on the CPU", func(e *validate.Evidence) { e.Observation.Ops[1].Results[0].GPUBacking = "/device:CPU:0" }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.convolution", false},
		{"convolution without cuDNN", func(e *validate.Evidence) { e.Observation.Ops[1].CuDNNCalls = nil }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.convolution", false},
		{"XLA aborts", func(e *validate.Evidence) { e.Observation.Steps[2].Signal, e.Observation.Steps[2].ExitCode = 6, nil }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.xla", false},
		{"FFT missing", func(e *validate.Evidence) { e.Observation.Ops = append(e.Observation.Ops[:3:3], e.Observation.Ops[4]) }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.fft", false},
		{"wrong result", func(e *validate.Evidence) { e.Observation.Ops[0].Results[0].MaxRel = 0.5 }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.matmul", false},
		{"NaN", func(e *validate.Evidence) { e.Observation.Ops[4].Results[0].NonFinite = 1 }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.solver", false},
		{"not compared", func(e *validate.Evidence) { e.Observation.Ops[0].Results[0].Compared = false }, validate.LayerTensorFlow, validate.OutcomeInconclusive, "tensorflow.op.matmul", false},
		{"host did not watch", func(e *validate.Evidence) { e.Activity = nil }, validate.LayerTensorFlow, validate.OutcomeInconclusive, "tensorflow.host-activity", false},
		{"host saw nothing", func(e *validate.Evidence) { e.Activity[0].MemoryMax = e.Activity[0].MemoryMin }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.host-activity", false},
		{"cuDNN only asked for its version", func(e *validate.Evidence) {
			e.Observation.Ops[1].CuDNNCalls = map[string]int{"cudnnGetVersion": 9, "cudnnCreate": 1}
		}, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.convolution", false},
		{"no memory in use", func(e *validate.Evidence) { e.Observation.Ops[0].MemoryNow = validatetest.Ptr(int64(0)) }, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.matmul", false},
		{"TF32 error without TF32", func(e *validate.Evidence) {
			e.Observation.Ops[0].TF32, e.Observation.Ops[0].Results[0].MaxRel = validatetest.Ptr(false), 3e-4
		}, validate.LayerTensorFlow, validate.OutcomeFailed, "tensorflow.op.matmul", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ev := validatetest.Good()
			c.change(&ev)
			j := validate.Judge(ev, validatetest.Expectation(t))
			v := j.Verdict()
			if v.Outcome != c.outcome || v.HostAtFault != c.host {
				t.Errorf("outcome %s, host at fault %v (%s); want %s, %v", v.Outcome, v.HostAtFault, v.Reason, c.outcome, c.host)
			}
			checkLayers(t, v, c.layer, c.check)
			if _, err := j.Clearance(); err == nil {
				t.Error("a clearance was given")
			}
		})
	}
}

func checkLayers(t *testing.T, v validate.Verdict, at validate.Layer, check string) {
	t.Helper()
	seen := false
	for _, l := range v.Layers {
		switch {
		case l.Layer == at:
			seen = true
			if l.Outcome == validate.OutcomePassed {
				t.Errorf("layer %s passed", at)
			}
			found := check == ""
			for _, f := range l.Findings {
				found = found || f.Check == check && f.Outcome != validate.OutcomePassed
			}
			if !found {
				t.Errorf("layer %s: no finding %s in %+v", at, check, l.Findings)
			}
		case seen && l.Outcome != validate.OutcomeNotRun:
			t.Errorf("layer %s after %s: %s, want not run", l.Layer, at, l.Outcome)
		case !seen && l.Outcome != validate.OutcomePassed:
			t.Errorf("layer %s before %s: %s", l.Layer, at, l.Outcome)
		}
	}
}

// TestClearance_Grades: a pass of the wrong kind does not clear.
func TestClearance_Grades(t *testing.T) {
	for name, change := range map[string]func(*validate.Evidence){
		"replayed":       func(e *validate.Evidence) { e.Transcript.Launcher = "replay" },
		"recorded host":  func(e *validate.Evidence) { e.Host.Source = "recording" },
		"not caged":      func(e *validate.Evidence) { e.Transcript.Caged = false },
		"without digest": func(e *validate.Evidence) { e.Digest, e.Transcript.ImageDigest = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			ev := validatetest.Good()
			change(&ev)
			j := validate.Judge(ev, validatetest.Expectation(t))
			if o := j.Verdict().Outcome; o != validate.OutcomePassed {
				t.Fatalf("outcome %s, want a pass that does not clear", o)
			}
			if c, err := j.Clearance(); err == nil || c.Digest() != "" {
				t.Errorf("cleared %q", c.Digest())
			}
		})
	}
	for name, change := range map[string]func(*validate.Evidence){
		"host library":    func(e *validate.Evidence) { e.Host.Fake = true },
		"watermark":       func(e *validate.Evidence) { e.Observation.System.FakeWatermark = "1" },
		"fake driver":     func(e *validate.Evidence) { e.Observation.Driver.Fake = true },
		"fake NVML":       func(e *validate.Evidence) { e.Observation.NVML.Fake = true },
		"fake TensorFlow": func(e *validate.Evidence) { e.Observation.TensorFlow.Fake = true },
	} {
		t.Run("fake by "+name, func(t *testing.T) {
			ev := validatetest.Good()
			change(&ev)
			c, err := validate.Judge(ev, validatetest.Expectation(t)).Clearance()
			if err != nil || c.Signable() {
				t.Errorf("clearance %v %v: want one that does not sign", c, err)
			}
		})
	}
	if c := (validate.Clearance{}); c.Signable() || c.Digest() != "" {
		t.Error("the zero clearance permits something")
	}
	if _, err := (validate.Judgement{}).Clearance(); err == nil {
		t.Error("the zero judgement clears")
	}
}

func TestKeepGoing(t *testing.T) {
	ev := validatetest.Good()
	ev.KeepGoing = true
	ev.Static = validate.NewLayerResult(validate.LayerStatic, []validate.Finding{{Check: "static.x", Outcome: validate.OutcomeFailed}})
	ev.Observation.Ops[1].Errors = []probe.Failure{{Type: "NotFoundError", Message: "No algorithm worked"}}
	j := validate.Judge(ev, validatetest.Expectation(t))
	v := j.Verdict()
	if v.Outcome != validate.OutcomeFailed || v.Layers[4].Outcome != validate.OutcomeFailed || v.Layers[1].Outcome != validate.OutcomePassed {
		t.Errorf("verdict %+v", v)
	}
	if _, err := j.Clearance(); err == nil || !strings.Contains(err.Error(), "static") {
		t.Errorf("clearance error %v", err)
	}
}

func TestOutcome(t *testing.T) {
	var zero validate.Outcome
	if zero.String() != "unknown" || zero == validate.OutcomePassed {
		t.Error("the zero outcome is not unknown")
	}
	var o validate.Outcome
	if err := o.UnmarshalText([]byte("ok")); err == nil {
		t.Error("an unknown word was read")
	}
	for _, want := range []validate.Outcome{validate.OutcomeUnknown, validate.OutcomePassed, validate.OutcomeFailed, validate.OutcomeNotRun, validate.OutcomeInconclusive} {
		b, _ := json.Marshal(want)
		var got validate.Outcome
		if err := json.Unmarshal(b, &got); err != nil || got != want {
			t.Errorf("%s came back as %s (%v)", want, got, err)
		}
	}
	if r := validate.NewLayerResult(validate.LayerStatic, nil); r.Outcome != validate.OutcomeInconclusive {
		t.Errorf("no checks gave %s", r.Outcome)
	}
}
