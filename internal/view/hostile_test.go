package view

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"imgsmith/internal/rootfs"
)

// endless is an archive whose parts are made while it is read.
func endless(write func(w *tar.Writer) error) func(context.Context, int) (io.ReadCloser, error) {
	return func(context.Context, int) (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			err := write(tw)
			if err == nil {
				err = tw.Close()
			}
			w.CloseWithError(err)
		}()
		return r, nil
	}
}

func read(t *testing.T, open func(context.Context, int) (io.ReadCloser, error), opt Options) (Image, error) {
	t.Helper()
	return Layered(t.Context(), Image{Ref: "hostile", Layers: []Layer{{}}}, open, opt)
}

func one1(b []byte) func(context.Context, int) (io.ReadCloser, error) {
	return func(ctx context.Context, _ int) (io.ReadCloser, error) { return opener(b)(ctx) }
}

// TestBomb stops a layer that unpacks to more than is allowed, long before its end.
func TestBomb(t *testing.T) {
	zeros := strings.Repeat("\x00", 1<<20)
	var entries []entry
	for i := range 64 {
		entries = append(entries, entry{name: fmt.Sprint("f", i), data: zeros})
	}
	for _, how := range []string{"gzip", "zstd"} {
		if _, err := read(t, one1(packed(t, how, tarOf(t, entries...))), Options{MaxBytes: 10 << 20}); !errors.Is(err, rootfs.ErrBudget) {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// TestSparseGiant has a header that promises 8 TiB and no content.
func TestSparseGiant(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "giant", Size: 8 << 40, Typeflag: tar.TypeReg, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, one1(b.Bytes()), Options{}); !errors.Is(err, rootfs.ErrBudget) {
		t.Error(err)
	}
}

// TestManyFiles reads a quarter of a million tiny files within bounded memory, and refuses too many. With
// IMGSMITH_TEST_HEAVY set there are a million.
func TestManyFiles(t *testing.T) {
	count := 250_000
	if os.Getenv("IMGSMITH_TEST_HEAVY") != "" {
		count = 1_000_000
	}
	files := func(n int) func(w *tar.Writer) error {
		return func(w *tar.Writer) error {
			for i := range n {
				if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i%1000, i), Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	got, err := read(t, endless(files(count)), Options{MaxNodes: count})
	if err != nil {
		t.Fatal(err)
	}
	if got.Tree.Len() != count+1000 {
		t.Errorf("%d nodes", got.Tree.Len())
	}
	t.Logf("%d files, peak memory of the test process %d MiB", count, peak(t)>>10)
	if _, err := read(t, endless(files(1001)), Options{MaxNodes: 1000}); !errors.Is(err, rootfs.ErrBudget) {
		t.Error(err)
	}
}

// TestEscapes applies what would leave the root: it is refused, or stays a name.
func TestEscapes(t *testing.T) {
	for name, e := range map[string][]entry{
		"parent":              {{name: "../../etc/passwd", data: "x"}},
		"parent inside":       {{name: "a/../../etc/passwd", data: "x"}},
		"hard link":           {{name: "h", kind: tar.TypeLink, link: "../../etc/passwd"}},
		"hard link to nobody": {{name: "h", kind: tar.TypeLink, link: "etc/shadow"}},
		"too deep":            {{name: strings.Repeat("d/", 300) + "f", data: "x"}},
	} {
		if _, err := read(t, one1(tarOf(t, e...)), Options{}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	img, err := read(t, one1(tarOf(t, entry{name: "l", kind: tar.TypeSymlink, link: "/"}, entry{name: "l/etc/x", data: "x"}, entry{name: "up", kind: tar.TypeSymlink, link: "../../../.."},
		entry{name: "dev/sda", kind: tar.TypeBlock}, entry{name: "dev/p", kind: tar.TypeFifo}, entry{name: "e\x1b[2J", data: "x"})), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := img.Tree.Resolve("up"); err != nil || n.Path != "." {
		t.Errorf("a link above the root leads to %+v, %v", n, err)
	}
	if n, ok := img.Tree.Lstat("dev/sda"); !ok || n.Type != rootfs.Device {
		t.Errorf("device %+v", n)
	}
}

// TestBrokenELF keeps malformed libraries as findings.
func TestBrokenELF(t *testing.T) {
	good := library(t, "liba.so.1")
	var entries []entry
	for i := range len(good) {
		entries = append(entries, entry{name: fmt.Sprint("cut", i), data: good[:i]})
		flipped := []byte(good)
		flipped[i] ^= 0xff
		entries = append(entries, entry{name: fmt.Sprint("flip", i), data: string(flipped)})
	}
	img, err := read(t, one1(tarOf(t, entries...)), Options{Deep: true})
	if err != nil {
		t.Fatal(err)
	}
	broken := 0
	_ = img.Tree.Walk("", func(n rootfs.Node) error {
		if n.ELFError != "" {
			broken++
		}
		return nil
	})
	if broken < len(good)/2 {
		t.Errorf("%d of %d damaged libraries are told", broken, len(entries))
	}
}

// TestCancelled ends when the context does.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	lower, _ := layersOf(t)
	_, err := Layered(ctx, Image{Ref: "x", Layers: []Layer{{}}}, one1(lower), Options{})
	if !errors.Is(err, why) {
		t.Error(err)
	}
}
