package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"imgsmith/internal/component"
	"imgsmith/internal/engine"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
)

const (
	maxDeb      = 1 << 30 // bytes of one package file
	maxDebIndex = 1 << 20
)

// goneDebsError lists locked OS packages that the index of the base no longer has.
type goneDebsError struct {
	entry string
	debs  []matrix.Deb
}

func (e *goneDebsError) Error() string {
	var names []string
	for _, d := range e.debs {
		names = append(names, d.Name+"="+d.Version)
	}
	return fmt.Sprintf("entry %q: locked OS packages vanished from the package index of the base: %s", e.entry, strings.Join(names, ", "))
}

func (e *goneDebsError) Remedy() string {
	return "name the store that keeps them with --store (every build puts its packages there), or make the lock again with imgsmith lock --upgrade os"
}

// changedDebError is a package file that is not the locked one.
type changedDebError struct {
	file, want, got string
}

func (e *changedDebError) Error() string {
	return fmt.Sprintf("OS package %s has sha256 %s, the lock says %s", e.file, e.got, e.want)
}

func (e *changedDebError) Remedy() string {
	return "the package index serves another file under that version: make the lock again with imgsmith lock --upgrade os if it may be trusted"
}

// debPath is where the store keeps a package file.
func (s *session) debPath(d matrix.Deb) string {
	return filepath.Join(s.store.Dir(), "debs", d.SHA256, d.File)
}

// lockDebs asks the base's own package manager which files it would install for names, keeps them in the store
// and returns them as the lock has them.
func (s *session) lockDebs(ctx context.Context, t matrix.Target, b *base) ([]matrix.Deb, error) {
	prog, err := llb.ResolveDebsStep(t, b.image(), t.OSPackages)
	if err != nil {
		return nil, err
	}
	got, err := s.runDebs(ctx, prog, t)
	if err != nil {
		return nil, fmt.Errorf("pinning OS packages: %w", err)
	}
	return got.debs, nil
}

// missingDebsError lists locked OS packages that offline mode would have to download.
type missingDebsError struct {
	entry string
	debs  []matrix.Deb
}

func (e *missingDebsError) Error() string {
	return fmt.Sprintf("entry %q: offline: %d locked OS packages are not in the store, the first is %s", e.entry, len(e.debs), e.debs[0].File)
}

func (e *missingDebsError) Remedy() string {
	return "name the store that keeps them with --store, or run once without --offline"
}

// needDebs puts locked package files into the store that are not there yet.
func (s *session) needDebs(ctx context.Context, t matrix.Target, b llb.BaseImage, offline bool) error {
	missing := slices.DeleteFunc(slices.Clone(t.Debs), func(d matrix.Deb) bool {
		fi, err := os.Stat(s.debPath(d))
		return err == nil && fi.Size() == d.Size
	})
	if len(missing) == 0 {
		return nil
	}
	if offline {
		return &missingDebsError{t.Entry, missing}
	}
	s.app.note("  fetch %d OS packages", len(missing))
	prog, err := llb.FetchDebsStep(t, b, missing)
	if err != nil {
		return err
	}
	got, err := s.runDebs(ctx, prog, t)
	if err != nil {
		return fmt.Errorf("fetching locked OS packages: %w", err)
	}
	var gone []matrix.Deb
	for _, d := range missing {
		i := slices.IndexFunc(got.debs, func(have matrix.Deb) bool { return have.Name == d.Name && have.Version == d.Version })
		switch {
		case i < 0:
			gone = append(gone, d)
		case got.debs[i].SHA256 != d.SHA256:
			return &changedDebError{d.File, d.SHA256, got.debs[i].SHA256}
		}
	}
	if len(gone) > 0 {
		return &goneDebsError{t.Entry, gone}
	}
	return nil
}

// debsResult is what a step with package files brought.
type debsResult struct{ debs []matrix.Deb }

