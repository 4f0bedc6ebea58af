// Package component makes image layers of our own: from wheels (a component: one layer from an ordered list of
// wheels, with a table of what is inside), from bytes, and from the result of a build step written again. It
// keeps them on disk by key, each as a one-layer image that an engine can take by digest. It resolves nothing,
// fetches nothing and talks to no registry.
package component

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
)

// Encoders of this build, as they stand in a lock. The number changes whenever the same input gives other bytes;
// a test pins the bytes.
const (
	EncoderZstd = "klauspost-zstd/1"
	EncoderGzip = "klauspost-gzip/1"
)

// formatVersion is part of every key: how a layer is put together from its wheels.
const formatVersion = 1

// Media types of our layers.
const (
	MediaTypeGzip = "application/vnd.oci.image.layer.v1.tar+gzip"
	MediaTypeZstd = "application/vnd.oci.image.layer.v1.tar+zstd"
)

// Parent is a directory above the files of a layer whose mode or owner is not 0755 root:root in the base.
type Parent struct {
	Path string `json:"path"` // relative to the image's root
	Mode uint32 `json:"mode"`
	UID  int    `json:"uid,omitempty"`
	GID  int    `json:"gid,omitempty"`
}

// Options fix how a layer of ours is written.
type Options struct {
	Compression matrix.Compression
	Epoch       int64  // mtime of everything, seconds
	Platform    string // os/arch, for the one-layer image
	Parents     []Parent
	TempDir     string // for parts that do not fit in memory; empty is the system's
}

// Spec says what one component is made of.
type Spec struct {
	Name      string // name of the layer group; not part of the key
	Side      layout.Side
	Wheels    []matrix.Wheel // in the order in which they are written
	Requested []string       // normalized names among Wheels that get the REQUESTED marker
	Layout    layout.Resolved
	Options   Options
}

// Record describes one finished layer and the one-layer image around it. Digests are "sha256:<hex>".
type Record struct {
	Name             string `json:"name"`
	Key              string `json:"key"` // hex
	Digest           string `json:"digest"`
	DiffID           string `json:"diff_id"`
	Size             int64  `json:"size"`              // compressed bytes
	UncompressedSize int64  `json:"uncompressed_size"` // bytes of the tar
	MediaType        string `json:"media_type"`
	ManifestDigest   string `json:"manifest_digest"`
	ManifestSize     int64  `json:"manifest_size"`
	ConfigDigest     string `json:"config_digest"`
	ConfigSize       int64  `json:"config_size"`
	TableDigest      string `json:"table_digest"` // of the stored table
}

// UnknownEncoderError means that a lock asks for an encoder that this build lacks.
type UnknownEncoderError struct{ Compression matrix.Compression }

// Error names the encoder, what this build has, and what to do.
func (e *UnknownEncoderError) Error() string {
	return fmt.Sprintf("compression %s, level %q, encoder %q is not in this build (it has zstd with %s at fastest, default, better; "+
		"gzip with %s at passthrough, default): use the release that made the lock, a store that holds the layers, or lock again",
		e.Compression.Algorithm, e.Compression.Level, e.Compression.Encoder, EncoderZstd, EncoderGzip)
}

// DefaultEncoder returns the encoder that a new lock names for an algorithm, "" for an unknown one.
func DefaultEncoder(algorithm string) string {
	return map[string]string{"zstd": EncoderZstd, "gzip": EncoderGzip}[algorithm]
}

// CheckCompression returns *UnknownEncoderError when this build cannot write layers so.
func CheckCompression(c matrix.Compression) error {
	levels := map[string][]string{"zstd": {"fastest", "default", "better"}, "gzip": {"passthrough", "default"}}
	for _, l := range levels[c.Algorithm] {
		if l == c.Level && c.Encoder == DefaultEncoder(c.Algorithm) {
			return nil
		}
	}
	return &UnknownEncoderError{Compression: c}
}

func mediaType(c matrix.Compression) string {
	if c.Algorithm == "zstd" {
		return MediaTypeZstd
	}
	return MediaTypeGzip
}

// Key returns what decides the bytes of the component, as hex. Paths of the Python side are part of it only
// where they matter, so CUDA layers are the same for every Python version.
func (s Spec) Key() string {
	type wheelKey struct{ File, SHA256 string }
	k := struct {
		Format      int
		Side        layout.Side
		Wheels      []wheelKey
		Requested   []string
		Layout      any
		Compression matrix.Compression
		Epoch       int64
		Platform    string
		Parents     []Parent
	}{
		Format: formatVersion, Side: s.Side, Layout: s.layoutKey(),
		Compression: s.Options.Compression, Epoch: s.Options.Epoch, Platform: s.Options.Platform, Parents: s.Options.Parents,
	}
	for _, w := range s.Wheels {
		k.Wheels = append(k.Wheels, wheelKey{w.File, w.SHA256})
	}
	if s.Side != layout.SideCUDA {
		k.Requested = s.Requested
	}
	return hashJSON(k)
}

// layoutKey holds the parts of the layout that place this side's files.
func (s Spec) layoutKey() any {
	r := s.Layout
	cuda := []any{r.CUDARoot, r.Namespace, r.PackageRoot, r.Directories}
	python := []any{r.Vars.Python, r.Venv, r.Site, r.Headers, r.Interpreter, r.Reserved, r.Script, r.Namespace}
	damage := []any{r.Test, r.Break}
	switch s.Side {
	case layout.SideCUDA:
		return [][]any{cuda, damage}
	case layout.SidePython:
		return [][]any{python, damage}
	}
	return [][]any{cuda, python, damage}
}

// hashJSON hashes a value's JSON form; the values here always marshal.
func hashJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		data = fmt.Appendf(nil, "%#v", v)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// HashKey makes the key of a layer that is not a component (a step's result, the finishing layer) from the parts
// that decide its bytes.
func HashKey(parts ...string) string { return hashJSON([]any{formatVersion, parts}) }
