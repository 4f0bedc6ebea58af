package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Diff says in lines what changed from an older lock to a newer one, entry by entry: "+" came, "-" went, "~" is
// another version or file. It is empty when nothing that a build reads changed. old may be nil.
func (l *Lock) Diff(old *Lock) []string {
	var out []string
	if old == nil {
		for _, t := range l.Targets {
			out = append(out, fmt.Sprintf("+ %s: %d wheels, %d OS packages", t.Entry, len(t.Wheels), len(t.Debs)))
		}
		return out
	}
	for _, name := range slices.Sorted(maps.Keys(union(old.Tools, l.Tools))) {
		if a, b := old.Tools[name], l.Tools[name]; a != b {
			out = append(out, change("tool "+name, a, b))
		}
	}
	for _, t := range l.Targets {
		before, ok := old.Target(t.Entry)
		if !ok {
			out = append(out, fmt.Sprintf("+ %s: %d wheels, %d OS packages", t.Entry, len(t.Wheels), len(t.Debs)))
			continue
		}
		for _, line := range t.diff(before) {
			out = append(out, line[:2]+t.Entry+": "+line[2:])
		}
	}
	for _, t := range old.Targets {
		if _, ok := l.Target(t.Entry); !ok {
			out = append(out, "- "+t.Entry)
		}
	}
	return out
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}

func change(what, before, after string) string {
	switch {
	case before == "":
		return "+ " + what + " " + after
	case after == "":
		return "- " + what + " " + before
	}
	return "~ " + what + " " + before + " -> " + after
}

// values are the single values of a target that a diff compares.
func (t Target) values() [][2]string {
	list := func(in []string) string { return strings.Join(in, " ") }
	variables := func(m map[string]string) string {
		var out []string
		for _, k := range slices.Sorted(maps.Keys(m)) {
			out = append(out, k+"="+m[k])
		}
		return list(out)
	}
	thresholds := map[string]string{}
	for k, v := range t.Thresholds {
		thresholds[k] = fmt.Sprint(v)
	}
	overrides := map[string]string{}
	for _, o := range t.Overrides {
		overrides[o.Rule] = o.Reason
	}
	return [][2]string{
		{"base", t.Base.Name}, {"base digest", short(t.Base.Digest)}, {"base config", short(t.Base.Config)}, {"glibc", t.Base.Glibc},
		{"platform", t.Platform}, {"python", t.Python.Version + " from " + t.Python.From}, {"tensorflow", t.TensorFlow}, {"cuda", t.CUDA}, {"cudnn", t.CuDNN},
		{"supplier", t.Supplier}, {"flavor", t.Flavor}, {"layout", t.Layout}, {"layout checksum", short(t.LayoutSum)},
		{"requested", list(t.Requested)}, {"OS packages", list(t.OSPackages)}, {"environment", variables(t.Environment)}, {"labels", variables(t.Labels)},
		{"overrides", variables(overrides)}, {"thresholds", variables(thresholds)}, {"user", t.User},
		{"compression", t.Compression.Algorithm + " " + t.Compression.Level + " " + t.Compression.Encoder},
		{"bytecode", fmt.Sprint(t.Bytecode)}, {"constraints", fmt.Sprint(t.Constraints)}, {"source_date_epoch", fmt.Sprint(t.Epoch)},
	}
}

func (t Target) diff(before Target) []string {
	var out []string
	old := before.values()
	for i, v := range t.values() {
		if v[1] != old[i][1] {
			out = append(out, change(v[0], old[i][1], v[1]))
		}
	}
	type file struct{ version, name, sum string }
	files := func(t Target) (wheels, debs map[string]file) {
		wheels, debs = map[string]file{}, map[string]file{}
		for _, w := range t.Wheels {
			wheels[w.Name] = file{w.Version, w.File, w.SHA256}
		}
		for _, d := range t.Debs {
			debs[d.Name] = file{d.Version, d.File, d.SHA256}
		}
		return wheels, debs
	}
	newWheels, newDebs := files(t)
	oldWheels, oldDebs := files(before)
	for _, kind := range []struct {
		what        string
		before, now map[string]file
	}{{"", oldWheels, newWheels}, {"OS package ", oldDebs, newDebs}} {
		names := map[string]bool{}
		for n := range kind.before {
			names[n] = true
		}
		for n := range kind.now {
			names[n] = true
		}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			a, b := kind.before[n], kind.now[n]
			switch {
			case a == b:
			case a.version != b.version:
				out = append(out, change(kind.what+n, a.version, b.version))
			default:
				out = append(out, fmt.Sprintf("~ %s%s %s: another file, %s -> %s (sha256 %s -> %s)", kind.what, n, b.version, a.name, b.name, short(a.sum), short(b.sum)))
			}
		}
	}
	return out
}

// short keeps enough of a hash to tell two apart.
func short(sum string) string {
	sum = strings.TrimPrefix(sum, "sha256:")
	if len(sum) > 12 {
		return sum[:12]
	}
	return sum
}
