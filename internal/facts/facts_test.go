package facts

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func table(t *testing.T) *Table {
	t.Helper()
	out, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryRowHasEvidence walks the data: no row without source and confidence, no dangling reference.
func TestEveryRowHasEvidence(t *testing.T) {
	tab := table(t)
	check := func(what string, e Evidence) {
		if e.Source == "" || !slices.Contains([]string{"verified", "reported", "unknown"}, e.Confidence) {
			t.Errorf("%s: evidence %+v", what, e)
		}
	}
	if n := len(tab.tensorflow.TensorFlow); n != 18 {
		t.Errorf("%d TensorFlow rows, expected 2.4 to 2.21", n)
	}
	for _, r := range tab.tensorflow.TensorFlow {
		check(r.Minor, r.Evidence)
		for field, e := range r.Provenance {
			check(r.Minor+" "+field, e)
		}
		tf, err := tab.TensorFlow(r.Minor)
		if err != nil || len(tf.DlopenSet) < 7 || tf.DlopenCaller == "" || !slices.Contains(tf.HostLibraries, "libcuda.so.1") {
			t.Errorf("%s: %v %+v", r.Minor, err, tf)
		}
		if slices.Contains(tf.DlopenSet, "libcuda.so.1") || !slices.IsSortedFunc(tf.SASS, Compare) {
			t.Errorf("%s: %+v", r.Minor, tf)
		}
		if _, err := tab.CuDNN(tf.CuDNNMajor); err != nil {
			t.Error(err)
		}
		if _, err := tab.DriverFloor(tf.CUDAMajor); err != nil {
			t.Error(err)
		}
		if _, err := tab.Toolkit(tf.CUDATested); err != nil {
			t.Error(err)
		}
	}
	for _, o := range tab.tensorflow.Older {
		check("older", o.Evidence)
	}
	for _, d := range tab.tensorflow.DlopenSets {
		check(d.ID, d.Evidence)
	}
	for _, k := range tab.cuda.Toolkits {
		check(k.CUDA, k.Evidence)
	}
	for _, s := range tab.cuda.WheelSets {
		check(s.CUDA, s.Evidence)
		if len(s.Packages) < 8 {
			t.Errorf("wheel set %s has %d packages", s.CUDA, len(s.Packages))
		}
	}
	for _, g := range tab.gpu.GPUs {
		check(g.Name, g.Evidence)
		if _, err := tab.Architecture(g.ComputeCapability); err != nil {
			t.Errorf("%s: %v", g.Name, err)
		}
	}
	for _, o := range tab.os.Releases {
		check(o.ID+o.Version, o.Evidence)
	}
	for _, r := range append(tab.recipe.Packages, tab.recipe.Environment...) {
		check(r.Name, r.Evidence)
	}
}

func TestTensorFlow(t *testing.T) {
	tab := table(t)
	tf, err := tab.TensorFlow("2.19.1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12", "libcudnn.so.9"}
	if d := cmp.Diff(want, tf.DlopenSet); d != "" {
		t.Error(d)
	}
	if tf.Inferred || tf.PythonMin != "3.9" || tf.PythonMax != "3.12" || tf.CUDATested != "12.5" || tf.CUDAMajor != 12 || tf.CuDNNTested != "9.3" ||
		tf.CuDNNMajor != 9 || tf.CuDNNCompiled != "9.3.0" || tf.MinComputeCapability != "6.0" || tf.MinGlibc != "2.17" || tf.NumPy != ">=1.26,<2.2" {
		t.Errorf("got %+v", tf)
	}
	if d := cmp.Diff([]string{"/usr/local/cuda", "wheel:nvidia/cuda_nvcc", "/opt/cuda"}, tf.XLA.Search); d != "" {
		t.Error(d)
	}
	if tf.Extra.Packages["nvidia-nccl-cu12"] != "2.23.4" {
		t.Errorf("extra is %+v", tf.Extra)
	}
	for version, want := range map[string]struct {
		inferred bool
		minor    string
	}{"2.19": {false, "2.19"}, "2.19.7": {true, "2.19"}, "2.15.0.post1": {false, "2.15"}, "2.9.1": {false, "2.9"}, "2.19.1+mine": {true, "2.19"}} {
		got, err := tab.TensorFlow(version)
		if err != nil || got.Inferred != want.inferred || got.Minor != want.minor {
			t.Errorf("%s: %v, inferred %v of %s", version, err, got.Inferred, got.Minor)
		}
	}
	for _, bad := range []string{"2.22.0", "2.3.1", "", "2", "x", "12.19.1", "2.190.0"} {
		if _, err := tab.TensorFlow(bad); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	tf.DlopenSet[0], tf.Extra.Packages["nvidia-nccl-cu12"] = "changed", "changed"
	if again, _ := tab.TensorFlow("2.19.1"); again.DlopenSet[0] != want[0] || again.Extra.Packages["nvidia-nccl-cu12"] != "2.23.4" {
		t.Error("the table was changed through an answer")
	}
}

// The set of the pair is the set that the exact extras of 2.18 and 2.19 pin, NCCL aside.
func TestCUDAWheels(t *testing.T) {
	tab := table(t)
	for _, tc := range []struct{ cuda, cudnn, release string }{
		{"12.5", "9.3", "2.19.1"}, {"12.5.1", "9.3.0.75", "2.18.0"}, {"12.3", "8.9", "2.17.1"}, {"12.2", "8.9", "2.15.1"}, {"11.8", "8.7", "2.14.1"},
		{"12.5", "9.3", "2.21.0"}, {"12.5", "9.3", "2.20.0"},
	} {
		wheels, err := tab.CUDAWheels(tc.cuda, tc.cudnn)
		if err != nil {
			t.Fatal(err)
		}
		tf, err := tab.TensorFlow(tc.release)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, w := range wheels {
			got[w.Distribution] = w.Version
		}
		want := tf.Extra.Packages
		for name := range want {
			if strings.HasPrefix(name, "nvidia-nccl") {
				delete(want, name)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s/%s and the extra of %s differ:\n%s", tc.cuda, tc.cudnn, tc.release, d)
		}
		if !slices.IsSortedFunc(wheels, func(a, b Wheel) int { return strings.Compare(a.Distribution, b.Distribution) }) {
			t.Errorf("not sorted: %v", wheels)
		}
	}
	wheels, err := tab.CUDAWheels("12.8", "9.8")
	if err != nil || !slices.Contains(wheels, Wheel{"nvidia-cudnn-cu12", "9.8.*"}) {
		t.Errorf("%v %v", wheels, err)
	}
	if _, err := tab.CUDAWheels("11.2", "8.1"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

func TestGPU(t *testing.T) {
	tab := table(t)
	for name, want := range map[string]string{"H200": "9.0 datacenter", "NVIDIA H200": "9.0 datacenter", "nvidia geforce rtx 4090": "8.9 geforce", "Tesla V100": "7.0 datacenter", "T4": "7.5 datacenter"} {
		g, err := tab.GPU(name)
		if got := g.ComputeCapability + " " + g.Class; err != nil || got != want {
			t.Errorf("%s: %s %v", name, got, err)
		}
	}
	if _, err := tab.GPU("H2000"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	if u, ok := tab.UnprovedGPU("12.0"); !ok || u.Reason == "" {
		t.Error("12.0 counts as proved")
	}
	if _, ok := tab.UnprovedGPU("9.0"); ok {
		t.Error("9.0 counts as unproved")
	}
}

func TestOS(t *testing.T) {
	tab := table(t)
	for ref, want := range map[string]string{
		"debian:12": "2.36 3.11", "debian:12.8-slim": "2.36 3.11", "library/debian:bookworm-slim": "2.36 3.11", "debian:13": "2.41 3.13", "debian:bullseye": "2.31 3.9",
		"ubuntu:22.04": "2.35 3.10", "nvidia/cuda:12.5.1-runtime-ubuntu22.04": "2.35 3.10", "python:3.11-slim-bookworm": "2.36 3.11",
		"host:5000/team/debian:12@sha256:abc": "2.36 3.11",
	} {
		o, err := tab.OSOfReference(ref)
		if got := o.Glibc + " " + strings.Join(o.Pythons, ","); err != nil || got != want {
			t.Errorf("%s: %s %v", ref, got, err)
		}
	}
	for _, ref := range []string{"debian:latest", "debian", "debian:120", "busybox:1.36", "", "python:3.11"} {
		if o, err := tab.OSOfReference(ref); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %+v", ref, o)
		}
	}
	if o, err := tab.OSOfReference("python:3.12-alpine3.20"); err != nil || o.Libc != "musl" {
		t.Errorf("%+v %v", o, err)
	}
	if o, err := tab.OS("debian", "12"); err != nil || o.Codename != "bookworm" {
		t.Errorf("%+v %v", o, err)
	}
	if d := cmp.Diff([]string{"debian:12"}, tab.BasesWith("3.11")); d != "" {
		t.Error(d)
	}
}

func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"9.10", "9.3", 1}, {"535.104.05", "535.86.10", 1}, {"12.5", "12.5.0", 0}, {"2.15.0.post1", "2.15.0", 0}, {"8.9", "9.0", -1}, {"", "0", 0}, {"580", "580.65.06", -1}, {"2.22.0rc0", "2.22.0", 0}} {
		if got := Compare(tc.a, tc.b); got != tc.want {
			t.Errorf("%s, %s: %d", tc.a, tc.b, got)
		}
		if got := Compare(tc.b, tc.a); got != -tc.want {
			t.Errorf("%s, %s: %d", tc.b, tc.a, got)
		}
	}
	for s, want := range map[string]bool{"12.5": true, "9.3.0.75": true, "12": true, "": false, "12.": false, "-1": false, "1.2.3.4.5": false, "a": false, "1.x": false, "999999999": false} {
		if Dotted(s) != want {
			t.Errorf("Dotted(%q) is %v", s, !want)
		}
	}
}

// No address of a package registry stands in the data.
func TestNoRegistryHost(t *testing.T) {
	files, err := data.ReadDir("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := data.ReadFile("data/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range regexp.MustCompile(`https?://[^/"\s;)]+`).FindAllString(string(raw), -1) {
			if !strings.HasPrefix(u, "https://docs.nvidia.com") && !strings.HasPrefix(u, "https://developer.nvidia.com") {
				t.Errorf("%s names %s", f.Name(), u)
			}
		}
	}
}
