package resolve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sync/errgroup"

	"imgsmith/internal/matrix"
)

// Progress is one step of Fetch.
type Progress struct {
	Wheel  matrix.Wheel
	Done   int64 // bytes of the wheel that are there
	Cached bool  // it was there before
}

// FetchOptions say how wheels are fetched.
type FetchOptions struct {
	Settings *Settings      // of the host; required unless Offline
	Offline  bool           // local files only
	Progress func(Progress) // called from several goroutines; nil: not wanted
	Parallel int            // downloads at once; 0: 4
	Tries    int            // tries in a row without a new byte before giving up; 0: 5
	Backoff  time.Duration  // wait before the second try, doubled after each; 0: 1 s
	Stall    time.Duration  // a transfer that brings no byte for so long is cut; 0: 60 s
}

// WheelPath returns where a wheel is kept below dir, the store's wheel directory: <sha256>/<file>.
func WheelPath(dir string, w matrix.Wheel) string { return filepath.Join(dir, w.SHA256, w.File) }

// Missing returns the wheels that are not in dir. A file there counts by name and size: it got its name only
// after its hash was checked.
func Missing(wheels []matrix.Wheel, dir string) []matrix.Wheel {
	var out []matrix.Wheel
	for _, w := range wheels {
		if !have(dir, w) {
			out = append(out, w)
		}
	}
	return out
}

func have(dir string, w matrix.Wheel) bool {
	fi, err := os.Stat(WheelPath(dir, w))
	return err == nil && fi.Mode().IsRegular() && fi.Size() == w.Size
}

// Fetch puts wheels into dir, each checked by size and sha256 before it gets its name. What a broken or
// cancelled download has brought is kept and continued by the next Fetch, of this or another process. Errors
// are *Error, or *MissingError when offline.
func Fetch(ctx context.Context, wheels []matrix.Wheel, urls URLs, dir string, o FetchOptions) error {
	o.defaults()
	if o.Offline {
		var missing []matrix.Wheel
		for _, w := range Missing(wheels, dir) {
			if _, local := localPath(urls[w.SHA256]); !local {
				missing = append(missing, w)
			}
		}
		if len(missing) > 0 {
			return &MissingError{Wheels: missing}
		}
	}
	f := &fetcher{FetchOptions: o, dir: dir}
	if !o.Offline {
		client, err := o.Settings.client()
		if err != nil {
			return fmt.Errorf("fetching wheels: %w", err)
		}
		f.client = client
		defer client.CloseIdleConnections()
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Parallel)
	for _, w := range wheels {
		g.Go(func() error { return f.one(gctx, w, urls[w.SHA256]) })
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("fetching wheels: %w", context.Cause(ctx))
		}
		return err
	}
	return nil
}

func (o *FetchOptions) defaults() {
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Tries <= 0 {
		o.Tries = 5
	}
	if o.Backoff <= 0 {
		o.Backoff = time.Second
	}
	if o.Stall <= 0 {
		o.Stall = time.Minute
	}
}

// one fetches one wheel under the lock of its directory.
func (f *fetcher) one(ctx context.Context, w matrix.Wheel, address string) error {
	if have(f.dir, w) {
		f.report(Progress{Wheel: w, Done: w.Size, Cached: true})
		return nil
	}
	home := filepath.Join(f.dir, w.SHA256)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return diskError(w, err)
	}
	lock := flock.New(filepath.Join(home, ".lock"))
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("fetching %s: locking %s: %w", w.File, home, err)
	}
	defer func() { _ = lock.Unlock() }()
	if have(f.dir, w) { // another process was faster
		f.report(Progress{Wheel: w, Done: w.Size, Cached: true})
		return nil
	}
	if address == "" {
		return &Error{Class: NotFound, Doing: "fetching " + w.File, Reason: "no index or directory has it", Remedy: NotFound.remedy()}
	}
	if local, ok := localPath(address); ok {
		return f.local(w, local)
	}
	return f.download(ctx, w, address)
}

// local takes a wheel from a directory: by a hard link where that is possible, else by copying.
func (f *fetcher) local(w matrix.Wheel, source string) error {
	if err := checkFile(source, w.SHA256); err != nil {
		return fmt.Errorf("fetching %s: %w", w.File, err)
	}
	part := f.part(w)
	_ = os.Remove(part)
	if resolved, err := filepath.EvalSymlinks(source); err == nil {
		source = resolved
	}
	if err := os.Link(source, part); err != nil {
		if err := copyFile(source, part); err != nil {
			return diskError(w, err)
		}
	}
	if err := f.finish(w); err != nil {
		return err
	}
	f.report(Progress{Wheel: w, Done: w.Size})
	return nil
}

func (f *fetcher) part(w matrix.Wheel) string { return WheelPath(f.dir, w) + ".part" }

// finish gives a checked file its name. A size that differs from the lock is a fault of the lock.
func (f *fetcher) finish(w matrix.Wheel) error {
	fi, err := os.Stat(f.part(w))
	if err != nil {
		return diskError(w, err)
	}
	if fi.Size() != w.Size {
		return &Error{Class: HashMismatch, Doing: "fetching " + w.File, Reason: fmt.Sprintf("it has %d bytes, the lock says %d", fi.Size(), w.Size), Remedy: "make the lock again with imgsmith lock"}
	}
	if err := os.Rename(f.part(w), WheelPath(f.dir, w)); err != nil {
		return diskError(w, err)
	}
	_ = os.Remove(f.part(w) + ".etag")
	return nil
}

func (f *fetcher) report(p Progress) {
	if f.Progress != nil {
		f.Progress(p)
	}
}

func diskError(w matrix.Wheel, cause error) error {
	e := &Error{Class: Other, Doing: "fetching " + w.File, Reason: "the store could not be written", Cause: cause, Detail: cause.Error(), Remedy: "check its owner and mode, or name another with --store"}
	if errors.Is(cause, syscall.ENOSPC) || errors.Is(cause, syscall.EDQUOT) {
		e.Class, e.Reason, e.Remedy = DiskFull, "the disk is full", DiskFull.remedy()
	}
	return e
}

// checkFile compares a file with a sha256 in hex.
func checkFile(path, want string) error {
	got, err := hashFile(path)
	if err != nil {
		return err
	}
	if got != want {
		return &Error{Class: HashMismatch, Doing: "checking " + path, Reason: fmt.Sprintf("its sha256 is %s, expected %s", got, want), Remedy: "put the right file there, or correct the sha256"}
	}
	return nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}
