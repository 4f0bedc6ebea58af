package twin

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
)

const lib64 = "usr/local/cuda-12.5/lib64"

func facts(soname string) *elf.Facts {
	return &elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true, Soname: soname, Needed: []string{"libc.so.6"}}
}

func libNode(p, soname string) rootfs.Node {
	return rootfs.Node{Path: p, Type: rootfs.Regular, Mode: 0o755, UID: 0, Size: 1 << 30, MTime: 5, ELF: facts(soname)}
}

func dir(p string) rootfs.Node { return rootfs.Node{Path: p, Type: rootfs.Dir, Mode: 0o755} }

func link(p, target string) rootfs.Node {
	return rootfs.Node{Path: p, Type: rootfs.Symlink, Mode: 0o777, Link: target}
}

func apply(t *testing.T, l rootfs.Layer) *rootfs.Tree {
	t.Helper()
	tree, err := rootfs.Apply(l)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestLdconfig(t *testing.T) {
	tree := apply(t, rootfs.Layer{
		dir("usr"), dir("usr/local"), dir("usr/local/cuda-12.5"), dir(lib64), link("usr/local/cuda", "cuda-12.5"),
		libNode(lib64+"/libcudnn.so.9.3.0", "libcudnn.so.9"), link(lib64+"/libcudnn.so.9", "libcudnn.so.9.3.0"),
		libNode("usr/local/other/libfar.so.1", "libfar.so.1"), link(lib64+"/libfar.so.1", "../../other/libfar.so.1"),
		dir(lib64 + "/stubs"), {Path: lib64 + "/readme.txt", Type: rootfs.Regular, Size: 3},
	})
	got, err := Ldconfig(tree, []string{"/usr/local/cuda/lib64"}, 77)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range got {
		lines = append(lines, strings.TrimSpace(e.Path+" "+string(e.Type)+" "+e.Link))
		if e.MTime != 77 || (e.Type == rootfs.Regular && (e.Mode != 0o755 || e.Size != int64(len(e.Data)) || e.ELF != nil)) {
			t.Errorf("entry %+v", e.Node)
		}
	}
	want := []string{
		"usr dir", "usr/local dir", "usr/local/cuda link cuda-12.5", "usr/local/cuda-12.5 dir", lib64 + " dir",
		lib64 + "/libcudnn.so.9 link libcudnn.so.9.3.0", lib64 + "/libcudnn.so.9.3.0 file", lib64 + "/libfar.so.1 link ../../other/libfar.so.1",
		"usr/local/other dir", "usr/local/other/libfar.so.1 file",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	back, err := elf.Read(bytes.NewReader(got[6].Data), got[6].Size)
	if err != nil || back.Soname != "libcudnn.so.9" {
		t.Errorf("stub reads back as %+v, %v", back, err)
	}
}

// TestLdconfigPassesOverDeadLinks: ldconfig does not put them into the cache, and the static stage names them.
func TestLdconfigPassesOverDeadLinks(t *testing.T) {
	got, err := Ldconfig(apply(t, rootfs.Layer{libNode(lib64+"/liba.so", "liba.so"), link(lib64+"/libb.so", "gone"),
		link(lib64+"/libc.so", "libd.so"), link(lib64+"/libd.so", "libc.so")}), []string{"/" + lib64}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range got {
		if e.Type != rootfs.Dir {
			files = append(files, e.Path)
		}
	}
	if d := cmp.Diff([]string{lib64 + "/liba.so"}, files); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestLdconfigRefuses(t *testing.T) {
	arm := libNode(lib64+"/liba.so", "liba.so")
	arm.ELF = facts("liba.so")
	arm.ELF.Machine = "EM_AARCH64"
	for name, c := range map[string]struct {
		node rootfs.Node
		dir  string
		want error
	}{
		"no directory":      {dir(lib64), "/usr/none", rootfs.ErrNotExist},
		"a file":            {rootfs.Node{Path: lib64, Type: rootfs.Regular}, "/" + lib64, rootfs.ErrNotDir},
		"empty library":     {rootfs.Node{Path: lib64 + "/liba.so", Type: rootfs.Regular}, "/" + lib64, ErrNoTwin},
		"another processor": {arm, "/" + lib64, ErrNoTwin},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Ldconfig(apply(t, rootfs.Layer{c.node}), []string{c.dir}, 0); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

// TestLdconfigAgainstRealLibraries lets the host's ldconfig run over real libraries and over their stand-ins.
func TestLdconfigAgainstRealLibraries(t *testing.T) {
	needLdconfig(t)
	real := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(real, lib64), 0o755))
	copied := 0
	found, err := filepath.Glob("/usr/lib/x86_64-linux-gnu/lib*.so.*")
	must(t, err)
	for _, p := range found {
		to := filepath.Join(real, lib64, filepath.Base(p))
		if target, err := os.Readlink(p); err == nil {
			if filepath.Base(target) == target {
				must(t, os.Symlink(target, to))
			}
			continue
		}
		if b, err := os.ReadFile(p); err == nil && len(b) < 4<<20 && elf.IsELF(b) {
			must(t, os.WriteFile(to, b, 0o644))
			copied++
		}
	}
	links, err := filepath.Glob(filepath.Join(real, lib64, "*"))
	must(t, err)
	for _, p := range links {
		if _, err := os.Stat(p); err != nil { // what it leads to was too big to copy
			must(t, os.Remove(p))
		}
	}
	if copied == 0 {
		t.Skip("no shared library of a Debian-like x86-64 host is here")
	}
	compareCaches(t, real)
}

// TestLdconfigAgainstWheels does the same with the real CUDA libraries.
func TestLdconfigAgainstWheels(t *testing.T) {
	wheels := os.Getenv("IMGSMITH_TEST_WHEELS")
	if wheels == "" {
		t.Skip("IMGSMITH_TEST_WHEELS names no directory with NVIDIA's wheels; needs 3 GB of disk")
	}
	needLdconfig(t)
	real := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(real, lib64), 0o755))
	files, err := filepath.Glob(filepath.Join(wheels, "nvidia_*.whl"))
	must(t, err)
	for _, f := range files {
		unpackLibraries(t, f, filepath.Join(real, lib64))
	}
	compareCaches(t, real)
}

func unpackLibraries(t *testing.T, wheel, to string) {
	t.Helper()
	z, err := zip.OpenReader(wheel)
	must(t, err)
	defer z.Close()
	for _, m := range z.File {
		if filepath.Base(filepath.Dir(m.Name)) != "lib" || !strings.Contains(m.Name, ".so") {
			continue
		}
		r, err := m.Open()
		must(t, err)
		w, err := os.Create(filepath.Join(to, filepath.Base(m.Name)))
		must(t, err)
		_, err = io.Copy(w, r)
		must(t, errors.Join(err, w.Close(), r.Close()))
	}
}

func needLdconfig(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("ldconfig -r changes its root, which needs root")
	}
	if _, err := exec.LookPath("ldconfig"); err != nil {
		t.Skip("no ldconfig on this host")
	}
}

// compareCaches runs ldconfig over real and over a tree of stand-ins and wants equal bytes.
func compareCaches(t *testing.T, real string) {
	t.Helper()
	entries, err := Ldconfig(apply(t, scan(t, real)), []string{"/" + lib64}, 0)
	must(t, err)
	stubs := t.TempDir()
	size := int64(0)
	for _, e := range entries {
		p := filepath.Join(stubs, e.Path)
		switch e.Type {
		case rootfs.Dir:
			must(t, os.MkdirAll(p, 0o755))
		case rootfs.Symlink:
			must(t, os.Symlink(e.Link, p))
		default:
			must(t, os.WriteFile(p, e.Data, os.FileMode(e.Mode)))
			size += e.Size
		}
	}
	want, got := ldconfig(t, real), ldconfig(t, stubs)
	if !bytes.Equal(want, got) {
		t.Errorf("caches differ: %d bytes over real libraries, %d over stand-ins", len(want), len(got))
	}
	if !bytes.Contains(want, []byte("/"+lib64+"/lib")) {
		t.Error("the cache holds none of the libraries")
	}
	t.Logf("%d entries, %d bytes of stand-ins, cache of %d bytes", len(entries), size, len(got))
}

// scan reads a directory of the disk as a layer.
func scan(t *testing.T, root string) rootfs.Layer {
	t.Helper()
	var out rootfs.Layer
	must(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		n := rootfs.Node{Path: rel, Type: rootfs.Regular, Mode: uint32(st.Mode().Perm()), Size: st.Size()}
		switch {
		case d.IsDir():
			n.Type, n.Size = rootfs.Dir, 0
		case st.Mode()&os.ModeSymlink != 0:
			n.Type = rootfs.Symlink
			n.Link, err = os.Readlink(p)
		default:
			var f *os.File
			if f, err = os.Open(p); err == nil {
				err = errors.Join(rootfs.SetELF(&n, f), f.Close())
			}
		}
		out = append(out, n)
		return err
	}))
	return out
}

