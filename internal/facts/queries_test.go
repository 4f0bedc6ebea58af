package facts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every new row has evidence, like those of facts_test.go.
func TestEveryNewRowHasEvidence(t *testing.T) {
	tab := table(t)
	check := func(what string, e Evidence) {
		if e.Source == "" || e.Confidence != "verified" && e.Confidence != "reported" && e.Confidence != "unknown" {
			t.Errorf("%s: evidence %+v", what, e)
		}
	}
	for _, b := range tab.driver.Branches {
		check("branch "+b.NativeCUDA, b.Evidence)
	}
	for _, b := range tab.driver.ForwardCompat.Bases {
		check("forward "+strings.Join(b.CUDA, " "), b.Evidence)
	}
	for _, i := range tab.image.NvidiaCUDA.Images {
		check("image "+i.CUDA, i.Evidence)
	}
	for _, s := range tab.cuda.Sonames {
		check("sonames "+s.Min, s.Evidence)
	}
	for _, c := range tab.cuda.CuDNNReleases {
		check("cudnn "+c.Version, c.Evidence)
	}
	for _, v := range tab.cuda.CuDNNVariants {
		check("cudnn variant", v.Evidence)
	}
	for _, p := range tab.cuda.PTXISAs {
		check("ptx "+p.ISA, p.Evidence)
		if _, err := tab.Toolkit(p.CUDA); err != nil && Compare(p.CUDA, "11.0") >= 0 {
			t.Error(err)
		}
	}
	for _, g := range tab.gpu.GPUs {
		if g.FirstDriver != "" {
			check(g.Name+" first driver", g.FirstDriverEvidence)
		}
	}
	for _, r := range tab.tensorflow.TensorFlow {
		for _, m := range r.GPUCode.Modules {
			if _, _, err := tab.PTXToolkit(m.PTXISA); m.PTXISA != "" && err != nil {
				t.Errorf("%s: %v", r.Minor, err)
			}
		}
		for _, p := range r.Patches {
			check(r.Minor+" patch "+p.Release, p.Evidence)
		}
	}
}

