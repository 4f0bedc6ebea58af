package static

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// knownCase is one case of public reports that a static check can tell, made by a small edit. An empty check means
// that nothing may fail; note is then the check that says something worth reading.
type knownCase struct {
	id    string
	edit  func(*rootfs.Layer, *Input)
	above []rootfs.Layer // layers on top
	check string
	note  string
	words []string
}

func dist(name, version, metadata string, record ...string) func(*rootfs.Layer, *Input) {
	dir := site + "/" + strings.ReplaceAll(name, "-", "_") + "-" + version + ".dist-info"
	return add(dirNode(dir), fileNode(dir+"/METADATA", metadata), fileNode(dir+"/RECORD", strings.Join(record, "\n")))
}

func dpkg(packages ...string) rootfs.Node {
	var sb strings.Builder
	for i := 0; i < len(packages); i += 2 {
		sb.WriteString("Package: " + packages[i] + "\nStatus: install ok installed\nVersion: " + packages[i+1] + "\n\n")
	}
	return fileNode("var/lib/dpkg/status", sb.String())
}

// copied turns a link into a file with the content of what it led to.
func copied(link, file, digest string) func(*rootfs.Layer, *Input) {
	return func(l *rootfs.Layer, _ *Input) {
		i := slices.IndexFunc(*l, func(n rootfs.Node) bool { return n.Path == file })
		(*l)[i].Digest = digest
		n := (*l)[i]
		n.Path = link
		*l = append(*l, n)
	}
}

// version changes what a library says of itself in its code.
func version(file, v string) func(*rootfs.Layer, *Input) {
	return change(file, func(n *rootfs.Node) {
		n.ELF.Version, n.ELF.VersionFrom = v, "number in the code of cudnnOpsVersionCheck"
	})
}

