package static

import (
	"cmp"
	"fmt"
	"path"

	"imgsmith/internal/rootfs"
)

// Trace tells how the loader searches for one name when TensorFlow opens it, line by line, and then what is
// mapped with it. The first libraries are those that TensorFlow opened before, as in a real process.
func Trace(in Input, soname string) []string {
	r, err := loadRules()
	if err != nil || in.Tree == nil {
		return []string{"nothing to look at"}
	}
	in.Expect.Machine = cmp.Or(in.Expect.Machine, "EM_X86_64")
	c := &checker{Input: in, rules: r}
	c.loaderSetup()
	c.libraries()
	if c.caller == nil {
		return []string{"the library that opens CUDA does not load: see static.tensorflow"}
	}
	out := []string{fmt.Sprintf("%s, opened by %s", soname, c.caller.opened)}
	if o := c.proc.byName[soname]; o != nil {
		by := "it"
		if o.caller != nil {
			by = o.caller.opened
		}
		out = append(out, fmt.Sprintf("  mapped before, when %s asked for %s:", by, o.name))
		out = append(out, c.searched(o.name, o.caller)...)
		return append(out, c.closure(o)...)
	}
	out = append(out, c.searched(soname, c.caller)...)
	before := len(c.proc.order)
	o, miss := c.proc.dlopen(soname, c.caller)
	if o != nil {
		out = append(out, c.closure(o)...)
	}
	for _, m := range miss {
		where := "not found"
		if c.fromHost(m.name) {
			where = "not in the image: the host's driver brings it"
		}
		out = append(out, fmt.Sprintf("  %s: %s", m.name, where))
	}
	if o != nil && len(c.proc.order) == before {
		out = append(out, "  nothing new is mapped")
	}
	return out
}

// searched lists the places of one search until the file that is taken.
func (c *checker) searched(name string, caller *object) []string {
	var out []string
	for _, t := range c.ld.candidates(name, caller) {
		o, ok, err := c.ld.open(t.file)
		switch {
		case err != nil:
			return append(out, fmt.Sprintf("  %s (%s): %v; the search ends", t.file, t.rule, err))
		case ok && "/"+o.node.Path != t.file:
			return append(out, fmt.Sprintf("  %s (%s): taken, it is /%s", t.file, t.rule, o.node.Path))
		case ok:
			return append(out, fmt.Sprintf("  %s (%s): taken", t.file, t.rule))
		}
		why := "not there"
		if n, _, err := c.Tree.Resolve(t.file); err == nil && n.Type == rootfs.Regular {
			why = "for another processor"
		}
		out = append(out, fmt.Sprintf("  %s (%s): %s", t.file, t.rule, why))
	}
	return append(out, "  no place has it")
}

// closure lists what an object needs, breadth first.
func (c *checker) closure(o *object) []string {
	var out []string
	done := map[*object]bool{o: true}
	for queue := []*object{o}; len(queue) > 0; queue = queue[1:] {
		for _, name := range queue[0].node.ELF.Needed {
			n := c.proc.byName[name]
			if n == nil || done[n] {
				continue
			}
			done[n] = true
			queue = append(queue, n)
			out = append(out, fmt.Sprintf("  needs %s of %s: /%s (%s)", name, path.Base(queue[0].opened), n.node.Path, n.rule))
		}
	}
	return out
}
