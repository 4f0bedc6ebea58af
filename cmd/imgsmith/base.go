package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"

	"imgsmith/internal/component"
	"imgsmith/internal/layout"
	"imgsmith/internal/llb"
	"imgsmith/internal/registry"
	"imgsmith/internal/resolve"
	"imgsmith/internal/rootfs"
)

// base is an imported base image with the tree of its layers.
type base struct {
	registry.BaseImage
	name    string   // as the recipe gave it
	diffIDs []string // of its layers, as its config names them
	flat    rootfs.Layer
	tree    *rootfs.Tree
}

// base imports the base of an entry, or what --base puts in its place, and reads what is in it.
func (s *session) base(ctx context.Context, name, platform string, replaced map[string]string) (*base, error) {
	source := name
	if r, ok := replaced[name]; ok {
		source = r
	}
	img, err := registry.ImportBase(ctx, source, platform, s.store.Dir())
	if err != nil {
		return nil, err
	}
	b := &base{BaseImage: img, name: name}
	b.Local = b.Local || source != name
	if b.diffIDs, err = diffIDs(img); err != nil {
		return nil, fmt.Errorf("reading base %s: %w", name, err)
	}
	var layers []rootfs.Layer
	for i, d := range img.Layers {
		t, err := s.store.LayerTable(ctx, d.Digest, b.diffIDs[i], d.MediaType)
		if err != nil {
			return nil, fmt.Errorf("reading base %s: %w", name, err)
		}
		layers = append(layers, t)
	}
	if b.tree, err = rootfs.Apply(layers...); err != nil {
		return nil, fmt.Errorf("reading base %s: %w", name, err)
	}
	err = b.tree.Walk("", func(n rootfs.Node) error {
		if n.Path != "" && n.Path != "." {
			b.flat = append(b.flat, n)
		}
		return nil
	})
	return b, err
}

// diffIDs reads what a base's config says of its layers.
func diffIDs(img registry.BaseImage) ([]string, error) {
	var c struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(img.Config, &c); err != nil {
		return nil, fmt.Errorf("its config: %w", err)
	}
	if len(c.RootFS.DiffIDs) != len(img.Layers) {
		return nil, fmt.Errorf("its manifest has %d layers, its config %d; use another base", len(img.Layers), len(c.RootFS.DiffIDs))
	}
	return c.RootFS.DiffIDs, nil
}

func (b *base) image() llb.BaseImage {
	return llb.BaseImage{Name: b.name, Ref: llb.StoreRef("base/image", b.ManifestDigest), Config: b.Config}
}

// parents are the directories of the base above our files that are not 0755 root:root.
func (b *base) parents(r layout.Resolved) []component.Parent {
	var out []component.Parent
	seen := map[string]bool{}
	for _, leaf := range []string{r.CUDARoot, r.Venv, r.LoaderFile, manifestPath, "etc/ld.so.cache"} {
		for dir := path.Dir(leaf); dir != "."; dir = path.Dir(dir) {
			n, ok := b.tree.Lstat(dir)
			if ok && !seen[dir] && n.Type == rootfs.Dir && (n.Mode != 0o755 || n.UID != 0 || n.GID != 0) {
				out = append(out, component.Parent{Path: dir, Mode: n.Mode, UID: n.UID, GID: n.GID})
			}
			seen[dir] = true
		}
	}
	return out
}

// info reads what resolving needs to know: distribution, glibc, interpreters.
func (b *base) info() resolve.BaseInfo {
	info := resolve.BaseInfo{Digest: b.ManifestDigest, Config: b.ConfigDigest, Local: b.Local}
	if data, err := b.tree.ReadFile("etc/os-release"); err == nil {
		for _, line := range strings.Split(string(data), "\n") {
			k, v, _ := strings.Cut(line, "=")
			v = strings.Trim(v, `"'`)
			switch k {
			case "ID":
				info.ID = v
			case "VERSION_ID":
				info.VersionID = v
			}
		}
	}
	info.Glibc = b.glibc()
	python := regexp.MustCompile(`^python(3\.\d+)$`)
	for _, dir := range []string{"usr/bin", "usr/local/bin"} {
		nodes, err := b.tree.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, n := range nodes {
			if m := python.FindStringSubmatch(path.Base(n.Path)); m != nil {
				info.Pythons = append(info.Pythons, m[1])
			}
		}
	}
	return info
}

// glibc is the newest GLIBC_ version that the base's libc defines; empty for another libc.
func (b *base) glibc() string {
	best := [2]int{}
	for _, dir := range []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64"} {
		n, _, err := b.tree.Resolve(dir + "/libc.so.6")
		if err != nil || n.ELF == nil {
			continue
		}
		for _, v := range n.ELF.VersionDefs {
			var x, y int
			if k, _ := fmt.Sscanf(v, "GLIBC_%d.%d", &x, &y); k == 2 && (x > best[0] || x == best[0] && y > best[1]) {
				best = [2]int{x, y}
			}
		}
	}
	if best[0] == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", best[0], best[1])
}
