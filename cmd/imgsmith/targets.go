package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"imgsmith/internal/component"
	"imgsmith/internal/engine"
	"imgsmith/internal/matrix"
	"imgsmith/internal/resolve"
)

// targets turns entries into targets: from the lock when it belongs to the recipe, else by resolving.
type targets struct {
	s       *session
	recipe  *matrix.Recipe
	lock    *matrix.Lock // nil: none that belongs to the recipe
	offline bool
	made    []matrix.Target
	urls    map[string]resolve.URLs // by entry, known after resolving
}

// loadTargets reads the lock beside the recipe. With locked, a missing or stale lock is an error.
func (s *session) loadTargets(r *matrix.Recipe, locked, offline bool) (*targets, error) {
	t := &targets{s: s, recipe: r, offline: offline, urls: map[string]resolve.URLs{}}
	file := matrix.LockPath(r.File)
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("there is no lock %s", file)
	case err != nil:
		return nil, &usageError{fmt.Errorf("reading lock: %w", err)}
	default:
		var l *matrix.Lock
		if l, err = matrix.LoadLock(file, data); err != nil {
			return nil, &usageError{err}
		}
		if err = l.Matches(r); err == nil {
			t.lock = l
			return t, nil
		}
	}
	if locked {
		return nil, &usageError{fmt.Errorf("--locked: %w; run imgsmith lock %s", err, r.File)}
	}
	return t, nil
}

// target returns the target of an entry on its base.
func (t *targets) target(ctx context.Context, e matrix.Entry, b *base) (matrix.Target, error) {
	if t.lock != nil {
		if have, ok := t.lock.Target(e.Name); ok {
			return t.onBase(have, e, b)
		}
	}
	r, err := t.resolver()
	if err != nil {
		return matrix.Target{}, err
	}
	got, urls, warnings, err := r.Target(ctx, e, b.info())
	if err != nil {
		return matrix.Target{}, err
	}
	for _, w := range warnings {
		t.s.app.note("warning: %s: %s; %s", w.Entry, w.Message, w.Remedy)
	}
	t.urls[e.Name] = urls
	t.made = append(t.made, got)
	return got, nil
}

// onBase checks that a locked target fits the base that is there.
func (t *targets) onBase(have matrix.Target, e matrix.Entry, b *base) (matrix.Target, error) {
	switch {
	case have.Base.Digest != "" && have.Base.Digest != b.ManifestDigest && !b.Local:
		return have, fmt.Errorf("base %s is %s, the lock has %s; run imgsmith lock %s to take the new one", e.Base, b.ManifestDigest, have.Base.Digest, t.recipe.File)
	case have.Base.Glibc != b.info().Glibc:
		return have, fmt.Errorf("base %s has glibc %q, the lock was made for %q; run imgsmith lock %s", e.Base, b.info().Glibc, have.Base.Glibc, t.recipe.File)
	}
	have.Base.Digest, have.Base.Local, have.Lines = b.ManifestDigest, b.Local, e.Lines
	return have, nil
}

// save writes the lock when every entry was resolved anew.
func (t *targets) save() error {
	if t.lock != nil || len(t.made) != len(t.recipe.Entries) {
		return nil
	}
	data, err := matrix.NewLock(t.recipe, t.made).Marshal()
	if err != nil {
		return err
	}
	file := matrix.LockPath(t.recipe.File)
	tmp := file + ".new"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("writing lock: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("writing lock: %w", err)
	}
	t.s.app.note("wrote %s", file)
	return nil
}

func (t *targets) resolver() (*resolve.Resolver, error) {
	uv := t.s.app.env("IMGSMITH_UV")
	if uv == "" {
		var err error
		if uv, err = engine.Lookup("uv", t.s.app.flags.engineDir); err != nil {
			return nil, err
		}
	}
	encoders := map[string]string{}
	for _, a := range []string{"zstd", "gzip"} {
		encoders[a] = component.DefaultEncoder(a)
	}
	return &resolve.Resolver{UV: uv, Facts: t.s.facts, Settings: resolve.HostSettings(os.Environ()), Encoders: encoders,
		Dir: filepath.Dir(t.recipe.File), Offline: t.offline}, nil
}

// wheels gives the wheel files of one target, fetched when first asked for.
type wheels struct {
	t     *targets
	entry matrix.Entry
	made  matrix.Target
	dir   string
}

func (t *targets) wheels(e matrix.Entry, made matrix.Target) *wheels {
	return &wheels{t: t, entry: e, made: made, dir: filepath.Join(t.s.store.Dir(), "wheels")}
}

// need fetches what is not there yet.
func (w *wheels) need(ctx context.Context, ws []matrix.Wheel) error {
	seen := map[string]bool{} // a wheel with files on both sides is asked for by two components
	missing := slices.DeleteFunc(resolve.Missing(ws, w.dir), func(m matrix.Wheel) bool {
		was := seen[m.SHA256]
		seen[m.SHA256] = true
		return was
	})
	if len(missing) == 0 {
		return nil
	}
	urls, ok := w.t.urls[w.entry.Name]
	if !ok {
		r, err := w.t.resolver()
		if err != nil {
			return err
		}
		if urls, err = r.Locate(ctx, w.entry, w.made); err != nil {
			return err
		}
		w.t.urls[w.entry.Name] = urls
	}
	var bytes int64
	for _, m := range missing {
		bytes += m.Size
	}
	w.t.s.app.note("  fetch %d wheels (%.0f MB)", len(missing), float64(bytes)/1e6)
	return resolve.Fetch(ctx, missing, urls, w.dir, resolve.FetchOptions{Settings: resolve.HostSettings(os.Environ()), Offline: w.t.offline})
}

// open implements component.OpenWheel.
func (w *wheels) open(m matrix.Wheel) (component.Archive, error) {
	return os.Open(resolve.WheelPath(w.dir, m))
}
