package static

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
)

// Found is one TensorFlow in a tree that nothing was promised about.
type Found struct {
	Version      string // of the distribution
	Distribution string // normalized name: tensorflow, tensorflow-cpu, …
	From         string // the metadata directory
	CUDACompiled string // from cuda_config.h of the wheel; empty: not said, or built for the CPU
	CuDNNHeader  string // from cudnn_version.h of the wheel
	CPUOnly      bool   // the distribution, or its headers, say that it has no GPU code
	Expect       Expect // paths only
}

// tensorflows are the distributions that bring the tensorflow module.
var tensorflows = regexp.MustCompile(`^(tensorflow|tensorflow_gpu|tensorflow_cpu|tf_nightly|tf_nightly_gpu|tf_nightly_cpu)-([^-/]+)\.dist-info$`)

// Recognise finds every TensorFlow in a tree, in path order, with the directories that its checks need.
func Recognise(t *rootfs.Tree) []Found {
	var out []Found
	_ = t.Walk("", func(n rootfs.Node) error {
		m := tensorflows.FindStringSubmatch(path.Base(n.Path))
		if n.Type != rootfs.Dir || m == nil || !isSite(path.Dir(n.Path)) {
			return nil
		}
		f := Found{Distribution: normalize(m[1]), Version: m[2], From: "/" + n.Path, Expect: paths(t, path.Dir(n.Path))}
		f.headers(t)
		f.CPUOnly = f.CPUOnly || strings.HasSuffix(f.Distribution, "-cpu")
		out = append(out, f)
		return nil
	})
	return out
}

func isSite(dir string) bool {
	b := path.Base(dir)
	return b == "site-packages" || b == "dist-packages"
}

// paths derives where an environment keeps its things from its directory of packages.
func paths(t *rootfs.Tree, site string) Expect {
	e := Expect{SitePackages: site, Venv: path.Dir(site), CUDARoot: cudaRoot(t)}
	lib := path.Dir(site)
	prefix := path.Dir(path.Dir(lib))
	if _, ok := t.Lstat(prefix + "/pyvenv.cfg"); ok {
		e.Venv = prefix
	}
	if v, ok := strings.CutPrefix(path.Base(lib), "python"); ok && strings.Contains(v, ".") && facts.Dotted(v) {
		e.Python = v
	}
	if e.Python == "" {
		if n, _, err := t.Resolve("usr/bin/python3"); err == nil {
			e.Python = strings.TrimPrefix(path.Base(n.Path), "python")
		}
	}
	if path.Base(site) == "dist-packages" {
		for _, more := range []string{"usr/local/lib/python" + e.Python + "/dist-packages", "usr/lib/python3/dist-packages"} {
			if n, ok := t.Lstat(more); ok && n.Type == rootfs.Dir && more != site {
				e.MoreSites = append(e.MoreSites, more)
			}
		}
	}
	return e
}

// cudaRoot is the CUDA that the loader or the link /usr/local/cuda leads to, else the newest; empty: none.
func cudaRoot(t *rootfs.Tree) string {
	if n, _, err := t.Resolve("usr/local/cuda"); err == nil && n.Type == rootfs.Dir {
		return n.Path
	}
	nodes, err := t.ReadDir("usr/local")
	if err != nil {
		return ""
	}
	var all []string
	for _, n := range nodes {
		if v, ok := strings.CutPrefix(path.Base(n.Path), "cuda-"); ok && n.Type == rootfs.Dir && facts.Dotted(v) {
			all = append(all, n.Path)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		return facts.Compare(strings.TrimPrefix(b, "usr/local/cuda-"), strings.TrimPrefix(a, "usr/local/cuda-"))
	})
	return cmp.Or(append(all, "")...)
}

// defined reads "#define NAME value" lines.
var defined = regexp.MustCompile(`(?m)^#define\s+(\w+)\s+"?([0-9.]+)"?\s*$`)

// headers reads what the wheel was compiled with from its own headers.
func (f *Found) headers(t *rootfs.Tree) {
	include := f.Expect.SitePackages + "/tensorflow/include/third_party/gpus/"
	read := func(file string) map[string]string {
		out := map[string]string{}
		b, err := t.ReadFile(include + file)
		if err != nil {
			return out
		}
		for _, m := range defined.FindAllStringSubmatch(string(b), -1) {
			out[m[1]] = m[2]
		}
		return out
	}
	cuda := read("cuda/cuda_config.h")
	f.CUDACompiled = cuda["TF_CUDA_VERSION"]
	if n, ok := t.Lstat(include + "cuda/cuda_config.h"); ok && n.Size > 0 && len(n.Data) > 0 && f.CUDACompiled == "" {
		f.CPUOnly = true
	}
	for _, file := range []string{"cudnn/include/cudnn_version.h", "cudnn/cudnn_version.h"} {
		if d := read(file); d["CUDNN_MAJOR"] != "" {
			f.CuDNNHeader = d["CUDNN_MAJOR"] + "." + d["CUDNN_MINOR"] + "." + d["CUDNN_PATCHLEVEL"]
			return
		}
	}
}
