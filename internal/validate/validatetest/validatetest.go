// Package validatetest makes evidence and clearances for tests. Nothing but tests may import it: a clearance
// made here stands for a proof that nobody gave.
package validatetest

import (
	"encoding/json"
	"testing"

	"imgsmith/internal/gpu"
	"imgsmith/internal/launch"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/probe"
)

// Digest is the manifest digest that Good is about.
const Digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

// Ptr returns a pointer to v.
func Ptr[T any](v T) *T { return &v }

// OK is a call that returned 0.
func OK() probe.Call { return probe.Call{RC: Ptr(0)} }

// Number is a successful call with a value.
func Number(n int64) probe.Int { return probe.Int{Call: OK(), Value: n} }

// Words is a successful call with a text.
func Words(s string) probe.Text { return probe.Text{Call: OK(), Value: s} }

// Code is a call that returned n.
func Code(n int, s string) probe.Call { return probe.Call{RC: Ptr(n), Name: s} }

// Expectation is the prediction that Good fulfils.
func Expectation(t testing.TB) validate.Expect {
	t.Helper()
	th, err := validate.DefaultThresholds()
	if err != nil {
		t.Fatal(err)
	}
	return validate.Expect{Entry: "e", TensorFlow: "2.19.1", CUDA: "12.5", CUDABuilt: "12.5", CuDNN: "9.3.0.75", CuDNNCompiled: "9.3.0",
		CUDARoot: "/usr/local/cuda-12.5", DlopenSet: []string{"libcudart.so.12", "libcufft.so.11", "libcudnn.so.9"},
		CuDNNFamily: []string{"libcudnn_cnn.so.9", "libcudnn_ops.so.9"}, DriverFloor: "525.60.13", MinComputeCapability: "6.0", Thresholds: th}
}

func library(name string) probe.Library {
	return probe.Library{Name: name, Opened: true, Path: "/usr/local/cuda-12.5/lib64/" + name}
}

// Good is evidence in which everything is as predicted.
func Good() validate.Evidence {
	const uuid = "GPU-00000000-0000-0000-0000-000000000001"
	o := &probe.Observation{SchemaVersion: probe.SchemaVersion,
		System: &probe.System{Devices: []probe.DeviceNode{{Path: "/dev/nvidia0"}, {Path: "/dev/nvidiactl"}}},
		NVML: &probe.NVML{Library: library("libnvidia-ml.so.1"), Init: OK(), DriverVersion: Words("580.159.04"), Count: Number(1),
			Devices: []probe.NVMLDevice{{UUID: Words(uuid), Name: Words("NVIDIA H200"), MemoryTotal: Number(150 << 30)}}},
		Driver: &probe.Driver{Library: library("libcuda.so.1"), Init: OK(), Version: Number(13000), Count: Number(1),
			Mapped:  []string{"/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"},
			Devices: []probe.DriverDevice{{Name: Words("NVIDIA H200"), UUID: Words(uuid), ComputeCapability: Words("9.0"), ContextRetain: OK(), ContextRelease: OK()}}},
		Libraries: &probe.Libraries{Opened: []probe.Library{library("libcudart.so.12"), library("libcufft.so.11"), library("libcudnn.so.9")}},
		Runtime: &probe.Runtime{Library: library("libcudart.so.12"), RuntimeVersion: Number(12050), DriverVersion: Number(13000), DeviceCount: Number(1),
			Malloc: OK(), Memset: OK(), CopyToDevice: OK(), CopyToHost: OK(), CopyEqual: Ptr(true), MemsetEqual: Ptr(true)},
		CuDNN: &probe.CuDNN{Library: library("libcudnn.so.9"), Version: Number(90300), Create: OK(),
			SubLibraries: []probe.Library{library("libcudnn_cnn.so.9"), library("libcudnn_ops.so.9")}},
		CuBLAS: &probe.CuBLAS{Library: library("libcublas.so.12"), Create: OK()},
		TensorFlow: &probe.TensorFlow{Version: "2.19.1", BuiltWithCUDA: Ptr(true), GPUs: []probe.TFDevice{{Name: "/physical_device:GPU:0"}},
			BuildInfo: map[string]json.RawMessage{"cuda_version": []byte(`"12.5.1"`), "cudnn_version": []byte(`"9"`)}},
	}
	for _, op := range []string{probe.StepMatmul, probe.StepConvolution, probe.StepXLA, probe.StepFFT, probe.StepSolver} {
		o.Steps = append(o.Steps, probe.Step{Name: op, Finished: true, ExitCode: Ptr(0)})
		r := probe.Op{Name: op, GPUs: 1, TF32: Ptr(true), MemoryNow: Ptr(int64(4096)),
			Results: []probe.OpResult{{Name: op, GPUBacking: "/job:localhost/replica:0/task:0/device:GPU:0", Compared: true, ElementsEqual: true, MaxRel: 1e-6}}}
		if op == probe.StepConvolution {
			r.CuDNNCalls = map[string]int{"cudnnBackendExecute": 3}
		}
		o.Ops = append(o.Ops, r)
	}
	return validate.Evidence{Digest: Digest, Static: validate.NewLayerResult(validate.LayerStatic, []validate.Finding{{Check: "static.x", Outcome: validate.OutcomePassed}}),
		Transcript: &launch.Transcript{Launcher: "docker", Caged: true, ImageDigest: Digest}, Observation: o,
		Activity: []gpu.Activity{{UUID: uuid, Samples: 20, MemoryMin: 1 << 20, MemoryMax: 1 << 30, UtilizationMax: 90}},
		Host: &gpu.Inventory{Source: "nvml-host", DriverVersion: "580.159.04", DriverCUDA: "13.0",
			Devices: []gpu.Device{{UUID: uuid, Name: "NVIDIA H200", ComputeCapability: "9.0", MemoryTotal: 150 << 30}}}}
}

// Clearance is a clearance for digest, from Good. A fake one does not sign.
func Clearance(t testing.TB, digest string, fake bool) validate.Clearance {
	t.Helper()
	ev := Good()
	ev.Digest, ev.Transcript.ImageDigest, ev.Host.Fake = digest, digest, fake
	c, err := validate.Judge(ev, Expectation(t)).Clearance()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
