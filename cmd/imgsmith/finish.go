package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"imgsmith/internal/component"
	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
)

// Paths of what imgsmith itself puts into an image.
const (
	manifestPath    = "opt/imgsmith/manifest.json"
	constraintsPath = "opt/imgsmith/constraints.txt"
	coreGroup       = "tensorflow" // layer group of a layout that holds the framework itself
)

// manifest is /opt/imgsmith/manifest.json: what is inside, so that the image can be verified on its own.
type manifest struct {
	SchemaVersion int             `json:"schema_version"`
	Target        matrix.Target   `json:"target"`
	Layers        []manifestLayer `json:"layers"` // of ours, below the finishing layer
}

type manifestLayer struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	DiffID string `json:"diff_id"`
}

// finishing lists the entries of the last layer: links and loader configuration of the layout, the manifest,
// and the constraints that keep pip from breaking the proved core.
func finishing(t matrix.Target, lay layout.Resolved, specs []component.Spec, layers []component.Record) ([]component.Entry, error) {
	es := component.Finishing(lay)
	m := manifest{SchemaVersion: 1, Target: t}
	for _, l := range layers {
		m.Layers = append(m.Layers, manifestLayer{Name: l.Name, Digest: l.Digest, DiffID: l.DiffID})
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the manifest: %w", err)
	}
	es = append(es, component.File(manifestPath, 0o644, append(data, '\n')),
		component.File(constraintsPath, 0o644, constraints(specs)))
	if t.Constraints {
		es = append(es, component.File(lay.Venv+"/pip.conf", 0o644, []byte("[install]\nconstraint = /"+constraintsPath+"\n")))
	}
	return es, nil
}

// constraints pins what was proved: TensorFlow and the packages with a CUDA side, not the whole lock.
func constraints(specs []component.Spec) []byte {
	core := map[string]string{}
	for _, s := range specs {
		if s.Side == layout.SideCUDA || s.Name == coreGroup {
			for _, w := range s.Wheels {
				core[w.Name] = w.Version
			}
		}
	}
	var b strings.Builder
	b.WriteString("# What was proved together. pip in this environment keeps to it; for uv set UV_CONSTRAINT to this file.\n")
	for _, name := range slices.Sorted(maps.Keys(core)) {
		fmt.Fprintf(&b, "%s==%s\n", name, core[name])
	}
	return []byte(b.String())
}
