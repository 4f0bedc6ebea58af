package static

import (
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

const lib64 = root + "/lib64"

// broken is one fault in an otherwise good image of our layout.
type broken struct {
	name    string
	edit    func(l *rootfs.Layer, in *Input)
	check   string // the check that must fail
	subject string // contained in a finding of that check
	also    []string
	words   string // contained in message, expected, observed, remedy or evidence
}

func drop(prefix string) func(*rootfs.Layer, *Input) {
	return func(l *rootfs.Layer, _ *Input) {
		*l = slices.DeleteFunc(*l, func(n rootfs.Node) bool { return n.Path == prefix || strings.HasPrefix(n.Path, prefix+"/") })
	}
}

func change(p string, edit func(*rootfs.Node)) func(*rootfs.Layer, *Input) {
	return func(l *rootfs.Layer, _ *Input) {
		for i := range *l {
			if n := &(*l)[i]; n.Path == p {
				if n.ELF != nil {
					facts := *n.ELF
					n.ELF = &facts
				}
				edit(n)
			}
		}
	}
}

func add(nodes ...rootfs.Node) func(*rootfs.Layer, *Input) {
	return func(l *rootfs.Layer, _ *Input) { *l = append(*l, nodes...) }
}

func env(v ...string) func(*rootfs.Layer, *Input) {
	return func(_ *rootfs.Layer, in *Input) { in.Config.Env = append(in.Config.Env, v...) }
}

func both(edits ...func(*rootfs.Layer, *Input)) func(*rootfs.Layer, *Input) {
	return func(l *rootfs.Layer, in *Input) {
		for _, e := range edits {
			e(l, in)
		}
	}
}

// lib is a library node of the image's platform.
func lib(p, soname string, needed ...string) rootfs.Node {
	return rootfs.Node{Path: p, Type: rootfs.Regular, Mode: 0o644, Size: 1000, Digest: "sha256:" + soname,
		ELF: &elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true, Soname: soname, Needed: needed}}
}

func brokenTrees() []broken {
	return slices.Concat(brokenLibraries(), brokenFiles(), brokenSurroundings())
}

func brokenLibraries() []broken {
	var out []broken
	for _, s := range []string{"libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12", "libcudnn.so.9"} {
		out = append(out, broken{name: "no " + s, edit: drop(lib64 + "/" + s), check: "static.dlopen", subject: s, words: "install the package that holds " + s})
	}
	return append(out,
		broken{name: "no nvJitLink", edit: drop(lib64 + "/libnvJitLink.so.12"), check: "static.dlopen", subject: "libcusparse.so.12", words: "libnvJitLink.so.12"},
		broken{name: "no cuDNN sub-library", edit: drop(lib64 + "/libcudnn_adv.so.9"), check: "static.cudnn.family", subject: "libcudnn_adv.so.9"},
		broken{name: "cuDNN without zlib", edit: drop("usr/lib/x86_64-linux-gnu/libz.so.1"), check: "static.cudnn.family", subject: "libz.so.1"},
		broken{name: "new cuDNN member that needs more", edit: add(lib(lib64+"/libcudnn_engines_tensor_ir.so.9", "libcudnn_engines_tensor_ir.so.9", "libmlir.so.1", "libcuda.so.1")),
			check: "static.cudnn.family", subject: "libmlir.so.1"},
		broken{name: "no nvrtc", edit: drop(lib64 + "/libnvrtc.so.12"), check: "static.later", subject: "libnvrtc.so.12"},
		broken{name: "no NCCL", edit: drop(lib64 + "/libnccl.so.2"), check: "static.later", subject: "libnccl.so.2", words: "collectives"},
		broken{name: "no TensorFlow", edit: drop(site + "/tensorflow"), check: "static.tensorflow", subject: "libtensorflow_framework.so.2"},
		broken{name: "old C library", edit: change("usr/lib/x86_64-linux-gnu/libc.so.6", func(n *rootfs.Node) {
			n.ELF.VersionDefs = []string{"GLIBC_2.2.5", "GLIBC_2.3", "GLIBC_2.16"}
		}), check: "static.versions", subject: "libtensorflow_framework.so.2", words: "newest in /usr/lib/x86_64-linux-gnu/libc.so.6: GLIBC_2.16"},
		broken{name: "wheel from the future", edit: change(site+"/tensorflow/python/_pywrap_tfe.so", func(n *rootfs.Node) {
			n.ELF.VersionNeeds = []elf.VersionNeed{{File: "libc.so.6", Versions: []string{"GLIBC_2.99"}}}
		}), check: "static.elf.versions", subject: "_pywrap_tfe.so", words: "GLIBC_2.99"},
		broken{name: "extension module without its library", edit: change(site+"/tensorflow/python/_pywrap_tfe.so", func(n *rootfs.Node) {
			n.ELF.Needed = append(slices.Clone(n.ELF.Needed), "libgone.so.7")
		}), check: "static.elf.needed", subject: "libgone.so.7"},
		broken{name: "second cuDNN in the system", edit: add(lib("usr/lib/x86_64-linux-gnu/libcudnn.so.9", "libcudnn.so.9")), check: "static.providers", subject: "libcudnn.so.9",
			words: "the loader takes /" + lib64 + "/libcudnn.so.9"},
	)
}

