package static

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// image judges layers and sizes.
func (c *checker) image() {
	if c.Layers != nil {
		c.layerLimits()
		c.caches()
	}
	c.size()
	if c.Deep {
		c.duplicates()
	}
}

// layerLimits compares with what places accept. Going over a registry's limit is a note: no image goes everywhere.
func (c *checker) layerLimits() {
	var found []validate.Finding
	for _, l := range c.rules.Limits {
		if l.Layers > 0 && len(c.Layers) > l.Layers {
			found = append(found, validate.Finding{Subject: plural(len(c.Layers), "layers"), Message: "the image has more layers than " + l.Place + " takes", Expected: fmt.Sprintf("at most %d", l.Layers),
				Observed: fmt.Sprint(len(c.Layers)), Remedy: "merge steps", Evidence: []string{l.Source}})
		}
		for _, layer := range c.Layers {
			if l.Bytes > 0 && layer.Size > l.Bytes {
				found = append(found, validate.Finding{Outcome: validate.OutcomePassed, Note: true, Subject: layer.Digest, Layer: layer.Digest, Origin: layer.Origin,
					Message: "the layer is larger than " + l.Place + " takes", Expected: "at most " + megabytes(l.Bytes), Observed: megabytes(layer.Size), Remedy: "split the step", Evidence: []string{l.Source}})
			}
		}
	}
	c.report("static.image.layers", plural(len(c.Layers), "layers are within the limits of registries and runtimes"), found)
}

// minCache is what is worth a line, in bytes.
const minCache = 1 << 20

// caches finds what an installer left in a layer, also where a later layer removes it.
func (c *checker) caches() {
	var found []validate.Finding
	for i, l := range c.Layers {
		for _, rule := range c.rules.Caches {
			var size int64
			gone := 0
			count := 0
			for _, n := range l.Nodes {
				if n.Type != rootfs.Regular || !strings.HasPrefix(n.Path, rule.Pattern) {
					continue
				}
				size += n.Size
				count++
				if c.Tree.LayerOf(n.Path) != i {
					gone++
				}
			}
			if size < minCache {
				continue
			}
			f := validate.Finding{Outcome: validate.OutcomePassed, Note: true, Subject: "/" + rule.Pattern, Layer: l.Digest, Origin: l.Origin, Observed: megabytes(size) + fmt.Sprintf(" in %d files", count),
				Message: rule.What + " are in the layer", Remedy: "remove them in the same step, or use a cache mount"}
			if gone > 0 {
				f.Message += "; removing them in a later layer saves nothing"
			}
			found = append(found, f)
		}
	}
	c.report("static.image.caches", "no layer holds the caches of installers", found)
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// contributors is how many directories the size report names.
const contributors = 10

// size adds up the files, ranks who brings them, and compares with the budget.
func (c *checker) size() {
	by := map[string]int64{}
	var total, stored int64
	_ = c.Tree.Walk("", func(n rootfs.Node) error {
		if n.Type == rootfs.Regular && n.Link == "" {
			total += n.Size
			by[c.contributor(n.Path)] += n.Size
		}
		return nil
	})
	for _, l := range c.Layers {
		for _, n := range l.Nodes {
			if n.Type == rootfs.Regular {
				stored += n.Size
			}
		}
	}
	f := validate.Finding{Subject: "size", Observed: megabytes(total), Remedy: "leave out what the image does not need; the largest are listed"}
	names := sortedKeys(by)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(by[b], by[a]) })
	for _, name := range names[:min(len(names), contributors)] {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%9s  /%s", megabytes(by[name]), name))
	}
	if hidden := stored - total; hidden > minCache {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%9s  in lower layers, replaced or removed by later ones", megabytes(hidden)))
	}
	if c.Budget > 0 && total > c.Budget {
		f.Message, f.Expected = "the image is larger than its budget", "at most "+megabytes(c.Budget)
		c.report("static.image.size", "", []validate.Finding{f})
		return
	}
	f.Message, f.Remedy = "the files of the image are "+megabytes(total), ""
	c.note("static.image.size", f)
}

// contributor is whom a file is counted for: a package in site-packages, a library of CUDA, else two directories.
func (c *checker) contributor(file string) string {
	depth := 2
	for _, root := range []string{c.Expect.SitePackages, c.Expect.CUDARoot} {
		if root != "" && strings.HasPrefix(file, root+"/") {
			depth = strings.Count(root, "/") + 2
		}
	}
	parts := strings.Split(path.Dir(file), "/")
	return strings.Join(parts[:min(len(parts), depth)], "/")
}

// duplicates finds files of one content. Hard links share their bytes and do not count.
func (c *checker) duplicates() {
	type group struct {
		first string
		size  int64
		more  []string
	}
	groups := map[string]*group{}
	var wasted int64
	_ = c.Tree.Walk("", func(n rootfs.Node) error {
		if n.Type != rootfs.Regular || n.Link != "" || n.Digest == "" || n.Size == 0 {
			return nil
		}
		g := groups[n.Digest]
		if g == nil {
			groups[n.Digest] = &group{first: n.Path, size: n.Size}
			return nil
		}
		g.more = append(g.more, n.Path)
		wasted += n.Size
		return nil
	})
	var worst []*group
	for _, d := range sortedKeys(groups) {
		if g := groups[d]; len(g.more) > 0 {
			worst = append(worst, g)
		}
	}
	slices.SortStableFunc(worst, func(a, b *group) int { return cmp.Compare(b.size*int64(len(b.more)), a.size*int64(len(a.more))) })
	f := validate.Finding{Subject: "duplicates", Observed: megabytes(wasted), Message: "files of equal content take " + megabytes(wasted) + " more than one copy would"}
	for _, g := range worst[:min(len(worst), contributors)] {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%9s  /%s and %d more, /%s", megabytes(g.size*int64(len(g.more))), g.first, len(g.more), g.more[0]))
	}
	c.note("static.image.duplicates", f)
}
