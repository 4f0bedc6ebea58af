package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"imgsmith/internal/component"
	"imgsmith/internal/engine"
	"imgsmith/internal/layout"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/twin"
)

// makers bounds how many components are made at once: each holds one processor.
const makers = 2

// prepared is one target with every layer made and the tree that they give.
type prepared struct {
	target     matrix.Target
	base       *base
	layout     layout.Resolved
	specs      []component.Spec
	layers     []component.Record // of ours, in image order
	made       map[string]bool    // keys made in this run
	tree       *rootfs.Tree
	violations []rootfs.Violation
}

// preparer makes the layers of one target.
type preparer struct {
	s    *session
	w    *wheels
	opts component.Options
	lay  layout.Resolved
	p    *prepared
	base llb.BaseImage
}

// prepare makes what is missing: OS packages, virtual environment, components, bytecode, loader cache, finishing.
// No step stands on the merged image.
func (s *session) prepare(ctx context.Context, t matrix.Target, lay layout.Layout, b *base, ws *wheels) (*prepared, error) {
	r, err := lay.At(layout.Vars{CUDA: t.CUDA, Python: t.Python.Version, Platform: t.Platform})
	if err != nil {
		return nil, err
	}
	specs, err := component.Plan(t, lay)
	if err != nil {
		return nil, err
	}
	opts := component.Options{Compression: t.Compression, Epoch: t.Epoch, Platform: t.Platform, Parents: b.parents(r)}
	for i := range specs {
		specs[i].Options = opts
	}
	w := &preparer{s: s, w: ws, opts: opts, lay: r, base: b.image(),
		p: &prepared{target: t, base: b, layout: r, specs: specs, made: map[string]bool{}}}
	if err := w.all(ctx); err != nil {
		return nil, err
	}
	return w.p, nil
}

func (w *preparer) all(ctx context.Context) error {
	below, err := w.interpreter(ctx)
	if err != nil {
		return err
	}
	components, err := w.components(ctx)
	if err != nil {
		return err
	}
	bytecode, err := w.bytecode(ctx, below, components)
	if err != nil {
		return err
	}
	finish, err := w.finish(ctx, below, components)
	if err != nil {
		return err
	}
	w.p.layers = slices.Concat(below, components, bytecode, finish)
	return w.compose()
}

// interpreter makes the OS packages (when the OS supplies Python) and the virtual environment.
func (w *preparer) interpreter(ctx context.Context) ([]component.Record, error) {
	var below []component.Record
	t := w.p.target
	if len(t.OSPackages) > 0 {
		rec, err := w.osPackages(ctx)
		if err != nil {
			return nil, err
		}
		below = append(below, rec)
	}
	prog, err := llb.VenvStep(t, w.base, refs(below))
	if err != nil {
		return nil, err
	}
	rec, err := w.step(ctx, "venv", prog)
	if err != nil {
		return nil, err
	}
	return append(below, rec), nil
}

// step returns the rewritten result of a program; the engine runs it only when the store lacks it. The key
// covers the whole definition, so a changed script or base is another layer.
func (w *preparer) step(ctx context.Context, name string, prog llb.Program) (component.Record, error) {
	opts := component.RewriteOptions{Options: w.opts, Drop: w.lay.StepDrop}
	var def strings.Builder
	for _, op := range prog.Def.Def {
		fmt.Fprintf(&def, "%x\n", op)
	}
	key := component.HashKey("step", name, def.String(), fmt.Sprintf("%+v", opts.Compression), fmt.Sprint(opts.Epoch), strings.Join(opts.Drop, "\n"))
	_, have, err := w.s.store.Lookup(ctx, key)
	if err != nil {
		return component.Record{}, err
	}
	var eng engine.Engine
	if !have { // before the layer's lock: who has the engine may wait for a layer, never the other way round
		if eng, err = w.s.engine(ctx); err != nil {
			return component.Record{}, err
		}
	}
	rec, made, err := w.s.store.EnsureRewrite(ctx, key, name, func() (io.ReadCloser, error) {
		if eng == nil {
			return nil, fmt.Errorf("the layer %s was removed from the store while it was in use; run the same command again", name)
		}
		r, pw := io.Pipe()
		go func() { pw.CloseWithError(eng.Extract(ctx, prog, pw)) }()
		return r, nil
	}, opts)
	var failed *engine.StepError
	if errors.As(err, &failed) {
		err = failed // what read its result adds nothing to it
	}
	return w.note(rec, made, err)
}

