package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
)

// Descriptor points to a blob of a store.
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *Platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Platform is what a manifest in an index is for.
type Platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// Manifest is an image manifest, or an index when Manifests is set.
type Manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Config        *Descriptor  `json:"config,omitempty"`
	Layers        []Descriptor `json:"layers,omitempty"`
	Manifests     []Descriptor `json:"manifests,omitempty"`
}

// mediaType returns what the document is, also for documents that do not say it.
func (m Manifest) mediaType() string {
	switch {
	case m.MediaType != "":
		return m.MediaType
	case m.Manifests != nil:
		return mediaOCIIndex
	}
	return mediaOCIManifest
}

func isIndex(mediaType string) bool {
	return mediaType == mediaOCIIndex || mediaType == mediaDockerList
}

// store is an OCI layout directory. Several processes may use one.
type store struct{ dir string }

func openStore(dir string) (store, error) {
	s := store{dir}
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return s, fmt.Errorf("opening store: %w", err)
	}
	marker := filepath.Join(dir, "oci-layout")
	if _, err := os.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		if err := writeAtomic(marker, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
			return s, fmt.Errorf("opening store: %w", err)
		}
	}
	return s, nil
}

// blob returns the path of a blob. The digest must have been checked against digestPattern.
func (s store) blob(digest string) string {
	return filepath.Join(s.dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func (s store) has(digest string) bool {
	info, err := os.Stat(s.blob(digest))
	return err == nil && info.Mode().IsRegular()
}

// readSmall reads a manifest or config and checks it against its digest.
func (s store) readSmall(digest string) ([]byte, error) {
	if !digestPattern.MatchString(digest) {
		return nil, fmt.Errorf("reading blob: %q is not a sha256 digest", digest)
	}
	f, err := os.Open(s.blob(digest))
	if err != nil {
		return nil, fmt.Errorf("reading blob: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("reading blob %s: %w", digest, err)
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("reading blob %s: larger than a manifest may be", digest)
	}
	if got := digestOf(data); got != digest {
		return nil, fmt.Errorf("reading blob %s: its content has digest %s", digest, got)
	}
	return data, nil
}

// manifest reads and parses a manifest.
func (s store) manifest(digest string) (Manifest, []byte, error) {
	data, err := s.readSmall(digest)
	if err != nil {
		return Manifest{}, nil, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return Manifest{}, nil, fmt.Errorf("manifest %s: %w", digest, err)
	}
	return m, data, nil
}

func parseManifest(data []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("parsing manifest: %w", err)
	}
	if m.SchemaVersion != 2 || (m.Config == nil) == (m.Manifests == nil) {
		return m, errors.New("parsing manifest: neither an image manifest nor an index of schema version 2")
	}
	for _, d := range m.references() {
		if !digestPattern.MatchString(d.Digest) || d.Size < 0 {
			return m, fmt.Errorf("parsing manifest: bad descriptor %q", d.Digest)
		}
	}
	return m, nil
}

// references are all blobs that the document points to.
func (m Manifest) references() []Descriptor {
	var out []Descriptor
	if m.Config != nil {
		out = append(out, *m.Config)
	}
	out = append(out, m.Layers...)
	return append(out, m.Manifests...)
}

// write copies r into the blob with this digest; nothing appears when content or length differ. size < 0
// means unknown.
func (s store) write(digest string, size int64, r io.Reader) error {
	f, err := os.CreateTemp(filepath.Join(s.dir, "blobs", "sha256"), ".upload-*")
	if err != nil {
		return fmt.Errorf("writing blob: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), r)
	if err != nil {
		return fmt.Errorf("writing blob %s: %w", digest, err)
	}
	if size >= 0 && n != size {
		return &mismatchError{fmt.Sprintf("blob %s has %d bytes, not %d", digest, n, size)}
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest {
		return &mismatchError{fmt.Sprintf("blob %s has content of digest %s", digest, got)}
	}
	return commit(f, s.blob(digest))
}

// mismatchError says that content is not what was promised.
type mismatchError struct{ text string }

func (e *mismatchError) Error() string { return e.text }

// commit makes a temporary file durable under its final name.
func commit(f *os.File, path string) error {
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writeAtomic(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return commit(f, path)
}

// index reads index.json; a store without one is empty.
func (s store) index() (Manifest, error) {
	m := Manifest{SchemaVersion: 2, MediaType: mediaOCIIndex, Manifests: []Descriptor{}}
	data, err := os.ReadFile(filepath.Join(s.dir, "index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("reading store: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("reading store: index.json: %w", err)
	}
	return m, nil
}

// record names a manifest in index.json; a name that exists moves.
func (s store) record(name string, d Descriptor) error {
	lock := flock.New(filepath.Join(s.dir, ".index.lock"))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("locking store: %w", err)
	}
	defer lock.Unlock()
	idx, err := s.index()
	if err != nil {
		return err
	}
	kept := idx.Manifests[:0]
	for _, m := range idx.Manifests {
		if m.Annotations[refNameAnnotation] != name {
			kept = append(kept, m)
		}
	}
	d.Annotations = map[string]string{refNameAnnotation: name}
	idx.Manifests = append(kept, d)
	data, err := json.Marshal(idx)
	if err != nil {
		return fmt.Errorf("recording %s: %w", name, err)
	}
	if err := writeAtomic(filepath.Join(s.dir, "index.json"), data); err != nil {
		return fmt.Errorf("recording %s: %w", name, err)
	}
	return nil
}

// find returns the descriptor that index.json holds under name.
func (s store) find(name string) (Descriptor, bool, error) {
	idx, err := s.index()
	if err != nil {
		return Descriptor{}, false, err
	}
	for _, m := range idx.Manifests {
		if m.Annotations[refNameAnnotation] == name {
			return m, true, nil
		}
	}
	return Descriptor{}, false, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
