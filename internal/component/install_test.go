package component_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"imgsmith/internal/matrix"
	"imgsmith/internal/wheel/wheeltest"
)

// scriptBody is the place where pip versions differ: the text below a generated script's shebang, and RECORD,
// which holds its hash.
func scriptBody(p string) bool {
	return strings.Contains(p, "/bin/hello") || strings.HasSuffix(p, "/RECORD")
}

func testWheels() []wheeltest.Wheel {
	big := []byte(strings.Repeat("0123456789abcdef", 20000))
	return []wheeltest.Wheel{
		{
			Name: "imgsmith-hello", Version: "1.2.3", Metadata: "Requires-Dist: imgsmith-space",
			EntryPoints: "[console_scripts]\nhello-imgsmith = hello.cli:main\nhello-two=hello.cli:Tool.run [extra]\n\n[gui_scripts]\nhello-gui = hello.cli:main\n\n[other.group]\nx = y\n",
			Files: []wheeltest.File{
				{Name: "hello/__init__.py", Data: []byte("")},
				{Name: "hello/cli.py", Data: []byte("class Tool:\n    @staticmethod\n    def run():\n        print('tool')\ndef main():\n    print('hello')\n")},
				{Name: "hello/run.sh", Data: []byte("#!/bin/sh\n"), Mode: 0o100744},
				{Name: "hello/notype.sh", Data: []byte("#!/bin/sh\n"), Mode: 0o777},
				{Name: "hello/with, comma.txt", Data: []byte("quoted in RECORD")},
				{Name: "hello/grüße.txt", Data: []byte("not ASCII")},
				{Name: "hello/" + strings.Repeat("deep/", 30) + "long.txt", Data: []byte("longer than a tar name")},
				{Name: "hello/big.bin", Data: big},
				{Name: "hello/stored.bin", Data: big, Stored: true},
				{Name: "hello/empty/", Mode: 0o040755},
				{Name: "imgsmith_hello-1.2.3.data/scripts/say", Data: []byte("#!python -u\nprint('said')\n"), Mode: 0o100755},
				{Name: "imgsmith_hello-1.2.3.data/scripts/plain.sh", Data: []byte("#!/bin/sh\necho plain\n"), Mode: 0o100755},
				{Name: "imgsmith_hello-1.2.3.data/scripts/hello-gui", Data: []byte("#!python\nold wrapper\n"), Mode: 0o100755},
				{Name: "imgsmith_hello-1.2.3.data/purelib/hello/pure.py", Data: []byte("PURE = 1\n")},
				{Name: "imgsmith_hello-1.2.3.data/platlib/hello_plat.py", Data: []byte("PLAT = 1\n")},
				{Name: "imgsmith_hello-1.2.3.data/headers/hello.h", Data: []byte("#define HELLO 1\n")},
				{Name: "imgsmith_hello-1.2.3.data/data/share/hello/note.txt", Data: []byte("data\n")},
			},
		},
		{Name: "imgsmith-space", Version: "2.0", WheelFile: "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
			Files: []wheeltest.File{{Name: "spaces/one/mod.py", Data: []byte("NAME = 'one'\n")}}},
		{Name: "imgsmith.space-two", Version: "2.0",
			Files: []wheeltest.File{{Name: "spaces/two/mod.py", Data: []byte("NAME = 'two'\n")}}},
		cudaWheel("nvidia-cublas-cu12", "cublas", "12.5.3.2"),
		cudaWheel("nvidia-cudnn-cu12", "cudnn", "9.3.0.75"),
		{Name: "nvidia-cuda-nvcc-cu12", Version: "12.5.82", Files: []wheeltest.File{
			{Name: "nvidia/__init__.py"}, {Name: "nvidia/cuda_nvcc/__init__.py"},
			{Name: "nvidia/cuda_nvcc/bin/ptxas", Data: []byte("ptxas"), Mode: 0o100744},
			{Name: "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc", Data: []byte("bc")},
		}},
	}
}

