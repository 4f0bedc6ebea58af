package component

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"imgsmith/internal/matrix"
	"imgsmith/internal/rootfs"
)

var proofOptions = Options{Compression: matrix.Compression{Algorithm: "gzip", Level: "default", Encoder: EncoderGzip}, Epoch: 1700000000, Platform: "linux/amd64"}

var proofEntries = []Entry{Symlink("l", "/etc"), File("usr/lib/a", 0o644, []byte(strings.Repeat("a", 1000)))}

func proofStore(t *testing.T) (*Store, string, Record) {
	t.Helper()
	s, err := OpenStore(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key := HashKey("proof")
	rec, made, err := s.EnsureLayer(t.Context(), key, "x", proofEntries, proofOptions)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	return s, key, rec
}

// TestAlteredStoreIsMadeAgain alters what lies in a store. None of it may be used: the layer is made again.
func TestAlteredStoreIsMadeAgain(t *testing.T) {
	for name, alter := range map[string]func(t *testing.T, s *Store, rec Record){
		"layer with its old length and time": func(t *testing.T, s *Store, rec Record) {
			p := s.BlobPath(rec.Digest)
			fi, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if err := os.WriteFile(p, data, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(p, fi.ModTime(), fi.ModTime()); err != nil {
				t.Fatal(err)
			}
		},
		"diffID of the record": func(t *testing.T, s *Store, rec Record) {
			p := s.path("components", rec.Key+".json")
			data, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			other := bytes.ReplaceAll(data, []byte(rec.DiffID), []byte("sha256:"+strings.Repeat("0", 64)))
			if bytes.Equal(data, other) {
				t.Fatal("the record does not hold the diffID")
			}
			if err := os.WriteFile(p, other, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"config with another diffID": func(t *testing.T, s *Store, rec Record) {
			p := s.BlobPath(rec.ConfigDigest)
			data, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, bytes.ReplaceAll(data, []byte(rec.DiffID), []byte("sha256:"+strings.Repeat("0", 64))), 0o644); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, key, rec := proofStore(t)
			alter(t, s, rec)
			if _, ok, err := s.Lookup(t.Context(), key); ok || err != nil {
				t.Fatalf("found %v, %v", ok, err)
			}
			again, made, err := s.EnsureLayer(t.Context(), key, "x", proofEntries, proofOptions)
			if err != nil || !made || again != rec {
				t.Fatalf("made %v, %+v, %v", made, again, err)
			}
			data, err := os.ReadFile(s.BlobPath(rec.Digest))
			if err != nil || digestOf(data) != rec.Digest {
				t.Errorf("the blob was not replaced: %v", err)
			}
		})
	}
}

// forge puts a layer into the store as a copy from elsewhere would be: everything fits, but it was not made here.
func forge(t *testing.T, s *Store, key, diffID string, plain []byte, table rootfs.Layer) {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	rec := Record{Name: "x", Key: key, Digest: digestOf(buf.Bytes()), DiffID: diffID, Size: int64(buf.Len()), UncompressedSize: int64(len(plain)), MediaType: MediaTypeGzip}
	config, manifest, err := image(&rec, proofOptions)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := packTable(table)
	if err != nil {
		t.Fatal(err)
	}
	rec.TableDigest = digestOf(packed)
	k := kept{Record: rec, Stamp: "of another disk"}
	k.Sum = k.sum()
	record, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{s.BlobPath(rec.Digest): buf.Bytes(), s.BlobPath(rec.ConfigDigest): config,
		s.BlobPath(rec.ManifestDigest): manifest, s.tablePath(rec): packed, s.path("components", key+".json"): record} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignComponentIsDecodedFirst gives the store layers that an engine would take without a word.
func TestForeignComponentIsDecodedFirst(t *testing.T) {
	archive := func(end bool, hs ...tar.Header) []byte {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range hs {
			h.ModTime, h.Format = time.Unix(proofOptions.Epoch, 0), tar.FormatPAX
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if end {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return buf.Bytes()
	}
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}
	good := archive(true, dir)
	node := rootfs.Node{Path: "d", Type: rootfs.Dir, Mode: 0o755, MTime: proofOptions.Epoch}
	twice := append(bytes.Clone(good), archive(true, tar.Header{Typeflag: tar.TypeDir, Name: "e/", Mode: 0o755})...)
	through := archive(true, tar.Header{Typeflag: tar.TypeSymlink, Name: "d", Linkname: "/etc", Mode: 0o777}, tar.Header{Typeflag: tar.TypeDir, Name: "d/x/", Mode: 0o755})
	for name, c := range map[string]struct {
		plain  []byte
		diffID string
		table  rootfs.Layer
		want   bool
	}{
		"good":                       {good, digestOf(good), rootfs.Layer{node}, true},
		"wrong diffID":               {good, digestOf(twice), rootfs.Layer{node}, false},
		"second end marker":          {twice, digestOf(twice), rootfs.Layer{node}, false},
		"diffID up to the first end": {twice, digestOf(good), rootfs.Layer{node}, false},
		"no end marker":              {archive(false, dir), digestOf(archive(false, dir)), rootfs.Layer{node}, false},
		"a link, then below it":      {through, digestOf(through), rootfs.Layer{node}, false},
		"table of another layer":     {good, digestOf(good), rootfs.Layer{node, {Path: "e", Type: rootfs.Dir, Mode: 0o755}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, key, rec := proofStore(t)
			forge(t, s, key, c.diffID, c.plain, c.table)
			got, ok, err := s.Lookup(t.Context(), key)
			if err != nil || ok != c.want {
				t.Fatalf("found %v, %v", ok, err)
			}
			if c.want {
				if _, whole, same, err := s.find(key); !whole || !same || err != nil || got.DiffID != c.diffID {
					t.Errorf("a decoded layer is not remembered: %v %v %v", whole, same, err)
				}
				return
			}
			again, made, err := s.EnsureLayer(t.Context(), key, "x", proofEntries, proofOptions)
			if err != nil || !made || again != rec {
				t.Errorf("made %v, %+v, %v", made, again, err)
			}
		})
	}
}

// TestForeignLayer reads a base's layer, which must be what manifest and config say, also later.
func TestForeignLayer(t *testing.T) {
	s, _, rec := proofStore(t)
	data, err := os.ReadFile(s.BlobPath(rec.Digest))
	if err != nil {
		t.Fatal(err)
	}
	base, err := OpenStore(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put := func(data []byte) {
		if err := os.WriteFile(base.BlobPath(rec.Digest), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(diffID string) error {
		table, err := base.LayerTable(context.Background(), rec.Digest, diffID, MediaTypeGzip)
		if err == nil && (len(table) != 4 || table[0].Path != "l" || table[3].Path != "usr/lib/a") {
			err = fmt.Errorf("table %+v", table)
		}
		return err
	}
	put(data)
	const zero = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	wrong := func(when string) {
		if err := read(zero); err == nil || !strings.Contains(err.Error(), "unpacks to diffID "+rec.DiffID) {
			t.Errorf("%s, wrong diffID: %v", when, err)
		}
	}
	wrong("not read yet")
	for range 2 {
		if err := read(rec.DiffID); err != nil {
			t.Fatal(err)
		}
	}
	wrong("read before")
	tables, err := filepath.Glob(base.path("tables", "layer-*.json.zst"))
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	if err := os.WriteFile(tables[0], []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := read(rec.DiffID); err != nil {
		t.Errorf("a damaged table is not read anew: %v", err)
	}
	put(append(bytes.Clone(data), 0))
	if err := read(rec.DiffID); err == nil || !strings.Contains(err.Error(), rec.Digest) {
		t.Errorf("altered later: %v", err)
	}
}
