package component_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"imgsmith/internal/component"
	"imgsmith/internal/rootfs"
)

type tarEntry struct {
	h    tar.Header
	data string
}

func reg(name, data string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(data))}, data}
}

func dir(name string) tarEntry {
	return tarEntry{tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func link(kind byte, name, target string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o777}, ""}
}

func tarOf(t *testing.T, entries ...tarEntry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := tw.WriteHeader(&e.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func rewriteOptions(t *testing.T) component.RewriteOptions {
	return component.RewriteOptions{Options: component.Options{Compression: compressions()[1], Epoch: 1700000000, TempDir: t.TempDir()},
		Drop: []string{"var/cache/ldconfig/**", "etc/*-", "etc/machine-id"}}
}

func describe(n rootfs.Node) string {
	return fmt.Sprintf("%s %s %o %d:%d %d %s", n.Type, n.Path, n.Mode, n.UID, n.GID, n.Size, n.Link)
}

func TestRewrite(t *testing.T) {
	own := reg("etc/shadow", "secret")
	own.h.Uid, own.h.Gid, own.h.Uname, own.h.Gname, own.h.Mode = 0, 42, "root", "shadow", 0o640
	own.h.ModTime = time.Now()
	own.h.PAXRecords = map[string]string{"SCHILY.xattr.user.x": "y", "LIBARCHIVE.creationtime": "1"}
	setuid := reg("usr/bin/su", "su")
	setuid.h.Mode = 0o4755
	in := tarOf(t,
		dir("."), dir("usr"), dir("usr/bin"), setuid, reg("usr/bin/perl5", "perl"), link(tar.TypeLink, "usr/bin/perl", "usr/bin/perl5"), link(tar.TypeLink, "usr/bin/aperl", "usr/bin/perl5"),
		dir("etc"), own, reg("etc/passwd-", "old"), reg("etc/machine-id", "1"), reg("etc/.wh.gone", ""), reg("etc/apt.conf", "x"),
		dir("var"), dir("var/cache"), dir("var/cache/ldconfig"), reg("var/cache/ldconfig/aux-cache", "aux"),
		dir("opt"), reg("opt/.wh..wh..opq", ""), reg("opt/.new", "n"), link(tar.TypeSymlink, "opt/l", "/usr/bin/su"),
	)
	var first []byte
	for range 2 {
		var buf bytes.Buffer
		rec, table, err := component.Rewrite(context.Background(), &buf, bytes.NewReader(in), rewriteOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range table {
			if n.MTime != 1700000000 {
				t.Errorf("%s: mtime %d", n.Path, n.MTime)
			}
			got = append(got, describe(n))
		}
		want := []string{
			"dir etc 755 0:0 0 ", "whiteout etc/gone 644 0:0 0 ", "file etc/apt.conf 644 0:0 1 ", "file etc/shadow 640 0:42 6 ",
			"dir opt 755 0:0 0 ", "opaque opt 644 0:0 0 ", "file opt/.new 644 0:0 1 ", "link opt/l 777 0:0 0 /usr/bin/su",
			"dir usr 755 0:0 0 ", "dir usr/bin 755 0:0 0 ", "file usr/bin/aperl 644 0:0 4 ", "hardlink usr/bin/perl 644 0:0 0 usr/bin/aperl",
			"hardlink usr/bin/perl5 644 0:0 0 usr/bin/aperl", "file usr/bin/su 4755 0:0 2 ", "dir var 755 0:0 0 ", "dir var/cache 755 0:0 0 ", "dir var/cache/ldconfig 755 0:0 0 ",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if first != nil && !bytes.Equal(first, buf.Bytes()) {
			t.Error("other bytes the second time")
		}
		first = buf.Bytes()
		if _, diffID, _, err := component.VerifyLayer(context.Background(), bytes.NewReader(first), rec.MediaType, t.TempDir()); err != nil || diffID != rec.DiffID {
			t.Errorf("decoding it strictly: %s, %v", diffID, err)
		}
	}
}

// TestRewriteForgetsOrder shuffles the entries of a step's result: the layer stays the same.
func TestRewriteForgetsOrder(t *testing.T) {
	entries := []tarEntry{dir("a"), reg("a/x", "1"), reg("a/y", "2"), dir("b"), reg("b/z", "3"), reg("a-b", "4")}
	rng := rand.New(rand.NewPCG(3, 4))
	want := ""
	for range 20 {
		rng.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		for i := range entries {
			entries[i].h.ModTime = time.Unix(rng.Int64N(1<<31), 0)
		}
		rec, _, err := component.Rewrite(context.Background(), io.Discard, bytes.NewReader(tarOf(t, entries...)), rewriteOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		if want != "" && rec.Digest != want {
			t.Fatalf("digest %s, before %s", rec.Digest, want)
		}
		want = rec.Digest
	}
}

func TestRewriteRefuses(t *testing.T) {
	tests := map[string]struct {
		entries []tarEntry
		path    string
	}{
		"device":             {[]tarEntry{{tar.Header{Name: "dev/x", Typeflag: tar.TypeChar, Mode: 0o600}, ""}}, "dev/x"},
		"fifo":               {[]tarEntry{{tar.Header{Name: "f", Typeflag: tar.TypeFifo, Mode: 0o600}, ""}}, "f"},
		"outside":            {[]tarEntry{reg("../x", "")}, "../x"},
		"root hidden":        {[]tarEntry{reg(".wh..wh..opq", "")}, ".wh..wh..opq"},
		"aufs marker":        {[]tarEntry{reg("a/.wh..wh.plnk", "")}, "a/.wh..wh.plnk"},
		"hard link to base":  {[]tarEntry{link(tar.TypeLink, "a", "b")}, "a"},
		"hard link to a dir": {[]tarEntry{dir("b"), link(tar.TypeLink, "a", "b")}, "a"},
		"twice":              {[]tarEntry{reg("a", "1"), reg("a", "2")}, "a"},
		"below a link":       {[]tarEntry{link(tar.TypeSymlink, "a", "b"), reg("a/x", "1")}, "a/x"},
		"backslash":          {[]tarEntry{reg(`a\b`, "1")}, `a\b`},
	}
	for name, tt := range tests {
		_, _, err := component.Rewrite(context.Background(), io.Discard, bytes.NewReader(tarOf(t, tt.entries...)), rewriteOptions(t))
		var re *component.RuleError
		if !errors.As(err, &re) || re.Path != tt.path {
			t.Errorf("%s: got %v", name, err)
		}
	}
	opts := rewriteOptions(t)
	opts.Limit = 10
	if _, _, err := component.Rewrite(context.Background(), io.Discard, bytes.NewReader(tarOf(t, reg("a", "0123456789a"))), opts); err == nil || !strings.Contains(err.Error(), "more than 10 bytes") {
		t.Errorf("limit: got %v", err)
	}
	cut := tarOf(t, reg("a", strings.Repeat("x", 5000)))[:2000]
	if _, _, err := component.Rewrite(context.Background(), io.Discard, bytes.NewReader(cut), rewriteOptions(t)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: got %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("interrupted")
	cancel(cause)
	if _, _, err := component.Rewrite(ctx, io.Discard, bytes.NewReader(tarOf(t, reg("a", "1"))), rewriteOptions(t)); !errors.Is(err, cause) {
		t.Errorf("cancelled: got %v", err)
	}
}

func TestWriteLayer(t *testing.T) {
	opts := component.Options{Compression: compressions()[3], Epoch: 1, Parents: []component.Parent{{Path: "usr/local", Mode: 0o2775, GID: 50}}}
	entries := []component.Entry{component.Symlink("usr/local/cuda", "cuda-12.5"), component.Directory("usr/local/b", 0o700), component.File("a", 0o600, []byte("x"))}
	_, table, err := component.WriteLayer(context.Background(), io.Discard, entries, opts)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range table {
		got = append(got, describe(n))
	}
	want := []string{"file a 600 0:0 1 ", "dir usr 755 0:0 0 ", "dir usr/local 2775 0:50 0 ", "dir usr/local/b 700 0:0 0 ", "link usr/local/cuda 777 0:0 0 cuda-12.5"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, bad := range []component.Entry{component.File("/a", 0o644, nil), component.File("a/../b", 0o644, nil), component.File(".wh.a", 0o644, nil), {Path: "d", Type: rootfs.Device}} {
		var re *component.RuleError
		if _, _, err := component.WriteLayer(context.Background(), io.Discard, []component.Entry{bad}, opts); !errors.As(err, &re) || re.Path != bad.Path {
			t.Errorf("%q: got %v", bad.Path, err)
		}
	}
}

// TestVerifyLayerRefuses holds what the engine passes on without an error.
func TestVerifyLayerRefuses(t *testing.T) {
	good := tarOf(t, dir("a"), reg("a/x", "1"))
	xattr := reg("x", "1")
	xattr.h.PAXRecords = map[string]string{"SCHILY.xattr.user.x": "y"}
	marker := make([]byte, 1024)
	pack := map[string]func([]byte) []byte{
		component.MediaTypeGzip: func(b []byte) []byte {
			var buf bytes.Buffer
			z := gzip.NewWriter(&buf)
			_, _ = z.Write(b)
			_ = z.Close()
			return buf.Bytes()
		},
		component.MediaTypeZstd: func(b []byte) []byte {
			z, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			return z.EncodeAll(b, nil)
		},
	}
	tests := map[string]struct {
		tar    []byte
		reason string
	}{
		"good":                  {good, ""},
		"second end marker":     {append(bytes.Clone(good), marker...), "after the end-of-archive marker"},
		"a file after the end":  {append(bytes.Clone(good), good...), "after the end-of-archive marker"},
		"no end marker":         {good[:len(good)-1024], "no end-of-archive marker"},
		"half an end marker":    {good[:len(good)-512], "end"},
		"cut off":               {good[:700], "tar"},
		"whiteout of a foreign": {tarOf(t, reg(".wh..wh.aufs", "")), "not allowed"},
		"device":                {tarOf(t, tarEntry{tar.Header{Name: "d", Typeflag: tar.TypeBlock}, ""}), "not allowed"},
		"absolute":              {tarOf(t, reg("/etc/x", "")), "clean relative"},
		"parent":                {tarOf(t, reg("a/../../x", "")), "not allowed"},
		"dot":                   {tarOf(t, reg("./x", "")), "clean relative"},
		"twice":                 {tarOf(t, reg("x", "1"), reg("x", "2")), "there twice"},
		"directory twice":       {tarOf(t, dir("x"), dir("x")), "there twice"},
		"link, then directory":  {tarOf(t, link(tar.TypeSymlink, "x", "/etc"), reg("x/passwd", "1")), "its directory is a link"},
		"hard link forward":     {tarOf(t, link(tar.TypeLink, "a", "b"), reg("b", "1")), "hard link"},
		"extended attributes":   {tarOf(t, xattr), "extended attributes"},
	}
	for name, tt := range tests {
		for mt, p := range pack {
			_, _, _, err := component.VerifyLayer(context.Background(), bytes.NewReader(p(tt.tar)), mt, t.TempDir())
			var le *component.LayerError
			if tt.reason == "" && err != nil || tt.reason != "" && (!errors.As(err, &le) || !strings.Contains(err.Error(), tt.reason)) {
				t.Errorf("%s, %s: got %v, want %q", name, mt, err, tt.reason)
			}
		}
	}
	for mt, p := range pack {
		for name, blob := range map[string][]byte{"garbage after": append(p(good), "garbage"...), "cut off": p(good)[:40], "damaged": append(bytes.Clone(p(good)[:30]), p(good)[31:]...)} {
			var le *component.LayerError
			if _, _, _, err := component.VerifyLayer(context.Background(), bytes.NewReader(blob), mt, t.TempDir()); !errors.As(err, &le) {
				t.Errorf("%s, %s: got %v", name, mt, err)
			}
		}
	}
	var le *component.LayerError
	if _, _, _, err := component.VerifyLayer(context.Background(), bytes.NewReader(good), "application/vnd.oci.image.layer.v1.tar", ""); !errors.As(err, &le) {
		t.Errorf("foreign media type: got %v", err)
	}
}
