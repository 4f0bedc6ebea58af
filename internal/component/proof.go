package component

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"imgsmith/internal/rootfs"
)

// kept is a record as it lies on disk, with what tells without reading gigabytes that the blob is still the one
// that was written or decoded here.
type kept struct {
	Record
	Stamp string `json:"stamp"` // of the layer blob
	Sum   string `json:"sum"`   // over record and stamp: an edited record counts as absent
}

// stamp names a file's state: length, inode, and the time of its last change, which the kernel sets at every
// write and nobody can set back. A copied or restored file has another stamp and is decoded once.
func stamp(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d %d %d.%09d", st.Size, st.Ino, st.Ctim.Sec, st.Ctim.Nsec), nil
}

func (s *Store) seal(rec Record) (kept, error) {
	k := kept{Record: rec}
	var err error
	if k.Stamp, err = stamp(s.BlobPath(rec.Digest)); err == nil {
		k.Sum = k.sum()
	}
	return k, err
}

func (k kept) sum() string { return hashJSON([]any{k.Record, k.Stamp}) }

// keep writes the record; tmp as in writeFile.
func (s *Store) keep(tmp string, rec Record) error {
	k, err := s.seal(rec)
	if err != nil {
		return s.fail("writing the record of "+rec.Name, err)
	}
	data, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the record of %s: %w", rec.Name, err)
	}
	return s.writeFile(tmp, filepath.Join("components", rec.Key+".json"), append(data, '\n'))
}

// decoded tells whether a blob that has another stamp than its record says is that layer all the same: a diffID
// counts only from our own encoder or from a full decode.
func (s *Store) decoded(ctx context.Context, rec Record) (bool, error) {
	if !s.describes(rec) {
		return false, nil
	}
	f, err := os.Open(s.BlobPath(rec.Digest))
	if err != nil {
		return false, s.fail("decoding "+rec.Name, err)
	}
	defer f.Close()
	digest, diffID, table, err := VerifyLayer(ctx, f, rec.MediaType, s.path("tmp"))
	var bad *LayerError
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.As(err, &bad):
		return false, nil
	case err != nil:
		return false, s.fail("decoding "+rec.Name, err)
	}
	packed, err := packTable(table)
	return err == nil && digest == rec.Digest && diffID == rec.DiffID && digestOf(packed) == rec.TableDigest, err
}

// describes tells whether manifest and config around the layer say what the record says.
func (s *Store) describes(rec Record) bool {
	var m ocispec.Manifest
	var c ocispec.Image
	return s.readSmall(rec.ManifestDigest, &m) == nil && s.readSmall(rec.ConfigDigest, &c) == nil &&
		m.Config.Digest.String() == rec.ConfigDigest && len(m.Layers) == 1 && m.Layers[0].Digest.String() == rec.Digest &&
		m.Layers[0].Size == rec.Size && m.Layers[0].MediaType == rec.MediaType &&
		len(c.RootFS.DiffIDs) == 1 && c.RootFS.DiffIDs[0].String() == rec.DiffID
}

// readSmall reads a JSON blob and checks its digest. v may be nil.
func (s *Store) readSmall(digest string, v any) error {
	data, err := os.ReadFile(s.BlobPath(digest))
	if err != nil {
		return err
	}
	if got := digestOf(data); got != digest {
		return fmt.Errorf("blob %s has content of digest %s", digest, got)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(data, v)
}

// foreignProof goes with the table of a layer that was not made here.
type foreignProof struct {
	DiffID string `json:"diff_id"`
	Stamp  string `json:"stamp"`
	Sum    string `json:"sum"`
}

func (s *Store) foreignPaths(digest string) (table, proof string) {
	stem := s.path("tables", "layer-"+filepath.Base(s.BlobPath(digest)))
	return stem + ".json.zst", stem + ".proof"
}

// foreignTable returns the kept table of a layer that was read before, when blob and table are still those.
func (s *Store) foreignTable(digest string) (rootfs.Layer, string, bool) {
	tablePath, proofPath := s.foreignPaths(digest)
	var p foreignProof
	data, err := os.ReadFile(proofPath)
	if err != nil || json.Unmarshal(data, &p) != nil {
		return nil, "", false
	}
	packed, err := os.ReadFile(tablePath)
	if err != nil {
		return nil, "", false
	}
	now, err := stamp(s.BlobPath(digest))
	if err != nil || now != p.Stamp || p.Sum != foreignSum(digest, p, packed) {
		return nil, "", false
	}
	table, err := unpackTable(packed)
	return table, p.DiffID, err == nil
}

func foreignSum(digest string, p foreignProof, packed []byte) string {
	return HashKey("foreign", digest, p.DiffID, p.Stamp, digestOf(packed))
}

// keepForeign keeps table and diffID of a layer that was just decoded; before is the blob's stamp from before.
func (s *Store) keepForeign(digest, diffID, before string, table rootfs.Layer) error {
	packed, err := packTable(table)
	if err != nil {
		return fmt.Errorf("keeping the table of layer %s: %w", digest, err)
	}
	p := foreignProof{DiffID: diffID, Stamp: before}
	p.Sum = foreignSum(digest, p, packed)
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("keeping the table of layer %s: %w", digest, err)
	}
	tablePath, proofPath := s.foreignPaths(digest)
	if err := s.replace(tablePath, packed); err != nil {
		return err
	}
	return s.replace(proofPath, data)
}

// replace writes a file beside its place and renames it.
func (s *Store) replace(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return s.fail("keeping a table", err)
	}
	_, err = f.Write(data)
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