func knownCases() []knownCase {
	const multiarch = "usr/lib/x86_64-linux-gnu"
	cudnn := func(l *rootfs.Layer, _ *Input) {
		*l = slices.DeleteFunc(*l, func(n rootfs.Node) bool { return strings.HasPrefix(base(n.Path), "libcudnn") })
	}
	return []knownCase{
		{id: "B038", edit: cudnn, check: "static.dlopen", words: []string{"libcudnn.so.9", "install the package that holds libcudnn.so.9"}},
		{id: "B039", edit: drop(lib64 + "/libcudnn.so")},
		{id: "B042", edit: copied(lib64+"/libcudnn.so.9.3.0", lib64+"/libcudnn.so.9", "sha256:same"), note: "static.providers", words: []string{"copy that followed links"}},
		{id: "B043", edit: add(rootfs.Node{Path: multiarch + "/libcuda.so.418.56", Type: rootfs.Regular, Mode: 0o644}, rootfs.Node{Path: multiarch + "/libnvidia-ml.so.418.56", Type: rootfs.Regular, Mode: 0o644}),
			check: "static.driver", words: []string{"built under the GPU runtime", "libcuda.so.418.56"}},
		{id: "B045", edit: add(rootfs.Node{Path: "usr/bin/nvidia-smi", Type: rootfs.Regular, Mode: 0o755, Size: 9}, dpkg("nvidia-utils-535", "535.183.01-0ubuntu1")), check: "static.system.packages", words: []string{"nvidia-utils-535"}},
		{id: "B046", edit: both(env("LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"), add(dirNode(lib64+"/stubs"))), check: "static.stubs", words: []string{"error 34"}},
		{id: "B048 missing", edit: drop(lib64 + "/libcublas.so.12"), check: "static.dlopen", words: []string{"libcublas.so.12"}},
		{id: "B048 file", edit: env("LD_LIBRARY_PATH=/usr/lib:/" + lib64 + "/libcudnn.so.9"), check: "static.environment", words: []string{"element 2", "must be directories"}},
		{id: "B049", edit: both(version(lib64+"/libcudnn_ops.so.9", "9.1.0"), version(lib64+"/libcudnn_cnn.so.9", "9.3.0")), check: "static.cudnn.family", words: []string{"9.1.0 and 9.3.0", "libcudnn_ops.so.9: 9.1.0"}},
		{id: "B054", edit: both(change(site+"/nvidia_cudnn_cu12-9.3.0.75.dist-info", func(n *rootfs.Node) { n.Path = site + "/nvidia_cudnn_cu12-9.1.0.70.dist-info" }),
			dist("torch", "2.6.0", "Name: torch\nRequires-Dist: nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == \"Linux\" and platform_machine == \"x86_64\"\n")), check: "static.cudnn.version", words: []string{"9.1.0.70", "9.3"}},
		{id: "B054 the other way", edit: dist("torch", "2.6.0", "Name: torch\nRequires-Dist: nvidia-cudnn-cu12==9.1.0.70; platform_system == 'Linux'\n"), check: "static.python.requires", words: []string{"torch 2.6.0 requires another version of nvidia-cudnn-cu12", "9.3.0.75"}},
		{id: "B055", edit: both(drop(root+"/bin/ptxas"), drop(root+"/nvvm/libdevice")), check: "static.xla", words: []string{"nvidia-cuda-nvcc"}},
		{id: "B057", edit: env("PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/opt/venv/bin:/usr/bin")},
		{id: "B058 without utility", edit: env("NVIDIA_DRIVER_CAPABILITIES=compute"), check: "static.environment", words: []string{"compute,utility"}},
		{id: "B058 not set", edit: func(_ *rootfs.Layer, in *Input) { in.Config.Env = []string{"PATH=/opt/venv/bin:/usr/bin"} }, note: "static.environment.hint", words: []string{"nvidia-smi"}},
		{id: "B062 script", edit: add(rootfs.Node{Path: "sbin", Type: rootfs.Dir, Mode: 0o755}, rootfs.Node{Path: "sbin/ldconfig", Type: rootfs.Regular, Mode: 0o755, Size: 18, Data: []byte("#!/bin/sh\nexit 1\n\n")}), check: "static.ldconfig"},
		{id: "B062 cache", edit: change("etc/ld.so.cache", func(n *rootfs.Node) { n.Data = n.Data[:50] }), check: "static.loader.cache", words: []string{"damaged"}},
		{id: "B063", edit: change(site+"/tensorflow/python/_pywrap_tfe.so", func(n *rootfs.Node) {
			n.ELF.VersionNeeds = []elf.VersionNeed{{File: "libc.so.6", Versions: []string{"GLIBC_2.99"}}}
		}), check: "static.elf.versions", words: []string{"GLIBC_2.99", "newest in"}},
		{id: "B065", edit: add(lib(multiarch+"/libcublas.so.12", "libcublas.so.12")), check: "static.providers", words: []string{"the loader takes", "2 files provide libcublas.so.12"}},
		{id: "B067", edit: add(rootfs.Node{Path: "var/lib/apt/lists/x_Packages", Type: rootfs.Regular, Mode: 0o644, Size: 40 << 20}), above: []rootfs.Layer{{{Path: "var/lib/apt/lists/x_Packages", Type: rootfs.Whiteout}}},
			note: "static.image.caches", words: []string{"saves nothing", "41.9 MB", "sha256:layer0"}},
		{id: "B021", edit: add(dpkg("libcudnn8", "8.9.4.25-1+cuda11.8")), check: "static.system.packages", words: []string{"built for another CUDA", "hold"}},
		{id: "B013", edit: both(drop(site+"/numpy-2.1.3.dist-info"), dist("numpy", "2.3.1", "Name: numpy\n")), check: "static.python.limits", words: []string{"numpy 2.3.1"}},
		{id: "B016", edit: env("TF_USE_LEGACY_KERAS=1"), check: "static.python.limits", words: []string{"tf_keras"}},
		{id: "old NCCL", edit: change(lib64+"/libnccl.so.2", func(n *rootfs.Node) {
			n.ELF.Version, n.ELF.VersionFrom = "2.19.3", "number in the code of ncclGetVersion"
		}), check: "static.nccl.version", words: []string{"2.19.3", "2.23.4"}},
		{id: "package says another version", edit: both(change(site+"/nvidia_cudnn_cu12-9.3.0.75.dist-info/RECORD", func(n *rootfs.Node) { n.Data = []byte("nvidia/cudnn/lib/libcudnn_graph.so.9,,\n") }),
			version(lib64+"/libcudnn_graph.so.9", "9.8.0")), check: "static.versions.binary", words: []string{"9.8.0", "9.3.0.75"}},
		{id: "interpreter of another version", edit: add(fileNode(site+"/absl_py-2.5.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp310-cp310-manylinux_2_17_x86_64\n")), check: "static.python.tags", words: []string{"cp310-cp310"}},
		{id: "module of another interpreter", edit: add(lib(site+"/x/_c.cpython-312-x86_64-linux-gnu.so", "")), check: "static.python.tags", words: []string{"cpython-312"}},
		{id: "interrupted installation", edit: add(dirNode(site + "/~umpy")), check: "static.python.leftovers", words: []string{"interrupted"}},
		{id: "stale bytecode", edit: add(fileNode(site+"/m.py", "x = 1\n"), bytecodeNode(site+"/__pycache__/m.cpython-311.pyc", 7, 9)), check: "static.bytecode", words: []string{"9 bytes of time 7", "6 bytes of time 0"}},
		{id: "fresh bytecode", edit: add(fileNode(site+"/m.py", "x = 1\n"), bytecodeNode(site+"/__pycache__/m.cpython-311.pyc", 0, 6))},
		{id: "fleet without code", edit: func(_ *rootfs.Layer, in *Input) { in.Fleet = []GPU{{Name: "Tesla K80", Capability: "3.7"}} }, check: "static.gpucode", words: []string{"3.7"}},
		{id: "fleet that compiles", edit: func(_ *rootfs.Layer, in *Input) { in.Fleet = []GPU{{Name: "B200", Capability: "10.0"}} }, note: "static.gpucode", words: []string{"PTX"}},
		{id: "compat on GeForce", edit: both(add(lib(root+"/compat/libcuda.so.555.42", "libcuda.so.1"), linkNode(root+"/compat/libcuda.so.1", "libcuda.so.555.42")), func(_ *rootfs.Layer, in *Input) {
			in.Expect.ForwardCompat, in.Fleet = true, []GPU{{Name: "RTX 4090", Capability: "8.9", Consumer: true}}
		}), check: "static.compat", words: []string{"RTX 4090"}},
		{id: "two compat libraries", edit: both(add(lib(root+"/compat/libcuda.so.555.42", "libcuda.so.1"), lib(root+"/compat/libcuda.so.560.1", "libcuda.so.1")), func(_ *rootfs.Layer, in *Input) { in.Expect.ForwardCompat = true }), check: "static.compat", words: []string{"exactly one"}},
		{id: "conda", edit: add(dirNode("opt/conda/conda-meta"), fileNode("opt/conda/conda-meta/cudnn-8.9.2.26-cuda11_0.json", "{}")), note: "static.conda", words: []string{"cudnn-8.9.2.26-cuda11_0"}},
		{id: "budget", edit: func(_ *rootfs.Layer, in *Input) { in.Budget = 1 << 20 }, check: "static.image.size", words: []string{"/" + root + "/lib64"}},
		{id: "every GPU for everybody", edit: env("NVIDIA_VISIBLE_DEVICES=all"), note: "static.environment.hint", words: []string{"every GPU"}},
		{id: "missing element", edit: env("LD_LIBRARY_PATH=/opt/gone"), note: "static.environment", words: []string{"/opt/gone"}},
	}
}

