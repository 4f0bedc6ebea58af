package static

import (
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// harmless holds what looks like a fault and is none.
func harmless() map[string]func(*rootfs.Layer, *Input) {
	return map[string]func(*rootfs.Layer, *Input){
		"no development link":            drop(lib64 + "/libcudnn.so"),
		"host's directories in PATH":     env("PATH=/usr/local/nvidia/bin:/opt/venv/bin"),
		"host's directories are missing": env("LD_LIBRARY_PATH=/usr/local/nvidia/lib64"),
		"old habit":                      env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"),
		"newer C library": change("usr/lib/x86_64-linux-gnu/libc.so.6", func(n *rootfs.Node) {
			n.ELF.VersionDefs = append(slices.Clone(n.ELF.VersionDefs), "GLIBC_2.99")
		}),
		"cuDNN links to its full version": both(
			change(lib64+"/libcudnn.so.9", func(n *rootfs.Node) { n.Path = lib64 + "/libcudnn.so.9.3.0" }),
			add(linkNode(lib64+"/libcudnn.so.9", "libcudnn.so.9.3.0"), linkNode(lib64+"/libcudnn.so", "libcudnn.so.9"))),
		"stubs that nothing searches": add(lib(lib64+"/stubs/libcuda.so", "libcuda.so.1"), lib(lib64+"/stubs/libcublas.so", "libcublas.so.12")),
		"newer cuDNN minor": func(l *rootfs.Layer, _ *Input) {
			for i := range *l {
				(*l)[i].Path = strings.Replace((*l)[i].Path, "cudnn_cu12-9.3.0.75", "cudnn_cu12-9.28.0.42", 1)
			}
		},
		"library that needs the driver": add(lib(lib64+"/libcudnn_engines_tensor_ir.so.9", "libcudnn_engines_tensor_ir.so.9",
			"libcuda.so.1", "libcudnn_graph.so.9")),
		"RDMA plug-in":            add(lib(lib64+"/libcufile_rdma.so.1", "libcufile_rdma.so.1", "libmlx5.so.1")),
		"bytecode of RECORD":      change(site+"/nvidia_cudnn_cu12-9.3.0.75.dist-info/RECORD", func(n *rootfs.Node) { n.Data = []byte("nvidia/__pycache__/a.pyc,,\n") }),
		"compat package, allowed": both(add(lib(root+"/compat/libcuda.so.1", "libcuda.so.1")), func(_ *rootfs.Layer, in *Input) { in.Expect.ForwardCompat = true }),
		"configured twice under two names": change("etc/ld.so.conf.d/imgsmith-cuda-12.5.conf", func(n *rootfs.Node) {
			n.Data = append(slices.Clone(n.Data), "/usr/local/cuda/targets/x86_64-linux/lib\n"...)
		}),
		"version written in another way": both(pin("certifi", "2021.5.30"), func(l *rootfs.Layer, in *Input) {
			pinAll(l, in)
			for i := range *l {
				(*l)[i].Path = strings.Replace((*l)[i].Path, "certifi-2026.10.19.post1", "certifi-2021.05.30", 1)
			}
		}),
		"vendored library found through its loader's RPATH": add(
			vendored(site+"/h5py/defs.cpython-311-x86_64-linux-gnu.so", "", []string{"$ORIGIN/../h5py.libs"}, "libhdf5_hl-1.so"),
			vendored(site+"/h5py.libs/libhdf5_hl-1.so", "libhdf5_hl-1.so", nil, "libhdf5-1.so"),
			vendored(site+"/h5py.libs/libhdf5-1.so", "libhdf5-1.so", nil)),
		"no program of its own":     func(_ *rootfs.Layer, in *Input) { in.Config.Cmd = nil },
		"packages as pinned":        pin("nvidia-cudnn-cu12", "9.3.0.75"),
		"other packages not pinned": pinAll,
		"libraries that lost their links": both(change(lib64+"/libcudnn.so.9", func(n *rootfs.Node) { n.Digest = "sha256:1" }),
			func(l *rootfs.Layer, _ *Input) {
				i := slices.IndexFunc(*l, func(n rootfs.Node) bool { return n.Path == lib64+"/libcudnn.so.9" })
				n := (*l)[i]
				n.Path += ".3.0"
				*l = append(*l, n)
			}),
	}
}

// vendored is a library with an old-style RPATH, which what it loads inherits.
func vendored(path, soname string, rpath []string, needed ...string) rootfs.Node {
	n := lib(path, soname, needed...)
	n.ELF.RPath = rpath
	return n
}

func TestNoFalseAlarm(t *testing.T) {
	f := readFixture(t)
	for name, edit := range harmless() {
		t.Run(name, func(t *testing.T) {
			layer := ownTree(f)
			in := input(t, nil)
			edit(&layer, &in)
			if name == "packages as pinned" {
				pinAll(&layer, &in)
			}
			recache(layer)
			tree, err := rootfs.Apply(layer)
			if err != nil {
				t.Fatal(err)
			}
			in.Tree = tree
			r := Check(in)
			for _, f := range failed(r) {
				t.Errorf("%+v", f)
			}
			if r.Outcome != validate.OutcomePassed {
				t.Errorf("outcome %s", r.Outcome)
			}
		})
	}
}

// pinAll pins every package of NVIDIA's that the layer has.
func pinAll(l *rootfs.Layer, in *Input) {
	for _, n := range *l {
		if stem, ok := strings.CutSuffix(base(n.Path), ".dist-info"); ok && strings.HasPrefix(stem, "nvidia_") {
			name, version, _ := strings.Cut(stem, "-")
			pin(normalize(name), version)(l, in)
		}
	}
}

// TestSystemLayout has cuDNN in the multiarch directory and CUDA in its own, as Debian packages install them.
func TestSystemLayout(t *testing.T) {
	layer := ownTree(readFixture(t))
	const multiarch = "usr/lib/x86_64-linux-gnu"
	for i, n := range layer {
		if strings.HasPrefix(n.Path, lib64+"/libcudnn") {
			layer[i].Path = multiarch + "/" + base(n.Path)
		}
	}
	layer = slices.DeleteFunc(layer, func(n rootfs.Node) bool { return strings.HasSuffix(n.Path, "/nvidia/cudnn/lib") })
	recache(layer)
	r := Check(input(t, layer))
	for _, f := range failed(r) {
		t.Errorf("%+v", f)
	}
	if got := (&checker{mapped: r.Mapped}).mappedAs("libcudnn.so.9"); got != "/"+multiarch+"/libcudnn.so.9" {
		t.Errorf("cuDNN is mapped from %s", got)
	}
}

// recache writes the loader cache again, over the CUDA and multiarch directories.
func recache(l rootfs.Layer) {
	var pairs []string
	for _, n := range l {
		if n.ELF != nil && (n.ELF.Soname == base(n.Path) || strings.HasPrefix(base(n.Path), n.ELF.Soname+".")) &&
			(strings.HasPrefix(n.Path, lib64+"/lib") || strings.Contains(n.Path, "x86_64-linux-gnu/")) {
			pairs = append(pairs, n.ELF.Soname, "/"+dirOf(n.Path)+"/"+n.ELF.Soname)
		}
	}
	change("etc/ld.so.cache", func(n *rootfs.Node) { *n = fileNode(n.Path, cacheOf(pairs...)) })(&l, nil)
}

func TestNothingIsNotPassed(t *testing.T) {
	empty, err := rootfs.Apply()
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]Input{"no input": {}, "empty tree": {Tree: empty}} {
		if r := Check(in); r.Outcome == validate.OutcomePassed || r.Outcome == validate.OutcomeUnknown || len(r.Findings) == 0 {
			t.Errorf("%s: outcome %s with %d findings", name, r.Outcome, len(r.Findings))
		}
	}
	in := input(t, ownTree(readFixture(t)))
	in.Expect.TensorFlow.DlopenSet = nil
	if r := Check(in); r.Outcome != validate.OutcomeInconclusive {
		t.Errorf("facts without a dlopen set: %s", r.Outcome)
	}
}

