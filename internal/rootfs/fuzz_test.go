package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"testing"
)

// FuzzLayers reads arbitrary bytes as the upper of two layers, both as an archive and as a program of small
// operations on few names, and applies them. Whatever comes out must be a tree that agrees with itself.
func FuzzLayers(f *testing.F) {
	f.Add(archiveOf(f, "a/b", "a/.wh.b", "../x", "/etc/passwd"))
	f.Add([]byte{0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8})
	f.Add([]byte{18, 9, 33, 7, 2, 2, 81, 14, 64, 200, 255, 0, 9, 9, 31, 12})
	f.Fuzz(func(t *testing.T, b []byte) {
		lower := Layer{{Path: "a", Type: Dir, Mode: 0o755}, {Path: "a/b", Type: Regular, Size: 1}, {Path: "a/l", Type: Symlink, Link: "../.."}, {Path: "l", Type: Symlink, Link: "a"}}
		upper, err := ReadLayer(t.Context(), bytes.NewReader(b), Options{MaxBytes: 1 << 20, MaxNodes: 1000, MaxMemory: 1 << 20, Window: &Window{}})
		if err == nil {
			agree(t, lower, upper)
		} else if errors.Is(err, ErrWindow) && !bytes.Contains(b, []byte("\x7fELF")) {
			t.Errorf("a window error without an ELF file: %v", err)
		}
		agree(t, lower, program(b))
	})
}

// program makes nodes from pairs of bytes: what, and on which of few names.
func program(b []byte) Layer {
	names := []string{"a", "b", "l", "a/b", "a/l", "a/b/c", "l/x", "b/l", ".", "..", "a/../b", "", "a//b", "/b"}
	types := []Type{Dir, Regular, Symlink, Hardlink, Device, Whiteout, Opaque}
	var out Layer
	for ; len(b) >= 2 && len(out) < 64; b = b[2:] {
		out = append(out, Node{Path: names[int(b[1])%len(names)], Type: types[int(b[0])%len(types)], Link: names[int(b[0]/16)%len(names)], Size: int64(b[0])})
	}
	return out
}

func agree(t *testing.T, layers ...Layer) {
	t.Helper()
	tree, err := Apply(layers...)
	if err != nil {
		if !errors.Is(err, ErrBadPath) && !errors.Is(err, ErrBadHardlink) {
			t.Errorf("untyped error: %v", err)
		}
		return
	}
	count := -1 // the root is not counted
	err = tree.Walk("", func(n Node) error {
		count++
		got, ok := tree.Lstat(n.Path)
		if !ok || got.Type != n.Type {
			t.Errorf("%q is walked and not found", n.Path)
		}
		if n.Type == Whiteout || n.Type == Opaque || n.Type == Hardlink {
			t.Errorf("%q is a %s in a tree", n.Path, n.Type)
		}
		if at := tree.LayerOf(n.Path); at < 0 || at >= len(layers) {
			t.Errorf("%q is of layer %d", n.Path, at)
		}
		if r, hops, err := tree.Resolve(n.Path); err == nil {
			if _, ok := tree.Lstat(r.Path); !ok || r.Type == Symlink || len(hops) > maxLinks {
				t.Errorf("%q resolves to %q, a %s", n.Path, r.Path, r.Type)
			}
		} else if !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrLoop) && !errors.Is(err, ErrNotDir) {
			t.Errorf("%q: untyped error %v", n.Path, err)
		}
		return nil
	})
	if err != nil || count != tree.Len() {
		t.Errorf("%d nodes are walked, %d counted, %v", count, tree.Len(), err)
	}
}

func archiveOf(f *testing.F, names ...string) []byte {
	f.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		if err := w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: 4, Typeflag: tar.TypeReg}); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write([]byte("\x7fELF")); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return b.Bytes()
}
