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
	"regexp"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"imgsmith/internal/rootfs"
)

// Store keeps finished layers in one directory that is an OCI layout too:
//
//	oci-layout, index.json, blobs/sha256/HEX    layers, configs, manifests
//	components/KEY.json                         records; written last, so that what is there is whole
//	tables/HEX.json.zst                         tables by their digest
//	locks/, tmp/                                one maker per key; parts of unfinished layers
//
// Several processes may use one store.
type Store struct{ dir string }

// StoreError is a failure of the store's disk, with what to do where that is known.
type StoreError struct {
	Path   string
	Doing  string
	Remedy string
	Err    error
}

// Error names path, action, cause and remedy.
func (e *StoreError) Error() string {
	s := fmt.Sprintf("component store %s: %s: %v", e.Path, e.Doing, e.Err)
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// Unwrap gives the cause.
func (e *StoreError) Unwrap() error { return e.Err }

func (s *Store) fail(doing string, err error) error {
	e := &StoreError{Path: s.dir, Doing: doing, Err: err}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Remedy = "free space there or name another directory; nothing unfinished is kept"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Remedy = "make it writable for this user or name another directory"
	}
	return e
}

// OpenStore opens or creates the store in dir and removes what dead makers left behind.
func OpenStore(ctx context.Context, dir string) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("opening component store %s: %w", dir, err)
	}
	s := &Store{dir: abs}
	for _, d := range []string{"blobs/sha256", "components", "tables", "locks", "tmp"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, s.fail("creating its directories", err)
		}
	}
	if err := s.initialize(ctx); err != nil {
		return nil, err
	}
	return s, s.sweep()
}

// Dir returns the absolute path of the store.
func (s *Store) Dir() string { return s.dir }

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// sweep removes unfinished parts whose maker no longer lives.
func (s *Store) sweep() error {
	left, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return s.fail("reading its unfinished parts", err)
	}
	for _, d := range left {
		lock := flock.New(s.lockPath(d.Name()))
		got, err := lock.TryLock()
		if err != nil || !got {
			continue // somebody makes it right now
		}
		err = os.RemoveAll(s.path("tmp", d.Name()))
		if uerr := lock.Unlock(); err == nil {
			err = uerr
		}
		if err != nil {
			return s.fail("removing unfinished parts", err)
		}
	}
	return nil
}

var hexDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

var hexKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

// BlobPath returns where a blob lies; it need not exist. A malformed digest gives "".
func (s *Store) BlobPath(digest string) string {
	if !hexDigest.MatchString(digest) {
		return ""
	}
	return s.path("blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

// Lookup returns the record of a key. A record whose blobs are missing or have another size counts as absent.
func (s *Store) Lookup(key string) (Record, bool, error) {
	if !hexKey.MatchString(key) {
		return Record{}, false, fmt.Errorf("component key %q is not 64 hex digits", key)
	}
	data, err := os.ReadFile(s.path("components", key+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, s.fail("reading a record", err)
	}
	var rec Record
	if err := json.Unmarshal(data, &rec); err != nil || rec.Key != key {
		return Record{}, false, nil // damaged: made again
	}
	return rec, s.whole(rec), nil
}

func (s *Store) whole(rec Record) bool {
	sizes := map[string]int64{rec.Digest: rec.Size, rec.ConfigDigest: rec.ConfigSize, rec.ManifestDigest: rec.ManifestSize}
	for d, size := range sizes {
		if fi, err := os.Stat(s.BlobPath(d)); err != nil || fi.Size() != size {
			return false
		}
	}
	_, err := os.Stat(s.tablePath(rec))
	return err == nil
}

// Records lists all finished layers, in key order.
func (s *Store) Records() ([]Record, error) {
	files, err := os.ReadDir(s.path("components"))
	if err != nil {
		return nil, s.fail("listing its records", err)
	}
	var out []Record
	for _, f := range files {
		key, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || !hexKey.MatchString(key) {
			continue
		}
		rec, ok, err := s.Lookup(key)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, rec)
		}
	}
	return out, nil
}

func (s *Store) tablePath(rec Record) string {
	return s.path("tables", strings.TrimPrefix(rec.TableDigest, "sha256:")+".json.zst")
}

// Table reads what is inside a layer and checks it against the record.
func (s *Store) Table(rec Record) (rootfs.Layer, error) {
	data, err := os.ReadFile(s.tablePath(rec))
	if err != nil {
		return nil, s.fail("reading the table of "+rec.Name, err)
	}
	if got := digestOf(data); got != rec.TableDigest {
		return nil, s.fail("reading the table of "+rec.Name, fmt.Errorf("its digest is %s where the record has %s", got, rec.TableDigest))
	}
	return readTable(strings.NewReader(string(data)))
}

// OpenBlob opens a blob for reading.
func (s *Store) OpenBlob(digest string) (io.ReadCloser, error) {
	f, err := os.Open(s.BlobPath(digest))
	if err != nil {
		return nil, s.fail("opening blob "+digest, err)
	}
	return f, nil
}

// Ensure returns the component of a spec, made now if the store lacks it; made tells which.
func (s *Store) Ensure(ctx context.Context, spec Spec, open OpenWheel) (rec Record, made bool, err error) {
	return s.ensure(ctx, spec.Key(), spec.Name, spec.Options, func(w io.Writer, tmp string) (Record, rootfs.Layer, error) {
		spec.Options.TempDir = tmp
		return Make(ctx, w, spec, open)
	})
}

// EnsureLayer is Ensure for a layer from entries. The key must cover everything that decides the entries.
func (s *Store) EnsureLayer(ctx context.Context, key, name string, entries []Entry, opts Options) (Record, bool, error) {
	return s.ensure(ctx, key, name, opts, func(w io.Writer, tmp string) (Record, rootfs.Layer, error) {
		opts.TempDir = tmp
		return WriteLayer(ctx, w, entries, opts)
	})
}

// EnsureRewrite is Ensure for the result of a build step. The key must cover everything that decides the result;
// open is called only when the store lacks the layer.
func (s *Store) EnsureRewrite(ctx context.Context, key, name string, open func() (io.ReadCloser, error), opts RewriteOptions) (Record, bool, error) {
	return s.ensure(ctx, key, name, opts.Options, func(w io.Writer, tmp string) (Record, rootfs.Layer, error) {
		opts.TempDir = tmp
		src, err := open()
		if err != nil {
			return Record{}, nil, err
		}
		rec, table, err := Rewrite(ctx, w, src, opts)
		if cerr := src.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("closing a step's result: %w", cerr)
		}
		return rec, table, err
	})
}