// TestManyFindings bounds the report of a tree where everything is wrong.
func TestManyFindings(t *testing.T) {
	layer := ownTree(readFixture(t))
	for i := range layer {
		if layer[i].Type == rootfs.Regular {
			layer[i].Mode = 0o600
		}
	}
	r := Check(input(t, layer))
	count := 0
	for _, f := range r.Findings {
		if f.Check == "static.modes" {
			count++
		}
	}
	if count != maxFindings {
		t.Errorf("%d findings, want %d", count, maxFindings)
	}
}

// TestLayerViolation reports what Apply found.
func TestLayerViolation(t *testing.T) {
	in := input(t, nil)
	tree, err := rootfs.Apply(ownTree(readFixture(t)), rootfs.Layer{dirNode(site + "/nvidia")})
	if err != nil {
		t.Fatal(err)
	}
	in.Tree = tree
	if !slices.ContainsFunc(failed(Check(in)), func(f validate.Finding) bool { return f.Check == "static.layers" && f.Subject == "/"+site+"/nvidia" }) {
		t.Error("a directory that replaces a link was not reported")
	}
}

func TestKeep(t *testing.T) {
	for p, want := range map[string]bool{
		"etc/ld.so.cache": true, "etc/ld.so.conf": true, "etc/ld.so.conf.d/x.conf": true, "usr/lib/os-release": true, "etc/os-release": true,
		site + "/six-1.dist-info/RECORD": true, site + "/six.py": false, "etc/passwd": false, "RECORD": false,
	} {
		if got := Keep(rootfs.Node{Path: p}); got != want {
			t.Errorf("Keep(%s) = %v", p, got)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	layer := benchLayer(b)
	in := input(b, layer)
	for b.Loop() {
		if r := Check(in); r.Outcome != validate.OutcomePassed {
			b.Fatal(r.Outcome)
		}
	}
}

// benchLayer is the real set with as many small files as a real image has.
func benchLayer(b *testing.B) rootfs.Layer {
	layer := ownTree(readFixture(b))
	for range 200 {
		dir := site + "/pkg" + strings.Repeat("x", len(layer)%97)
		for range 100 {
			layer = append(layer, fileNode(dir+"/f"+strings.Repeat("y", len(layer)%89)+".py", "x"))
		}
	}
	return layer
}
