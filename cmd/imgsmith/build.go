package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"imgsmith/internal/engine"
	"imgsmith/internal/layout"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/publish"
	"imgsmith/internal/report"
	"imgsmith/internal/validate"
)

// buildFlags are the flags of build.
type buildFlags struct {
	matrix    string
	bases     []string
	only      []string
	stageOnly bool
	locked    bool
	offline   bool
	verify    verifyFlags
}

func (a *app) build() *cobra.Command {
	var f buildFlags
	cmd := &cobra.Command{
		Use:   "build --matrix FILE",
		Short: "The main job: lock if needed, build, static check, verify on the GPU, publish what passed",
		Long: `Builds every entry of a matrix, checks its files, runs it with --gpus on this host
and judges four layers. An image that passed all of them is tagged in the publish
repository of its entry; every other ends without a tag.

With --stage-only the images are built, checked and staged on a machine without a
GPU; imgsmith verify proves them on one that has it.

` + exitHelp,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.matrix == "" {
				return &usageError{errors.New("--matrix FILE is missing; see imgsmith build --help")}
			}
			return a.runBuild(cmd.Context(), f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.matrix, "matrix", "", "recipe file")
	fl.StringArrayVar(&f.bases, "base", nil, "use another image for a base: NAME=oci-layout:DIR (recorded as local; repeatable)")
	fl.StringArrayVar(&f.only, "entry", nil, "build only this entry (repeatable)")
	fl.BoolVar(&f.stageOnly, "stage-only", false, "build, check and stage; verify elsewhere")
	fl.BoolVar(&f.locked, "locked", false, "fail when the lock is missing or stale instead of resolving")
	fl.BoolVar(&f.offline, "offline", false, "use what is on disk only")
	f.verify.add(fl)
	return cmd
}

// builder builds the entries of one recipe.
type builder struct {
	s       *session
	f       buildFlags
	bases   map[string]string
	targets *targets
	prover  *prover // nil with --stage-only
	dir     string  // of the recipe
	seen    map[string]*base
}

func (a *app) runBuild(ctx context.Context, f buildFlags) (err error) {
	bases, err := replacements(f.bases)
	if err != nil {
		return err
	}
	table, err := a.facts()
	if err != nil {
		return err
	}
	r, findings, err := loadRecipe(f.matrix, table)
	if err != nil {
		return err
	}
	whole := *r // the lock is that of every entry, whatever --entry selects
	if r.Entries, err = selected(r.Entries, f.only); err != nil {
		return err
	}
	if err := f.fakePublish(r.Entries); err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.override(findings)
	b := &builder{s: s, f: f, bases: bases, dir: filepath.Dir(f.matrix), seen: map[string]*base{}}
	if b.targets, err = s.loadTargets(&whole, f.locked, f.offline); err != nil {
		return err
	}
	d := report.Document{Command: "build", Recipe: f.matrix}
	if !f.stageOnly {
		b.prover = s.newProver(ctx, f.verify)
		defer func() { err = errors.Join(err, b.prover.close()) }()
		d.Host, d.HostError, d.Fake = b.prover.host, b.prover.hostErr, f.verify.fakeGPU != ""
	}
	for i, re := range linted(r, findings) {
		if i < len(r.Entries) && re.Result != report.ResultRefused {
			b.entry(ctx, r.Entries[i], &re)
		}
		d.Entries = append(d.Entries, re)
		if ctx.Err() != nil {
			for _, done := range d.Entries {
				for _, ref := range done.Published {
					a.note("published before the interrupt: %s", ref)
				}
			}
			return context.Cause(ctx)
		}
	}
	if err := b.targets.save(ctx); err != nil {
		a.note("warning: %v", err)
	}
	if s.eng != nil {
		if info, err := s.eng.Info(ctx); err == nil {
			d.Engine = &info
		}
	}
	return a.write(d)
}

// fakePublish refuses, before anything is built, to publish beyond this machine what a fake GPU will judge.
func (f buildFlags) fakePublish(entries []matrix.Entry) error {
	for _, e := range entries {
		if f.verify.fakeGPU != "" && e.Publish != nil && !publish.Loopback(e.Publish.Repository) {
			return &usageError{fmt.Errorf("%s:%d:%d: --fake-gpu proves no image, and entry %q publishes to %s; name a registry on a loopback address, or leave --fake-gpu out",
				e.File, e.Line("publish"), e.Column("publish"), e.Name, e.Publish.Repository)}
		}
	}
	return nil
}

// replacements parses --base NAME=SOURCE.
func replacements(flags []string) (map[string]string, error) {
	out := map[string]string{}
	for _, f := range flags {
		name, source, ok := strings.Cut(f, "=")
		if !ok || name == "" || source == "" {
			return nil, &usageError{fmt.Errorf("--base %s: want NAME=oci-layout:DIR or NAME=REFERENCE", f)}
		}
		out[name] = source
	}
	return out, nil
}

// selected keeps the entries that --entry names; a name that is not there is an error.
func selected(all []matrix.Entry, names []string) ([]matrix.Entry, error) {
	if len(names) == 0 {
		return all, nil
	}
	var out []matrix.Entry
	for _, n := range names {
		found := false
		for _, e := range all {
			if e.Name == n {
				out, found = append(out, e), true
			}
		}
		if !found {
			return nil, &usageError{fmt.Errorf("--entry %s: the recipe has no such entry", n)}
		}
	}
	return out, nil
}

// stop ends an entry at a stage with an error that says what went wrong. A fault of the recipe refuses the entry.
func stop(re *report.Entry, stage report.Stage, result report.Result, err error) {
	var fault *usageError
	if result == report.ResultError && errors.As(err, &fault) {
		result = report.ResultRefused
	}
	re.Stage, re.Result, re.Reason = stage, result, err.Error()
	var r remedied
	if errors.As(err, &r) {
		re.Remedy = r.Remedy()
	}
}

// entry takes one entry as far as it comes; re tells how far that is.
func (b *builder) entry(ctx context.Context, e matrix.Entry, re *report.Entry) {
	b.s.app.note("%s", e.Name)
	p, err := b.make(ctx, e, re)
	if err != nil {
		stop(re, re.Stage, report.ResultError, err)
		return
	}
	re.Stage = report.StageStatic
	static, ex, err := b.s.static(p)
	if err != nil {
		stop(re, re.Stage, report.ResultError, err)
		return
	}
	re.Static, re.Prediction = &static, &ex
	switch static.Outcome {
	case validate.OutcomePassed:
	case validate.OutcomeFailed:
		re.Result = report.ResultFailed
		return
	default:
		stop(re, report.StageStatic, report.ResultNotProved, errors.New("static stage: "+static.Reason))
		return
	}
	img, err := b.stage(ctx, p, re)
	if err != nil {
		stop(re, report.StageBuild, report.ResultError, err)
		return
	}
	re.Stage, re.Result = report.StageBuild, report.ResultStaged
	if b.prover == nil {
		return
	}
	c, cleared := b.prover.judge(ctx, img, static, ex, re)
	if !cleared || e.Publish == nil {
		return
	}
	b.publish(ctx, e, p.target, c, re)
}

// make locks, fetches and makes every layer.
func (b *builder) make(ctx context.Context, e matrix.Entry, re *report.Entry) (*prepared, error) {
	re.Stage = report.StageLock
	if err := e.Buildable(); err != nil {
		return nil, &usageError{err}
	}
	lay, err := b.layout(e.Layout)
	if err != nil {
		return nil, err
	}
	base, ok := b.seen[e.Base]
	if !ok {
		if base, err = b.s.base(ctx, e.Base, e.Platform, b.bases); err != nil {
			return nil, err
		}
		b.seen[e.Base] = base
	}
	t, err := b.targets.target(ctx, e, base)
	if err != nil {
		return nil, err
	}
	re.Versions = versions(t)
	re.Stage = report.StageMake
	return b.s.prepare(ctx, t, lay, base, b.targets.wheels(e, t))
}

func versions(t matrix.Target) map[string]string {
	return map[string]string{"tensorflow": t.TensorFlow, "python": t.Python.Version, "cuda": t.CUDA, "cudnn": t.CuDNN, "base": t.Base.Name}
}

// layout loads an image layout: a shipped one by name, or a file relative to the recipe.
func (b *builder) layout(name string) (layout.Layout, error) { return findLayout(name, b.dir) }

// findLayout loads an image layout: a shipped one by name, or a file relative to dir.
func findLayout(name, dir string) (layout.Layout, error) {
	if !strings.ContainsRune(name, '/') && filepath.Ext(name) == "" {
		return layout.Shipped(name)
	}
	file := filepath.Join(dir, name)
	data, err := os.ReadFile(file)
	if err != nil {
		return layout.Layout{}, &usageError{fmt.Errorf("reading layout: %w", err)}
	}
	lay, err := layout.Parse(file, data)
	if err != nil {
		return lay, &usageError{err}
	}
	return lay, nil
}

// stage compiles the image, has the engine put it together in the store, and demands that it is exactly the
// layers that were checked.
func (b *builder) stage(ctx context.Context, p *prepared, re *report.Entry) (image, error) {
	prog, err := llb.Compile(p.target, p.base.image(), refs(p.layers), llb.Options{Labels: labels(p.target)})
	if err != nil {
		return image{}, err
	}
	eng, err := b.s.engine(ctx)
	if err != nil {
		return image{}, err
	}
	repo := "staging/" + strings.ToLower(p.target.Entry)
	digest, err := eng.Push(ctx, prog, b.s.loop.Addr()+"/"+repo, engine.PushOptions{Compression: p.target.Compression.Algorithm, Epoch: p.target.Epoch})
	if err != nil {
		return image{}, err
	}
	img, err := b.s.image(digest)
	if err != nil {
		return image{}, err
	}
	img.repo = repo
	if err := sameLayers(img, p); err != nil {
		return image{}, err
	}
	re.Image = &report.Image{Reference: "oci-layout:" + b.s.store.Dir() + "@" + digest, Digest: digest, Size: img.size, Reused: len(p.made) == 0}
	for _, l := range p.base.Layers {
		re.Image.Layers = append(re.Image.Layers, report.Layer{Name: "base", Digest: l.Digest, Size: l.Size})
	}
	for _, l := range p.layers {
		re.Image.Layers = append(re.Image.Layers, report.Layer{Name: l.Name, Digest: l.Digest, DiffID: l.DiffID, Size: l.Size, Made: p.made[l.Key]})
	}
	return img, nil
}

// sameLayers compares the staged manifest and config with what was checked, digest for digest.
func sameLayers(img image, p *prepared) error {
	var digests []string
	ids := slices.Clone(p.base.diffIDs)
	for _, l := range p.base.Layers {
		digests = append(digests, l.Digest)
	}
	for _, l := range p.layers {
		digests, ids = append(digests, l.Digest), append(ids, l.DiffID)
	}
	if !slices.Equal(digests, img.layers) {
		return fmt.Errorf("the engine put together other layers than were checked:\nchecked %s\nstaged  %s", strings.Join(digests, " "), strings.Join(img.layers, " "))
	}
	if !slices.Equal(ids, img.diffIDs) {
		return fmt.Errorf("the engine wrote other diffIDs than were checked:\nchecked %s\nstaged  %s", strings.Join(ids, " "), strings.Join(img.diffIDs, " "))
	}
	return nil
}

func (b *builder) publish(ctx context.Context, e matrix.Entry, t matrix.Target, c validate.Clearance, re *report.Entry) {
	re.Stage = report.StagePublish
	tags, err := e.ExpandTags(t)
	if err == nil {
		re.Published, err = publish.Image(ctx, c, remote{b.s.store.Dir()}, publish.Request{Repository: e.Publish.Repository, Tags: tags})
	}
	if err != nil {
		stop(re, report.StagePublish, report.ResultError, err)
		return
	}
	re.Result = report.ResultPublished
}
