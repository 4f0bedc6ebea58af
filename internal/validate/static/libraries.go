package static

import (
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// libraries opens TensorFlow's dlopen set in one simulated process, in the order of the facts.
func (c *checker) libraries() {
	tf := c.Expect.TensorFlow
	if tf.DlopenCaller == "" || len(tf.DlopenSet) == 0 {
		c.report("static.dlopen", "", []validate.Finding{{Outcome: validate.OutcomeInconclusive, Subject: "TensorFlow " + tf.Release,
			Message: "the facts do not name what TensorFlow opens", Remedy: "add the release to the facts"}})
	}
	if tf.DlopenCaller == "" {
		return
	}
	c.proc = c.ld.process()
	file := c.findCaller(tf.DlopenCaller)
	if file == "" {
		c.report("static.tensorflow", "", []validate.Finding{{Subject: tf.DlopenCaller, Message: "the library that opens CUDA is not in site-packages",
			Expected: "/" + c.Expect.SitePackages + "/tensorflow/" + tf.DlopenCaller, Remedy: "install TensorFlow into this environment; a CPU-only build has no GPU code"}})
		c.proc = nil
		return
	}
	caller, miss := c.proc.start("/" + file)
	c.report("static.tensorflow", "/"+file+" loads", c.lost(miss))
	if c.caller = caller; caller == nil {
		return
	}
	for _, soname := range tf.DlopenSet {
		o, miss := c.proc.dlopen(soname, caller)
		passed := ""
		if o != nil {
			passed = fmt.Sprintf("%s is /%s (%s)", soname, o.node.Path, o.rule)
		}
		found := c.lost(miss)
		for i := range found {
			found[i].Subject = soname
		}
		c.report("static.dlopen", passed, found)
	}
	c.report("static.versions", "every symbol version that the GPU libraries need is defined", versionFindings(c.proc))
	for _, o := range c.proc.order {
		c.mapped = append(c.mapped, Mapped{Soname: o.name, Path: "/" + o.node.Path, Opened: o.opened, Rule: o.rule})
	}
}

// findCaller returns the path of the library below site-packages/tensorflow, or "".
func (c *checker) findCaller(soname string) string {
	var file string
	_ = c.Tree.Walk(c.Expect.SitePackages+"/tensorflow", func(n rootfs.Node) error {
		if file == "" && n.Type != rootfs.Dir && base(n.Path) == soname {
			file = n.Path
		}
		return nil
	})
	return file
}

// lost turns libraries that do not load into findings; those of the host's driver may be absent.
func (c *checker) lost(list []missing) []validate.Finding {
	var found []validate.Finding
	for _, m := range list {
		if c.fromHost(m.name) {
			continue
		}
		f := validate.Finding{Subject: m.name, Message: fmt.Sprintf("%s: %v", m.name, m.err), Evidence: m.search,
			Expected: "the loader finds " + m.name, Observed: m.err.Error(), Remedy: c.remedy(m.name)}
		if m.by != nil {
			f.Message = fmt.Sprintf("%s, opened by %s: %v", m.name, m.by.opened, m.err)
		}
		found = append(found, f)
	}
	return found
}

// fromHost tells whether the host's driver package supplies a library at run time.
func (c *checker) fromHost(name string) bool {
	return slices.Contains(c.Expect.TensorFlow.HostLibraries, name) || c.rules.driverLibrary(name)
}

// remedy says where the image has a library that the loader does not reach.
func (c *checker) remedy(name string) string {
	var at []string
	stem, _, _ := strings.Cut(name, ".so")
	_ = c.Tree.Walk("", func(n rootfs.Node) error {
		if b := base(n.Path); n.Type == rootfs.Regular && (b == name || strings.HasPrefix(b, stem+".so.")) {
			at = append(at, "/"+n.Path)
		}
		return nil
	})
	switch i := slices.IndexFunc(at, func(p string) bool { return base(p) == name }); {
	case i >= 0:
		return fmt.Sprintf("the file is at %s: add that directory to the loader configuration and run ldconfig", at[i])
	case len(at) > 0:
		return fmt.Sprintf("the image has another version, %s: install the one whose name is %s", at[0], name)
	default:
		return "install the package that holds " + name
	}
}

func versionFindings(p *process) []validate.Finding {
	var found []validate.Finding
	for _, u := range p.unmetVersions() {
		found = append(found, validate.Finding{Subject: "/" + u.by.node.Path, Message: fmt.Sprintf("%s needs %s of %s", base(u.by.node.Path), u.version, base(u.lib.node.Path)),
			Expected: u.version, Observed: fmt.Sprintf("newest in /%s: %s", u.lib.node.Path, newest(u.lib.node.ELF.VersionDefs, u.version)),
			Remedy: "use a base with a newer library of that name, or a wheel built for an older one"})
	}
	return found
}

// newest returns the highest version of the same family, "GLIBC_2.36" for "GLIBC_2.99".
func newest(defs []string, like string) string {
	family, _, _ := strings.Cut(like, "_")
	best := "none"
	for _, d := range defs {
		v, ok := strings.CutPrefix(d, family+"_")
		if ok && facts.Dotted(v) && (best == "none" || facts.Compare(v, strings.TrimPrefix(best, family+"_")) > 0) {
			best = d
		}
	}
	return best
}

// laterLibraries opens what cuDNN and TensorFlow open after the device was registered.
func (c *checker) laterLibraries() {
	if c.caller == nil {
		return
	}
	c.cudnnFamily()
	var found []validate.Finding
	opens := func(o *object, soname, purpose string) {
		_, miss := c.proc.dlopen(soname, o)
		for _, f := range c.lost(miss) {
			if !c.Expect.Complete {
				f.Outcome, f.Note = validate.OutcomePassed, true
			}
			f.Message += " (" + purpose + ")"
			found = append(found, f)
		}
	}
	for _, l := range c.rules.OpensLater {
		if o := c.proc.byName[l.Caller]; o != nil {
			opens(o, l.Opens, "opened at run time by "+l.Caller)
		}
	}
	for _, l := range c.Expect.TensorFlow.OptionalSet {
		opens(c.caller, l.Soname, l.Purpose)
	}
	c.report("static.later", "every library that is opened later is found", found)
}

// cudnnFamily opens each sub-library as cuDNN does. The members are those of the facts and every other one that
// lies beside cuDNN: new releases add some.
func (c *checker) cudnnFamily() {
	family := c.Expect.CuDNN
	front := c.proc.byName[family.Soname]
	if front == nil {
		return // told by static.dlopen
	}
	members := slices.Clone(family.Members)
	beside, err := c.Tree.ReadDir(path.Dir(front.node.Path))
	if err == nil {
		stem, suffix, _ := strings.Cut(family.Soname, ".so")
		for _, n := range beside {
			b := base(n.Path)
			if strings.HasPrefix(b, stem+"_") && strings.HasSuffix(b, ".so"+suffix) && !slices.Contains(members, b) {
				members = append(members, b)
			}
		}
	}
	var found []validate.Finding
	for _, m := range members {
		o, miss := c.proc.dlopen(m, front)
		found = append(found, c.lost(miss)...)
		if o != nil && path.Dir(o.node.Path) != path.Dir(front.node.Path) {
			found = append(found, validate.Finding{Subject: m, Message: "cuDNN's libraries come from two places", Expected: "/" + path.Dir(front.node.Path),
				Observed: "/" + o.node.Path, Remedy: "keep one copy of cuDNN"})
		}
	}
	found = append(found, c.mixedFamily(family.Soname)...)
	c.report("static.cudnn.family", fmt.Sprintf("%d sub-libraries of %s load from one directory", len(members), family.Soname), found)
}

// mixedFamily compares the versions that cuDNN's libraries carry in their code. The front opens its members by
// name, so it takes what lies there.
func (c *checker) mixedFamily(front string) []validate.Finding {
	stem, _, _ := strings.Cut(front, ".so")
	seen := map[string]bool{}
	var f validate.Finding
	for _, o := range c.proc.order {
		if e := o.node.ELF; strings.HasPrefix(e.Soname, stem+"_") && e.Version != "" {
			seen[e.Version] = true
			f.Evidence = append(f.Evidence, fmt.Sprintf("/%s: %s (%s)", o.node.Path, e.Version, e.VersionFrom))
			if f.Subject == "" || len(seen) == 2 && !strings.HasPrefix(f.Observed, "/") {
				f.Subject = "/" + o.node.Path
			}
		}
	}
	if len(seen) < 2 {
		return nil
	}
	f.Message, f.Expected, f.Observed = "cuDNN's libraries are of different releases", "one release", strings.Join(sortedKeys(seen), " and ")
	f.Remedy = "install one release of cuDNN whole, and remove the files of the other"
	return []validate.Finding{f}
}

// libraryName matches the names under which libraries are opened.
var libraryName = regexp.MustCompile(`\.so(\.[0-9]+)*$`)

// everyELF starts every ELF file below the roots in a process of its own. A library that lacks something alone
// but is loaded whole by another file is no fault: vendored libraries rely on the RPATH of the module that loads
// them and are never opened by themselves.
func (c *checker) everyELF() {
	var versions []validate.Finding
	count := 0
	told := map[string]bool{}
	carried := map[string]bool{} // real paths loaded in a process that lacks nothing
	type lacking struct {
		path string
		miss []missing
	}
	var alone []lacking
	c.walk(func(n rootfs.Node) {
		if n.Type != rootfs.Regular || n.ELF == nil || !n.ELF.Dynamic || n.ELF.Class != 64 || n.ELF.Machine != c.Expect.Machine {
			return
		}
		count++
		p, miss := c.startAlone("/" + n.Path)
		switch {
		case len(miss) == 0:
			for _, o := range p.order {
				carried[o.node.Path] = true
			}
		case !c.rules.optional(base(n.Path)):
			alone = append(alone, lacking{n.Path, miss})
		}
		for _, f := range versionFindings(p) {
			if key := f.Subject + f.Expected; !told[key] {
				told[key] = true
				versions = append(versions, f)
			}
		}
	})
	var found []validate.Finding
	for _, l := range alone {
		if !carried[l.path] {
			found = append(found, c.lost(l.miss)...)
		}
	}
	if count == 0 {
		found = append(found, validate.Finding{Subject: "/" + c.Expect.Venv, Message: "no ELF file was found", Remedy: "give the paths of the Python environment and of the CUDA root"})
	}
	c.report("static.elf.needed", fmt.Sprintf("%d ELF files find every library that they need", count), found)
	c.report("static.elf.versions", fmt.Sprintf("%d ELF files find every symbol version that they need", count), versions)
}

// startAlone loads one file in a process of its own. What is then missing may be there when TensorFlow loads the
// file as a plug-in: its library is in the process already.
func (c *checker) startAlone(file string) (*process, []missing) {
	p := c.ld.process()
	_, miss := p.start(file)
	if len(miss) == 0 || c.caller == nil {
		return p, miss
	}
	p = c.ld.process()
	p.start(c.caller.opened)
	_, miss = p.start(file)
	return p, miss
}

// providers looks for a second file behind a soname that TensorFlow opens.
func (c *checker) providers() {
	wanted := map[string][]rootfs.Node{}
	for _, s := range slices.Concat(c.Expect.TensorFlow.DlopenSet, c.Expect.TensorFlow.TransitiveSet, c.Expect.CuDNN.Members) {
		wanted[s] = nil
	}
	_ = c.Tree.Walk("", func(n rootfs.Node) error {
		if n.Type == rootfs.Regular && n.ELF != nil && n.ELF.Dynamic {
			if list, ok := wanted[n.ELF.Soname]; ok && !slices.Contains(strings.Split(n.Path, "/"), c.rules.StubDirectory) {
				wanted[n.ELF.Soname] = append(list, n)
			}
		}
		return nil
	})
	var found []validate.Finding
	for _, s := range slices.Concat(c.Expect.TensorFlow.DlopenSet, c.Expect.TensorFlow.TransitiveSet, c.Expect.CuDNN.Members) {
		list := wanted[s]
		if len(list) < 2 {
			continue
		}
		f := validate.Finding{Subject: s, Message: fmt.Sprintf("%d files provide %s", len(list), s), Expected: "one provider of CUDA",
			Remedy: "keep one: the system's CUDA or the Python packages', never both"}
		same := true
		for _, n := range list {
			f.Evidence = append(f.Evidence, "/"+n.Path)
			same = same && sameContent(n, list[0])
		}
		if o := c.mappedAs(s); o != "" {
			f.Observed = "the loader takes " + o
		}
		if same {
			f.Outcome, f.Note = validate.OutcomePassed, true
			f.Message += ", all equal: a copy that followed links wastes space"
			f.Remedy = "copy with links kept"
		}
		found = append(found, f)
	}
	c.report("static.providers", "every soname has one provider", found)
}

// sameContent compares by digest, or by size and names where contents were not read.
func sameContent(a, b rootfs.Node) bool {
	if a.Digest != "" || b.Digest != "" {
		return a.Digest == b.Digest
	}
	return a.Size == b.Size && a.ELF != nil && b.ELF != nil && reflect.DeepEqual(*a.ELF, *b.ELF)
}

func (c *checker) mappedAs(soname string) string {
	for _, m := range c.mapped {
		if m.Soname == soname {
			return m.Path
		}
	}
	return ""
}
