package component

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"imgsmith/internal/rootfs"
)

// LayerTable returns what is inside a layer blob of the store, by the digest of the compressed blob. A layer
// made here has its table; any other is read once, wholly, and its table kept. The digest is checked while it
// is read; mediaType tells the compression.
func (s *Store) LayerTable(ctx context.Context, digest, mediaType string) (rootfs.Layer, error) {
	recs, err := s.Records()
	if err != nil {
		return nil, err
	}
	for _, r := range recs {
		if r.Digest == digest {
			return s.Table(r)
		}
	}
	hex := strings.TrimPrefix(digest, "sha256:")
	kept := s.path("tables", "layer-"+hex+".json.zst")
	if f, err := os.Open(kept); err == nil {
		defer f.Close()
		if table, err := readTable(f); err == nil {
			return table, nil
		} // a damaged table is read anew
	}
	table, err := s.readLayer(ctx, digest, mediaType)
	if err != nil {
		return nil, fmt.Errorf("reading layer %s: %w", digest, err)
	}
	return table, s.keepTable(kept, table)
}

// KnownTables returns a look-up of what is inside a layer, by the digest of the compressed blob, among the layers
// whose tables this store has now; it reads no layer and writes nothing.
func (s *Store) KnownTables() (func(digest string) (rootfs.Layer, bool), error) {
	recs, err := s.Records()
	if err != nil {
		return nil, err
	}
	byDigest := make(map[string]Record, len(recs))
	for _, r := range recs {
		byDigest[r.Digest] = r
	}
	return func(digest string) (rootfs.Layer, bool) {
		if r, ok := byDigest[digest]; ok {
			table, err := s.Table(r)
			return table, err == nil
		}
		if !hexDigest.MatchString(digest) {
			return nil, false
		}
		f, err := os.Open(s.path("tables", "layer-"+strings.TrimPrefix(digest, "sha256:")+".json.zst"))
		if err != nil {
			return nil, false
		}
		defer f.Close()
		table, err := readTable(f)
		return table, err == nil
	}, nil
}

func (s *Store) readLayer(ctx context.Context, digest, mediaType string) (rootfs.Layer, error) {
	f, err := s.OpenBlob(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	raw := io.TeeReader(f, h)
	r, err := decoder(bufio.NewReaderSize(raw, 1<<20), mediaType)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	table, err := rootfs.ReadLayer(ctx, r, rootfs.Options{Keep: func(n rootfs.Node) bool { return keepData(n.Path) }, Spool: s.spoolELF})
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return nil, err
	}
	if got := fmt.Sprintf("sha256:%x", h.Sum(nil)); got != digest {
		return nil, fmt.Errorf("the blob has digest %s; remove it and build again", got)
	}
	return table, nil
}

// zstdWindow bounds in bytes what a foreign frame may make us allocate.
const zstdWindow = 128 << 20

// decoder undoes the compression that a layer's media type names.
func decoder(r io.Reader, mediaType string) (io.ReadCloser, error) {
	switch {
	case strings.HasSuffix(mediaType, "gzip"):
		return gzip.NewReader(r)
	case strings.HasSuffix(mediaType, "zstd"):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case strings.HasSuffix(mediaType, "tar"):
		return io.NopCloser(r), nil
	}
	return nil, fmt.Errorf("layer media type %q is not known; use gzip, zstd or an uncompressed tar", mediaType)
}

// spoolELF sets a large library aside in the store's temporary directory.
func (s *Store) spoolELF(r io.Reader) (io.ReaderAt, func(), error) {
	f, err := os.CreateTemp(s.path("tmp"), "elf-")
	if err != nil {
		return nil, nil, err
	}
	free := func() { f.Close() }
	if err := os.Remove(f.Name()); err != nil {
		free()
		return nil, nil, err
	}
	if _, err := io.Copy(f, r); err != nil {
		free()
		return nil, nil, err
	}
	return f, free, nil
}

func (s *Store) keepTable(path string, table rootfs.Layer) error {
	f, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return s.fail("keeping a table", err)
	}
	err = writeTable(f, table)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return s.fail("keeping a table", err)
	}
	return nil
}
