package component_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"imgsmith/internal/component"
	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/wheel"
)

// pipHost is a Python with venv and pip, and a layout whose venv and CUDA root lie below a temporary directory.
type pipHost struct {
	python  string // interpreter that makes venvs
	version string // major.minor
	root    string // absolute; everything the layout places lies below it
	target  matrix.Target
	layout  layout.Layout
}

func newPipHost(t *testing.T) *pipHost {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on PATH: a real pip install cannot be compared")
	}
	out, err := exec.Command(python, "-c", "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])").Output()
	if err != nil {
		t.Skip("python3 has no venv or ensurepip (Debian: python3-venv): a real pip install cannot be compared")
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &pipHost{python: python, version: strings.TrimSpace(string(out)), root: root}
	h.target = matrix.Target{Entry: "compare", Platform: "linux/amd64", CUDA: "12.5", Epoch: 1700000000,
		Python:      matrix.Python{Version: h.version},
		Compression: matrix.Compression{Algorithm: "gzip", Level: "passthrough", Encoder: component.EncoderGzip}}
	if h.layout, err = layout.Shipped("wheels"); err != nil {
		t.Fatal(err)
	}
	h.layout = below(h.layout, strings.TrimPrefix(root, "/"))
	return h
}

// below moves a layout's trees under dir.
func below(l layout.Layout, dir string) layout.Layout {
	l.Python.Venv = dir + "/" + l.Python.Venv
	l.CUDA.Root = dir + "/" + l.CUDA.Root
	l.Loader.File = dir + "/" + l.Loader.File
	links := slices.Clone(l.Links)
	for i := range links {
		if !strings.HasPrefix(links[i].Path, "{") {
			links[i].Path = dir + "/" + links[i].Path
		}
	}
	l.Links = links
	return l
}

