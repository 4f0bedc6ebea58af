package engine

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

// copyOnlyLayer finds the single layer of an image archive in OCI form and writes it uncompressed.
func copyOnlyLayer(archive io.ReaderAt, w io.Writer) error {
	members, err := listMembers(archive)
	if err != nil {
		return err
	}
	var index ocispecs.Index
	if err := members.decode("index.json", &index); err != nil {
		return err
	}
	if len(index.Manifests) != 1 {
		return fmt.Errorf("the index names %d images, not one", len(index.Manifests))
	}
	var manifest ocispecs.Manifest
	if err := members.decode(blobName(string(index.Manifests[0].Digest)), &manifest); err != nil {
		return err
	}
	switch len(manifest.Layers) {
	case 0:
		return tar.NewWriter(w).Close()
	case 1:
	default:
		return fmt.Errorf("the result has %d layers, not one", len(manifest.Layers))
	}
	layer := manifest.Layers[0]
	r, err := members.open(blobName(string(layer.Digest)))
	if err != nil {
		return err
	}
	switch {
	case strings.HasSuffix(layer.MediaType, "+gzip"):
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		r = z
	case strings.HasSuffix(layer.MediaType, "+zstd"):
		z, err := zstd.NewReader(r)
		if err != nil {
			return err
		}
		defer z.Close()
		r = z
	}
	_, err = io.Copy(w, r)
	return err
}

func blobName(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// members are the files of an archive by name.
type members map[string]*io.SectionReader

func listMembers(archive io.ReaderAt) (members, error) {
	const unbounded = 1<<63 - 1
	sr := io.NewSectionReader(archive, 0, unbounded)
	tr := tar.NewReader(sr)
	out := members{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		offset, err := sr.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			out[h.Name] = io.NewSectionReader(archive, offset, h.Size)
		}
	}
}

func (m members) open(name string) (io.Reader, error) {
	r, ok := m[name]
	if !ok {
		return nil, fmt.Errorf("it has no %s", name)
	}
	return r, nil
}

func (m members) decode(name string, v any) error {
	r, err := m.open(name)
	if err != nil {
		return err
	}
	if err := json.NewDecoder(r).Decode(v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