func brokenFiles() []broken {
	cudnn := lib64 + "/libcudnn.so.9"
	return []broken{
		{name: "empty library", edit: change(cudnn, func(n *rootfs.Node) { n.Size, n.ELF = 0, nil }), check: "static.elf.files", subject: cudnn, words: "0 bytes", also: []string{"static.dlopen"}},
		{name: "truncated library", edit: change(cudnn, func(n *rootfs.Node) { n.ELF, n.ELFError = nil, "truncated ELF file: a segment ends at 9" }), check: "static.elf.files", words: "truncated", also: []string{"static.dlopen"}},
		{name: "text named like a library", edit: change(cudnn, func(n *rootfs.Node) { n.ELF = nil }), check: "static.elf.files", words: "something else"},
		{name: "library of another processor", edit: change(cudnn, func(n *rootfs.Node) { n.ELF.Machine = "EM_AARCH64" }), check: "static.elf.files", words: "EM_AARCH64", also: []string{"static.dlopen"}},
		{name: "library of 32 bit", edit: change(lib64+"/libcurand.so.10", func(n *rootfs.Node) { n.ELF.Class, n.ELF.Machine = 32, "EM_386" }), check: "static.elf.files", words: "32 bit"},
		{name: "program named like a library", edit: change(lib64+"/libcurand.so.10", func(n *rootfs.Node) { n.ELF.Type = "ET_EXEC" }), check: "static.elf.files", words: "ET_EXEC"},
		{name: "wrong major behind the name", edit: both(drop(cudnn), add(lib(lib64+"/libcudnn.so.8", "libcudnn.so.8"), linkNode(cudnn, "libcudnn.so.8"))), check: "static.soname", subject: cudnn, words: "libcudnn.so.8"},
		{name: "dangling link", edit: both(drop(cudnn), add(linkNode(cudnn, "libcudnn.so.9.3.0"))), check: "static.links", subject: cudnn, words: "leads nowhere"},
		{name: "link in a circle", edit: add(linkNode(root+"/a", "b"), linkNode(root+"/b", "a")), check: "static.links", words: "circle"},
		{name: "link out of the root", edit: add(linkNode(root+"/out", "../../../../../etc")), check: "static.links", words: "climbs"},
		{name: "version link of CUDA dangles", edit: add(linkNode("usr/local/cuda-11", "cuda-11.8")), check: "static.links", subject: "/usr/local/cuda-11"},
		{name: "unreadable library", edit: change(cudnn, func(n *rootfs.Node) { n.Mode = 0o640 }), check: "static.modes", subject: cudnn, words: "0640"},
		{name: "closed directory", edit: add(rootfs.Node{Path: lib64, Type: rootfs.Dir, Mode: 0o700}), check: "static.modes", subject: lib64},
		{name: "closed directory above", edit: add(rootfs.Node{Path: "opt", Type: rootfs.Dir, Mode: 0o750}), check: "static.modes", subject: "/opt"},
		{name: "empty driver file", edit: add(rootfs.Node{Path: "usr/lib/x86_64-linux-gnu/libcuda.so.418.56", Type: rootfs.Regular, Mode: 0o644}), check: "static.driver", words: "GPU runtime"},
		{name: "driver library", edit: add(lib("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.1", "libnvidia-ml.so.1")), check: "static.driver", subject: "libnvidia-ml.so.550.1"},
		{name: "nvidia-smi", edit: add(rootfs.Node{Path: "usr/bin/nvidia-smi", Type: rootfs.Regular, Mode: 0o755, Size: 5}), check: "static.driver", subject: "nvidia-smi"},
		{name: "ptxas not for everybody", edit: change(root+"/bin/ptxas", func(n *rootfs.Node) { n.Mode = 0o744 }), check: "static.xla", subject: "ptxas", words: "0744"},
		{name: "ptxas behind a closed directory", edit: add(rootfs.Node{Path: root + "/bin", Type: rootfs.Dir, Mode: 0o754}), check: "static.xla", words: "may pass"},
		{name: "no ptxas", edit: drop(root + "/bin/ptxas"), check: "static.xla", words: "nvidia-cuda-nvcc"},
		{name: "ptxas of another processor", edit: change(root+"/bin/ptxas", func(n *rootfs.Node) { n.ELF.Machine = "EM_AARCH64" }), check: "static.xla", words: "platform"},
		{name: "no libdevice", edit: drop(root + "/nvvm/libdevice"), check: "static.xla", subject: "libdevice"},
		{name: "empty libdevice", edit: change(root+"/nvvm/libdevice/libdevice.10.bc", func(n *rootfs.Node) { n.Size = 0 }), check: "static.xla", words: "empty"},
	}
}

