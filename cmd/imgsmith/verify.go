package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"imgsmith/internal/layout"
	"imgsmith/internal/registry"
	"imgsmith/internal/report"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

func (a *app) verify() *cobra.Command {
	var f verifyFlags
	var keepGoing bool
	var replay string
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Static stage and four layers on a built image, on this GPU host",
		Long: `Reads an image by digest (REPOSITORY@sha256:… or oci-layout:DIR@sha256:…), checks
its files, runs it with --gpus and judges four layers. Publishes nothing.

With --replay FILE a saved document (--json) is judged again; nothing runs, and a
recording never proves an image.

` + exitHelp,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, image []string) error {
			if replay != "" {
				return a.runReplay(replay, keepGoing)
			}
			if len(image) == 0 {
				return &usageError{errors.New("IMAGE is missing; see imgsmith verify --help")}
			}
			if !strings.Contains(image[0], "@sha256:") {
				return wantDigest(image[0])
			}
			return a.runVerify(cmd.Context(), image[0], f, keepGoing)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&keepGoing, "keep-going", false, "go on after a failed stage, for the record; never clears an image")
	cmd.Flags().StringVar(&replay, "replay", "", "judge a saved document again instead of running an image")
	return cmd
}

func (a *app) runVerify(ctx context.Context, ref string, f verifyFlags, keepGoing bool) (err error) {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	img, static, ex, m, err := s.load(ctx, ref)
	if err != nil {
		return err
	}
	p := s.newProver(ctx, f)
	defer func() { err = errors.Join(err, p.close()) }()
	p.keepGoing = keepGoing
	re := report.Entry{Name: m.Target.Entry, Versions: versions(m.Target), Static: &static, Prediction: &ex,
		Image: &report.Image{Reference: ref, Digest: img.digest, Size: img.size}}
	for i, d := range img.layers {
		re.Image.Layers = append(re.Image.Layers, report.Layer{Digest: d, DiffID: img.diffIDs[i]})
	}
	p.judge(ctx, img, static, ex, &re)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return a.write(report.Document{Command: "verify", Host: p.host, HostError: p.hostErr, Fake: f.fakeGPU != "", Entries: []report.Entry{re}})
}

// load brings an image into the store, reads its tree, and runs the static stage on it.
func (s *session) load(ctx context.Context, ref string) (img image, r validate.LayerResult, ex validate.Expect, m manifest, err error) {
	got, err := registry.ImportBase(ctx, ref, "linux/amd64", s.store.Dir())
	if err != nil {
		return
	}
	if img, err = s.image(got.ManifestDigest); err != nil {
		return
	}
	var layers []rootfs.Layer
	for i, d := range img.layers {
		t, err := s.store.LayerTable(ctx, d, img.diffIDs[i], img.mediaTypes[i])
		if err != nil {
			return img, r, ex, m, err
		}
		layers = append(layers, t)
	}
	tree, err := rootfs.Apply(layers...)
	if err != nil {
		return
	}
	if m, err = readManifest(tree); err != nil {
		return
	}
	lay, err := shippedOrTest(m.Target.Layout)
	if err != nil {
		return
	}
	resolved, err := lay.At(layout.Vars{CUDA: m.Target.CUDA, Python: m.Target.Python.Version, Platform: m.Target.Platform})
	if err != nil {
		return
	}
	r, ex, err = s.checkTree(m.Target, resolved, tree, got.Config)
	return
}

// shippedOrTest finds the layout of an image. A layout from a file is known to its recipe only; the shipped one
// is then what the image is held against.
func shippedOrTest(name string) (layout.Layout, error) {
	if lay, err := layout.Shipped(name); err == nil {
		return lay, nil
	}
	return layout.Shipped("wheels")
}

// runReplay judges a saved document again.
func (a *app) runReplay(file string, keepGoing bool) error {
	f, err := os.Open(file)
	if err != nil {
		return &usageError{fmt.Errorf("reading recording: %w", err)}
	}
	defer f.Close()
	d, err := report.ReadJSON(f)
	if err != nil {
		return &usageError{fmt.Errorf("recording %s: %w; name a document that imgsmith wrote with --json", file, err)}
	}
	d.Command = "verify"
	for i := range d.Entries {
		replayed(&d, &d.Entries[i], keepGoing)
	}
	return a.write(d)
}

// replayed judges one recorded entry; whatever it says, it is marked as a recording.
func replayed(d *report.Document, re *report.Entry, keepGoing bool) {
	if re.Prediction == nil || re.Verdict == nil || re.Transcript == nil || len(re.Verdict.Layers) == 0 {
		re.Result, re.Reason = report.ResultNotProved, "the recording holds no run of this image"
		return
	}
	ev := validate.Evidence{Digest: re.Verdict.Digest, Static: re.Verdict.Layers[0], Host: d.Host, HostErr: d.HostError, Transcript: re.Transcript, Activity: re.Activity, KeepGoing: keepGoing}
	ev.Transcript.Launcher = "replay"
	if ev.Host != nil {
		ev.Host.Source = "recording"
	}
	decode(&ev)
	re.Published = nil
	conclude(ev, *re.Prediction, re)
}