func TestDriverQuestions(t *testing.T) {
	tab := table(t)
	if b, err := tab.DriverBranch("535.104.05"); err != nil || b.Branch != 535 || b.NativeCUDA != "12.2" {
		t.Errorf("%+v %v", b, err)
	}
	if _, err := tab.DriverBranch("536.1"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	for cc, want := range map[string]int{"3.5": 470, "5.2": 580, "7.0": 580, "7.5": 0, "9.0": 0, "99.0": 0} {
		if c, ok := tab.DriverCeiling(cc); c.Branch != want || ok != (want != 0) {
			t.Errorf("%s: %+v %v", cc, c, ok)
		}
	}
	for _, tc := range []struct{ gpu, cc, want string }{{"RTX 4090", "", "520.61.05"}, {"H200", "", "520.61.05"}, {"A100", "", "450.51.05"}, {"", "12.1", "575.51.03"}, {"K80", "", ""}, {"", "1.0", ""}} {
		if f, ok := tab.FirstDriver(tc.gpu, tc.cc); f.Driver != tc.want || ok != (tc.want != "") {
			t.Errorf("%+v: %+v %v", tc, f, ok)
		}
	}
}

func TestForwardCompat(t *testing.T) {
	tab := table(t)
	for _, tc := range []struct {
		cuda, driver, class string
		want                Verdict
		pkg                 string
	}{
		{"12.4", "535.104.05", "datacenter", Yes, "cuda-compat-12-4"}, {"12.4", "535.54", "datacenter", No, "cuda-compat-12-4"}, {"12.4", "450.80.02", "datacenter", No, "cuda-compat-12-4"},
		{"12.4", "470.57", "geforce", No, "cuda-compat-12-4"}, {"12.4", "470.57", "workstation", Unknown, "cuda-compat-12-4"}, {"12.6", "535.104.05", "datacenter", Unknown, "cuda-compat-12-6"},
		{"12.2", "535.104.05", "geforce", Yes, ""}, {"11.8.0", "510.47.03", "datacenter", Yes, "cuda-compat-11-8"},
	} {
		if f := tab.ForwardCompat(tc.cuda, tc.driver, tc.class); f.Verdict != tc.want || f.Package != tc.pkg || f.Reason == "" || f.Source == "" {
			t.Errorf("%+v: %+v", tc, f)
		}
	}
}

func TestImages(t *testing.T) {
	tab := table(t)
	for ref, want := range map[string]string{
		"nvidia/cuda:12.5.1-cudnn-runtime-ubuntu22.04": "12.5.1 9.2.1.18 2.22.3 true", "host:5000/nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04@sha256:0": "11.8.0 8.9.6.50 2.15.5 true",
		"nvidia/cuda:11.8.0-runtime-ubuntu20.04": "11.8.0  2.16.2 true", "nvidia/cuda:12.5.1-cudnn-runtime-ubuntu24.04": "12.5.1   false", "nvidia/cuda:12.3.2-cudnn8-runtime-ubuntu22.04": "12.3.2  2.20.3 false",
		"nvidia/cuda:12.5.1-base-ubuntu24.04": "12.5.1   true", "nvidia/cuda:13.0.0-cudnn-runtime-ubuntu20.04": "13.0.0   false", "nvidia/cuda:12.8.1-cudnn-base-ubuntu22.04": "12.8.1   false",
	} {
		i, err := tab.Image(ref)
		exists := map[bool]string{true: "true", false: "false"}[i.Exists]
		if got := strings.Join([]string{i.CUDA, i.CuDNN, i.NCCL, exists}, " "); err != nil || got != want || i.Exists == (i.Missing != "") {
			t.Errorf("%s: %q %v", ref, got, err)
		}
	}
	for _, ref := range []string{"debian:12", "nvidia/cuda:latest", "nvidia/cuda", "mynvidia/cuda:12.5.1-base-ubuntu22.04", "nvidia/cuda:9.9.9-base-ubuntu22.04", ""} {
		if i, err := tab.Image(ref); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %+v", ref, i)
		}
	}
	for _, ref := range tab.Images() {
		if i, err := tab.Image(ref); err != nil || !i.Exists || i.CuDNN == "" {
			t.Errorf("%s: %+v %v", ref, i, err)
		}
	}
	if r, ok := tab.FaultyImage("tensorflow/tensorflow:2.18.0-gpu"); !ok || r.Source == "" {
		t.Error("2.18.0-gpu counts as sound")
	}
	for _, ref := range []string{"tensorflow/tensorflow:2.17.0-gpu", "tensorflow/tensorflow:2.18.0", "tensorflow/tensorflow:latest-gpu"} {
		if _, ok := tab.FaultyImage(ref); ok {
			t.Errorf("%s counts as faulty", ref)
		}
	}
}

