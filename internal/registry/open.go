package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
)

// Image is an image that is read where it is: nothing of it is copied.
type Image struct {
	Name           string
	ManifestDigest string
	ConfigDigest   string
	Config         []byte       // JSON
	Layers         []Descriptor // bottom first
	src            source
}

// Open finds one platform ("os/arch") of an image; ref is a registry reference or oci-layout:DIR[:TAG|@DIGEST].
// Errors are *Error.
func Open(ctx context.Context, ref, platform string) (*Image, error) {
	img, err := openImage(ctx, ref, platform)
	if err != nil {
		return nil, classify("opening", ref, err)
	}
	return img, nil
}

func openImage(ctx context.Context, ref, platform string) (*Image, error) {
	src, err := sourceOf(ref, platform)
	if err != nil {
		return nil, err
	}
	d, m, _, err := choose(ctx, src, platform)
	if err != nil {
		return nil, err
	}
	img := &Image{Name: ref, ManifestDigest: d.Digest, ConfigDigest: m.Config.Digest, Layers: m.Layers, src: src}
	for _, b := range m.references() {
		if !digestPattern.MatchString(b.Digest) {
			return nil, &mismatchError{fmt.Sprintf("the manifest names a blob by %q, which is no sha256 digest", b.Digest)}
		}
	}
	r, err := src.open(ctx, *m.Config)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if img.Config, err = io.ReadAll(io.LimitReader(r, maxManifest)); err != nil {
		return nil, err
	}
	if got := digestOf(img.Config); got != img.ConfigDigest {
		return nil, &mismatchError{fmt.Sprintf("image config %s has content of digest %s", img.ConfigDigest, got)}
	}
	return img, nil
}

// OpenLayer returns the compressed content of one layer. Content that does not fit the layer's digest or size is
// an error of the last Read.
func (i *Image) OpenLayer(ctx context.Context, n int) (io.ReadCloser, error) {
	r, err := i.src.open(ctx, i.Layers[n])
	if err != nil {
		return nil, classify("opening a layer of", i.Name, err)
	}
	return &checkedReader{r: r, h: sha256.New(), d: i.Layers[n], ctx: ctx}, nil
}

// checkedReader compares what it passed on with the descriptor.
type checkedReader struct {
	r   io.ReadCloser
	h   hash.Hash
	n   int64
	d   Descriptor
	ctx context.Context // a reader has no other way to end early
}

func (c *checkedReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.h.Write(p[:n])
	if c.n += int64(n); c.n > c.d.Size {
		return n, &mismatchError{fmt.Sprintf("layer %s is longer than its %d bytes", c.d.Digest, c.d.Size)}
	}
	if err == io.EOF {
		if got := "sha256:" + hex.EncodeToString(c.h.Sum(nil)); got != c.d.Digest {
			return n, &mismatchError{fmt.Sprintf("layer %s has content of digest %s", c.d.Digest, got)}
		}
	}
	return n, err
}

func (c *checkedReader) Close() error { return c.r.Close() }