func brokenSurroundings() []broken {
	cudnnInfo := site + "/nvidia_cudnn_cu12-9.3.0.75.dist-info"
	conf := "etc/ld.so.conf.d/imgsmith-cuda-12.5.conf"
	out := []broken{
		{name: "stubs in the environment", edit: env("LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"), check: "static.stubs", words: "LD_LIBRARY_PATH"},
		{name: "stubs behind a link", edit: both(env("LD_LIBRARY_PATH=/opt/x"), add(dirNode(lib64+"/stubs"), linkNode("opt/x", "/"+lib64+"/stubs"))), check: "static.stubs", subject: "/opt/x"},
		{name: "stubs in the configuration", edit: both(add(dirNode(lib64+"/stubs")), change(conf, func(n *rootfs.Node) { n.Data = append(n.Data, "/"+lib64+"/stubs\n"...) })), check: "static.stubs", words: "ld.so.conf"},
		{name: "empty element", edit: env("LD_LIBRARY_PATH=/usr/lib:"), check: "static.environment", words: "working directory"},
		{name: "relative element", edit: env("LD_LIBRARY_PATH=lib"), check: "static.environment", words: "working directory"},
		{name: "element is a file", edit: env("LD_LIBRARY_PATH=/" + lib64 + "/libcudnn.so.9"), check: "static.environment", words: "must be directories"},
		{name: "no utility capability", edit: env("NVIDIA_DRIVER_CAPABILITIES=compute"), check: "static.environment", words: "utility"},
		{name: "damaged cache", edit: change("etc/ld.so.cache", func(n *rootfs.Node) { n.Data = n.Data[:60] }), check: "static.loader.cache", words: "damaged"},
		{name: "stale cache", edit: change("etc/ld.so.cache", func(n *rootfs.Node) { n.Data = []byte(cacheOf()) }), check: "static.loader.cache", subject: "libcudnn.so.9", words: "ldconfig"},
		{name: "no cache", edit: drop("etc/ld.so.cache"), check: "static.loader.cache", words: "not searched"},
		{name: "cache names a missing file", edit: change("etc/ld.so.cache", func(n *rootfs.Node) { n.Data = []byte(cacheOf("libx.so.1", "/"+lib64+"/libx.so.1")) }), check: "static.loader.cache", subject: "libx.so.1"},
		{name: "configured directory is missing", edit: change(conf, func(n *rootfs.Node) { n.Data = append(n.Data, "/"+root+"/gone\n"...) }), check: "static.loader.cache", subject: "/gone"},
		{name: "two dist-infos", edit: add(dirNode(site+"/nvidia_cudnn_cu12-9.1.0.70.dist-info"), fileNode(site+"/nvidia_cudnn_cu12-9.1.0.70.dist-info/RECORD", "")), check: "static.packages", subject: "nvidia-cudnn-cu12", words: "2 versions"},
		{name: "missing package", edit: pin("nvidia-nvshmem-cu12", "3.2.5"), check: "static.packages", subject: "nvidia-nvshmem-cu12"},
		{name: "other version", edit: pin("nvidia-cudnn-cu12", "9.8.0.87"), check: "static.packages", words: "9.3.0.75"},
		{name: "extra NVIDIA package", edit: both(pin("six", "1.17.0"), add(dirNode(site+"/nvidia_cufile_cu12-1.0.dist-info"), fileNode(site+"/nvidia_cufile_cu12-1.0.dist-info/RECORD", ""))), check: "static.packages", subject: "nvidia-cufile-cu12"},
		{name: "wrong site-packages", edit: func(_ *rootfs.Layer, in *Input) { in.Expect.SitePackages = "opt/venv/lib/python3.12/site-packages" }, check: "static.packages"},
		{name: "file of RECORD missing", edit: change(cudnnInfo+"/RECORD", func(n *rootfs.Node) {
			n.Data = []byte("nvidia/cudnn/lib/libcudnn.so.9,sha256=x,1\nnvidia/cudnn/lib/libcudnn_gone.so.9,,\nnvidia/__pycache__/x.pyc,,\n")
		}), check: "static.record", subject: "libcudnn_gone.so.9"},
		{name: "no RECORD", edit: drop(cudnnInfo + "/RECORD"), check: "static.record", subject: "nvidia_cudnn_cu12"},
		{name: "cuDNN too old", edit: change(cudnnInfo, func(n *rootfs.Node) { n.Path = site + "/nvidia_cudnn_cu12-9.1.0.70.dist-info" }), check: "static.cudnn.version", words: "9.1.0.70"},
		{name: "cuDNN of another major", edit: change(cudnnInfo, func(n *rootfs.Node) { n.Path = site + "/nvidia_cudnn_cu12-8.9.7.29.dist-info" }), check: "static.cudnn.version", words: "8.9.7.29"},
		{name: "no entry point", edit: func(_ *rootfs.Layer, in *Input) { in.Config.Entrypoint = []string{"/opt/start.sh"} }, check: "static.entrypoint", subject: "/opt/start.sh"},
		{name: "entry point not executable", edit: both(add(fileNode("opt/start.sh", "#!")), func(_ *rootfs.Layer, in *Input) { in.Config.Entrypoint = []string{"/opt/start.sh"} }), check: "static.entrypoint", words: "0644"},
	}
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "CUDA_VISIBLE_DEVICES"} {
		out = append(out, broken{name: "image sets " + name, edit: env(name + "=/x"), check: "static.environment", subject: name})
	}
	return out
}

