package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/registry"
)

// image is one image whose blobs are in the store.
type image struct {
	digest       string // manifest
	configDigest string
	repo         string // under which the loopback registry serves it
	layers       []string
	mediaTypes   []string
	diffIDs      []string
	size         int64 // compressed bytes
	config       v1.Image
}

// image reads manifest and config of a digest from the store.
func (s *session) image(digest string) (image, error) {
	var m v1.Manifest
	if err := s.readJSON(digest, &m); err != nil {
		return image{}, fmt.Errorf("reading manifest %s: %w", digest, err)
	}
	img := image{digest: digest, configDigest: m.Config.Digest.String(), repo: "staging/image"}
	if err := s.readJSON(img.configDigest, &img.config); err != nil {
		return image{}, fmt.Errorf("reading image config %s: %w", img.configDigest, err)
	}
	for _, l := range m.Layers {
		img.layers = append(img.layers, l.Digest.String())
		img.mediaTypes = append(img.mediaTypes, l.MediaType)
		img.size += l.Size
	}
	for _, d := range img.config.RootFS.DiffIDs {
		img.diffIDs = append(img.diffIDs, d.String())
	}
	if len(img.diffIDs) != len(img.layers) || len(img.layers) == 0 {
		return image{}, fmt.Errorf("manifest %s has %d layers, its config %d", digest, len(img.layers), len(img.diffIDs))
	}
	return img, nil
}

func (s *session) readJSON(digest string, v any) error {
	r, err := s.store.OpenBlob(digest)
	if err != nil {
		return err
	}
	defer r.Close()
	const limit = 8 << 20
	data, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); got != digest {
		return fmt.Errorf("its content has digest %s", got)
	}
	return json.Unmarshal(data, v)
}

// remote is publish.Registry over the registry package, for the images of one store.
type remote struct{ store string }

func (r remote) CopyImage(ctx context.Context, digest, repository string) error {
	return registry.CopyImage(ctx, r.store, digest, repository)
}

func (r remote) Resolve(ctx context.Context, ref string) (string, bool, error) {
	digest, err := registry.Resolve(ctx, ref)
	if registry.KindOf(err) == registry.NotFound {
		return "", false, nil
	}
	return digest, err == nil, err
}

func (r remote) Tag(ctx context.Context, repository, digest, tag string) error {
	return registry.Tag(ctx, repository, digest, tag)
}