func cudaWheel(name, pkg, version string) wheeltest.Wheel {
	return wheeltest.Wheel{Name: name, Version: version, Files: []wheeltest.File{
		{Name: "nvidia/__init__.py"}, {Name: "nvidia/" + pkg + "/__init__.py"},
		{Name: "nvidia/" + pkg + "/include/__init__.py"}, {Name: "nvidia/" + pkg + "/lib/__init__.py"},
		{Name: "nvidia/" + pkg + "/include/" + pkg + ".h", Data: []byte("#pragma once\n")},
		{Name: "nvidia/" + pkg + "/lib/lib" + pkg + ".so.12", Data: []byte(strings.Repeat(pkg, 40000))},
	}}
}

func writeWheels(t *testing.T, wheels []wheeltest.Wheel) (dir string, locked []matrix.Wheel) {
	t.Helper()
	dir = t.TempDir()
	for _, w := range wheels {
		data, err := w.Build()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, w.FileName())
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		locked = append(locked, lockFile(t, file))
	}
	return dir, locked
}

func TestInstallEqualsPip(t *testing.T) {
	h := newPipHost(t)
	dir, locked := writeWheels(t, testWheels())
	var names []string
	for _, w := range locked {
		names = append(names, w.Name+"=="+w.Version)
	}
	pip := h.pipTree(t, dir, "", names...)
	if len(pip) < 30 {
		t.Fatalf("pip installed %d files; the comparison would show nothing", len(pip))
	}
	tree, _ := h.ours(t, dir, locked)
	h.compare(t, pip, tree, scriptBody)
}

// TestPipSeesTheTree unpacks our layers into a venv that pip never touched and lets pip judge and change them.
func TestPipSeesTheTree(t *testing.T) {
	h := newPipHost(t)
	dir, locked := writeWheels(t, testWheels())
	_, blobs := h.ours(t, dir, locked)
	venv := h.venv(t)
	h.unpack(t, blobs)
	python := venv + "/bin/python" + h.version
	if out := run(t, python, "-m", "pip", "check"); !strings.Contains(out, "No broken requirements") {
		t.Errorf("pip check says %q", out)
	}
	list := run(t, python, "-m", "pip", "list", "--format=freeze")
	for _, w := range locked {
		if !strings.Contains(strings.ReplaceAll(list, ".", "-"), w.Name+"=="+strings.ReplaceAll(w.Version, ".", "-")) {
			t.Errorf("pip list lacks %s %s:\n%s", w.Name, w.Version, list)
		}
	}
	if uv, err := exec.LookPath("uv"); err == nil {
		if out := run(t, uv, "pip", "check", "--offline", "--python", python); !strings.Contains(out, "All installed packages are compatible") {
			t.Errorf("uv pip check says %q", out)
		}
	} else {
		t.Log("no uv on PATH: its view of the tree is not checked")
	}
	for script, want := range map[string]string{"hello-imgsmith": "hello\n", "hello-two": "tool\n", "hello-gui": "hello\n", "say": "said\n", "plain.sh": "plain\n"} {
		if got := run(t, venv+"/bin/"+script); got != want {
			t.Errorf("%s prints %q, want %q", script, got, want)
		}
	}
	code := "import spaces.one.mod, spaces.two.mod, hello.pure, hello_plat, nvidia.cudnn; print(spaces.one.mod.NAME + spaces.two.mod.NAME)"
	if got := run(t, python, "-c", code); got != "onetwo\n" {
		t.Errorf("imports print %q", got)
	}
	r := h.resolved(t)
	lib := "/" + r.CUDARoot + "/lib64/libcudnn.so.12"
	run(t, python, "-m", "pip", "uninstall", "-y", "imgsmith-hello", "nvidia-cudnn-cu12")
	for _, gone := range []string{venv + "/bin/hello-imgsmith", venv + "/share/hello/note.txt", "/" + r.Site + "/imgsmith_hello-1.2.3.dist-info"} {
		if _, err := os.Lstat(gone); !os.IsNotExist(err) {
			t.Errorf("pip uninstall leaves %s (%v)", gone, err)
		}
	}
	// pip removes nothing outside the venv, so the CUDA tree keeps the library; a later install replaces it.
	if err := os.WriteFile(lib, []byte("left behind"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, python, "-m", "pip", "install", "--no-compile", "--no-deps", "--find-links", dir, "nvidia-cudnn-cu12")
	if fi, err := os.Lstat(lib); err != nil || !fi.Mode().IsRegular() || fi.Size() < 100000 {
		t.Errorf("pip install does not put the library into the CUDA tree: %v %v", fi, err)
	}
}