func pin(name, version string) func(*rootfs.Layer, *Input) {
	return func(_ *rootfs.Layer, in *Input) {
		if in.Expect.Packages == nil {
			in.Expect.Packages = map[string]string{}
		}
		in.Expect.Packages[name] = version
	}
}

func TestBrokenTrees(t *testing.T) {
	f := readFixture(t)
	for _, b := range brokenTrees() {
		t.Run(b.name, func(t *testing.T) {
			layer := ownTree(f)
			in := input(t, nil)
			b.edit(&layer, &in)
			tree, err := rootfs.Apply(layer)
			if err != nil {
				t.Fatal(err)
			}
			in.Tree = tree
			r := Check(in)
			if r.Outcome != validate.OutcomeFailed {
				t.Errorf("outcome %s", r.Outcome)
			}
			for _, check := range append(b.also, b.check) {
				if !slices.ContainsFunc(failed(r), func(f validate.Finding) bool { return f.Check == check }) {
					t.Errorf("%s did not fail", check)
				}
			}
			if !slices.ContainsFunc(failed(r), func(f validate.Finding) bool {
				return f.Check == b.check && strings.Contains(f.Subject, b.subject) && strings.Contains(all(f), b.words)
			}) {
				t.Errorf("no finding of %s names %q and %q: %+v", b.check, b.subject, b.words, failed(r))
			}
			for _, f := range failed(r) {
				if f.Message == "" || f.Remedy == "" || f.Subject == "" {
					t.Errorf("finding without subject, message or remedy: %+v", f)
				}
			}
		})
	}
}

func all(f validate.Finding) string {
	return strings.Join(append([]string{f.Message, f.Expected, f.Observed, f.Remedy}, f.Evidence...), "\n")
}
