package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"imgsmith/internal/component"
	"imgsmith/internal/launch/docker"
	"imgsmith/internal/registry"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/static"
	"imgsmith/internal/view"
)

// view reads the image that a reference names, of whatever kind it is.
func (a *app) view(ctx context.Context, ref string, f checkFlags) (view.Image, error) {
	opt := view.Options{Deep: f.deep, Keep: static.Keep, Platform: f.platform, MaxNodes: f.maxFiles}
	kind, rest := kindOf(ref)
	switch kind {
	case "dir":
		return view.Directory(ctx, rest, opt)
	case "docker-archive":
		return view.Archive(ctx, ref, func(context.Context) (io.ReadCloser, error) { return os.Open(rest) }, opt)
	case "stdin":
		return a.stdinArchive(ctx, opt)
	case "docker-daemon":
		return view.Archive(ctx, ref, func(ctx context.Context) (io.ReadCloser, error) { return docker.Save(ctx, rest) }, opt)
	}
	img, err := registry.Open(ctx, rest, f.platform)
	if err != nil {
		return view.Image{}, err
	}
	out := view.Image{Ref: ref, Digest: img.ManifestDigest, ConfigDigest: img.ConfigDigest, Config: img.Config}
	for _, l := range img.Layers {
		out.Layers = append(out.Layers, view.Layer{Digest: l.Digest, Size: l.Size})
	}
	if opt.Table, err = a.knownLayers(ctx); err != nil {
		return view.Image{}, err
	}
	return view.Layered(ctx, out, img.OpenLayer, opt)
}

// kindOf tells what a reference names. A path that exists needs no prefix.
func kindOf(ref string) (kind, rest string) {
	for _, k := range []string{"dir", "docker-archive", "docker-daemon"} {
		if rest, ok := strings.CutPrefix(ref, k+":"); ok {
			return k, rest
		}
	}
	if ref == "-" {
		return "stdin", ref
	}
	if strings.HasPrefix(ref, "oci-layout:") {
		return "registry", ref
	}
	if info, err := os.Stat(ref); err == nil {
		switch {
		case !info.IsDir():
			return "docker-archive", ref
		case exists(filepath.Join(ref, "oci-layout")):
			return "registry", "oci-layout:" + ref
		}
		return "dir", ref
	}
	return "registry", ref
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// stdinArchive reads an archive that cannot be read twice.
func (a *app) stdinArchive(ctx context.Context, opt view.Options) (view.Image, error) {
	used := false
	return view.Archive(ctx, "standard input", func(context.Context) (io.ReadCloser, error) {
		if used {
			return nil, errors.New("the archive holds a library that needs a second look: save it to a file")
		}
		used = true
		return io.NopCloser(os.Stdin), nil
	}, opt)
}

// knownLayers looks layers up in the store, where there is one: what was made here is not read again.
func (a *app) knownLayers(ctx context.Context) (func(string) (rootfs.Layer, bool), error) {
	if !exists(filepath.Join(a.flags.store, "components")) {
		return nil, nil
	}
	store, err := component.OpenStore(ctx, a.flags.store)
	if err != nil {
		return nil, err
	}
	return store.KnownTables(ctx)
}

// childEvidence bounds the paths that are listed.
const childEvidence = 20

// child tells what layers above the image of imgsmith change, and which of that touches what was proved.
func (c *checking) child(m manifest) []validate.Finding {
	const check = "static.child"
	at := c.img.Tree.LayerOf(manifestPath)
	ours := make([]string, 0, len(m.Layers))
	for _, l := range m.Layers {
		ours = append(ours, l.DiffID)
	}
	var have []string
	for _, l := range c.img.Layers[:max(at, 0)] {
		have = append(have, l.DiffID)
	}
	if len(c.img.Layers) < 2 { // a directory has no layers to compare
		return nil
	}
	if !contains(have, ours) {
		return []validate.Finding{{Check: check, Outcome: validate.OutcomeFailed, Subject: "/" + manifestPath, Message: "the manifest of imgsmith in the image does not name the image's own layers: the image was squashed, or the file is of another image",
			Expected: fmt.Sprintf("%d layers of the manifest below it", len(ours)), Observed: fmt.Sprintf("%d layers", len(have)), Remedy: "build on the image of imgsmith as it is"}}
	}
	above := c.img.Layers[at+1:]
	if len(above) == 0 {
		return []validate.Finding{{Check: check, Outcome: validate.OutcomePassed, Subject: "/" + manifestPath, Message: fmt.Sprintf("the image is entry %s of imgsmith, layer by layer", m.Target.Entry)}}
	}
	f := validate.Finding{Check: check, Outcome: validate.OutcomePassed, Note: true, Subject: "/" + manifestPath}
	total, touching := 0, 0
	for i, l := range above {
		for _, n := range l.Nodes {
			if n.Type == rootfs.Dir {
				continue
			}
			total++
			if !c.touches(n.Path) {
				continue
			}
			if touching++; touching <= childEvidence {
				f.Evidence = append(f.Evidence, fmt.Sprintf("layer +%d %s /%s (%s)", i+1, n.Type, n.Path, l.CreatedBy))
			}
		}
	}
	f.Message = fmt.Sprintf("entry %s of imgsmith plus %d layers with %d changes, of which %d touch what was proved", m.Target.Entry, len(above), total, touching)
	if touching > 0 {
		f.Remedy = "the proof of the base does not hold for this image: verify it on a GPU"
	}
	return []validate.Finding{f}
}

// contains tells whether run is a part of list without gaps.
func contains(list, run []string) bool {
	for i := 0; i+len(run) <= len(list); i++ {
		if slices.Equal(list[i:i+len(run)], run) {
			return len(run) > 0
		}
	}
	return false
}

// touches tells whether a path is part of what the proof of the base is about.
func (c *checking) touches(p string) bool {
	for _, dir := range []string{c.in.Expect.Venv, c.in.Expect.CUDARoot, "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d", "usr/local/cuda", "opt/imgsmith", "usr/bin/python" + c.in.Expect.Python} {
		if dir != "" && (p == dir || strings.HasPrefix(p, dir+"/")) {
			return true
		}
	}
	// A library or the loader of the C library anywhere on the default path.
	for _, dir := range []string{"lib/", "lib64/", "usr/lib/", "usr/lib64/"} {
		if strings.HasPrefix(p, dir) && strings.Contains(p[strings.LastIndexByte(p, '/')+1:], ".so") {
			return true
		}
	}
	return false
}
