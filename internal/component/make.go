package component

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/wheel"
)

// Archive is an opened wheel file.
type Archive interface {
	io.ReaderAt
	io.Closer
}

// OpenWheel gives the file of a locked wheel. Its hash is checked by the component maker.
type OpenWheel func(matrix.Wheel) (Archive, error)

// CollisionError means that two wheels of one component bring different things at one path.
type CollisionError struct {
	Path   string
	Wheels [2]string // file names
}

// Error names path, wheels and the remedy.
func (e *CollisionError) Error() string {
	return fmt.Sprintf("/%s comes from %s and, with other content or mode, from %s: these two cannot be in one image; "+
		"leave one out or pin a version that does not carry the file", e.Path, e.Wheels[0], e.Wheels[1])
}

// MismatchError means that a wheel file is not the one that the lock names.
type MismatchError struct{ File, Want, Got string }

// Error names the file and both values.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("wheel %s is not the locked one: %s where the lock has %s; fetch it again", e.File, e.Got, e.Want)
}

// placed is an item with the wheel that it comes from.
type placed struct {
	wheel.Item
	from *wheel.Wheel
}

// Make writes the layer of a component to w. The record has no image and no table digest yet; the store adds
// them. The same spec gives the same bytes on every host.
func Make(ctx context.Context, w io.Writer, s Spec, open OpenWheel) (Record, rootfs.Layer, error) {
	fail := func(err error) (Record, rootfs.Layer, error) {
		return Record{}, nil, fmt.Errorf("making component %s: %w", s.Name, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	archives := make([]Archive, 0, len(s.Wheels))
	defer func() {
		for _, a := range archives {
			_ = a.Close() // only read from
		}
	}()
	defer group.Wait() //nolint:errcheck // before the archives close; a failure is returned below
	var items []placed
	for _, lw := range s.Wheels {
		a, err := open(lw)
		if err != nil {
			return fail(fmt.Errorf("opening wheel %s: %w", lw.File, err))
		}
		archives = append(archives, a)
		opened, err := wheel.Open(lw.File, a, lw.Size)
		if err != nil {
			return fail(err)
		}
		its, err := s.place(opened)
		if err != nil {
			return fail(err)
		}
		items = append(items, its...)
	}
	items, err := s.settle(items)
	if err != nil {
		return fail(err)
	}
	group.Go(func() error {
		for i, lw := range s.Wheels {
			if err := checkWheel(ctx, archives[i], lw); err != nil {
				return err
			}
		}
		return nil
	})
	rec, table, err := writeItems(ctx, w, items, s.Options)
	if gerr := group.Wait(); gerr != nil {
		err = gerr
	}
	if err != nil {
		return fail(err)
	}
	rec.Name, rec.Key = s.Name, s.Key()
	return rec, table, nil
}

// checkWheel hashes the whole file: RECORD vouches for the members, only the lock for RECORD.
func checkWheel(ctx context.Context, r io.ReaderAt, lw matrix.Wheel) error {
	h := sha256.New()
	buf := make([]byte, asyncChunk)
	src := io.NewSectionReader(r, 0, lw.Size+1)
	var n int64
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c, err := src.Read(buf)
		h.Write(buf[:c])
		n += int64(c)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("hashing wheel %s: %w", lw.File, err)
		}
	}
	if n != lw.Size {
		return &MismatchError{File: lw.File, Want: fmt.Sprintf("%d bytes", lw.Size), Got: fmt.Sprintf("%d bytes or more", n)}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != lw.SHA256 {
		return &MismatchError{File: lw.File, Want: "sha256 " + lw.SHA256, Got: "sha256 " + got}
	}
	return nil
}

// place lists the items of this component's side.
func (s Spec) place(w *wheel.Wheel) ([]placed, error) {
	items, err := w.Plan(s.Layout, slices.Contains(s.Requested, wheel.NormalizeName(w.Name)))
	if err != nil {
		return nil, err
	}
	var out []placed
	for _, it := range items {
		if s.Side == layout.SideAll || it.Side == s.Side {
			out = append(out, placed{it, w})
		}
	}
	return out, nil
}

// settle sorts the items, merges equal ones, refuses the others, and applies a test layout's damage.
func (s Spec) settle(items []placed) ([]placed, error) {
	slices.SortStableFunc(items, func(a, b placed) int { return strings.Compare(a.Path, b.Path) })
	var out []placed
	for _, it := range items {
		if len(out) > 0 && out[len(out)-1].Path == it.Path {
			prev := out[len(out)-1]
			if !it.SameAs(prev.Item) {
				return nil, &CollisionError{Path: it.Path, Wheels: [2]string{prev.from.File, it.from.File}}
			}
			continue
		}
		out = append(out, it)
	}
	for _, m := range s.Layout.Break {
		out = damage(out, m)
	}
	return out, nil
}

func damage(items []placed, m layout.Mutation) []placed {
	for i := range items {
		if ok, err := path.Match(m.Path, items[i].Path); err != nil || !ok {
			continue
		}
		if m.Drop {
			return slices.Delete(items, i, i+1)
		}
		items[i].Item = wheel.Item{Path: items[i].Path, Mode: 0o777, Side: items[i].Side, Link: m.Link}
	}
	return items
}

func writeItems(ctx context.Context, w io.Writer, items []placed, opts Options) (Record, rootfs.Layer, error) {
	l, err := newLayerWriter(w, opts)
	if err != nil {
		return Record{}, nil, err
	}
	for _, it := range items {
		if err := l.item(ctx, it); err != nil {
			l.abort()
			return Record{}, nil, err
		}
	}
	rec, err := l.finish()
	return rec, l.table, err
}

func (l *layerWriter) item(ctx context.Context, it placed) error {
	n := rootfs.Node{Path: it.Path, Type: rootfs.Regular, Mode: it.Mode, Size: int64(len(it.Data))}
	switch {
	case it.Link != "":
		if err := l.parents(n.Path); err != nil {
			return err
		}
		n.Type, n.Link, n.Size = rootfs.Symlink, it.Link, 0
		return l.header(n)
	case it.Member == nil:
		return l.bytes(ctx, n, it.Data)
	}
	m := *it.Member
	n.Size = m.Size
	open := func(raw io.Writer) (io.Reader, error) {
		c, err := it.from.OpenMember(m, raw)
		if err != nil || it.Digest != "" {
			return c, err
		}
		return struct{ io.Reader }{c}, nil // RECORD has another hash than the table: the writer hashes itself
	}
	return l.file(ctx, n, open, m.Deflated && m.Size > passthroughMin, m.CRC32)
}
