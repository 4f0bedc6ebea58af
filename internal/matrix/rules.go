package matrix

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	pep440 "github.com/aquasecurity/go-pep440-version"

	"imgsmith/internal/facts"
)

// stated tells whether the entry names a TensorFlow at all.
func (c *check) stated() bool { return c.e.TensorFlow.Version != "" }

func platform(c *check) {
	if p := c.e.Platform; p != "" && p != DefaultPlatform {
		c.add("platform", "platform", Refuse, facts.Evidence{Source: "tensorflow/docs:site/en/install/pip.md@7c365021", Confidence: "verified"},
			"platform: "+DefaultPlatform, "TensorFlow has no GPU wheel for %s: its wheels there, if any, are for the CPU", p)
	}
}

func supplier(c *check) {
	switch c.e.Supplier {
	case "", SupplierWheels, SupplierApt, SupplierAndCUDA:
	default:
		c.add("supplier", "supplier", Refuse, own("what it can build"), "supplier: wheels", "supplier %q is not known", c.e.Supplier)
	}
}

func layoutName(c *check) {
	l := c.e.Layout
	if l == "" || c.layouts == nil || slices.Contains(c.layouts, l) || strings.ContainsAny(l, "/") || strings.HasSuffix(l, ".yaml") {
		return
	}
	near := nearest(l, c.layouts)
	if near == "" {
		near = DefaultLayout
	}
	c.add("layout", "layout", Refuse, own("its image layouts"), "layout: "+near, "layout %q is not known; there are %s", l, strings.Join(c.layouts, ", "))
}

func release(c *check) {
	if !c.stated() {
		return
	}
	v := c.e.TensorFlow.Version
	if c.known == nil {
		if c.tf.Inferred {
			c.add("tensorflow", "tensorflow-inferred", Warn, c.tf.Evidence, "", "TensorFlow %s is not in the facts: those of %s are used, inferred", v, c.tf.Minor)
		}
		return
	}
	releases := c.facts.Releases()
	newest := releases[len(releases)-1]
	if reason, ev, old := c.facts.TooOld(v); old {
		c.add("tensorflow", "tensorflow-release", Refuse, ev, fmt.Sprintf("tensorflow: %q", releases[0]), "TensorFlow %s was %s", v, reason)
		return
	}
	if facts.Major(v) != facts.Major(newest) {
		c.add("tensorflow", "tensorflow-release", Refuse, own("its facts table"), fmt.Sprintf("tensorflow: %q", newest),
			"there is no TensorFlow %s: the newest release known here is %s", v, newest)
		return
	}
	if c.cuda == "" || c.cudnn == "" {
		c.add("tensorflow", "tensorflow-release", Refuse, own("its facts table"), fmt.Sprintf("tensorflow: %q", newest),
			"TensorFlow %s is newer than the facts, so cuda and cudnn cannot be chosen; write their versions", v)
		return
	}
	c.add("tensorflow", "tensorflow-release", Unproved, own("its facts table"), fmt.Sprintf("tensorflow: %q", newest), "TensorFlow %s is newer than the facts", v)
}

func pythonRange(c *check) {
	py := c.e.Python.Version
	if py == "" || py == Auto || !c.stated() || c.known != nil {
		return
	}
	if facts.Compare(py, c.tf.PythonMin) >= 0 && facts.Compare(py, c.tf.PythonMax) <= 0 {
		return
	}
	near := c.tf.PythonMax
	if facts.Compare(py, c.tf.PythonMin) < 0 {
		near = c.tf.PythonMin
	}
	nearest := fmt.Sprintf("python: %q", near)
	if with := c.facts.ReleasesFor(py); len(with) > 0 {
		first, last := with[0], with[len(with)-1]
		if facts.Compare(c.tf.Minor, first) < 0 {
			last = first
		}
		if tf, err := c.facts.TensorFlow(last); err == nil {
			nearest += fmt.Sprintf(", or tensorflow: %q", tf.Latest)
		}
	}
	c.add("python", "python-range", Refuse, c.tf.Evidence, nearest, "TensorFlow %s has no wheel for Python %s: it has wheels for %s to %s",
		c.e.TensorFlow.Version, py, c.tf.PythonMin, c.tf.PythonMax)
}

// base judges what the image reference says about its operating system; the base itself is judged later.
func base(c *check) {
	if c.e.Base == "" || strings.HasPrefix(c.e.Base, "oci-layout:") {
		return
	}
	o, err := c.facts.OSOfReference(c.e.Base)
	if errors.Is(err, facts.ErrUnknown) {
		return
	}
	if o.Libc != "glibc" {
		c.add("base", "libc", Refuse, o.Evidence, "base: debian:12", "base %s has %s: TensorFlow has wheels for glibc only", c.e.Base, o.Libc)
		return
	}
	if c.stated() && c.known == nil && facts.Compare(o.Glibc, c.tf.MinGlibc) < 0 {
		c.add("base", "glibc", Refuse, c.tf.Evidence, "base: debian:12", "base %s has glibc %s, the wheel of TensorFlow %s needs %s",
			c.e.Base, o.Glibc, c.e.TensorFlow.Version, c.tf.MinGlibc)
	}
	py := c.e.Python.Version
	if py == "" || py == Auto || c.e.Python.From != PythonOS || slices.Contains(o.Pythons, py) {
		return
	}
	var near []string
	if with := c.facts.BasesWith(py); len(with) > 0 {
		near = append(near, "base: "+strings.Join(with, " or "))
	}
	if len(o.Pythons) > 0 {
		near = append(near, fmt.Sprintf("python: %q", o.Pythons[0]))
	}
	near = append(near, "a base that holds that interpreter with from: base")
	has := "no Python"
	if len(o.Pythons) > 0 {
		has = "Python " + strings.Join(o.Pythons, ", ")
	}
	c.add("python", "base-python", Refuse, o.Evidence, strings.Join(near, ", or "), "%s provides %s, not %s", c.e.Base, has, py)
}

func packages(c *check) {
	for _, name := range slices.Sorted(maps.Keys(c.e.Packages)) {
		if r, ok := c.facts.RefusedPackage(name); ok {
			c.add("packages", "package-refused", Refuse, r.Evidence, r.Nearest, "package %s: %s", name, r.Reason)
		}
	}
	if !c.stated() || c.known != nil {
		return
	}
	for _, p := range []struct{ name, spec string }{{"numpy", c.tf.NumPy}, {"protobuf", c.tf.Protobuf}} {
		if version, ok := c.e.Packages[p.name]; ok {
			c.packageRange(p.name, version, p.spec, c.tf.Evidence)
		}
	}
}

func (c *check) packageRange(name, version, spec string, ev facts.Evidence) {
	v, err := pep440.Parse(version)
	s, serr := pep440.NewSpecifiers(spec)
	if err != nil || serr != nil || s.Check(v) {
		return
	}
	c.add("packages", "package-range", Refuse, ev, "leave "+name+" out of packages: a version that fits is chosen",
		"%s %s does not work with TensorFlow %s, which needs %s", name, version, c.e.TensorFlow.Version, spec)
}

func environment(c *check) {
	for _, name := range slices.Sorted(maps.Keys(c.e.Environment)) {
		if r, ok := c.facts.RefusedVariable(name, c.e.Environment[name]); ok {
			c.add("environment", "environment", Refuse, r.Evidence, "leave "+name+" out", "environment sets %s: %s", name, r.Reason)
		}
	}
}