// runDebs runs a step that brings package files, and puts each into the store under the sum that the signed index
// gives it.
func (s *session) runDebs(ctx context.Context, prog llb.Program, t matrix.Target) (debsResult, error) {
	eng, err := s.engine(ctx)
	if err != nil {
		return debsResult{}, err
	}
	tmp, err := os.MkdirTemp(filepath.Join(s.store.Dir(), "tmp"), "debs-")
	if errors.Is(err, os.ErrNotExist) {
		tmp, err = os.MkdirTemp(s.store.Dir(), "debs-")
	}
	if err != nil {
		return debsResult{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	r, w := io.Pipe()
	go func() { w.CloseWithError(eng.Extract(ctx, prog, w)) }()
	files, index, err := unpackDebs(r, tmp)
	_ = r.CloseWithError(err)
	var failed *engine.StepError
	if errors.As(err, &failed) {
		return debsResult{}, failed
	}
	if err != nil {
		return debsResult{}, err
	}
	return s.keepDebs(files, index, tmp)
}

// unpackDebs writes the package files of a tar into dir; sums are by file name.
func unpackDebs(r io.Reader, dir string) (sums map[string]matrix.Deb, index string, err error) {
	sums = map[string]matrix.Deb{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return sums, index, err
		}
		if err != nil {
			return nil, "", err
		}
		name := path.Base(h.Name)
		switch {
		case h.Typeflag != tar.TypeReg:
		case name == llb.DebsIndex:
			data, err := io.ReadAll(io.LimitReader(tr, maxDebIndex))
			if err != nil {
				return nil, "", err
			}
			index = string(data)
		case strings.HasSuffix(name, ".deb"):
			if h.Size > maxDeb {
				return nil, "", fmt.Errorf("OS package %s has %d bytes", name, h.Size)
			}
			sum, err := writeSum(filepath.Join(dir, name), tr)
			if err != nil {
				return nil, "", err
			}
			sums[name] = matrix.Deb{File: name, SHA256: sum, Size: h.Size}
		}
	}
}

func writeSum(file string, r io.Reader) (string, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), r)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// keepDebs compares every file with the signed index and moves it into the store.
func (s *session) keepDebs(files map[string]matrix.Deb, index, tmp string) (debsResult, error) {
	var out debsResult
	for line := range strings.Lines(index) {
		f := strings.Fields(line)
		if len(f) != 4 {
			return out, fmt.Errorf("reading the list of OS packages: line %q is not NAME VERSION FILE SHA256", strings.TrimSpace(line))
		}
		d, ok := files[f[2]]
		if !ok {
			return out, fmt.Errorf("OS package %s is listed and was not brought", f[2])
		}
		if d.SHA256 != f[3] {
			return out, &changedDebError{f[2], f[3], d.SHA256}
		}
		d.Name, d.Version = f[0], f[1]
		to := s.debPath(d)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return out, err
		}
		if err := os.Rename(filepath.Join(tmp, d.File), to); err != nil {
			return out, err
		}
		out.debs = append(out.debs, d)
	}
	slices.SortFunc(out.debs, func(a, b matrix.Deb) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// debsLayer is the layer that brings locked package files into the OS step. It never is part of an image.
func (w *preparer) debsLayer(ctx context.Context) (component.Record, error) {
	key := []string{"debs"}
	for _, d := range w.p.target.Debs {
		key = append(key, d.File, d.SHA256)
	}
	k := component.HashKey(key...)
	if rec, ok, err := w.s.store.Lookup(ctx, k); err != nil || ok {
		return rec, err
	}
	if err := w.s.needDebs(ctx, w.p.target, w.base, w.w != nil && w.w.t.offline); err != nil {
		return component.Record{}, err
	}
	var entries []component.Entry
	for _, d := range w.p.target.Debs {
		data, err := os.ReadFile(w.s.debPath(d))
		if err != nil {
			return component.Record{}, err
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != d.SHA256 {
			return component.Record{}, &changedDebError{d.File, d.SHA256, hex.EncodeToString(sum[:])}
		}
		entries = append(entries, component.File(llb.DebsDir+"/"+d.File, 0o644, data))
	}
	rec, _, err := w.s.store.EnsureLayer(ctx, k, "os-files", entries, w.opts)
	return rec, err
}

// osPackages makes the layer of the OS packages: from locked files without a network, or, for a lock that has
// none, by name.
func (w *preparer) osPackages(ctx context.Context) (component.Record, error) {
	t := w.p.target
	var prog llb.Program
	if len(t.Debs) > 0 {
		files, err := w.debsLayer(ctx)
		if err != nil {
			return component.Record{}, err
		}
		if prog, err = llb.LockedOSStep(t, w.base, ref(files)); err != nil {
			return component.Record{}, err
		}
	} else {
		w.s.app.note("  note: the lock of %s pins no OS packages: they are installed by name; imgsmith lock pins them", t.Entry)
		var err error
		if prog, err = llb.OSStep(t, w.base, t.OSPackages); err != nil {
			return component.Record{}, err
		}
	}
	return w.step(ctx, "os-packages", prog)
}
