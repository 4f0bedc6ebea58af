package view

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
)

// entry is one entry of a test archive.
type entry struct {
	name, data, link string
	kind             byte
	mode             int64
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: e.kind, Linkname: e.link}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func library(t testing.TB, soname string) string {
	t.Helper()
	b, err := elf.StubLibrary(elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true, Soname: soname, Needed: []string{"libc.so.6"}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// layersOf are two layers of a small image: the upper one removes a file, hard-links one and replaces one.
func layersOf(t testing.TB) (lower, upper []byte) {
	lower = tarOf(t, entry{name: "etc/", kind: tar.TypeDir, mode: 0o755}, entry{name: "etc/os-release", data: "ID=debian\n"}, entry{name: "etc/gone", data: "x"},
		entry{name: "usr/lib/liba.so.1", data: library(t, "liba.so.1")}, entry{name: "m/__pycache__/m.cpython-311.pyc", data: strings.Repeat("p", 40)})
	upper = tarOf(t, entry{name: "etc/.wh.gone"}, entry{name: "usr/lib/liba.so", kind: tar.TypeSymlink, link: "liba.so.1"}, entry{name: "one", data: "1"}, entry{name: "two", kind: tar.TypeLink, link: "one"})
	return lower, upper
}

func packed(t testing.TB, how string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	switch how {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "zstd":
		var err error
		if w, err = zstd.NewWriter(&out); err != nil {
			t.Fatal(err)
		}
	default:
		return b
	}
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// listing describes a tree in lines.
func listing(t testing.TB, img Image) []string {
	t.Helper()
	var out []string
	err := img.Tree.Walk("", func(n rootfs.Node) error {
		s := n.Path + " " + string(n.Type)
		if n.Link != "" {
			s += " → " + n.Link
		}
		if n.ELF != nil {
			s += " " + n.ELF.Soname
		}
		if n.Data != nil {
			s += " " + string(n.Data)
		}
		if n.Head != nil {
			s += " " + string(n.Head[:])
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantListing() []string {
	return []string{". dir", "etc dir", "etc/os-release file ID=debian\n", "m dir", "m/__pycache__ dir", "m/__pycache__/m.cpython-311.pyc file pppppppppppppppp", "one file", "two file → one",
		"usr dir", "usr/lib dir", "usr/lib/liba.so link → liba.so.1", "usr/lib/liba.so.1 file liba.so.1"}
}

func keepRelease(n rootfs.Node) bool { return strings.HasSuffix(n.Path, "os-release") }

func opener(b []byte) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
}

func TestLayered(t *testing.T) {
	lower, upper := layersOf(t)
	config := []byte(`{"rootfs":{"diff_ids":["sha256:1","sha256:2"]},"history":[{"created_by":"base"},{"created_by":"env","empty_layer":true},{"created_by":"RUN  x\n y"}]}`)
	for _, how := range []string{"plain", "gzip", "zstd"} {
		blobs := [][]byte{packed(t, how, lower), packed(t, how, upper)}
		img := Image{Ref: "x", Config: config, Layers: []Layer{{Digest: "a"}, {Digest: "b"}}}
		got, err := Layered(t.Context(), img, func(ctx context.Context, i int) (io.ReadCloser, error) { return opener(blobs[i])(ctx) }, Options{Keep: keepRelease})
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		if d := cmp.Diff(wantListing(), listing(t, got)); d != "" {
			t.Errorf("%s: %s", how, d)
		}
		if l := got.Layers[1]; l.CreatedBy != "RUN x y" || l.DiffID != "sha256:2" || l.Indexed || got.Layers[0].Unpacked == 0 {
			t.Errorf("%s: %+v", how, l)
		}
	}
}

// TestIndexed reads nothing of a layer whose table is known by its digest, and everything with --deep.
func TestIndexed(t *testing.T) {
	lower, upper := layersOf(t)
	blobs := [][]byte{lower, upper}
	opened := 0
	open := func(ctx context.Context, i int) (io.ReadCloser, error) { opened++; return opener(blobs[i])(ctx) }
	table := func(d string) (rootfs.Layer, bool) {
		return rootfs.Layer{{Path: "known", Type: rootfs.Regular, Size: 3}}, d == "a"
	}
	for _, deep := range []bool{false, true} {
		opened = 0
		got, err := Layered(t.Context(), Image{Ref: "x", Layers: []Layer{{Digest: "a"}, {Digest: "b"}}}, open, Options{Table: table, Deep: deep})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := got.Tree.Lstat("known"); ok == deep || opened != map[bool]int{false: 1, true: 2}[deep] || got.Layers[0].Indexed == deep {
			t.Errorf("deep %v: known %v, %d opened", deep, ok, opened)
		}
		if n, _ := got.Tree.Lstat("one"); (n.Digest != "") != deep {
			t.Errorf("deep %v: digest %q", deep, n.Digest)
		}
	}
}

// TestDamaged tells a layer that is cut off or changed.
func TestDamaged(t *testing.T) {
	lower, _ := layersOf(t)
	for _, how := range []string{"plain", "gzip", "zstd"} {
		whole := packed(t, how, lower)
		for n := 1; n < len(whole)-1024; n += 97 {
			if how == "plain" && n%512 < 100 {
				continue // an archive may end after any whole record
			}
			_, err := Layered(t.Context(), Image{Ref: "x", Layers: []Layer{{}}}, func(ctx context.Context, _ int) (io.ReadCloser, error) { return opener(whole[:n])(ctx) }, Options{})
			if err == nil && how != "plain" {
				t.Fatalf("%s: %d of %d bytes were read as a whole layer", how, n, len(whole))
			}
		}
	}
}

func dockerArchive(t testing.TB, config string, names ...string) []byte {
	lower, upper := layersOf(t)
	manifest, err := json.Marshal([]map[string]any{{"Config": "c.json", "RepoTags": []string{"x:1"}, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, entry{name: "l1/layer.tar", data: string(lower)}, entry{name: "l2/layer.tar", data: string(packed(t, "gzip", upper))}, entry{name: "l3/layer.tar", kind: tar.TypeSymlink, link: "../l2/layer.tar"},
		entry{name: "c.json", data: config}, entry{name: "manifest.json", data: string(manifest)}, entry{name: "VERSION", data: "1.0"})
}

func ociArchive(t testing.TB) []byte {
	lower, upper := layersOf(t)
	blobs := map[string]string{}
	put := func(s []byte) map[string]any {
		d := digestOf(s)
		blobs[blobName(d)] = string(s)
		return map[string]any{"digest": d, "size": len(s)}
	}
	doc := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	manifest := put(doc(map[string]any{"config": put([]byte(`{"config":{}}`)), "layers": []any{put(packed(t, "zstd", lower)), put(upper)}}))
	other := put(doc(map[string]any{"config": put([]byte(`{"other":1}`)), "layers": []any{}}))
	other["platform"] = map[string]any{"os": "linux", "architecture": "arm64"}
	manifest["platform"] = map[string]any{"os": "linux", "architecture": "amd64"}
	index := put(doc(map[string]any{"manifests": []any{other, manifest}}))
	entries := []entry{{name: "oci-layout", data: `{"imageLayoutVersion":"1.0.0"}`}}
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		entries = append(entries, entry{name: name, data: blobs[name]})
	}
	return tarOf(t, append(entries, entry{name: "index.json", data: string(doc(map[string]any{"manifests": []any{index}}))})...)
}

func TestArchive(t *testing.T) {
	for name, b := range map[string][]byte{
		"docker save":                 dockerArchive(t, `{"config":{}}`, "l1/layer.tar", "l2/layer.tar"),
		"docker save with links":      dockerArchive(t, `{"config":{}}`, "l1/layer.tar", "l3/layer.tar"),
		"docker save, all compressed": packed(t, "gzip", dockerArchive(t, `{"config":{}}`, "l1/layer.tar", "l2/layer.tar")),
		"OCI":                         ociArchive(t),
	} {
		got, err := Archive(t.Context(), name, opener(b), Options{Keep: keepRelease})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(wantListing(), listing(t, got)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if got.ConfigDigest == "" || len(got.Layers) != 2 || got.Layers[0].Digest == "" {
			t.Errorf("%s: %+v", name, got.Layers)
		}
	}
}

func TestNoImage(t *testing.T) {
	evil := ociArchive(t)
	i := bytes.Index(evil, []byte(`{"config":{}}`))
	evil[i+2] = 'C'
	for name, b := range map[string][]byte{
		"empty": nil, "text": []byte("hello"), "plain tar": tarOf(t, entry{name: "etc/passwd", data: "x"}), "missing layer": dockerArchive(t, `{}`, "l9/layer.tar"),
		"two images":  tarOf(t, entry{name: "manifest.json", data: `[{"Config":"a"},{"Config":"b"}]`}),
		"no config":   tarOf(t, entry{name: "manifest.json", data: `[{"Config":"../../a"}]`}),
		"bad JSON":    tarOf(t, entry{name: "manifest.json", data: `[`}),
		"index loop":  tarOf(t, entry{name: "index.json", data: `{"manifests":[{"digest":"sha256:00"}]}`}),
		"changed":     evil,
		"name cycle":  tarOf(t, entry{name: "a", kind: tar.TypeSymlink, link: "b"}, entry{name: "b", kind: tar.TypeSymlink, link: "a"}, entry{name: "c.json", data: "{}"}, entry{name: "manifest.json", data: `[{"Config":"c.json","Layers":["a"]}]`}),
		"deep digest": tarOf(t, entry{name: "index.json", data: `{"config":{"digest":"../../../etc/passwd"}}`}),
	} {
		if _, err := Archive(t.Context(), name, opener(b), Options{}); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"etc/os-release": "ID=debian\n", "one": "1", "m/__pycache__/m.cpython-311.pyc": strings.Repeat("p", 40), "usr/lib/liba.so.1": library(t, "liba.so.1")} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(data), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "two")), os.Symlink("liba.so.1", filepath.Join(dir, "usr/lib/liba.so")), os.Symlink("/etc/passwd", filepath.Join(dir, "out")), os.Symlink("..", filepath.Join(dir, "up"))); err != nil {
		t.Fatal(err)
	}
	got, err := Directory(t.Context(), dir, Options{Keep: keepRelease, Deep: true})
	if err != nil {
		t.Fatal(err)
	}
	want := append(wantListing(), "out link → /etc/passwd", "up link → ..")
	slices.Sort(want)
	have := listing(t, got)
	slices.Sort(have)
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
	if n, _, err := got.Tree.Resolve("out"); err == nil {
		t.Errorf("a link out of the directory leads to %+v", n)
	}
	if n, _ := got.Tree.Lstat("one"); n.Digest != digestOf([]byte("1")) {
		t.Errorf("digest %s", n.Digest)
	}
}
