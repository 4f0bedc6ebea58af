package layout_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/layout"
	"imgsmith/recipes"
)

func wheels(t *testing.T) layout.Layout {
	t.Helper()
	l, err := layout.Shipped("wheels")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestShippedResolves(t *testing.T) {
	r, err := wheels(t).At(layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	links := []layout.Link{
		{Path: "usr/local/cuda-12.5/targets/x86_64-linux/lib", Target: "../../lib64"},
		{Path: "usr/local/cuda-12.5/targets/x86_64-linux/include", Target: "../../include"},
		{Path: "usr/local/cuda-12", Target: "cuda-12.5"},
		{Path: "usr/local/cuda", Target: "cuda-12.5"},
		{Path: "opt/venv/lib/python3.11/site-packages/nvidia", Target: "/usr/local/cuda-12.5/python/nvidia"},
	}
	if d := cmp.Diff(links, r.Links); d != "" {
		t.Error(d)
	}
	keep := []string{
		"usr/local/cuda-12.5/bin/.imgsmith-keep", "usr/local/cuda-12.5/include/.imgsmith-keep", "usr/local/cuda-12.5/lib64/.imgsmith-keep",
		"usr/local/cuda-12.5/nvvm/.imgsmith-keep", "usr/local/cuda-12.5/python/nvidia/.imgsmith-keep",
	}
	if d := cmp.Diff(keep, r.KeepFiles); d != "" {
		t.Error(d)
	}
	if r.LoaderFile != "etc/ld.so.conf.d/imgsmith-cuda-12.5.conf" || r.LoaderText != "/usr/local/cuda-12.5/lib64\n" {
		t.Errorf("loader %s: %q", r.LoaderFile, r.LoaderText)
	}
	if n := len(r.Groups); n < 10 || n > 20 {
		t.Errorf("%d layers; the design asks for 10 to 20", n)
	}
}

func TestSitePath(t *testing.T) {
	r, err := wheels(t).At(layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/arm64"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ rel, path, link string }{
		{"numpy/core.py", "python opt/venv/lib/python3.11/site-packages/numpy/core.py", ""},
		{"nvidia_cudnn_cu12-9.3.0.75.dist-info/METADATA", "python opt/venv/lib/python3.11/site-packages/nvidia_cudnn_cu12-9.3.0.75.dist-info/METADATA", ""},
		{"nvidia/__init__.py", "cuda usr/local/cuda-12.5/python/nvidia/__init__.py", ""},
		{"nvidia/cudnn/__init__.py", "cuda usr/local/cuda-12.5/python/nvidia/cudnn/__init__.py", ""},
		{"nvidia/cudnn/lib", "cuda usr/local/cuda-12.5/python/nvidia/cudnn/lib", ""},
		{"nvidia/cudnn/lib/libcudnn.so.9", "cuda usr/local/cuda-12.5/lib64/libcudnn.so.9", "usr/local/cuda-12.5/python/nvidia/cudnn/lib -> ../../../lib64"},
		{"nvidia/cuda_nvcc/nvvm/libdevice/x.bc", "cuda usr/local/cuda-12.5/nvvm/libdevice/x.bc", "usr/local/cuda-12.5/python/nvidia/cuda_nvcc/nvvm -> ../../../nvvm"},
		{"nvidia/cu13/share/x", "cuda usr/local/cuda-12.5/python/nvidia/cu13/share/x", ""},
	}
	for _, tt := range tests {
		p, side := r.SitePath(tt.rel)
		if got := fmt.Sprintf("%s %s", side, p); got != tt.path {
			t.Errorf("%s: %s, want %s", tt.rel, got, tt.path)
		}
		link := ""
		if k, ok := r.PackageLink(tt.rel); ok {
			link = k.Path + " -> " + k.Target
		}
		if link != tt.link {
			t.Errorf("%s: link %q, want %q", tt.rel, link, tt.link)
		}
	}
}

func TestScriptByPython(t *testing.T) {
	for python, newer := range map[string]bool{"3.8": false, "3.9": true, "3.11": true, "3.13": true} {
		r, err := wheels(t).At(layout.Vars{CUDA: "11.8", Python: python, Platform: "linux/amd64"})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(r.Script, "removesuffix"); got != newer {
			t.Errorf("python %s: removesuffix used: %v", python, got)
		}
	}
}

func TestVarsAreChecked(t *testing.T) {
	good := layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/amd64"}
	bad := map[string]func(*layout.Vars){
		`cuda version "" is not major.minor`:                    func(v *layout.Vars) { v.CUDA = "" },
		`cuda version "12.5/.." is not major.minor`:             func(v *layout.Vars) { v.CUDA = "12.5/.." },
		`python version "3" is not major.minor`:                 func(v *layout.Vars) { v.Python = "3" },
		`platform "windows/amd64" has no entry in cuda.targets`: func(v *layout.Vars) { v.Platform = "windows/amd64" },
	}
	for want, edit := range bad {
		v := good
		edit(&v)
		if _, err := wheels(t).At(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", v, err, want)
		}
	}
	l := wheels(t)
	l.CUDA.Root = "../outside"
	if _, err := l.At(good); err == nil || !strings.Contains(err.Error(), "not a clean path") {
		t.Errorf("root outside the image: got %v", err)
	}
}

func shipped(t *testing.T) string {
	t.Helper()
	data, err := fs.ReadFile(recipes.Files, "layouts/wheels.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestParseRefuses(t *testing.T) {
	text := shipped(t)
	tests := []struct {
		name, data, reason string
		line               int
	}{
		{"unknown key", strings.Replace(text, "loader:\n", "loader:\n  fille: x\n", 1), "unknown field", strings.Count(text[:strings.Index(text, "loader:\n")], "\n") + 2},
		{"wrong type", strings.Replace(text, "links:\n", "links: 3\nold:\n", 1), "", strings.Count(text[:strings.Index(text, "links:\n")], "\n") + 1},
		{"no yaml", "name: [", "", 1},
		{"empty", "{}", "missing value for name", 0},
		{"no venv", strings.Replace(text, "venv: opt/venv", `venv: ""`, 1), "missing value for python.venv", 0},
		{"bad side", strings.Replace(text, "side: cuda", "side: gpu", 1), `has side "gpu"`, 0},
		{"two groups of a name", strings.Replace(text, "name: nccl", "name: cudnn", 1), `layer "cudnn" is there twice`, 0},
		{"bad pattern", strings.Replace(text, `"nvidia-nccl*"`, `"nvidia-nccl["`, 1), "bad pattern", 0},
		{"damage without test", text + "break: [{path: a, drop: true}]\n", "test: true", 0},
		{"extends without test", "extends: wheels\n", "test: true", 0},
		{"extends nothing", "extends: nothing\ntest: true\n", "no shipped layout", 0},
		{"damage of two kinds", "extends: wheels\ntest: true\nbreak: [{path: a, drop: true, link: b}]\n", "either drop or link", 0},
	}
	for _, tt := range tests {
		_, err := layout.Parse("x.yaml", []byte(tt.data))
		var le *layout.Error
		if !errors.As(err, &le) || !strings.Contains(le.Reason, tt.reason) || le.Line != tt.line || le.File != "x.yaml" {
			t.Errorf("%s: got %#v, want line %d and %q", tt.name, err, tt.line, tt.reason)
			continue
		}
		if tt.line > 0 && (le.Excerpt == "" || !strings.Contains(err.Error(), fmt.Sprintf("x.yaml:%d:", tt.line))) {
			t.Errorf("%s: no place or excerpt in %v", tt.name, err)
		}
	}
	if _, err := layout.Shipped("../recipes"); err == nil {
		t.Error("a name outside the shipped layouts is accepted")
	}
}

func TestTestLayout(t *testing.T) {
	l, err := layout.Parse("broken.yaml", []byte("extends: wheels\nname: broken\ntest: true\nbreak:\n  - {path: \"{root}/lib64/libcudnn_cnn.so.9\", link: nowhere.so}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.At(layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	want := []layout.Mutation{{Path: "usr/local/cuda-12.5/lib64/libcudnn_cnn.so.9", Link: "nowhere.so"}}
	if d := cmp.Diff(want, r.Break); d != "" || r.Name != "broken" || !r.Test || len(r.Groups) != len(wheels(t).Groups) {
		t.Errorf("name %s, test %v, %d groups, damage %s", r.Name, r.Test, len(r.Groups), d)
	}
}

func TestReserved(t *testing.T) {
	r, err := wheels(t).At(layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		"opt/venv/bin/python": true, "opt/venv/bin/python3.11": true, "opt/venv/bin/python-argcomplete": false, "opt/venv/bin/activate.fish": true,
		"opt/venv/lib64/x": true, "opt/venv/pyvenv.cfg": true, "opt/venv/lib/x": false, "opt/venv/bin/pip": false,
	} {
		if got := r.IsReserved(p); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}