func TestStartGate(t *testing.T) {
	tab := table(t)
	for _, tc := range []struct {
		tag, driver, class string
		want               Verdict
		fails              bool
	}{
		{"12.5.1-cudnn-runtime-ubuntu22.04", "535.104.05", "geforce", No, false}, {"12.5.1-cudnn-runtime-ubuntu22.04", "535.104.05", "datacenter", Yes, false},
		{"12.5.1-cudnn-runtime-ubuntu22.04", "535.104.05", "", Unknown, false}, {"12.5.1-cudnn-runtime-ubuntu22.04", "555.42.02", "geforce", Yes, false},
		{"11.8.0-cudnn8-runtime-ubuntu22.04", "510.47.03", "datacenter", No, false}, {"12.4.1-cudnn-runtime-ubuntu22.04", "545.23.08", "datacenter", No, false},
		{"12.4.1-cudnn-runtime-ubuntu22.04", "470.57.02", "geforce", Yes, true}, {"12.4.1-cudnn-runtime-ubuntu22.04", "470.57.02", "datacenter", Yes, false},
		{"11.2.2-cudnn8-runtime-ubuntu20.04", "450.80.02", "geforce", No, false}, {"11.2.2-cudnn8-runtime-ubuntu20.04", "450.80.02", "datacenter", Yes, false},
		{"12.9.1-cudnn-runtime-ubuntu22.04", "565.57.01", "geforce", No, false}, {"13.0.0-cudnn-runtime-ubuntu22.04", "999.1", "geforce", Unknown, false},
		{"12.8.1-cudnn-runtime-ubuntu22.04", "540.1", "geforce", No, false},
	} {
		i, err := tab.Image("nvidia/cuda:" + tc.tag)
		if err != nil {
			t.Fatal(err)
		}
		if g := tab.StartGate(i, tc.driver, tc.class); g.Verdict != tc.want || g.Fails != tc.fails || g.Reason == "" || g.Bypass == "" {
			t.Errorf("%+v: %+v", tc, g)
		}
	}
}

func TestCode(t *testing.T) {
	tab := table(t)
	for _, tc := range []struct {
		release, cc  string
		kind         CodeKind
		code, driver string
		ptxOnly      int
	}{
		{"2.19.1", "9.0", CodeNative, "9.0", "555.42.02", 1149}, {"2.19.1", "8.9", CodeNative, "8.9", "", 0}, {"2.19.1", "7.5", CodeNative, "7.0", "", 0}, {"2.16.2", "9.0", CodeNative, "9.0", "525.60.13", 1149},
		{"2.17.1", "9.0", CodeNative, "9.0", "545.23.06", 1149}, {"2.15.1", "9.0", CodePTX, "8.0", "530.30.02", 1396}, {"2.14.1", "8.6", CodeNative, "8.0", "455.23.05", 1149}, {"2.19.1", "5.0", CodeBelow, "", "", 0},
		{"2.19.1", "12.0", CodePTX, "9.0", "545.23.06", 279}, {"2.4.4", "9.0", CodePTX, "8.0", "450.51.05", 0},
	} {
		tf, err := tab.TensorFlow(tc.release)
		if err != nil {
			t.Fatal(err)
		}
		if c := tab.Code(tf, tc.cc); c.Kind != tc.kind || c.For != tc.code || c.Driver != tc.driver || c.PTXOnly != tc.ptxOnly || c.Source == "" {
			t.Errorf("%+v: %+v", tc, c)
		}
	}
	if c := tab.Code(TensorFlow{SASS: []string{"8.0"}}, "9.0"); c.Kind != CodeNone {
		t.Errorf("%+v", c)
	}
	tf, _ := tab.TensorFlow("2.20.0")
	if c := tab.Code(tf, "12.0"); c.Without != 1150 { // generated kernels for sm_90a, and one module without PTX
		t.Errorf("%+v", c)
	}
}

func TestCuDNNBuilds(t *testing.T) {
	tab := table(t)
	for _, tc := range []struct {
		version string
		major   int
		want    bool
	}{{"9.10.2.21", 11, true}, {"9.10", 11, true}, {"9.11", 11, false}, {"9.3", 12, true}, {"8.7.0.84", 12, false}, {"8.8", 12, true}, {"9.12.0.46", 13, true}, {"9.10", 13, false}, {"8.1", 11, true}} {
		if v, err := tab.CuDNNVariant(tc.version, tc.major); err != nil || v.Exists != tc.want {
			t.Errorf("%+v: %+v %v", tc, v, err)
		}
	}
	if _, err := tab.CuDNNVariant("9.3", 14); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	for _, tc := range []struct{ cuda, lib, want string }{{"12.5.1", "cufft", "libcufft.so.11"}, {"11.0", "cusolver", "libcusolver.so.10"}, {"11.2", "cusolver", "libcusolver.so.11"}, {"13.0", "cudart", "libcudart.so.13"}, {"11.8", "nvrtc", ""}, {"10.2", "cudart", ""}} {
		if s, _, err := tab.Soname(tc.cuda, tc.lib); s != tc.want || (tc.want == "") != errors.Is(err, ErrUnknown) {
			t.Errorf("%+v: %q %v", tc, s, err)
		}
	}
}

