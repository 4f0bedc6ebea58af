package component

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/wheel"
)

// Plan groups the wheels of a target into components, in image order, as the layout's layer plan says. Within a
// component wheels are sorted by normalized name.
func Plan(t matrix.Target, lay layout.Layout) ([]Spec, error) {
	r, err := lay.At(layout.Vars{CUDA: t.CUDA, Python: t.Python.Version, Platform: t.Platform})
	if err != nil {
		return nil, fmt.Errorf("planning layers of %s: %w", t.Entry, err)
	}
	if err := CheckCompression(t.Compression); err != nil {
		return nil, fmt.Errorf("planning layers of %s: %w", t.Entry, err)
	}
	requested := map[string]bool{}
	for _, n := range t.Requested {
		requested[wheel.NormalizeName(n)] = true
	}
	members := map[string][]matrix.Wheel{}
	for _, w := range t.Wheels {
		groups := groupsOf(r.Groups, w.Name, requested)
		if len(groups) == 0 {
			return nil, fmt.Errorf("planning layers of %s: wheel %s: no group of layout %s matches it; add one with match: [\"*\"]", t.Entry, w.File, lay.Name)
		}
		for _, g := range groups {
			members[g] = append(members[g], w)
		}
	}
	var specs, last []Spec
	for _, g := range r.Groups {
		if len(members[g.Name]) == 0 {
			continue
		}
		s := Spec{Name: g.Name, Side: g.Side, Wheels: members[g.Name], Layout: r,
			Options: Options{Compression: t.Compression, Epoch: t.Epoch, Platform: t.Platform}}
		slices.SortFunc(s.Wheels, func(a, b matrix.Wheel) int {
			return strings.Compare(wheel.NormalizeName(a.Name), wheel.NormalizeName(b.Name))
		})
		for _, w := range s.Wheels {
			if n := wheel.NormalizeName(w.Name); requested[n] && g.Side != layout.SideCUDA {
				s.Requested = append(s.Requested, n)
			}
		}
		if g.Last {
			last = append(last, s)
			continue
		}
		specs = append(specs, s)
	}
	return append(specs, last...), nil
}

// groupsOf returns the one group of a whole wheel, or the two groups of a wheel with a CUDA side.
func groupsOf(groups []layout.Group, name string, requested map[string]bool) []string {
	name = wheel.NormalizeName(name)
	find := func(side layout.Side) string {
		for _, g := range groups {
			if g.Side != side || g.Requested && !requested[name] {
				continue
			}
			for _, m := range g.Match {
				if ok, err := path.Match(m, name); ok && err == nil {
					return g.Name
				}
			}
		}
		return ""
	}
	if cuda := find(layout.SideCUDA); cuda != "" {
		if python := find(layout.SidePython); python != "" {
			return []string{cuda, python}
		}
		return nil
	}
	if all := find(layout.SideAll); all != "" {
		return []string{all}
	}
	return nil
}

// Finishing lists the links, keep files and loader configuration that complete the tree of a layout; the
// finishing layer holds them.
func Finishing(r layout.Resolved) []Entry {
	var es []Entry
	for _, l := range r.Links {
		es = append(es, Symlink(l.Path, l.Target))
	}
	for _, k := range r.KeepFiles {
		es = append(es, File(k, 0o644, []byte(r.KeepText)))
	}
	return append(es, File(r.LoaderFile, 0o644, []byte(r.LoaderText)))
}
