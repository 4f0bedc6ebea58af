package component

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"

	"imgsmith/internal/rootfs"
)

// LayerTable returns what is inside a layer blob of the store, by the digest of the compressed blob. A layer
// made here has its table; any other is read once, wholly, and its table kept for as long as the blob is the same
// file. Digest and diffID, which the image's config names, are checked; mediaType tells the compression.
func (s *Store) LayerTable(ctx context.Context, digest, diffID, mediaType string) (rootfs.Layer, error) {
	recs, err := s.records(ctx, func(r Record) bool { return r.Digest == digest })
	if err != nil {
		return nil, err
	}
	for _, r := range recs {
		if err := sameDiffID(digest, r.DiffID, diffID); err != nil {
			return nil, err
		}
		return s.Table(r)
	}
	if table, got, ok := s.foreignTable(digest); ok {
		return table, sameDiffID(digest, got, diffID)
	}
	before, err := stamp(s.BlobPath(digest))
	if err != nil {
		return nil, s.fail("reading layer "+digest, err)
	}
	table, got, err := s.readLayer(ctx, digest, mediaType)
	if err != nil {
		return nil, fmt.Errorf("reading layer %s: %w", digest, err)
	}
	if err := sameDiffID(digest, got, diffID); err != nil {
		return nil, err
	}
	return table, s.keepForeign(digest, got, before, table)
}

// KnownTables returns a look-up of what is inside a layer, by the digest of the compressed blob, among the layers
// whose tables this store has now; it reads no layer and writes nothing.
func (s *Store) KnownTables(ctx context.Context) (func(digest string) (rootfs.Layer, bool), error) {
	recs, err := s.Records(ctx)
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
		table, _, ok := s.foreignTable(digest)
		return table, ok
	}, nil
}

func sameDiffID(digest, got, want string) error {
	if got != want {
		return fmt.Errorf("layer %s unpacks to diffID %s where the image's config has %s: no runtime can unpack this image; use another one", digest, got, want)
	}
	return nil
}

func (s *Store) readLayer(ctx context.Context, digest, mediaType string) (table rootfs.Layer, diffID string, err error) {
	f, err := s.OpenBlob(digest)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	h, plain := sha256.New(), sha256.New()
	raw := io.TeeReader(f, h)
	d, err := decoder(bufio.NewReaderSize(raw, 1<<20), mediaType)
	if err != nil {
		return nil, "", err
	}
	defer d.Close()
	r := io.TeeReader(d, plain)
	table, err = rootfs.ReadLayer(ctx, r, rootfs.Options{Keep: func(n rootfs.Node) bool { return keepData(n.Path) }, Spool: s.spoolELF})
	if err != nil {
		return nil, "", err
	}
	for _, rest := range []io.Reader{r, raw} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return nil, "", err
		}
	}
	if got := fmt.Sprintf("sha256:%x", h.Sum(nil)); got != digest {
		return nil, "", fmt.Errorf("the blob has digest %s; remove it (%s) and build again", got, s.BlobPath(digest))
	}
	return table, fmt.Sprintf("sha256:%x", plain.Sum(nil)), nil
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
