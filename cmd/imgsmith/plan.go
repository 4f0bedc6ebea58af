package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"imgsmith/internal/component"
	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
	"imgsmith/internal/resolve"
)

func (a *app) plan() *cobra.Command {
	return &cobra.Command{
		Use:   "plan FILE",
		Short: "Says what a build would make: entries, cells left out and why, bytes, shared layers",
		Long: `Judges a recipe as lint does, and reads its lock: which layers entries share, how many
bytes of packages they take, and how many of these the store lacks. Needs no network
and no daemon. Exit codes are those of lint.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, file []string) error {
			return a.runPlan(cmd.Context(), file[0])
		},
	}
}

func (a *app) runPlan(ctx context.Context, file string) error {
	table, err := a.facts()
	if err != nil {
		return err
	}
	r, findings, err := loadRecipe(file, table)
	if err != nil {
		return err
	}
	d := report.Document{Command: "plan", Recipe: file, Entries: linted(r, findings)}
	for _, x := range r.Dropped {
		d.Dropped = append(d.Dropped, report.Dropped(x))
	}
	d.Plan = &report.Plan{Cells: len(r.Entries) + len(r.Dropped)}
	t := &targets{recipe: r}
	if err := t.read(); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			return &usageError{err}
		}
		d.Plan.WhyNot = "there is no lock " + matrix.LockPath(file)
		return a.write(d)
	}
	if err := t.before.Matches(r); err != nil {
		d.Plan.WhyNot = err.Error()
		return a.write(d)
	}
	store, err := component.OpenStore(ctx, a.flags.store)
	if err != nil {
		return err
	}
	p := planner{plan: d.Plan, store: store, dir: filepath.Dir(file), index: map[string]int{}, seen: map[string]bool{}, layers: map[string][]planned{}}
	for _, target := range t.before.Targets {
		if err := p.add(ctx, target); err != nil {
			return err
		}
	}
	d.Plan.Locked = true
	return a.write(d)
}

// planner sums the layers and files of targets.
type planner struct {
	plan   *report.Plan
	store  *component.Store
	dir    string
	index  map[string]int // of a layer by key
	seen   map[string]bool
	layers map[string][]planned // by what decides them
}

func (p *planner) add(ctx context.Context, t matrix.Target) error {
	layers, err := p.layersOf(t)
	if err != nil {
		return err
	}
	for _, l := range layers {
		if err := p.layer(ctx, t.Entry, l); err != nil {
			return err
		}
	}
	wheels := filepath.Join(p.store.Dir(), "wheels")
	for _, w := range t.Wheels {
		p.file(w.SHA256, w.Size, func() bool { return len(resolve.Missing([]matrix.Wheel{w}, wheels)) > 0 })
	}
	for _, d := range t.Debs {
		p.file(d.SHA256, d.Size, func() bool {
			_, err := os.Stat(filepath.Join(p.store.Dir(), "debs", d.SHA256, d.File))
			return err != nil
		})
	}
	return nil
}

// planned is a layer with its key.
type planned struct {
	spec component.Spec
	key  string
}

// layersOf plans the layers of a target; targets that differ in nothing that a layer reads are planned once.
func (p *planner) layersOf(t matrix.Target) ([]planned, error) {
	if len(t.Wheels) == 0 {
		return nil, fmt.Errorf("target %q has no wheels", t.Entry)
	}
	same := fmt.Sprintf("%p %d %s %s %s %s %v %d %v", &t.Wheels[0], len(t.Wheels), t.Layout, t.CUDA, t.Python.Version, t.Platform, t.Compression, t.Epoch, t.Requested)
	if have, ok := p.layers[same]; ok {
		return have, nil
	}
	lay, err := findLayout(t.Layout, p.dir)
	if err != nil {
		return nil, err
	}
	specs, err := component.Plan(t, lay)
	if err != nil {
		return nil, err
	}
	var out []planned
	for _, s := range specs {
		out = append(out, planned{s, s.Key()})
	}
	p.layers[same] = out
	return out, nil
}

// layer counts one layer. A wheel with a CUDA side is counted in the layer of that side.
func (p *planner) layer(ctx context.Context, entry string, pl planned) error {
	p.plan.LayerCount++
	s, key := pl.spec, pl.key
	i, ok := p.index[key]
	if !ok {
		l := report.PlanLayer{Name: s.Name, Key: key, Wheels: len(s.Wheels)}
		if s.Side != layout.SidePython {
			for _, w := range s.Wheels {
				l.Bytes += w.Size
			}
		}
		var err error
		if _, l.Made, err = p.store.Lookup(ctx, key); err != nil {
			return fmt.Errorf("reading the store: %w", err)
		}
		i = len(p.plan.Layers)
		p.index[key], p.plan.Layers = i, append(p.plan.Layers, l)
	}
	p.plan.Layers[i].Entries = append(p.plan.Layers[i].Entries, entry)
	return nil
}

func (p *planner) file(sum string, size int64, missing func() bool) {
	p.plan.Bytes += size
	if p.seen[sum] {
		return
	}
	p.seen[sum] = true
	p.plan.Unique += size
	if missing() {
		p.plan.Missing += size
	}
}