// Patches differ where the wheels do.
func TestPatches(t *testing.T) {
	tab := table(t)
	for release, want := range map[string]string{"2.12.0": ">=1.22,<1.24", "2.12.1": ">=1.22,<=1.24.3"} {
		if tf, err := tab.TensorFlow(release); err != nil || tf.NumPy != want {
			t.Errorf("%s: %s %v", release, tf.NumPy, err)
		}
	}
	for release, want := range map[string]string{"2.16.1": "cublas cudnn cufft cusolver cusparse", "2.16.2": "", "2.21.0": "cusolver", "2.20.0": ""} {
		if tf, err := tab.TensorFlow(release); err != nil || strings.Join(tf.Search.Lacks, " ") != want || tf.Search.Kind != "runpath" {
			t.Errorf("%s: %+v %v", release, tf.Search, err)
		}
	}
}

const goodRow = `schema_version: 1
tensorflow:
  - minor: "2.22"
    releases: ["2.22.0"]
    python: {min: "3.10", max: "3.13"}
    cuda: {tested: "12.5", major: 12}
    cudnn: {tested: "9.3", major: 9}
    gpu_code: {sass: ["8.0"], ptx: ["9.0"], min_compute_capability: "8.0"}
    min_glibc: "2.27"
    dlopen_set: cuda12-cudnn9
    source: "a test"
    confidence: verified
gpus:
  - {name: "H300", compute_capability: "9.0", class: datacenter, source: "a test", confidence: reported}
branches:
  - {branch: 700, native_cuda: "14.0", source: "a test", confidence: reported}
`

func TestOverlay(t *testing.T) {
	write := func(text string) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	tab, err := Load(write(goodRow))
	if err != nil {
		t.Fatal(err)
	}
	if tf, err := tab.TensorFlow("2.22.1"); err != nil || !tf.Inferred || tf.CUDATested != "12.5" {
		t.Errorf("%+v %v", tf, err)
	}
	if g, err := tab.GPU("h300"); err != nil || g.ComputeCapability != "9.0" {
		t.Error(err)
	}
	if b, err := tab.DriverBranch("700.1"); err != nil || b.NativeCUDA != "14.0" {
		t.Error(err)
	}
	if same, err := Load(""); err != nil || len(same.Releases()) != len(table(t).Releases()) {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"empty": "", "unknown key": goodRow + "colour: blue\n", "another schema": strings.Replace(goodRow, "schema_version: 1", "schema_version: 2", 1), "no source": strings.Replace(goodRow, "source: \"a test\"\n", "source: \"\"\n", 1),
		"wrong confidence": strings.Replace(goodRow, "confidence: verified", "confidence: sure", 1), "no dlopen set": strings.Replace(goodRow, "cuda12-cudnn9", "x", 1), "no code": strings.Replace(goodRow, `sass: ["8.0"], ptx: ["9.0"]`, "sass: [], ptx: []", 1),
		"minor": strings.Replace(goodRow, `minor: "2.22"`, `minor: "2.22.0"`, 1), "foreign release": strings.Replace(goodRow, `["2.22.0"]`, `["2.23.0"]`, 1), "cuda": strings.Replace(goodRow, "major: 12", "major: 13", 1), "no yaml": "\t{",
		"large": goodRow + "#" + strings.Repeat("x", maxOverlay),
	} {
		var o *OverlayError
		if _, err := Load(write(text)); !errors.As(err, &o) || !strings.Contains(err.Error(), "a.yaml") || o.Remedy() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("empty directory: %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
