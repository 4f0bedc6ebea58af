package component

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/rootfs"
)

// indexLock guards index.json and oci-layout.
const indexLock = "index"

const emptyIndex = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`

// lockPoll is how often a maker asks whether another one is done.
const lockPoll = 50 * time.Millisecond

func (s *Store) lockPath(name string) string { return s.path("locks", name) }

// locked runs f while this process, and this call in it, alone holds the named lock.
func (s *Store) locked(ctx context.Context, name string, f func() error) error {
	lock := flock.New(s.lockPath(name))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return s.fail("locking "+name, err)
	}
	err := f()
	if uerr := lock.Unlock(); err == nil && uerr != nil {
		return s.fail("unlocking "+name, uerr)
	}
	return err
}

// layerPart is the unfinished layer in a maker's directory.
const layerPart = "layer"

type maker func(w io.Writer, tmp string) (Record, rootfs.Layer, error)

func (s *Store) ensure(ctx context.Context, key, name string, opts Options, mk maker) (rec Record, made bool, err error) {
	rec, ok, err := s.Lookup(ctx, key)
	if err == nil && !ok {
		err = s.locked(ctx, key, func() error {
			k, _, same, err := s.find(key)
			if err != nil || same {
				rec = k.Record
				return err
			}
			made = true
			return s.scratch(key, func(tmp string) (err error) {
				rec, err = s.make(ctx, tmp, key, name, opts, mk)
				return err
			})
		})
	}
	if err != nil {
		return Record{}, false, err
	}
	rec.Name = name
	return rec, made, nil
}

// scratch gives f the directory tmp/NAME; the caller holds the lock of that name.
func (s *Store) scratch(name string, f func(tmp string) error) (err error) {
	tmp := s.path("tmp", name)
	if err := os.RemoveAll(tmp); err != nil {
		return s.fail("removing unfinished parts", err)
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return s.fail("making room for "+name, err)
	}
	defer func() {
		if rerr := os.RemoveAll(tmp); err == nil && rerr != nil {
			err = s.fail("removing unfinished parts", rerr)
		}
	}()
	return f(tmp)
}

// make writes everything to tmp, moves it to its place and writes the record last.
func (s *Store) make(ctx context.Context, tmp, key, name string, opts Options, mk maker) (Record, error) {
	blob, err := os.Create(filepath.Join(tmp, layerPart))
	if err != nil {
		return Record{}, s.fail("making room for "+name, err)
	}
	rec, table, err := mk(blob, tmp)
	if err == nil {
		err = blob.Sync()
	}
	if cerr := blob.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) && strings.HasPrefix(pe.Path, s.dir) {
			return Record{}, s.fail("writing "+name, err)
		}
		return Record{}, err
	}
	rec.Key, rec.Name = key, name
	if err := s.commit(ctx, &rec, table, opts, tmp); err != nil {
		return Record{}, err
	}
	return rec, nil
}

// commit gives the finished layer its image and table and makes it visible.
func (s *Store) commit(ctx context.Context, rec *Record, table rootfs.Layer, opts Options, tmp string) error {
	layer := filepath.Join(tmp, layerPart)
	config, manifest, err := image(rec, opts)
	if err != nil {
		return err
	}
	packed, err := packTable(table)
	if err != nil {
		return fmt.Errorf("writing the table of %s: %w", rec.Name, err)
	}
	rec.TableDigest = digestOf(packed)
	if err := os.Chmod(layer, 0o644); err != nil {
		return s.fail("keeping "+rec.Name, err)
	}
	if err := os.Rename(layer, s.BlobPath(rec.Digest)); err != nil {
		return s.fail("keeping "+rec.Name, err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{s.rel(s.BlobPath(rec.ConfigDigest)), config},
		{s.rel(s.BlobPath(rec.ManifestDigest)), manifest},
		{s.rel(s.tablePath(*rec)), packed},
	} {
		if err := s.writeFile(tmp, f.name, f.data); err != nil {
			return err
		}
	}
	if err := s.addToIndex(ctx, *rec); err != nil {
		return err
	}
	if err := syncDir(s.path("blobs", "sha256")); err != nil {
		return s.fail("keeping "+rec.Name, err)
	}
	return s.keep(tmp, *rec)
}

func (s *Store) rel(p string) string { return strings.TrimPrefix(p, s.dir+string(filepath.Separator)) }

// writeFile replaces a file of the store in one step. tmp is a directory below the store's own tmp whose lock
// the caller holds; who makes the directory removes it.
func (s *Store) writeFile(tmp, name string, data []byte) error {
	err := func() error {
		f, err := os.CreateTemp(tmp, "new-")
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err == nil {
			err = f.Chmod(0o644)
		}
		if err == nil {
			err = f.Sync()
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		if err := os.Rename(f.Name(), s.path(name)); err != nil {
			return err
		}
		return syncDir(filepath.Dir(s.path(name)))
	}()
	if err != nil {
		return s.fail("writing "+name, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// addToIndex lists the one-layer image in index.json; other entries stay.
func (s *Store) addToIndex(ctx context.Context, rec Record) error {
	return s.locked(ctx, indexLock, func() error {
		data, err := os.ReadFile(s.path("index.json"))
		if err != nil {
			return s.fail("reading index.json", err)
		}
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return s.fail("reading index.json", err)
		}
		for _, m := range index.Manifests {
			if m.Digest.String() == rec.ManifestDigest {
				return nil
			}
		}
		index.Manifests = append(index.Manifests, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest,
			Digest: digest.Digest(rec.ManifestDigest), Size: rec.ManifestSize})
		if data, err = json.Marshal(index); err != nil {
			return fmt.Errorf("writing index.json: %w", err)
		}
		return s.scratch(indexLock, func(tmp string) error { return s.writeFile(tmp, "index.json", data) })
	})
}

// initialize writes the files of an empty OCI layout where they are missing.
func (s *Store) initialize(ctx context.Context) error {
	return s.locked(ctx, indexLock, func() error {
		return s.scratch(indexLock, func(tmp string) error {
			for name, text := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": emptyIndex} {
				if _, err := os.Stat(s.path(name)); err == nil {
					continue
				}
				if err := s.writeFile(tmp, name, []byte(text)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
