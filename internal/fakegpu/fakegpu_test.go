package fakegpu

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"imgsmith/internal/gpu"
	"imgsmith/internal/launch"
	"imgsmith/internal/launch/docker"
	"imgsmith/internal/launch/launchtest"
	"imgsmith/internal/validate/probe"
)

func build(t *testing.T, opt Options) Kit {
	t.Helper()
	k, err := Build(t.Context(), t.TempDir(), opt)
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// members reads a wheel.
func members(t *testing.T, path string) map[string]*zip.File {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = z.Close() })
	out := map[string]*zip.File{}
	for _, f := range z.File {
		out[f.Name] = f
	}
	return out
}

func content(t *testing.T, f *zip.File) []byte {
	t.Helper()
	if f == nil {
		t.Fatal("no such member")
	}
	r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestKitTwiceTheSame(t *testing.T) {
	a, b := build(t, Options{}), build(t, Options{})
	list, err := filepath.Glob(filepath.Join(a.FindLinks, "*.whl"))
	if err != nil || len(list) != 14 {
		t.Fatalf("got %d wheels, want 12 of NVIDIA's names, pip and tensorflow (%v)", len(list), err)
	}
	for _, p := range list {
		x, err1 := os.ReadFile(p)
		y, err2 := os.ReadFile(filepath.Join(b.FindLinks, filepath.Base(p)))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(x, y) {
			t.Errorf("%s differs between two builds (%v)", filepath.Base(p), err)
		}
	}
	if a.NoDevices == "" || a.CDIDir != "" {
		t.Errorf("without a hook there is no CDI specification, and the kit says so: %+v", a)
	}
}

func TestWheels(t *testing.T) {
	k := build(t, Options{})
	list, err := filepath.Glob(filepath.Join(k.Dir, "*", "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []Behaviour{Good, ConvOnCPU, NoGPU, WrongResult, Hang, Crash} {
		if k.TensorFlow[b] == "" {
			t.Fatalf("no tensorflow that is %s", b)
		}
		list = append(list, k.TensorFlow[b])
	}
	for _, p := range list {
		if !strings.Contains(filepath.Base(p), buildTag) {
			t.Errorf("%s: the file name has no watermark", p)
		}
		checkRecord(t, p)
	}
	nvcc := members(t, filepath.Join(k.FindLinks, "nvidia_cuda_nvcc_cu12-12.5.82-0imgsmithfake-py3-none-manylinux2014_x86_64.whl"))
	if m := nvcc["nvidia/cuda_nvcc/bin/ptxas"].Mode().Perm(); m != 0o744 {
		t.Errorf("ptxas has mode %o, want 744 as in real wheels", m)
	}
	if b := content(t, nvcc["nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc"]); string(b) != "BC imgsmith fake, for tests" {
		t.Errorf("libdevice is %q", b)
	}
}

// checkRecord compares every member with RECORD and finds the watermark.
func checkRecord(t *testing.T, path string) {
	t.Helper()
	m := members(t, path)
	var record, meta string
	for name, f := range m {
		switch {
		case strings.HasSuffix(name, ".dist-info/RECORD"):
			record = string(content(t, f))
		case strings.HasSuffix(name, ".dist-info/METADATA"):
			meta = string(content(t, f))
		}
	}
	if !strings.Contains(meta, "\nSummary: "+watermark+"\n") {
		t.Errorf("%s: no watermark in the metadata", path)
	}
	lines := strings.Split(strings.TrimSpace(record), "\n")
	if len(lines) != len(m) {
		t.Errorf("%s: RECORD has %d lines for %d members", path, len(lines), len(m))
	}
	for _, l := range lines {
		f := strings.Split(l, ",")
		b := content(t, m[f[0]])
		sum := sha256.Sum256(b)
		if f[1] != "" && (f[1] != "sha256="+base64.RawURLEncoding.EncodeToString(sum[:]) || f[2] != fmt.Sprint(len(b))) {
			t.Errorf("%s: RECORD is wrong about %s", path, f[0])
		}
	}
}

// The real helper, if it can be built here, reads the stub NVML and knows that it is fake.
func TestHelperReadsStub(t *testing.T) {
	k := build(t, Options{})
	helper := filepath.Join(t.TempDir(), gpu.HelperName)
	cmd := exec.Command("go", "build", "-ldflags", "-extldflags=-Wl,-z,lazy", "-o", helper, "imgsmith/cmd/imgsmith-nvml")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("the NVML helper cannot be built here (it needs cgo): %s", out)
	}
	lib := "LD_LIBRARY_PATH=" + k.DriverDir
	inv, err := gpu.ReadHelper(t.Context(), helper, lib)
	if err != nil {
		t.Fatal(err)
	}
	if !inv.Fake || inv.DriverVersion != "999.99.99" || inv.DriverCUDA != "13.0" || len(inv.Devices) != 1 {
		t.Fatalf("got %+v", inv)
	}
	d := inv.Devices[0]
	if d.UUID != "GPU-0000fa4e-0000-0000-0000-000000000000" || d.Name != "imgsmith fake GPU" || d.ComputeCapability != "9.0" ||
		d.MemoryTotal != 8<<30 || *d.MemoryUsed != 64<<20 || *d.RowRemapPending || d.RetiredPagePending != nil || len(d.Missing) != 1 {
		t.Errorf("got %+v", d)
	}
	inv, err = gpu.ReadHelper(t.Context(), helper, lib, "IMGSMITH_FAKE_ECC=3", "IMGSMITH_FAKE_REMAP_PENDING=1", "IMGSMITH_FAKE_COUNT=2")
	if err != nil || len(inv.Devices) != 2 || *inv.Devices[1].ECCUncorrected != 3 || !*inv.Devices[1].RowRemapPending {
		t.Errorf("got %+v, %v", inv, err)
	}
	var f *gpu.Failure
	if _, err := gpu.ReadHelper(t.Context(), helper, lib, "IMGSMITH_FAKE_NVML_INIT=18"); !errors.As(err, &f) || f.Kind != gpu.InitFailed || f.Code != 18 {
		t.Errorf("got %v", err)
	}
	w, err := gpu.Watch(t.Context(), helper, 20*time.Millisecond, lib)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	seen, err := w.Stop()
	if err != nil || len(seen) != 1 || seen[0].Samples < 2 || seen[0].MemoryMax != 64<<20 {
		t.Errorf("got %+v, %v", seen, err)
	}
}

// host is what all images of one test share.
type host struct {
	reg    *launchtest.Registry
	layer  []byte // the host's interpreter
	python string
}

// image puts wheels into an image with the host's Python, in the plain pip layout with a loader configuration.
func (h host) image(t *testing.T, k Kit, b Behaviour, drop string) launch.Image {
	t.Helper()
	out, err := exec.Command("python3", "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib', vars={'base': sysconfig.get_config_var('base') or '', 'platbase': ''}))").Output()
	if err != nil {
		t.Fatal(err)
	}
	site := strings.TrimSpace(string(out))
	wheels, err := filepath.Glob(filepath.Join(k.FindLinks, "nvidia_*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	dir, files, dirs := t.TempDir(), map[string]string{}, map[string]bool{}
	for _, w := range append(wheels, k.TensorFlow[b]) {
		for name, f := range members(t, w) {
			if filepath.Base(name) == drop {
				continue
			}
			p := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, content(t, f), 0o755)); err != nil {
				t.Fatal(err)
			}
			files[filepath.Join(site, name)] = p
			if strings.HasSuffix(filepath.Dir(name), "/lib") {
				dirs[filepath.Join(site, filepath.Dir(name))] = true
			}
		}
	}
	conf := ""
	for d := range dirs {
		conf += d + "\n"
	}
	stubs := launchtest.Tar(t, files, map[string]string{"etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n", "etc/ld.so.conf.d/cuda.conf": conf,
		"usr/lib/x86_64-linux-gnu/.keep": ""})
	return h.reg.Add(string(b), map[string]any{"Env": []string{"PATH=/usr/bin:/bin"}}, h.layer, stubs)
}

func (h host) observe(t *testing.T, l launch.Launcher, img launch.Image, gpus string, steps ...string) (launch.Transcript, probe.Observation) {
	t.Helper()
	cfg := probe.Config{
		Nonce: "n1", Steps: steps,
		Sonames: probe.Sonames{NVML: "libnvidia-ml.so.1", CUDA: "libcuda.so.1", Cudart: "libcudart.so.12", CuDNN: "libcudnn.so.9", CuBLAS: "libcublas.so.12"},
		Dlopen:  []string{"libcudart.so.12", "libcufft.so.11", "libcusolver.so.11"}, CuDNNSub: []string{"libcudnn_ops.so.9", "libcudnn_adv.so.9"},
		Deadlines: map[string]float64{"default": 60, probe.StepMatmul: 10},
	}
	s := launch.DefaultSpec()
	var err error
	if s.Args, err = cfg.Args(); err != nil {
		t.Fatal(err)
	}
	s.Image, s.Python, s.Script, s.Nonce, s.GPUs, s.Timeout = img, h.python, probe.Source(), "n1", gpus, 5*time.Minute
	tr, err := l.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if tr.StartError != "" {
		return tr, probe.Observation{}
	}
	o, err := probe.Decode([]byte(tr.Stdout), "n1")
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, tr.Stdout, tr.Stderr)
	}
	return tr, o
}

