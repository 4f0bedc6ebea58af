package component

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// historyComment is the same for every layer of ours: the config must depend on the layer and epoch only.
const historyComment = "imgsmith layer"

// image returns config and manifest of the one-layer image around a layer, and fills in the record.
func image(rec *Record, opts Options) (config, manifest []byte, err error) {
	os, arch, ok := strings.Cut(opts.Platform, "/")
	arch, variant, _ := strings.Cut(arch, "/")
	if !ok || arch == "" {
		return nil, nil, fmt.Errorf("platform %q is not os/arch", opts.Platform)
	}
	created := time.Unix(opts.Epoch, 0).UTC()
	config, err = json.Marshal(ocispec.Image{
		Created:  &created,
		Platform: ocispec.Platform{OS: os, Architecture: arch, Variant: variant},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.Digest(rec.DiffID)}},
		History:  []ocispec.History{{Created: &created, Comment: historyComment}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing an image config: %w", err)
	}
	rec.ConfigDigest, rec.ConfigSize = digestOf(config), int64(len(config))
	manifest, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.Digest(rec.ConfigDigest), Size: rec.ConfigSize},
		Layers:    []ocispec.Descriptor{{MediaType: rec.MediaType, Digest: digest.Digest(rec.Digest), Size: rec.Size}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing an image manifest: %w", err)
	}
	rec.ManifestDigest, rec.ManifestSize = digestOf(manifest), int64(len(manifest))
	return config, manifest, nil
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
