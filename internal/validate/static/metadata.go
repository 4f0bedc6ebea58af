package static

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// headers reads the fields before the first empty line of METADATA or WHEEL.
func headers(b []byte) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		if name, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' {
			name = strings.ToLower(name)
			out[name] = append(out[name], strings.TrimSpace(value))
		}
	}
	return out
}

// python judges what the metadata of all packages say together.
func (c *checker) python() {
	dists, err := c.distributions()
	if err != nil {
		return // told by static.packages
	}
	for _, site := range c.Expect.MoreSites {
		if nodes, err := c.Tree.ReadDir(site); err == nil {
			dists = append(dists, distributionsIn(nodes)...)
		}
	}
	have := map[string]distribution{}
	for _, d := range slices.Backward(dists) { // the first on the path wins
		have[d.name] = d
	}
	c.requires(dists, have)
	c.tags(dists)
	c.limits(have)
	c.leftovers(dists)
}

// requires answers what `pip check` would, without running it.
func (c *checker) requires(dists []distribution, have map[string]distribution) {
	env := markerEnv(c.pythonVersion())
	var found []validate.Finding
	read := 0
	for _, d := range dists {
		b, err := c.Tree.ReadFile(d.dir + "/METADATA")
		if err != nil {
			continue
		}
		read++
		h := headers(b)
		f := validate.Finding{Subject: "/" + d.dir, Remedy: "install the versions that " + d.name + " asks for, or another version of it"}
		for _, spec := range h["requires-python"] {
			if ok, err := allows(spec, env["python_full_version"]); env["python_version"] != "" && err == nil && !ok {
				f.Message, f.Expected, f.Observed = d.name+" does not support this Python", spec, env["python_version"]
				found = append(found, f)
			}
		}
		for _, line := range h["requires-dist"] {
			message, expected, observed := unmet(line, env, have)
			if message != "" {
				f.Message, f.Expected, f.Observed = d.name+" "+d.version+" "+message, expected, observed
				found = append(found, f)
			}
		}
	}
	if read > 0 {
		c.report("static.python.requires", fmt.Sprintf("%d packages have what they require", read), found)
	}
}

// unmet says why a requirement is not met, "" when it is or does not apply. A line that cannot be understood is
// left out, as pip does.
func unmet(line string, env map[string]string, have map[string]distribution) (message, expected, observed string) {
	r, err := parseRequirement(line)
	if err != nil {
		return "", "", ""
	}
	if applies, err := evaluate(r.marker, env); err != nil || !applies {
		return "", "", ""
	}
	d, ok := have[r.name]
	if !ok {
		return "requires " + r.name + ", which is not installed", strings.TrimSpace(r.name + " " + r.specifier), "no metadata directory"
	}
	if ok, err := allows(r.specifier, d.version); r.url || err != nil || ok {
		return "", "", ""
	}
	return "requires another version of " + r.name, r.name + " " + r.specifier, d.version
}

// moduleTag is the interpreter in the file name of an extension module.
var moduleTag = regexp.MustCompile(`\.cpython-(\d)(\d+)\w*-[^/]*\.so$`)

// tags demands packages and modules that were made for this interpreter.
func (c *checker) tags(dists []distribution) {
	python := c.pythonVersion()
	if python == "" {
		return
	}
	short := strings.ReplaceAll(python, ".", "")
	var found []validate.Finding
	read := 0
	for _, d := range dists {
		b, err := c.Tree.ReadFile(d.dir + "/WHEEL")
		if err != nil {
			continue
		}
		tags := headers(b)["tag"]
		read++
		if len(tags) > 0 && !slices.ContainsFunc(tags, func(t string) bool { return fits(t, python) }) {
			found = append(found, validate.Finding{Subject: "/" + d.dir, Message: d.name + " was made for another interpreter or platform", Expected: "a tag for cp" + short + " on linux x86_64",
				Observed: strings.Join(tags, " "), Remedy: "install the wheel of " + d.name + " for this Python"})
		}
	}
	_ = c.Tree.Walk(c.Expect.SitePackages, func(n rootfs.Node) error {
		if m := moduleTag.FindStringSubmatch(n.Path); m != nil && n.Type == rootfs.Regular && m[1]+m[2] != short && !c.hasModule(n.Path, m[1]+m[2], short) {
			found = append(found, validate.Finding{Subject: "/" + n.Path, Message: "the extension module is for another Python, which this one does not see", Expected: "cpython-" + short,
				Observed: "cpython-" + m[1] + m[2], Remedy: "install the package again for this Python"})
		}
		return nil
	})
	c.report("static.python.tags", fmt.Sprintf("%d packages are made for Python %s", read, python), found)
}

// hasModule tells whether the same module lies beside it for this Python: some packages bring several.
func (c *checker) hasModule(file, has, wants string) bool {
	_, ok := c.Tree.Lstat(strings.Replace(file, "cpython-"+has, "cpython-"+wants, 1))
	return ok
}