func (h *pipHost) resolved(t *testing.T) layout.Resolved {
	t.Helper()
	r, err := h.layout.At(layout.Vars{CUDA: h.target.CUDA, Python: h.version, Platform: h.target.Platform})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// venv makes a fresh venv at the layout's path and returns that path.
func (h *pipHost) venv(t *testing.T, args ...string) string {
	t.Helper()
	dir := "/" + h.resolved(t).Venv
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	run(t, h.python, append(append([]string{"-m", "venv"}, args...), dir)...)
	return dir
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PIP_CONFIG_FILE=/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INDEX=1", "PIP_NO_INPUT=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// node is what two trees are compared by.
type node struct {
	Mode   fs.FileMode
	Digest string
	Link   string
}

func (h *pipHost) snapshot(t *testing.T, dir string) map[string]node {
	t.Helper()
	out := map[string]node{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		n := node{Mode: fi.Mode().Perm()}
		if fi.Mode()&fs.ModeSymlink != 0 {
			n.Link, err = os.Readlink(p)
			out[p] = n
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return err
		}
		n.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
		out[p] = n
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// pipTree installs wheels of dir with pip into a fresh venv and returns what that added. upgrade names a pip of
// dir that is installed first and used, "" keeps the interpreter's own.
func (h *pipHost) pipTree(t *testing.T, dir, upgrade string, requirements ...string) map[string]node {
	t.Helper()
	python := h.venv(t) + "/bin/python" + h.version
	if upgrade != "" {
		run(t, python, "-m", "pip", "install", "--no-compile", "--no-deps", "--find-links", dir, upgrade)
	}
	run(t, python, "-m", "pip", "uninstall", "-y", "setuptools") // older interpreters bring one
	before := h.snapshot(t, filepath.Dir(filepath.Dir(python)))
	run(t, python, append([]string{"-m", "pip", "install", "--no-compile", "--no-deps", "--find-links", dir}, requirements...)...)
	after := h.snapshot(t, filepath.Dir(filepath.Dir(python)))
	for p := range before {
		delete(after, p)
	}
	return after
}

// openIn opens wheels in a directory.
func openIn(dir string) component.OpenWheel {
	return func(w matrix.Wheel) (component.Archive, error) { return os.Open(filepath.Join(dir, w.File)) }
}

// lockFile describes a wheel file as a lock would.
func lockFile(t *testing.T, file string) matrix.Wheel {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(filepath.Base(file), "-")
	return matrix.Wheel{Name: wheel.NormalizeName(parts[0]), Version: parts[1], File: filepath.Base(file),
		SHA256: hex.EncodeToString(sum.Sum(nil)), Size: n}
}

// ours makes the components of wheels and returns the tree that they and the finishing layer give, and the tars.
func (h *pipHost) ours(t *testing.T, dir string, wheels []matrix.Wheel) (*rootfs.Tree, [][]byte) {
	t.Helper()
	target := h.target
	target.Wheels = wheels
	for _, w := range wheels {
		target.Requested = append(target.Requested, w.Name)
	}
	specs, err := component.Plan(target, h.layout)
	if err != nil {
		t.Fatal(err)
	}
	var layers []rootfs.Layer
	var blobs [][]byte
	add := func(rec component.Record, table rootfs.Layer, blob []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		layers, blobs = append(layers, table), append(blobs, blob)
	}
	for _, s := range specs {
		s.Options.TempDir = t.TempDir()
		var buf bytes.Buffer
		var w io.Writer = &buf
		if len(wheels) > 0 && wheels[0].Size > 10<<20 {
			w = io.Discard // the large comparison looks at tables only
		}
		rec, table, err := component.Make(context.Background(), w, s, openIn(dir))
		add(rec, table, buf.Bytes(), err)
	}
	var buf bytes.Buffer
	rec, table, err := component.WriteLayer(context.Background(), &buf, component.Finishing(h.resolved(t)), specs[0].Options)
	add(rec, table, buf.Bytes(), err)
	tree, err := rootfs.Apply(layers...)
	if err != nil {
		t.Fatal(err)
	}
	return tree, blobs
}

// compare demands that both trees have the same files. differ names files (by base name) whose bytes may differ.
func (h *pipHost) compare(t *testing.T, pip map[string]node, tree *rootfs.Tree, differ func(string) bool) {
	t.Helper()
	reached := map[string]bool{}
	for p, want := range pip {
		n, _, err := tree.Resolve(strings.TrimPrefix(p, "/"))
		if err != nil {
			t.Errorf("%s: pip installs it, our tree does not have it: %v", p, err)
			continue
		}
		reached[n.Path] = true
		got := node{Mode: fs.FileMode(n.Mode), Digest: n.Digest, Link: n.Link}
		if differ(p) {
			got.Digest, want.Digest = "", ""
		}
		if got != want {
			t.Errorf("%s: ours %+v, pip %+v", p, got, want)
		}
	}
	r := h.resolved(t)
	err := tree.Walk("", func(n rootfs.Node) error {
		if n.Type == rootfs.Regular && !reached[n.Path] && !slices.Contains(r.KeepFiles, n.Path) && n.Path != r.LoaderFile {
			t.Errorf("/%s: pip does not install it", n.Path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// unpack extracts gzip layers whose paths all lie below h.root.
func (h *pipHost) unpack(t *testing.T, blobs [][]byte) {
	t.Helper()
	for _, b := range blobs {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		tr := tar.NewReader(z)
		for {
			hd, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := h.put(hd, tr); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (h *pipHost) put(hd *tar.Header, r io.Reader) error {
	p := "/" + strings.TrimSuffix(hd.Name, "/")
	if !strings.HasPrefix(p, h.root+"/") {
		if hd.Typeflag == tar.TypeDir && strings.HasPrefix(h.root+"/", p+"/") {
			return nil
		}
		return fmt.Errorf("%s lies outside %s", p, h.root)
	}
	switch hd.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(p, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(strings.Replace(hd.Linkname, "/"+strings.TrimPrefix(h.root, "/"), h.root, 1), p)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(p, data, fs.FileMode(hd.Mode))
}