func TestFakeGPUInDocker(t *testing.T) {
	engines := launchtest.Engines()
	if why := launchtest.Missing(engines); why != "" {
		t.Skip(why)
	}
	k := build(t, Options{CDIHook: filepath.Join(engines, "nvidia-cdi-hook")})
	d := launchtest.ForTest(t, launchtest.Config{Engines: engines, CDIDir: k.CDIDir})
	h := host{reg: launchtest.NewRegistry(t)}
	h.layer, h.python = launchtest.HostPython(t)
	l, err := docker.New(t.Context(), docker.Options{Host: d.Host, RunID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	t.Run("good", func(t *testing.T) {
		img := h.image(t, k, Good, "")
		tr, o := h.observe(t, l, img, "all")
		checkGood(t, tr, o)
		tr, o = h.observe(t, l, img, "device=GPU-0000fa4e-0000-0000-0000-000000000000", probe.StepNVML)
		if tr.Injection != "cdi" || o.NVML == nil || !o.NVML.Init.OK() {
			t.Errorf("by UUID: %q, %+v", tr.Injection, o.NVML)
		}
		if tr, _ = h.observe(t, l, img, "device=7"); !strings.Contains(tr.StartError, "nvidia.com/gpu=7") {
			t.Errorf("a device that is not there: %q", tr.StartError)
		}
		tr, o = h.observe(t, l, img, "", probe.StepSystem, probe.StepNVML, probe.StepTensorFlow)
		if tr.Injection != "none" || o.NVML.Library.Opened || len(o.TensorFlow.GPUs) != 0 || o.System.FakeWatermark != "" {
			t.Errorf("without a device request: %q %+v", tr.Injection, o.NVML)
		}
	})
	checks := map[Behaviour]func(*testing.T, probe.Observation){
		ConvOnCPU: func(t *testing.T, o probe.Observation) {
			if r := o.Op(probe.StepConvolution).Results[0]; !strings.HasSuffix(r.GPUBacking, "CPU:0") {
				t.Errorf("the convolution's result is on %s", r.GPUBacking)
			}
		},
		NoGPU: func(t *testing.T, o probe.Observation) {
			if o.TensorFlow.GPUs == nil || len(o.TensorFlow.GPUs) != 0 || o.Driver.Count.Value != 1 {
				t.Errorf("GPUs: %v", o.TensorFlow.GPUs)
			}
		},
		WrongResult: func(t *testing.T, o probe.Observation) {
			if r := o.Op(probe.StepMatmul).Results[0]; !r.Compared || r.MaxRel < 0.49 || r.MaxRel > 0.51 {
				t.Errorf("the matrix product is off by %g", r.MaxRel)
			}
		},
		Hang: func(t *testing.T, o probe.Observation) {
			if s := o.Step(probe.StepMatmul); !s.TimedOut || s.Clean() || s.SignalName != "SIGKILL" {
				t.Errorf("matmul: %+v", s)
			}
			if s := o.Step(probe.StepConvolution); !s.Clean() {
				t.Errorf("the step after it: %+v", s)
			}
		},
		Crash: func(t *testing.T, o probe.Observation) {
			s, op := o.Step(probe.StepConvolution), o.Op(probe.StepConvolution)
			if s.SignalName != "SIGABRT" || s.ExitCode != nil || s.Clean() || op == nil || op.GPUs != 1 || len(op.Results) != 0 {
				t.Errorf("convolution: %+v %+v", s, op)
			}
		},
	}
	for b, check := range checks {
		t.Run(string(b), func(t *testing.T) {
			_, o := h.observe(t, l, h.image(t, k, b, ""), "all", probe.StepDriver, probe.StepTensorFlow, probe.StepMatmul, probe.StepConvolution)
			check(t, o)
		})
	}
	t.Run("a cuDNN sub-library is missing", func(t *testing.T) {
		_, o := h.observe(t, l, h.image(t, k, Good, "libcudnn_ops.so.9"), "all")
		if o.CuDNN.SubLibraries[0].Opened || o.CuDNN.Create.Code() != 1002 || len(o.TensorFlow.GPUs) != 1 {
			t.Errorf("cuDNN: %+v", o.CuDNN)
		}
		if op := o.Op(probe.StepConvolution); len(op.Errors) != 1 || op.Errors[0].Type != "FailedPreconditionError" {
			t.Errorf("convolution: %+v", op)
		}
		if s := o.Step(probe.StepMatmul); !s.Clean() || len(o.Op(probe.StepMatmul).Errors) != 0 {
			t.Errorf("matmul does not need it: %+v", s)
		}
	})
	t.Run("libcufft is missing", func(t *testing.T) {
		_, o := h.observe(t, l, h.image(t, k, Good, "libcufft.so.11"), "all")
		if o.Libraries.Opened[1].Opened || len(o.TensorFlow.GPUs) != 0 || !strings.Contains(strings.Join(o.Step(probe.StepTensorFlow).Evidence, "\n"), "libcufft.so.11") {
			t.Errorf("libraries %+v, GPUs %v", o.Libraries, o.TensorFlow.GPUs)
		}
	})
}

func checkGood(t *testing.T, tr launch.Transcript, o probe.Observation) {
	t.Helper()
	if tr.ExitCode != 0 || tr.Injection != "cdi" || !strings.Contains(tr.Command, "--gpus all") {
		t.Errorf("transcript: %+v", tr)
	}
	for _, s := range o.Steps {
		if !s.Clean() {
			t.Errorf("step %s: %+v", s.Name, s)
		}
	}
	if o.System.FakeWatermark != "1" || !o.NVML.Fake || !o.Driver.Fake || !o.TensorFlow.Fake {
		t.Error("a fake run is not marked everywhere")
	}
	if len(o.System.Devices) != 2 || o.System.Devices[0].Major != 195 || o.System.UID != 65534 {
		t.Errorf("system: %+v", o.System)
	}
	if len(o.Driver.Mapped) != 1 || o.Driver.Mapped[0] != "/usr/lib/x86_64-linux-gnu/libcuda.so.999.99.99" {
		t.Errorf("libcuda: %v", o.Driver.Mapped)
	}
	if !o.Runtime.Malloc.OK() || o.Runtime.CopyEqual == nil || !*o.Runtime.CopyEqual || o.Runtime.RuntimeVersion.Value != 12050 {
		t.Errorf("runtime: %+v", o.Runtime)
	}
	if !o.CuDNN.Create.OK() || o.CuDNN.Version.Value != 90300 || !o.CuBLAS.Create.OK() {
		t.Errorf("cuDNN %+v, cuBLAS %+v", o.CuDNN, o.CuBLAS)
	}
	for _, name := range []string{probe.StepMatmul, probe.StepConvolution, probe.StepXLA, probe.StepFFT, probe.StepSolver} {
		op := o.Op(name)
		if op == nil || len(op.Errors) != 0 || len(op.Results) == 0 || op.MemoryNow == nil || *op.MemoryNow <= 0 {
			t.Errorf("%s: %+v", name, op)
			continue
		}
		for _, r := range op.Results {
			if !r.Compared || !r.ElementsEqual || r.MaxRel > 2e-4 || !strings.HasSuffix(r.GPUBacking, "GPU:0") || !strings.HasSuffix(r.CPUBacking, "CPU:0") {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	if o.Op(probe.StepConvolution).CuDNNCalls["cudnnBackendExecute"] != 1 {
		t.Errorf("cuDNN's log: %v", o.Op(probe.StepConvolution).CuDNNCalls)
	}
}