// fits tells whether one compressed tag set of a wheel holds for CPython python on linux x86-64.
func fits(tag, python string) bool {
	parts := strings.Split(tag, "-")
	if len(parts) != 3 {
		return true // not a tag: nothing to say
	}
	short := strings.ReplaceAll(python, ".", "")
	interpreter := slices.ContainsFunc(strings.Split(parts[0], "."), func(p string) bool {
		minor, cp := strings.CutPrefix(p, "cp3")
		older := cp && minor != "" && facts.Compare("3."+minor, python) <= 0 && parts[1] != "cp3"+minor
		return p == "py3" || p == "py"+short || p == "cp"+short || older && (strings.Contains(parts[1], "abi3") || parts[1] == "none")
	})
	abi := slices.ContainsFunc(strings.Split(parts[1], "."), func(a string) bool { return a == "none" || a == "abi3" || strings.HasPrefix(a, "cp"+short) })
	platform := slices.ContainsFunc(strings.Split(parts[2], "."), func(p string) bool { return p == "any" || strings.HasSuffix(p, "_x86_64") })
	return interpreter && abi && platform
}

// limits compares with the ranges of the facts: metadata of old releases leave caps out.
func (c *checker) limits(have map[string]distribution) {
	tf := c.Expect.TensorFlow
	var found []validate.Finding
	for _, l := range []struct{ name, allowed, why string }{
		{"numpy", tf.NumPy, "the binary interface of NumPy differs: the import fails"},
		{"protobuf", tf.Protobuf, "the generated code does not load"},
	} {
		d, ok := have[l.name]
		if !ok || l.allowed == "" {
			continue
		}
		if ok, err := allows(l.allowed, d.version); err == nil && !ok {
			found = append(found, validate.Finding{Subject: "/" + d.dir, Message: fmt.Sprintf("%s %s does not work with TensorFlow %s: %s", l.name, d.version, tf.Release, l.why),
				Expected: l.allowed, Observed: d.version, Remedy: fmt.Sprintf("install %s %s", l.name, l.allowed)})
		}
	}
	if v := c.env["TF_USE_LEGACY_KERAS"]; v == "1" || strings.EqualFold(v, "true") {
		if _, ok := have["tf-keras"]; !ok && facts.Compare(tf.Minor, legacyKerasSplit) >= 0 {
			found = append(found, validate.Finding{Subject: "TF_USE_LEGACY_KERAS", Message: "the image asks for Keras 2, and tf_keras is not installed", Expected: "tf_keras of TensorFlow's minor",
				Observed: "no metadata directory", Remedy: "install tf_keras=='" + tf.Minor + ".*', or remove the variable"})
		}
	}
	c.report("static.python.limits", "NumPy, protobuf and Keras are in the ranges that work with TensorFlow "+tf.Release, found)
}

// legacyKerasSplit is the minor from which tf.keras is Keras 3 and Keras 2 a package of its own. Source: release
// notes of TensorFlow 2.16.
const legacyKerasSplit = "2.16"

// leftovers finds what no installed package lists. With native code in it, it can win over an installed library.
func (c *checker) leftovers(dists []distribution) {
	listed, complete := c.listed(dists)
	nodes, err := c.Tree.ReadDir(c.Expect.SitePackages)
	if err != nil {
		return
	}
	var found []validate.Finding
	for _, n := range nodes {
		name := path.Base(n.Path)
		f := validate.Finding{Subject: "/" + n.Path, Remedy: "remove it, or install into an empty environment"}
		switch {
		case strings.HasPrefix(name, "~"):
			f.Message = "an interrupted installation left a directory behind"
		case strings.HasSuffix(name, ".dist-info"):
			if _, ok := c.Tree.Lstat(n.Path + "/METADATA"); ok || n.Type != rootfs.Dir || !complete {
				continue
			}
			f.Message = "a metadata directory without METADATA: the package was removed in part"
		case !complete || listed[name] || n.Type != rootfs.Dir || name == "__pycache__":
			continue
		default:
			so := c.nativeCode(n.Path)
			if so == "" {
				continue
			}
			f.Message, f.Observed = "no installed package lists this directory, and it holds native code", so
		}
		found = append(found, f)
	}
	c.report("static.python.leftovers", "every directory of site-packages belongs to an installed package", found)
}

// listed are the first components of all paths in RECORD; complete tells whether every RECORD was kept.
func (c *checker) listed(dists []distribution) (names map[string]bool, complete bool) {
	names = map[string]bool{}
	complete = true
	for _, d := range dists {
		b, err := c.Tree.ReadFile(d.dir + "/RECORD")
		if err != nil || len(b) == 0 {
			complete = false
			continue
		}
		for line := range strings.Lines(string(b)) {
			first, _, _ := strings.Cut(strings.TrimPrefix(line, `"`), "/")
			names[first] = true
		}
	}
	return names, complete
}

func (c *checker) nativeCode(dir string) string {
	var so string
	_ = c.Tree.Walk(dir, func(n rootfs.Node) error {
		if so == "" && n.ELF != nil && n.ELF.Dynamic {
			so = "/" + n.Path
		}
		return nil
	})
	return so
}