func bytecodeNode(p string, when, size uint32) rootfs.Node {
	head := new([rootfs.HeadSize]byte)
	binary.LittleEndian.PutUint32(head[8:], when)
	binary.LittleEndian.PutUint32(head[12:], size)
	return rootfs.Node{Path: p, Type: rootfs.Regular, Mode: 0o644, Size: 100, Head: head}
}

func TestKnownCases(t *testing.T) {
	f := readFixture(t)
	for _, c := range knownCases() {
		t.Run(c.id, func(t *testing.T) {
			layer := ownTree(f)
			in := input(t, nil)
			c.edit(&layer, &in)
			layers := append([]rootfs.Layer{layer}, c.above...)
			tree, err := rootfs.Apply(layers...)
			if err != nil {
				t.Fatal(err)
			}
			in.Tree = tree
			for i, l := range layers {
				in.Layers = append(in.Layers, Layer{Digest: "sha256:layer" + string(rune('0'+i)), Origin: "step", Nodes: l})
			}
			r := Check(in)
			if c.check == "" {
				for _, f := range failed(r) {
					t.Errorf("a fault is told where there is none: %+v", f)
				}
			}
			if want := c.check + c.note; want != "" && !slices.ContainsFunc(r.Findings, func(f validate.Finding) bool { return f.Check == want && told(f, c) }) {
				t.Errorf("no finding of %s has %q: %+v", want, c.words, slices.DeleteFunc(r.Findings, func(f validate.Finding) bool { return f.Check != want }))
			}
		})
	}
}

