package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"imgsmith/internal/component"
	"imgsmith/internal/engine"
	"imgsmith/internal/matrix"
	"imgsmith/internal/resolve"
	"imgsmith/recipes"
)

// targets turns entries into targets: from the lock when it belongs to the recipe, else by resolving.
type targets struct {
	s       *session
	recipe  *matrix.Recipe
	lock    *matrix.Lock // nil: none that belongs to the recipe
	before  *matrix.Lock // what stood in the file, also when it is stale; nil: nothing that can be read
	upgrade []string     // packages that leave their locked version; "all", "os"
	offline bool
	made    []matrix.Target
	changes []string                // of the lock that was written
	asked   map[string][]matrix.Deb // OS packages by base and names: entries of one run share the answer
	urls    map[string]resolve.URLs // by entry, known after resolving
}

// loadTargets reads the lock beside the recipe. With locked, a missing or stale lock is an error.
func (s *session) loadTargets(r *matrix.Recipe, locked, offline bool) (*targets, error) {
	t := &targets{s: s, recipe: r, offline: offline, urls: map[string]resolve.URLs{}}
	err := t.read()
	var l *matrix.LoadError
	var p *matrix.Problem
	switch {
	case errors.As(err, &l), errors.As(err, &p):
		return nil, &usageError{err}
	case err == nil:
		if err = t.before.Matches(r); err == nil {
			t.lock = t.before
			return t, nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, &usageError{fmt.Errorf("reading lock: %w", err)}
	default:
		err = fmt.Errorf("there is no lock %s", matrix.LockPath(r.File))
	}
	if locked {
		return nil, &usageError{fmt.Errorf("--locked: %w; run imgsmith lock %s", err, r.File)}
	}
	return t, nil
}

// read reads what stands in the lock file.
func (t *targets) read() error {
	file := matrix.LockPath(t.recipe.File)
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	t.before, err = matrix.LoadLock(file, data)
	return err
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
	var old *matrix.Target
	if t.before != nil {
		if have, ok := t.before.Target(e.Name); ok {
			old = &have
		}
	}
	got, urls, warnings, err := r.TargetLike(ctx, e, b.info(), t.keep(old))
	if err != nil {
		t.s.app.verbose(err)
		return matrix.Target{}, err
	}
	for _, w := range warnings {
		t.s.app.note("note: %s: %s; %s", w.Entry, w.Message, w.Remedy)
	}
	got.Overrides = t.s.overrides[e.Name]
	if got.LayoutSum, err = layoutSum(e.Layout, filepath.Dir(t.recipe.File)); err != nil {
		return matrix.Target{}, err
	}
	if got.Debs, err = t.debs(ctx, got, old, b); err != nil {
		return matrix.Target{}, err
	}
	t.urls[e.Name] = urls
	t.made = append(t.made, got)
	return got, nil
}

// keep gives the wheels whose versions stay where the recipe allows it.
func (t *targets) keep(old *matrix.Target) []matrix.Wheel {
	if old == nil || slices.Contains(t.upgrade, "all") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(old.Wheels), func(w matrix.Wheel) bool {
		return slices.ContainsFunc(t.upgrade, func(u string) bool { return matrix.NormalizeName(u) == w.Name })
	})
}

// debs gives the package files of the OS step: those of the older lock while they answer the same question, else
// what the base's package manager names now.
func (t *targets) debs(ctx context.Context, got matrix.Target, old *matrix.Target, b *base) ([]matrix.Deb, error) {
	if len(got.OSPackages) == 0 {
		return nil, nil
	}
	moves := slices.Contains(t.upgrade, "all") || slices.Contains(t.upgrade, "os")
	if old != nil && len(old.Debs) > 0 && !moves && slices.Equal(old.OSPackages, got.OSPackages) && old.Base.Name == got.Base.Name &&
		old.Base.Local == got.Base.Local && (got.Base.Local || old.Base.Digest == got.Base.Digest) {
		return old.Debs, nil
	}
	if t.offline {
		return nil, errors.New("offline: the OS packages of the base cannot be pinned; run imgsmith lock once without --offline")
	}
	same := b.ManifestDigest + " " + strings.Join(got.OSPackages, " ")
	if have, ok := t.asked[same]; ok {
		return have, nil
	}
	debs, err := t.s.lockDebs(ctx, got, b)
	if err == nil {
		if t.asked == nil {
			t.asked = map[string][]matrix.Deb{}
		}
		t.asked[same] = debs
	}
	return debs, err
}

// layoutSum is the checksum of an image layout's file.
func layoutSum(name, dir string) (string, error) {
	var data []byte
	var err error
	if !strings.ContainsRune(name, '/') && filepath.Ext(name) == "" {
		data, err = recipes.Files.ReadFile("layouts/" + name + ".yaml")
	} else {
		data, err = os.ReadFile(filepath.Join(dir, name))
	}
	if err != nil {
		return "", &usageError{fmt.Errorf("reading layout: %w", err)}
	}
	return matrix.Checksum(data), nil
}

// driftError is something that is no longer what was locked.
type driftError struct{ what, recipe string }

func (e *driftError) Error() string { return e.what }
func (e *driftError) Remedy() string {
	return "imgsmith lock " + e.recipe + " takes what is there now; or bring back what was locked"
}

// onBase checks that a locked target fits what is there.
func (t *targets) onBase(have matrix.Target, e matrix.Entry, b *base) (matrix.Target, error) {
	drift := func(format string, v ...any) error { return &driftError{fmt.Sprintf(format, v...), t.recipe.File} }
	switch {
	case have.Base.Digest != "" && have.Base.Digest != b.ManifestDigest && !b.Local:
		return have, drift("base %s is %s, the lock has %s: the tag moved", e.Base, b.ManifestDigest, have.Base.Digest)
	case have.Base.Local && !b.Local:
		return have, drift("the lock was made with a local base for %s, and none is named with --base", e.Base)
	case b.info().Glibc != "" && have.Base.Glibc != b.info().Glibc:
		return have, drift("base %s has glibc %q, the lock was made for %q", e.Base, b.info().Glibc, have.Base.Glibc)
	}
	sum, err := layoutSum(have.Layout, filepath.Dir(t.recipe.File))
	if err != nil {
		return have, err
	}
	if have.LayoutSum != "" && have.LayoutSum != sum {
		return have, drift("layout %s changed after the lock was made", have.Layout)
	}
	have.Base.Digest, have.Base.Config, have.Base.Local, have.Lines = b.ManifestDigest, b.ConfigDigest, b.Local, e.Lines
	return have, nil
}

// tools are the programs that a lock is made with.
func (t *targets) tools(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	if t.before != nil {
		maps.Copy(out, t.before.Tools)
	}
	r, err := t.resolver()
	if err != nil {
		return nil, err
	}
	if out["uv"], err = r.Version(ctx); err != nil {
		return nil, err
	}
	if t.s.eng != nil {
		info, err := t.s.eng.Info(ctx)
		if err != nil {
			return nil, err
		}
		out["buildkit"] = info.Version
	}
	return out, nil
}

// save writes the lock when every entry was resolved anew.
func (t *targets) save(ctx context.Context) error {
	if t.lock != nil || len(t.made) != len(t.recipe.Entries) {
		return nil
	}
	tools, err := t.tools(ctx)
	if err != nil {
		return err
	}
	l := matrix.NewLock(t.recipe, t.made, tools)
	t.changes = l.Diff(t.before)
	data, err := l.Marshal()
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
