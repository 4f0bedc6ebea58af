package static

import (
	"bytes"
	"encoding/binary"
	"path"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

const (
	venv = "opt/venv"
	site = "opt/venv/lib/python3.11/site-packages"
	root = "usr/local/cuda-12.5"
)

func fileNode(p, data string) rootfs.Node {
	return rootfs.Node{Path: p, Type: rootfs.Regular, Mode: 0o644, Size: int64(len(data)), Data: []byte(data)}
}

func linkNode(p, target string) rootfs.Node {
	return rootfs.Node{Path: p, Type: rootfs.Symlink, Mode: 0o777, Link: target}
}

// cacheOf writes ld.so.cache in the new format for soname, path pairs.
func cacheOf(pairs ...string) string {
	var head, text bytes.Buffer
	head.WriteString(cacheMagicNew)
	count := len(pairs) / 2
	start := cacheHead + count*cacheEntry
	var entries []any
	for i := 0; i < len(pairs); i += 2 {
		key := uint32(start + text.Len())
		text.WriteString(pairs[i] + "\x00")
		val := uint32(start + text.Len())
		text.WriteString(pairs[i+1] + "\x00")
		entries = append(entries, int32(0x0303), key, val, uint32(0), uint64(0))
	}
	for _, v := range append([]any{uint32(count), uint32(text.Len()), [5]uint32{}}, entries...) {
		_ = binary.Write(&head, binary.LittleEndian, v)
	}
	return head.String() + text.String()
}

func base12(f fixture) rootfs.Layer {
	return append(slices.Clone(f.Base),
		dirNode("usr/bin"), dirNode("etc"), linkNode("lib64", "usr/lib64"), dirNode("usr/lib64"), dirNode("usr/lib/x86_64-linux-gnu"),
		linkNode("usr/lib64/ld-linux-x86-64.so.2", "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
		fileNode("etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n"),
		rootfs.Node{Path: "usr/bin/python3.11", Type: rootfs.Regular, Mode: 0o755, Size: 1},
		dirNode(venv), dirNode(venv+"/bin"), linkNode(venv+"/bin/python3", "/usr/bin/python3.11"))
}

// pipTree is the plain layout of pip: everything below site-packages.
func pipTree(f fixture) rootfs.Layer {
	out := base12(f)
	for _, n := range f.Site {
		n.Path = site + "/" + n.Path
		out = append(out, n)
	}
	return out
}

// ownTree is the layout of imgsmith: one CUDA directory, seen by pip through links.
func ownTree(f fixture) rootfs.Layer {
	out := base12(f)
	move := map[string]string{"lib": "lib64", "bin": "bin", "nvvm": "nvvm"}
	linked := map[string]bool{}
	var cache []string
	for _, n := range f.Site {
		parts := strings.Split(n.Path, "/")
		if parts[0] != "nvidia" {
			n.Path = site + "/" + n.Path
			out = append(out, n)
			continue
		}
		to := move[parts[2]]
		from := root + "/python/nvidia/" + parts[1] + "/" + parts[2]
		if !linked[from] {
			linked[from] = true
			out = append(out, linkNode(from, "../../../"+to))
		}
		n.Path = path.Join(append([]string{root, to}, parts[3:]...)...)
		out = append(out, n)
		if to == "lib64" && n.ELF.Soname == parts[3] {
			cache = append(cache, parts[3], "/"+n.Path)
		}
	}
	return append(out, linkNode(site+"/nvidia", "/"+root+"/python/nvidia"),
		linkNode(root+"/targets/x86_64-linux/lib", "../../lib64"), linkNode("usr/local/cuda", "cuda-12.5"), linkNode("usr/local/cuda-12", "cuda-12.5"),
		fileNode("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"), fileNode("etc/ld.so.conf.d/imgsmith-cuda-12.5.conf", "# CUDA\n/"+root+"/lib64\n"),
		fileNode("etc/ld.so.cache", cacheOf(cache...)))
}

// input is the expectation of TensorFlow 2.19.1 over a layer.
func input(t testing.TB, l rootfs.Layer) Input {
	t.Helper()
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	tf, err := table.TensorFlow("2.19.1")
	if err != nil {
		t.Fatal(err)
	}
	cudnn, err := table.CuDNN(tf.CuDNNMajor)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := rootfs.Apply(l)
	if err != nil {
		t.Fatal(err)
	}
	return Input{Tree: tree,
		Config: Config{Env: []string{"PATH=/opt/venv/bin:/usr/local/cuda/bin:/usr/bin:/usr/local/nvidia/bin", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}, Cmd: []string{"python3"}},
		Expect: Expect{TensorFlow: tf, CuDNN: cudnn, SitePackages: site, Venv: venv, CUDARoot: root, Complete: true}}
}

func failed(r Result) []validate.Finding {
	return slices.DeleteFunc(slices.Clone(r.Findings), func(f validate.Finding) bool { return f.Outcome == validate.OutcomePassed })
}

func TestRealWheels_OwnLayout(t *testing.T) {
	r := Check(input(t, ownTree(readFixture(t))))
	for _, f := range failed(r) {
		t.Errorf("%+v", f)
	}
	if r.Outcome != validate.OutcomePassed {
		t.Errorf("outcome %s", r.Outcome)
	}
	for _, m := range r.Mapped {
		if strings.HasPrefix(m.Soname, "libcu") && path.Dir(m.Path) != "/"+root+"/lib64" {
			t.Errorf("%s is mapped from %s", m.Soname, m.Path)
		}
	}
}

func TestRealWheels_PipLayout(t *testing.T) {
	in := input(t, pipTree(readFixture(t)))
	in.Expect.CUDARoot, in.Expect.Complete = "", false
	r := Check(in)
	for _, f := range failed(r) {
		t.Errorf("%+v", f)
	}
	if r.Outcome != validate.OutcomePassed {
		t.Errorf("outcome %s: %s", r.Outcome, r.Reason)
	}
}