func told(f validate.Finding, c knownCase) bool {
	text := strings.Join([]string{f.Subject, all(f), f.Layer}, "\n")
	for _, w := range c.words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return f.Note == (c.note != "") && (f.Outcome == validate.OutcomeFailed) == (c.check != "")
}

// TestFindingsNameLayerAndStep says where a bad file came from.
func TestFindingsNameLayerAndStep(t *testing.T) {
	in := input(t, nil)
	below := ownTree(readFixture(t))
	above := rootfs.Layer{{Path: "usr/bin/nvidia-smi", Type: rootfs.Regular, Mode: 0o755, Size: 3}}
	tree, err := rootfs.Apply(below, above)
	if err != nil {
		t.Fatal(err)
	}
	in.Tree, in.Layers = tree, []Layer{{Digest: "sha256:a", Origin: "base", Nodes: below}, {Digest: "sha256:b", Origin: "RUN apt-get install nvidia-utils", Nodes: above}}
	for _, f := range failed(Check(in)) {
		if f.Check == "static.driver" && f.Layer == "sha256:b" && f.Origin == "RUN apt-get install nvidia-utils" {
			return
		}
	}
	t.Error("no finding names the layer")
}

func TestRequirements(t *testing.T) {
	have := map[string]distribution{"numpy": {name: "numpy", version: "2.1.3"}, "keras": {name: "keras", version: "3.9.0.dev1"}, "torch": {name: "torch", version: "2.6.0+cu124"}}
	for line, want := range map[string]string{
		"numpy":                          "",
		"NumPy (<2.2.0,>=1.26.0)":        "",
		"numpy<2":                        "numpy <2",
		"numpy[x,y] >=3 ; extra == 'x'":  "",
		"scipy>=1":                       "scipy >=1",
		"scipy>=1; python_version<'3.9'": "",
		"scipy; python_version >= \"3.10\" and (sys_platform == 'linux' or sys_platform == 'darwin')": "scipy",
		"scipy; platform_machine in 'x86_64 aarch64'":                                                 "scipy",
		"scipy; platform_machine not in 'x86_64 aarch64'":                                             "",
		"keras>=3.5.0":                          "",
		"torch==2.6.0":                          "",
		"numpy @ https://example.com/n.whl":     "",
		"":                                      "",
		"numpy<2; nonsense == 'x'":              "",
		"scipy ~= 1.4; 'linux' == sys_platform": "scipy ~= 1.4",
		"scipy; ((python_version == '3.11')":    "",
	} {
		if _, got, _ := unmet(line, markerEnv("3.11"), have); got != want {
			t.Errorf("%q: unmet %q, want %q", line, got, want)
		}
	}
}

