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

// Lookup returns the record of a key. A record that was edited, or whose blobs are missing or have other content,
// counts as absent. A blob that was copied here since is decoded once, which takes as long as unpacking it.
func (s *Store) Lookup(ctx context.Context, key string) (Record, bool, error) {
	k, whole, same, err := s.find(key)
	if err != nil || !whole || same {
		return k.Record, whole && same, err
	}
	ok := false
	err = s.locked(ctx, key, func() error {
		if k, whole, same, err = s.find(key); err != nil || !whole || same {
			ok = whole && same
			return err
		}
		if ok, err = s.decoded(ctx, k.Record); err != nil || !ok {
			return err
		}
		return s.scratch(key, func(tmp string) error { return s.keep(tmp, k.Record) })
	})
	return k.Record, ok && err == nil, err
}

// find reads a record without reading its layer: whole tells that all parts are there, same that the layer is
// the very file that was made or decoded here.
func (s *Store) find(key string) (k kept, whole, same bool, err error) {
	if !hexKey.MatchString(key) {
		return k, false, false, fmt.Errorf("component key %q is not 64 hex digits", key)
	}
	data, err := os.ReadFile(s.path("components", key+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return k, false, false, nil
	}
	if err != nil {
		return k, false, false, s.fail("reading a record", err)
	}
	if err := json.Unmarshal(data, &k); err != nil || k.Key != key || k.Sum != k.sum() {
		return k, false, false, nil // damaged or edited: made again
	}
	if !s.whole(k.Record) {
		return k, false, false, nil
	}
	now, err := stamp(s.BlobPath(k.Digest))
	return k, err == nil, now == k.Stamp, nil
}

func (s *Store) whole(rec Record) bool {
	fi, err := os.Stat(s.BlobPath(rec.Digest))
	if err != nil || fi.Size() != rec.Size || s.readSmall(rec.ConfigDigest, nil) != nil || s.readSmall(rec.ManifestDigest, nil) != nil {
		return false
	}
	_, err = os.Stat(s.tablePath(rec))
	return err == nil
}

// Records lists all finished layers, in key order.
func (s *Store) Records(ctx context.Context) ([]Record, error) {
	return s.records(ctx, func(Record) bool { return true })
}

// records lists those that want picks.
func (s *Store) records(ctx context.Context, want func(Record) bool) ([]Record, error) {
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
		k, whole, _, err := s.find(key)
		if err != nil {
			return nil, err
		}
		if !whole || !want(k.Record) {
			continue
		}
		rec, ok, err := s.Lookup(ctx, key)
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
