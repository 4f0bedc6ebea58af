package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/elf"
)

func dir(p string) Node { return Node{Path: p, Type: Dir, Mode: 0o755} }
func file(p, data string) Node {
	return Node{Path: p, Type: Regular, Mode: 0o644, Size: int64(len(data)), Data: []byte(data)}
}
func link(p, target string) Node { return Node{Path: p, Type: Symlink, Mode: 0o777, Link: target} }
func gone(p string) Node         { return Node{Path: p, Type: Whiteout} }
func opaque(p string) Node       { return Node{Path: p, Type: Opaque} }
func hard(p, source string) Node { return Node{Path: p, Type: Hardlink, Link: source} }

func mustApply(t testing.TB, layers ...Layer) *Tree {
	t.Helper()
	tree, err := Apply(layers...)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// list writes a tree as lines "path type content".
func list(t *testing.T, tree *Tree) []string {
	t.Helper()
	var out []string
	if err := tree.Walk("", func(n Node) error {
		if n.Path != "." {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", n.Path, n.Type, n.Link, n.Data)))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(out) != tree.Len() {
		t.Errorf("Len is %d, the walk saw %d", tree.Len(), len(out))
	}
	return out
}

func TestApply(t *testing.T) {
	low := Layer{dir("a"), file("a/x", "1"), file("a/y", "2"), dir("b"), file("b/z", "3"), link("l", "a")}
	for name, c := range map[string]struct {
		layers     []Layer
		want       []string
		violations []ViolationKind
	}{
		"one layer":                   {[]Layer{low}, []string{"a dir", "a/x file 1", "a/y file 2", "b dir", "b/z file 3", "l link a"}, nil},
		"replace":                     {[]Layer{low, {file("a/x", "new")}}, []string{"a dir", "a/x file new", "a/y file 2", "b dir", "b/z file 3", "l link a"}, nil},
		"whiteout file":               {[]Layer{low, {gone("a/x")}}, []string{"a dir", "a/y file 2", "b dir", "b/z file 3", "l link a"}, nil},
		"whiteout directory":          {[]Layer{low, {gone("a")}}, []string{"b dir", "b/z file 3", "l link a"}, nil},
		"whiteout of nothing":         {[]Layer{{gone("q")}, low}, []string{"a dir", "a/x file 1", "a/y file 2", "b dir", "b/z file 3", "l link a"}, nil},
		"whiteout spares own layer":   {[]Layer{low, {dir("a"), file("a/n", "9"), gone("a/x"), gone("a/n")}}, []string{"a dir", "a/n file 9", "a/y file 2", "b dir", "b/z file 3", "l link a"}, nil},
		"opaque spares own layer":     {[]Layer{low, {dir("a"), file("a/n", "9"), opaque("a")}}, []string{"a dir", "a/n file 9", "b dir", "b/z file 3", "l link a"}, nil},
		"opaque root":                 {[]Layer{low, {opaque("."), file("n", "9")}}, []string{"n file 9"}, nil},
		"hard link":                   {[]Layer{low, {hard("h", "a/x")}}, []string{"a dir", "a/x file 1", "a/y file 2", "b dir", "b/z file 3", "h file a/x1", "l link a"}, nil},
		"missing parents":             {[]Layer{{file("p/q/r", "1")}}, []string{"p dir", "p/q dir", "p/q/r file 1"}, nil},
		"directory over link":         {[]Layer{low, {dir("l"), file("l/x", "8")}}, []string{"a dir", "a/x file 1", "a/y file 2", "b dir", "b/z file 3", "l dir", "l/x file 8"}, []ViolationKind{DirOverLink}},
		"write through link":          {[]Layer{low, {file("l/x", "8")}}, []string{"a dir", "a/x file 1", "a/y file 2", "b dir", "b/z file 3", "l dir", "l/x file 8"}, []ViolationKind{DirOverLink}},
		"link over directory":         {[]Layer{low, {link("b", "a")}}, []string{"a dir", "a/x file 1", "a/y file 2", "b link a", "l link a"}, []ViolationKind{LinkOverDir}},
		"file over directory":         {[]Layer{low, {file("b", "f")}}, []string{"a dir", "a/x file 1", "a/y file 2", "b file f", "l link a"}, nil},
		"directory over file":         {[]Layer{low, {dir("a/x")}}, []string{"a dir", "a/x dir", "a/y file 2", "b dir", "b/z file 3", "l link a"}, nil},
		"names are cleaned":           {[]Layer{{dir("./a/"), file("/a//x", "1")}}, []string{"a dir", "a/x file 1"}, nil},
		"whiteout then directory new": {[]Layer{low, {gone("l")}, {dir("l")}}, []string{"a dir", "a/x file 1", "a/y file 2", "b dir", "b/z file 3", "l dir"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tree := mustApply(t, c.layers...)
			if d := cmp.Diff(c.want, list(t, tree)); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			var kinds []ViolationKind
			for _, v := range tree.Violations() {
				kinds = append(kinds, v.Kind)
			}
			if d := cmp.Diff(c.violations, kinds); d != "" {
				t.Errorf("violations %s", d)
			}
		})
	}
}

func TestApplyErrors(t *testing.T) {
	for name, c := range map[string]struct {
		layer Layer
		want  error
	}{
		"climbs":               {Layer{file("../etc/passwd", "x")}, ErrBadPath},
		"climbs inside":        {Layer{file("a/../../b", "x")}, ErrBadPath},
		"deep":                 {Layer{file(strings.Repeat("d/", 300)+"f", "x")}, ErrBadPath},
		"hard link to nothing": {Layer{hard("h", "none")}, ErrBadHardlink},
		"hard link to dir":     {Layer{dir("d"), hard("h", "d")}, ErrBadHardlink},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Apply(c.layer); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	l := Layer{
		dir("real"), dir("real/deep"), file("real/f", "1"), file("real/deep/g", "2"), file("top", "3"),
		link("rel", "real/deep"), link("abs", "/real/deep"), link("up", "../../real/f"), link("dot", "./real/../top"),
		link("loop", "loop2"), link("loop2", "loop"), link("nowhere", "gone/x"), link("chain", "rel/../f"), link("real/out", "../../../top"),
		link("empty", ""), link("onfile", "top/x"),
	}
	for i := range 45 {
		l = append(l, link(fmt.Sprintf("c%d", i), fmt.Sprintf("c%d", i+1)))
	}
	l = append(l, file("c45", "end"))
	tree := mustApply(t, l)
	for _, c := range []struct {
		path, want string
		hops       int
		escapes    bool
		err        error
	}{
		{"real/f", "real/f", 0, false, nil},
		{"/real//./f", "real/f", 0, false, nil},
		{"rel/g", "real/deep/g", 1, false, nil},
		{"abs/g", "real/deep/g", 1, false, nil},
		{"rel/../f", "real/f", 1, false, nil}, // not the root's f: ".." is taken from where the link leads
		{"chain", "real/f", 2, false, nil},
		{"dot", "top", 1, false, nil},
		{"up", "real/f", 1, true, nil},
		{"real/out", "top", 1, true, nil},
		{"../../top", "top", 0, false, nil},
		{"", ".", 0, false, nil},
		{"loop", "", 40, false, ErrLoop},
		{"c6", "c45", 39, false, nil},
		{"c5", "c45", 40, false, nil},
		{"c4", "", 40, false, ErrLoop},
		{"nowhere", "", 1, false, ErrNotExist},
		{"empty", "", 1, false, ErrNotExist},
		{"top/x", "", 0, false, ErrNotDir},
		{"top/..", "", 0, false, ErrNotDir},
		{"onfile", "", 1, false, ErrNotDir},
		{"none", "", 0, false, fs.ErrNotExist},
	} {
		t.Run(c.path, func(t *testing.T) {
			n, hops, err := tree.Resolve(c.path)
			if !errors.Is(err, c.err) || n.Path != c.want || len(hops) != c.hops {
				t.Errorf("got %q, %d hops, error %v; want %q, %d, %v", n.Path, len(hops), err, c.want, c.hops, c.err)
			}
			if got := slices.ContainsFunc(hops, func(h Hop) bool { return h.Escapes }); got != c.escapes {
				t.Errorf("escapes %v", got)
			}
		})
	}
}

func TestTreeReads(t *testing.T) {
	tree := mustApply(t, Layer{dir("d"), file("d/b", "2"), file("d/a", "1"), link("l", "d"), {Path: "big", Type: Regular, Size: 9}}, Layer{file("d/c", "")})
	if b, err := tree.ReadFile("l/a"); err != nil || string(b) != "1" {
		t.Errorf("ReadFile: %q, %v", b, err)
	}
	if _, err := tree.ReadFile("big"); !errors.Is(err, ErrNoData) {
		t.Errorf("content that was not kept: %v", err)
	}
	if _, err := tree.ReadFile("d"); err == nil {
		t.Error("a directory was read as a file")
	}
	if _, err := tree.ReadDir("d/a"); !errors.Is(err, ErrNotDir) {
		t.Errorf("ReadDir of a file: %v", err)
	}
	nodes, err := tree.ReadDir("l")
	var names []string
	for _, n := range nodes {
		names = append(names, n.Path)
	}
	if d := cmp.Diff([]string{"d/a", "d/b", "d/c"}, names); err != nil || d != "" {
		t.Errorf("ReadDir: %v %s", err, d)
	}
	if tree.LayerOf("d/c") != 1 || tree.LayerOf("d/a") != 0 || tree.LayerOf("none") != -1 {
		t.Error("LayerOf names the wrong layer")
	}
	var seen []string
	err = tree.Walk("", func(n Node) error {
		seen = append(seen, n.Path)
		if n.Path == "d" {
			return fs.SkipDir
		}
		return nil
	})
	if d := cmp.Diff([]string{".", "big", "d", "l"}, seen); err != nil || d != "" {
		t.Errorf("Walk with SkipDir: %v %s", err, d)
	}
	if err := tree.Walk("d", func(Node) error { return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Walk hides the error: %v", err)
	}
}

// member is one tar entry.
type member struct {
	h    tar.Header
	data string
}

func archive(t testing.TB, members ...member) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.h.Size = int64(len(m.data))
		if err := w.WriteHeader(&m.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestReadLayer(t *testing.T) {
	facts := elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true, Soname: "liba.so.1"}
	stub, err := elf.StubLibrary(facts)
	if err != nil {
		t.Fatal(err)
	}
	r := archive(t,
		member{h: tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}},
		member{h: tar.Header{Name: "./etc/", Typeflag: tar.TypeDir, Mode: 0o755}},
		member{h: tar.Header{Name: "etc/conf", Typeflag: tar.TypeReg, Mode: 0o4644, Uid: 3, Gid: 4}, data: "hello"},
		member{h: tar.Header{Name: "/usr/lib/liba.so.1", Typeflag: tar.TypeReg, Mode: 0o755}, data: string(stub)},
		member{h: tar.Header{Name: "usr/lib/libcut.so", Typeflag: tar.TypeReg, Mode: 0o755}, data: string(stub[:80])},
		member{h: tar.Header{Name: "usr/lib/liba.so", Typeflag: tar.TypeSymlink, Linkname: "liba.so.1", Mode: 0o777}},
		member{h: tar.Header{Name: "etc/same", Typeflag: tar.TypeLink, Linkname: "./etc/conf"}},
		member{h: tar.Header{Name: "etc/.wh.old", Typeflag: tar.TypeReg}},
		member{h: tar.Header{Name: "opt/.wh..wh..opq", Typeflag: tar.TypeReg}},
		member{h: tar.Header{Name: "opt/.wh..wh.plnk", Typeflag: tar.TypeReg}},
		member{h: tar.Header{Name: "dev/null", Typeflag: tar.TypeChar}},
	)
	got, err := ReadLayer(t.Context(), r, Options{Keep: func(n Node) bool { return n.Path == "etc/conf" }})
	if err != nil {
		t.Fatal(err)
	}
	sum := "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"
	want := Layer{
		{Path: ".", Type: Dir, Mode: 0o755}, {Path: "etc", Type: Dir, Mode: 0o755},
		{Path: "etc/conf", Type: Regular, Mode: 0o4644, UID: 3, GID: 4, Size: 5, Digest: sum, Data: []byte("hello")},
		{Path: "usr/lib/liba.so.1", Type: Regular, Mode: 0o755, Size: int64(len(stub)), ELF: &facts},
		{Path: "usr/lib/libcut.so", Type: Regular, Mode: 0o755, Size: 80},
		{Path: "usr/lib/liba.so", Type: Symlink, Mode: 0o777, Link: "liba.so.1"},
		{Path: "etc/same", Type: Hardlink, Link: "etc/conf"},
		{Path: "etc/old", Type: Whiteout}, {Path: "opt", Type: Opaque}, {Path: "dev/null", Type: Device},
	}
	if got[4].ELFError == "" || got[4].Digest == "" || got[3].Digest == "" {
		t.Errorf("cut library: error %q digest %q", got[4].ELFError, got[4].Digest)
	}
	got[3].Digest, got[4].Digest, got[4].ELFError = "", "", ""
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

func TestReadLayerRefuses(t *testing.T) {
	big := strings.Repeat("x", 100)
	stub, err := elf.StubLibrary(elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		m    member
		opt  Options
		want error
	}{
		"climbing name":   {member{h: tar.Header{Name: "a/../../b", Typeflag: tar.TypeReg}}, Options{}, ErrBadPath},
		"climbing source": {member{h: tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "../b"}}, Options{}, ErrBadPath},
		"bytes":           {member{h: tar.Header{Name: "a", Typeflag: tar.TypeReg}, data: big}, Options{MaxBytes: 99}, ErrBudget},
		"elf in memory":   {member{h: tar.Header{Name: "a", Typeflag: tar.TypeReg}, data: string(stub)}, Options{MaxMemory: 10}, ErrBudget},
		"spool fails": {member{h: tar.Header{Name: "a", Typeflag: tar.TypeReg}, data: string(stub)}, Options{MaxMemory: 10,
			Spool: func(io.Reader) (io.ReaderAt, func(), error) { return nil, nil, io.ErrShortWrite }}, io.ErrShortWrite},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadLayer(t.Context(), archive(t, c.m), c.opt); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	if _, err := ReadLayer(t.Context(), archive(t, member{h: tar.Header{Name: "a"}}, member{h: tar.Header{Name: "b"}}), Options{MaxNodes: 1}); !errors.Is(err, ErrBudget) {
		t.Errorf("entries: %v", err)
	}
	if _, err := ReadLayer(t.Context(), strings.NewReader(strings.Repeat("junk", 400)), Options{}); err == nil {
		t.Error("junk was read as a layer")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadLayer(ctx, archive(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestReadLayerSpools hands a large ELF file to the spool and frees it.
func TestReadLayerSpools(t *testing.T) {
	stub, err := elf.StubLibrary(elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Soname: "liba.so"})
	if err != nil {
		t.Fatal(err)
	}
	freed := 0
	opt := Options{MaxMemory: 10, Spool: func(r io.Reader) (io.ReaderAt, func(), error) {
		b, err := io.ReadAll(r)
		return bytes.NewReader(b), func() { freed++ }, err
	}}
	l, err := ReadLayer(t.Context(), archive(t, member{h: tar.Header{Name: "liba.so", Typeflag: tar.TypeReg}, data: string(stub)}), opt)
	if err != nil || l[0].ELF == nil || l[0].ELF.Soname != "liba.so" || freed != 1 {
		t.Errorf("layer %+v, freed %d, error %v", l, freed, err)
	}
}
