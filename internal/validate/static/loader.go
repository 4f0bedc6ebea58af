package static

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
)

// errMissing tells that no searched place has the library; errBad that the loader stops at a file it found.
var (
	errMissing = errors.New("not found")
	errBad     = errors.New("the file found cannot be loaded")
)

// loader is glibc's dynamic loader for one image: what it searches, by which rule. Processor-specific
// directories (glibc-hwcaps) are left out: a library must also load where they do not count.
type loader struct {
	tree    *rootfs.Tree
	libPath []string            // LD_LIBRARY_PATH
	cache   map[string][]string // soname to paths, in the cache's order
	dirs    []string            // compiled in
	lib     string              // $LIB
	machine string
}

// object is a file mapped into the simulated process.
type object struct {
	name   string // as asked for
	opened string // path as the loader opened it; $ORIGIN is its directory
	rule   string // which rule found it
	node   rootfs.Node
	caller *object
}

// process is one simulated process: what is loaded stays and is found again by name.
type process struct {
	ld     *loader
	byName map[string]*object
	byReal map[string]*object
	order  []*object
}

// missing is a library that could not be loaded.
type missing struct {
	name   string
	by     *object
	err    error
	search []string // places looked at, in order
}

func (l *loader) process() *process {
	return &process{ld: l, byName: map[string]*object{}, byReal: map[string]*object{}}
}

// start maps a file by its path, with all that it needs.
func (p *process) start(file string) (*object, []missing) {
	o, ok, err := p.ld.open(file)
	if err != nil || !ok {
		return nil, []missing{{name: file, err: cmpErr(err)}}
	}
	o.name, o.rule = path.Base(file), "by path"
	o = p.add(o)
	return o, p.needs(o)
}

func cmpErr(err error) error {
	if err == nil {
		return errMissing
	}
	return err
}

// dlopen loads a library as a call in caller would, with all that it needs.
func (p *process) dlopen(name string, caller *object) (*object, []missing) {
	o, m := p.find(name, caller)
	if m != nil {
		return nil, []missing{*m}
	}
	return o, p.needs(o)
}

// needs loads the closure of o breadth first, as the loader does.
func (p *process) needs(o *object) []missing {
	var out []missing
	done := map[*object]bool{o: true}
	for queue := []*object{o}; len(queue) > 0; queue = queue[1:] {
		for _, name := range queue[0].node.ELF.Needed {
			n, m := p.find(name, queue[0])
			if m != nil {
				out = append(out, *m)
				continue
			}
			if !done[n] {
				done[n] = true
				queue = append(queue, n)
			}
		}
	}
	return out
}

// add puts an object into the process; a file that is mapped already is the same object.
func (p *process) add(o *object) *object {
	if old := p.byReal[o.node.Path]; old != nil {
		p.byName[o.name] = old
		return old
	}
	p.byReal[o.node.Path] = o
	p.order = append(p.order, o)
	for _, name := range []string{o.name, o.node.ELF.Soname} {
		if name != "" && p.byName[name] == nil {
			p.byName[name] = o
		}
	}
	return o
}

// place is one directory that is searched and candidate one file, with the rule behind it.
type (
	place     struct{ dir, rule string }
	candidate struct{ file, rule string }
)

// find looks one name up by the loader's rules.
func (p *process) find(name string, caller *object) (*object, *missing) {
	if o := p.byName[name]; o != nil {
		return o, nil
	}
	tried := p.ld.candidates(name, caller)
	for i, c := range tried {
		o, ok, err := p.ld.open(c.file)
		if err != nil {
			return nil, &missing{name, caller, fmt.Errorf("%s: %w", c.file, err), lines(tried[:i+1])}
		}
		if ok {
			o.name, o.rule, o.caller = name, c.rule, caller
			return p.add(o), nil
		}
	}
	return nil, &missing{name, caller, errMissing, lines(tried)}
}

func lines(tried []candidate) []string {
	out := make([]string, 0, len(tried))
	for _, c := range tried {
		out = append(out, fmt.Sprintf("%s (%s)", c.file, c.rule))
	}
	return out
}