// note remembers and tells what was made.
func (w *preparer) note(rec component.Record, made bool, err error) (component.Record, error) {
	if err == nil && made {
		w.p.made[rec.Key] = true
		w.s.app.note("  made  %s (%.1f MB)", rec.Name, float64(rec.Size)/1e6)
	}
	return rec, err
}

func (w *preparer) components(ctx context.Context) ([]component.Record, error) {
	out, made := make([]component.Record, len(w.p.specs)), make([]bool, len(w.p.specs))
	var need []matrix.Wheel
	for _, spec := range w.p.specs {
		_, ok, err := w.s.store.Lookup(ctx, spec.Key())
		if err != nil {
			return nil, err
		}
		if !ok {
			need = append(need, spec.Wheels...)
		}
	}
	if err := w.w.need(ctx, need); err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(makers)
	for _, i := range biggestFirst(w.p.specs) {
		g.Go(func() (err error) {
			out[i], made[i], err = w.s.store.Ensure(ctx, w.p.specs[i], w.w.open)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i := range out {
		if _, err := w.note(out[i], made[i], nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// biggestFirst orders components by the size of their wheels, so that no processor is left alone with a big one.
func biggestFirst(specs []component.Spec) []int {
	size := func(i int) (n int64) {
		for _, w := range specs[i].Wheels {
			n += w.Size
		}
		return n
	}
	order := make([]int, len(specs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(b), size(a)) })
	return order
}

// bytecode compiles the Python files of each component on a twin that holds only them.
func (w *preparer) bytecode(ctx context.Context, below, components []component.Record) ([]component.Record, error) {
	if !w.p.target.Bytecode {
		return nil, nil
	}
	var out []component.Record
	for i, spec := range w.p.specs {
		if spec.Side != layout.SideAll {
			continue // what lies in the CUDA tree is only package markers
		}
		tw, err := w.sources(ctx, spec, components[i])
		if err != nil {
			return nil, err
		}
		prog, err := llb.BytecodeStep(w.p.target, w.base, refs(below), ref(tw), nil)
		if err != nil {
			return nil, err
		}
		rec, err := w.step(ctx, "bytecode-"+spec.Name, prog)
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
	return out, nil
}

// sources is the twin of a component for the bytecode step.
func (w *preparer) sources(ctx context.Context, spec component.Spec, rec component.Record) (component.Record, error) {
	key := component.HashKey("twin-bytecode", rec.Key, rec.Digest)
	if have, ok, err := w.s.store.Lookup(ctx, key); err != nil || ok {
		return have, err
	}
	if err := w.w.need(ctx, spec.Wheels); err != nil {
		return component.Record{}, err
	}
	table, err := w.s.store.Table(rec)
	if err != nil {
		return component.Record{}, err
	}
	content, err := component.Contents(ctx, spec, w.w.open, func(p string) bool { return path.Ext(p) == ".py" })
	if err != nil {
		return component.Record{}, err
	}
	entries, err := asEntries(twin.Bytecode(table, "", w.opts.Epoch, func(n rootfs.Node) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content[n.Path])), nil
	}))
	if err != nil {
		return component.Record{}, err
	}
	got, _, err := w.s.store.EnsureLayer(ctx, key, "twin-"+spec.Name, entries, w.opts)
	return got, err
}

// finish makes the loader cache on a twin of the CUDA libraries, and the finishing layer.
func (w *preparer) finish(ctx context.Context, below, components []component.Record) ([]component.Record, error) {
	var tables []rootfs.Layer
	for i, spec := range w.p.specs {
		if spec.Side != layout.SideCUDA {
			continue
		}
		t, err := w.s.store.Table(components[i])
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	last, err := finishing(w.p.target, w.lay, w.p.specs, slices.Concat(below, components))
	if err != nil {
		return nil, err
	}
	tree, err := rootfs.Apply(append(tables, asLayer(last))...)
	if err != nil {
		return nil, err
	}
	entries, err := w.stubs(tree)
	if err != nil {
		return nil, err
	}
	tw, _, err := w.s.store.EnsureLayer(ctx, entriesKey(entries, w.opts), "twin-ldconfig", entries, w.opts)
	if err != nil {
		return nil, err
	}
	prog, err := llb.LdconfigStep(w.p.target, w.base, refs(below), ref(tw))
	if err != nil {
		return nil, err
	}
	cache, err := w.step(ctx, "loader-cache", prog)
	if err != nil {
		return nil, err
	}
	rec, made, err := w.s.store.EnsureLayer(ctx, entriesKey(last, w.opts), "finishing", last, w.opts)
	if _, err := w.note(rec, made, err); err != nil {
		return nil, err
	}
	return []component.Record{cache, rec}, nil
}

// stubs are the stand-ins for the libraries in the loader's directories, and the file that names these.
func (w *preparer) stubs(tree *rootfs.Tree) ([]component.Entry, error) {
	found, err := twin.Ldconfig(tree, strings.Fields(w.lay.LoaderText), w.opts.Epoch)
	if err != nil {
		return nil, err
	}
	entries, err := asEntries(found)
	return append(entries, component.File(w.lay.LoaderFile, 0o644, []byte(w.lay.LoaderText))), err
}

// asEntries reads the content of a twin's entries into memory: they are small.
func asEntries(in []rootfs.Entry) ([]component.Entry, error) {
	var out []component.Entry
	for _, e := range in {
		c := component.Entry{Path: e.Path, Type: e.Type, Mode: e.Mode, UID: e.UID, GID: e.GID, Link: e.Link, Data: e.Data}
		if e.Open != nil {
			r, err := e.Open()
			if err != nil {
				return nil, err
			}
			c.Data, err = io.ReadAll(r)
			if err = errors.Join(err, r.Close()); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// asLayer is what the tree shows of entries that are not written yet.
func asLayer(es []component.Entry) rootfs.Layer {
	var out rootfs.Layer
	for _, e := range es {
		out = append(out, rootfs.Node{Path: e.Path, Type: e.Type, Mode: e.Mode, UID: e.UID, GID: e.GID, Link: e.Link, Size: int64(len(e.Data)), Data: e.Data})
	}
	return out
}

// entriesKey covers every byte of a layer made from entries.
func entriesKey(es []component.Entry, opts component.Options) string {
	parts := []string{"entries", fmt.Sprintf("%+v", opts.Compression), fmt.Sprint(opts.Epoch, opts.Parents)}
	for _, e := range es {
		parts = append(parts, fmt.Sprintf("%s %s %o %d %d %s", e.Path, e.Type, e.Mode, e.UID, e.GID, e.Link), string(e.Data))
	}
	return component.HashKey(parts...)
}

// compose applies all tables and keeps the tree and every broken rule.
func (w *preparer) compose() (err error) {
	var parts []rootfs.Part
	for _, rec := range w.p.layers {
		t, err := w.s.store.Table(rec)
		if err != nil {
			return err
		}
		step := strings.HasPrefix(rec.Name, "os-") || rec.Name == "loader-cache"
		parts = append(parts, rootfs.Part{Name: rec.Name, Layer: t, Component: !step})
	}
	w.p.tree, w.p.violations, err = rootfs.Compose(w.p.base.flat, parts)
	return err
}