func ldconfig(t *testing.T, root string) []byte {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc/ld.so.conf"), []byte("/"+lib64+"\n"), 0o644))
	if out, err := exec.Command("ldconfig", "-r", root).CombinedOutput(); err != nil {
		t.Fatalf("ldconfig: %v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
	must(t, err)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBytecode(t *testing.T) {
	const site = "opt/venv/lib/python3.11/site-packages"
	layer := rootfs.Layer{
		{Path: "opt", Type: rootfs.Dir, Mode: 0o711}, {Path: site + "/six.py", Type: rootfs.Regular, Mode: 0o644, Size: 3, MTime: 9},
		{Path: site + "/six.so", Type: rootfs.Regular}, {Path: "opt/other.py", Type: rootfs.Regular}, link(site+"/l.py", "six.py"),
	}
	got := Bytecode(layer, site, 315532800, func(n rootfs.Node) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("# " + n.Path)), nil
	})
	var paths []string
	for _, e := range got {
		paths = append(paths, e.Path)
		if e.MTime != 315532800 {
			t.Errorf("%s has time %d", e.Path, e.MTime)
		}
	}
	want := []string{"opt", "opt/venv", "opt/venv/lib", "opt/venv/lib/python3.11", site, site + "/six.py"}
	if d := cmp.Diff(want, paths); d != "" {
		t.Fatalf("-want +got\n%s", d)
	}
	if got[0].Mode != 0o711 || got[1].Mode != 0o755 {
		t.Errorf("modes %o %o", got[0].Mode, got[1].Mode)
	}
	r, err := got[5].Open()
	must(t, err)
	if b, err := io.ReadAll(r); err != nil || string(b) != "# "+site+"/six.py" {
		t.Errorf("content %q, %v", b, err)
	}
	if all := Bytecode(layer, "", 0, nil); len(all) != 7 {
		t.Errorf("%d entries for the whole layer, want 7", len(all))
	}
}