// candidates lists the files that the loader tries for a name, in order.
func (l *loader) candidates(name string, caller *object) []candidate {
	if strings.Contains(name, "/") {
		file, _ := l.expand(name, caller)
		return []candidate{{file, "by path"}}
	}
	var out []candidate
	for _, d := range l.before(caller) {
		out = append(out, candidate{d.dir + "/" + name, d.rule})
	}
	for _, file := range l.cache[name] {
		out = append(out, candidate{file, "ld.so.cache"})
	}
	for _, dir := range l.dirs {
		out = append(out, candidate{dir + "/" + name, "default directory"})
	}
	return out
}

// before lists the directories that come before the cache: RPATH of the callers unless the caller has a
// RUNPATH, the environment's path, the caller's RUNPATH.
func (l *loader) before(caller *object) []place {
	var out []place
	put := func(list []string, o *object, rule string) {
		for _, e := range list {
			dir, ok := l.expand(e, o)
			if ok && !slices.Contains(out, place{dir, rule}) {
				out = append(out, place{dir, rule})
			}
		}
	}
	if caller != nil && caller.node.ELF.RunPath == nil {
		for o := caller; o != nil; o = o.caller {
			if o.node.ELF.RunPath == nil {
				put(o.node.ELF.RPath, o, "RPATH of "+o.opened)
			}
		}
	}
	put(l.libPath, nil, "LD_LIBRARY_PATH")
	if caller != nil {
		put(caller.node.ELF.RunPath, caller, "RUNPATH of "+caller.opened)
	}
	return out
}

// expand replaces the loader's variables; ok is false for an element that names no fixed directory: an empty or
// relative one means the working directory.
func (l *loader) expand(e string, o *object) (string, bool) {
	origin := "/"
	if o != nil {
		origin = dirOf(o.opened)
	}
	e = strings.NewReplacer("${ORIGIN}", origin, "$ORIGIN", origin, "${LIB}", l.lib, "$LIB", l.lib,
		"${PLATFORM}", "x86_64", "$PLATFORM", "x86_64").Replace(e)
	if len(e) > 1 {
		e = strings.TrimRight(e, "/")
	}
	return e, strings.HasPrefix(e, "/")
}

// dirOf cuts the last component off; the text before it stays as it is, ".." included.
func dirOf(file string) string { return file[:max(strings.LastIndexByte(file, '/'), 0)] }

// open looks at one file. ok is false when the loader goes on searching; an error that wraps errBad ends its
// search.
func (l *loader) open(file string) (*object, bool, error) {
	n, _, err := l.tree.Resolve(file)
	switch {
	case err != nil:
		return nil, false, nil
	case n.Type != rootfs.Regular:
		return nil, false, fmt.Errorf("%w: is a %s", errBad, n.Type)
	case n.Size == 0:
		return nil, false, fmt.Errorf("%w: is empty", errBad)
	case n.ELF == nil && n.ELFError != "":
		return nil, false, fmt.Errorf("%w: %s", errBad, n.ELFError)
	case n.ELF == nil:
		return nil, false, fmt.Errorf("%w: not an ELF file", errBad)
	case n.ELF.Class != 64 || n.ELF.Machine != l.machine:
		return nil, false, nil
	}
	return &object{opened: file, node: n}, true, nil
}

// unmetVersions lists symbol versions that a loaded object needs and the library behind the name lacks.
func (p *process) unmetVersions() []unmetVersion {
	var out []unmetVersion
	for _, o := range p.order {
		for _, need := range o.node.ELF.VersionNeeds {
			lib := p.byName[need.File]
			if lib == nil || len(lib.node.ELF.VersionDefs) == 0 {
				continue // missing is told elsewhere; without versions the loader only warns
			}
			for _, v := range need.Versions {
				if !slices.Contains(lib.node.ELF.VersionDefs, v) {
					out = append(out, unmetVersion{o, lib, v})
				}
			}
		}
	}
	return out
}

// unmetVersion is one symbol version that is not there.
type unmetVersion struct {
	by, lib *object
	version string
}