func TestWheelTags(t *testing.T) {
	for tag, want := range map[string]bool{
		"py3-none-any": true, "py2.py3-none-any": true, "cp311-cp311-manylinux_2_17_x86_64": true, "cp38-abi3-manylinux2014_x86_64": true, "cp37-abi3-linux_x86_64": true,
		"cp310-cp310-manylinux_2_17_x86_64": false, "cp312-abi3-manylinux2014_x86_64": false, "cp311-cp311-manylinux_2_17_aarch64": false, "cp311-cp311-win_amd64": false, "py3-none-manylinux2010_x86_64": true, "odd": true,
	} {
		if got := fits(tag, "3.11"); got != want {
			t.Errorf("%s: %v", tag, got)
		}
	}
}

func FuzzRequirement(f *testing.F) {
	for _, s := range []string{"numpy (<2,>=1) ; extra == 'x'", "a[b]~=1;python_version<'3' and (os_name=='posix' or 'x' not in platform_machine)", "((((", "x;'"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		unmet(s, markerEnv("3.11"), map[string]distribution{"numpy": {name: "numpy", version: "1.0"}})
		headers([]byte(s))
	})
}

// TestDeep compares contents with RECORD and ranks copies.
func TestDeep(t *testing.T) {
	in := input(t, nil)
	in.Deep = true
	layer := ownTree(readFixture(t))
	change(site+"/tensorflow/libtensorflow_cc.so.2", func(n *rootfs.Node) { n.GPU = &elf.GPUCode{SASS: []string{"8.0", "9.0"}, PTX: []string{"9.0"}} })(&layer, nil)
	const digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	const record = "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg"
	for _, name := range []string{"good.py", "bad.py"} {
		n := fileNode(site+"/"+name, "test")
		n.Digest = digest
		layer = append(layer, n)
	}
	dist("x", "1.0", "Name: x\n", "good.py,sha256="+record+",4", "bad.py,sha256="+strings.Replace(record, "n4b", "n5b", 1)+",4")(&layer, nil)
	tree, err := rootfs.Apply(layer)
	if err != nil {
		t.Fatal(err)
	}
	in.Tree, in.Fleet = tree, []GPU{{Name: "T4", Capability: "7.5"}}
	r := Check(in)
	want := map[string]string{"static.record": "bad.py", "static.gpucode": "T4"}
	for _, f := range failed(r) {
		if s, ok := want[f.Check]; !ok || !strings.Contains(f.Subject, s) {
			t.Errorf("%+v", f)
		}
		delete(want, f.Check)
	}
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
	if !slices.ContainsFunc(r.Findings, func(f validate.Finding) bool {
		return f.Check == "static.image.duplicates" && strings.Contains(all(f), "good.py")
	}) {
		t.Error("the copy is not told")
	}
}

// TestTrace shows the whole search.
func TestTrace(t *testing.T) {
	in := pipInput(t, "2.21.0", nil)
	got := strings.Join(Trace(in, "libcusolver.so.11"), "\n")
	for _, w := range []string{"RUNPATH of ", "/nvidia/cudnn/lib/libcusolver.so.11", "(default directory): not there", "no place has it", "libcusolver.so.11: not found"} {
		if !strings.Contains(got, w) {
			t.Errorf("the trace lacks %q:\n%.2000s", w, got)
		}
	}
	got = strings.Join(Trace(input(t, ownTree(readFixture(t))), "libcudnn.so.9"), "\n")
	for _, w := range []string{"taken, it is /" + lib64 + "/libcudnn.so.9", "needs libc.so.6 of libcudnn.so.9"} {
		if !strings.Contains(got, w) {
			t.Errorf("the trace lacks %q:\n%.2000s", w, got)
		}
	}
}
