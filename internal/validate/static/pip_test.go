package static

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
)

func readPipWheels(t testing.TB) pipWheels {
	t.Helper()
	file, err := os.Open(pipFixture)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var out pipWheels
	if err := json.NewDecoder(z).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// pipInput is what `pip install tensorflow[and-cuda]` of a release leaves on a Debian 12, recognised as a foreign
// image is.
func pipInput(t testing.TB, release string, edit func(*rootfs.Layer)) Input {
	t.Helper()
	w := readPipWheels(t)
	layer := base12(readFixture(t))
	for _, name := range w.Sets[release] {
		for _, n := range w.Wheels[name] {
			n.Path = site + "/" + n.Path
			layer = append(layer, n)
		}
	}
	if edit != nil {
		edit(&layer)
	}
	return foreignInput(t, layer)
}

// foreignInput recognises what is in a layer, as the check command does.
func foreignInput(t testing.TB, layer rootfs.Layer) Input {
	t.Helper()
	tree, err := rootfs.Apply(layer)
	if err != nil {
		t.Fatal(err)
	}
	found := Recognise(tree)
	if len(found) != 1 {
		t.Fatalf("recognised %+v", found)
	}
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	in := Input{Tree: tree, Expect: found[0].Expect, Config: Config{Env: []string{"PATH=/usr/bin", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}}}
	if in.Expect.TensorFlow, err = table.TensorFlow(found[0].Version); err != nil {
		t.Fatal(err)
	}
	if in.Expect.CuDNN, err = table.CuDNN(in.Expect.TensorFlow.CuDNNMajor); err != nil {
		t.Fatal(err)
	}
	in.Expect.ForwardCompat = true
	return in
}

// TestPlainPipLayouts holds the real wheels of five releases against the loader: two of them find no GPU.
func TestPlainPipLayouts(t *testing.T) {
	for release, missing := range map[string][]string{
		"2.16.1": {"libcublas.so.12 cublas", "libcublasLt.so.12 cublas", "libcudnn.so.8 cudnn", "libcufft.so.11 cufft", "libcusolver.so.11 cusolver", "libcusparse.so.12 cusparse"},
		"2.16.2": nil,
		"2.19.1": nil,
		"2.20.0": nil,
		"2.21.0": {"libcusolver.so.11 cusolver"},
	} {
		t.Run(release, func(t *testing.T) {
			var got []string
			for _, f := range failed(Check(pipInput(t, release, nil))) {
				switch f.Check {
				case "static.dlopen":
					_, dir, _ := strings.Cut(f.Remedy, "/"+site+"/nvidia/")
					dir, _, ok := strings.Cut(dir, "/lib/")
					if !ok {
						t.Errorf("the remedy does not name the directory: %s", f.Remedy)
					}
					got = append(got, f.Subject+" "+dir)
				case "static.xla", "static.packages", "static.record":
					// the fixture holds ELF files only: no libdevice, no RECORD
				default:
					t.Errorf("%+v", f)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, missing) {
				t.Errorf("missing %q, want %q", got, missing)
			}
		})
	}
}

// TestVersionsFromBinaries names the source of each version of real libraries.
func TestVersionsFromBinaries(t *testing.T) {
	for release, want := range map[string]map[string]string{
		"2.16.2": {"tensorflow": "2.16.2", "python": "3.11", "cuda": "12.3.0", "cudnn": "8.9.7", "nccl": "2.19.3"},
		"2.19.1": {"tensorflow": "2.19.1", "python": "3.11", "cuda": "12.5.0", "cudnn": "9.3.0", "nccl": "2.23.4"},
	} {
		got := map[string]string{}
		for _, v := range Check(pipInput(t, release, nil)).Versions {
			if _, ok := want[v.Name]; ok {
				got[v.Name] = v.Version
				if fromCode := strings.Contains(v.From, "number in the code of "); fromCode != slices.Contains([]string{"cuda", "cudnn"}, v.Name) { // pip's NCCL lies where TensorFlow does not look
					t.Errorf("%s %s is from %s", v.Name, v.Version, v.From)
				}
			}
		}
		for name, v := range want {
			if got[name] != v {
				t.Errorf("%s: %s is %q, want %s", release, name, got[name], v)
			}
		}
	}
}

// TestOfficialImageShape is laid out like the official TensorFlow 2.18 GPU image: CUDA and cuDNN 8 from system
// packages, and a wheel that opens cuDNN 9.
func TestOfficialImageShape(t *testing.T) {
	w := readPipWheels(t)
	layer := base12(readFixture(t))
	for i := range layer {
		if layer[i].Path == "etc/os-release" {
			layer[i] = fileNode("etc/os-release", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"\n")
		}
	}
	const dist, multiarch = "usr/local/lib/python3.11/dist-packages", "usr/lib/x86_64-linux-gnu"
	var cache []string
	for name, nodes := range w.Wheels {
		for _, n := range nodes {
			var ok bool
			switch {
			case strings.HasPrefix(name, "tensorflow-2.19.1"): // 2.18 and 2.19 open the same libraries
				n.Path, ok = dist+"/"+strings.Replace(n.Path, "tensorflow-2.19.1", "tensorflow-2.18.0", 1), true
			case strings.HasPrefix(name, "nvidia_cudnn_cu12-8.9.7"):
				n.Path, ok = multiarch+"/"+base(n.Path), n.ELF != nil
			case strings.HasPrefix(name, "nvidia_") && strings.Contains(name, "-12.5.") || strings.HasPrefix(name, "nvidia_cufft_cu12-11.2") || strings.HasPrefix(name, "nvidia_cusolver_cu12-11.6"):
				n.Path, ok = "usr/local/cuda-12.5/lib64/"+base(n.Path), strings.Contains(n.Path, "/lib/")
			}
			if !ok {
				continue
			}
			layer = append(layer, n)
			if n.ELF != nil && n.ELF.Soname != "" && !strings.HasPrefix(n.Path, dist) {
				cache = append(cache, n.ELF.Soname, "/"+n.Path)
			}
		}
	}
	layer = append(layer, fileNode("etc/ld.so.conf", "/usr/local/cuda-12.5/lib64\n"), fileNode("etc/ld.so.cache", cacheOf(cache...)), linkNode("usr/local/cuda", "cuda-12.5"))
	r := Check(foreignInput(t, layer))
	told := false
	for _, f := range failed(r) {
		if f.Check == "static.dlopen" {
			if f.Subject != "libcudnn.so.9" {
				t.Errorf("%s is said to be missing", f.Subject)
			}
			told = strings.Contains(f.Remedy, "another version, /"+multiarch+"/libcudnn.so.8") && strings.Contains(f.Remedy, "install the one whose name is libcudnn.so.9")
		}
	}
	if !told {
		t.Errorf("cuDNN 8 under a wheel that opens cuDNN 9 is not told: %+v", failed(r))
	}
	if want := "/" + multiarch + "/libcublas"; (&checker{mapped: r.Mapped}).mappedAs("libcublas.so.12") == want {
		t.Error("mapped from the wrong place")
	}
}

// TestRHELPaths has the directories of a RHEL: lib64, and no multiarch.
func TestRHELPaths(t *testing.T) {
	f := readFixture(t)
	var layer rootfs.Layer
	for _, n := range ownTree(f) {
		n.Path = strings.Replace(n.Path, "usr/lib/x86_64-linux-gnu/", "usr/lib64/", 1)
		switch n.Path {
		case "etc/os-release":
			n = fileNode(n.Path, "ID=\"rhel\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"9.4\"\n")
		case "usr/lib/x86_64-linux-gnu", "usr/lib64/ld-linux-x86-64.so.2":
			if n.Type != rootfs.Regular {
				continue
			}
		}
		layer = append(layer, n)
	}
	r := Check(input(t, layer))
	for _, f := range failed(r) {
		t.Errorf("%+v", f)
	}
	for _, m := range r.Mapped {
		if m.Soname == "libc.so.6" && (m.Path != "/usr/lib64/libc.so.6" || m.Rule != "default directory") {
			t.Errorf("the C library is %+v", m)
		}
	}
}
