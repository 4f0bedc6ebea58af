package main

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/layout"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/static"
)

// static checks a prepared target before anything is merged, and predicts what a run must show.
func (s *session) static(p *prepared) (validate.LayerResult, validate.Expect, error) {
	prog, err := llb.Compile(p.target, p.base.image(), refs(p.layers), llb.Options{})
	if err != nil {
		return validate.LayerResult{}, validate.Expect{}, err
	}
	r, ex, err := s.checkTree(p.target, p.layout, p.tree, prog.Config)
	if err != nil {
		return r, ex, err
	}
	var broken []validate.Finding
	for _, v := range p.violations {
		if slices.ContainsFunc(p.tree.Violations(), func(t rootfs.Violation) bool { return t.Kind == v.Kind && t.Path == v.Path }) {
			continue // static.layers has it
		}
		broken = append(broken, validate.Finding{Check: "static.layers", Outcome: validate.OutcomeFailed, Subject: "/" + v.Path,
			Message: fmt.Sprintf("layer %s would be unpacked differently by runtimes (%s): %s", v.Name, v.Kind, v.Detail), Remedy: "two packages or the base bring the same path; leave one out"})
	}
	if len(broken) > 0 {
		r = validate.NewLayerResult(validate.LayerStatic, append(broken, r.Findings...))
	}
	return r, ex, nil
}

// checkTree runs the static stage on a tree with the image config it will have.
func (s *session) checkTree(t matrix.Target, lay layout.Resolved, tree *rootfs.Tree, config []byte) (validate.LayerResult, validate.Expect, error) {
	tf, err := s.facts.TensorFlow(release(t.TensorFlow))
	if err != nil {
		return validate.LayerResult{}, validate.Expect{}, err
	}
	family, err := s.facts.CuDNN(tf.CuDNNMajor)
	if err != nil {
		return validate.LayerResult{}, validate.Expect{}, err
	}
	var c struct {
		Config static.Config `json:"config"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return validate.LayerResult{}, validate.Expect{}, fmt.Errorf("reading image config: %w", err)
	}
	packages := map[string]string{}
	for _, w := range t.Wheels {
		packages[w.Name] = w.Version
	}
	r := static.Check(static.Input{Tree: tree, Config: c.Config, Expect: static.Expect{TensorFlow: tf, CuDNN: family, Packages: packages,
		SitePackages: lay.Site, Venv: lay.Venv, CUDARoot: lay.CUDARoot, Complete: true}})
	ex, err := s.expect(t, tf, lay)
	ex.CuDNNFamily = subLibraries(tree, lay, family)
	return r.LayerResult, ex, err
}

// expect is the prediction for the four layers.
func (s *session) expect(t matrix.Target, tf facts.TensorFlow, lay layout.Resolved) (validate.Expect, error) {
	floor, err := s.facts.DriverFloor(tf.CUDAMajor)
	if err != nil {
		return validate.Expect{}, err
	}
	th, err := validate.DefaultThresholds()
	if err != nil {
		return validate.Expect{}, err
	}
	if th, err = th.With(t.Thresholds); err != nil {
		return validate.Expect{}, &usageError{err}
	}
	return validate.Expect{Entry: t.Entry, TensorFlow: t.TensorFlow, CUDA: t.CUDA, CUDABuilt: tf.CUDATested, CuDNN: t.CuDNN,
		CuDNNCompiled: tf.CuDNNCompiled, CUDARoot: "/" + lay.CUDARoot, DlopenSet: tf.DlopenSet,
		DriverFloor: floor.Driver, MinComputeCapability: tf.MinComputeCapability, Thresholds: th}, nil
}

// release cuts a local version: a wheel of one's own has the facts of the release it is made from.
func release(v string) string {
	r, _, _ := strings.Cut(v, "+")
	return r
}

// subLibraries lists the cuDNN family that the package promises in its RECORD. What the tree lacks of it must
// be missed, so the tree itself is not asked.
func subLibraries(tree *rootfs.Tree, lay layout.Resolved, family facts.CuDNNFamily) []string {
	nodes, err := tree.ReadDir(lay.Site)
	if err != nil {
		return nil // the static stage has said so
	}
	stem, _, _ := strings.Cut(family.Soname, ".so")
	var out []string
	for _, n := range nodes {
		record, err := tree.ReadFile(n.Path + "/RECORD")
		if !strings.HasSuffix(n.Path, ".dist-info") || err != nil {
			continue
		}
		for _, row := range strings.Split(string(record), "\n") {
			file, _, _ := strings.Cut(row, ",")
			if name := path.Base(file); strings.HasPrefix(name, stem+"_") && strings.Contains(name, ".so.") {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// readManifest finds what imgsmith wrote into an image: the target that it was built for.
func readManifest(tree *rootfs.Tree) (manifest, error) {
	data, err := tree.ReadFile(manifestPath)
	if err != nil {
		return manifest{}, fmt.Errorf("reading /%s: %w; only images built by imgsmith can be verified so far", manifestPath, err)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return manifest{}, fmt.Errorf("reading /%s: %w", manifestPath, err)
	}
	if m.SchemaVersion != 1 {
		return manifest{}, fmt.Errorf("reading /%s: schema version %d, this program knows 1", manifestPath, m.SchemaVersion)
	}
	return m, nil
}
