package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// Errors of Resolve, ReadFile and ReadDir, each wrapped with the path. ErrNotExist is fs.ErrNotExist.
var (
	ErrNotExist = fs.ErrNotExist
	ErrLoop     = errors.New("too many links")
	ErrNotDir   = errors.New("not a directory")
	ErrNoData   = errors.New("content was not kept")
)

// maxLinks is the number of links that the Linux kernel follows in one lookup (MAXSYMLINKS).
const maxLinks = 40

// Tree is what a runtime would see after all layers are applied. It does not change once made and may be read
// by several goroutines.
type Tree struct {
	root       *entry
	count      int
	violations []Violation
}

// entry is one path of the tree.
type entry struct {
	node     *Node // of the layer, never written to
	layer    int   // index of the layer that wrote it
	parent   *entry
	children map[string]*entry
	sorted   []*entry // children by name, set when all layers are applied
}

// Hop is one link that a lookup followed.
type Hop struct {
	Path    string // of the link
	Target  string // as stored
	Escapes bool   // "..", as written, leaves the root; the kernel stays at the root
}

// Len is the number of nodes without the root.
func (t *Tree) Len() int { return t.count }

// Violations are the places where a layer breaks the rules that make every runtime see the same tree.
func (t *Tree) Violations() []Violation { return slices.Clone(t.violations) }

// Lstat returns the node at a path without following a link in any component; "" and "." are the root.
func (t *Tree) Lstat(path string) (Node, bool) {
	e := t.find(path)
	if e == nil {
		return Node{}, false
	}
	return *e.node, true
}

// LayerOf tells which layer, by index in Apply's arguments, wrote a path; -1 for an unknown path.
func (t *Tree) LayerOf(path string) int {
	if e := t.find(path); e != nil {
		return e.layer
	}
	return -1
}

func (t *Tree) find(path string) *entry {
	e := t.root
	for _, name := range parts(path) {
		if e = e.children[name]; e == nil {
			return nil
		}
	}
	return e
}

// parts splits a path, dropping empty and "." components. ".." stays.
func parts(path string) []string {
	names := strings.Split(path, "/")
	return slices.DeleteFunc(names, func(s string) bool { return s == "" || s == "." })
}

// Resolve looks a path up from the root as the kernel does: component by component, links followed where they
// stand, ".." taken from the directory really reached, absolute targets from the root. It returns the node
// reached, whose Path has no link in it, and the links on the way, also beside an error. Errors wrap
// ErrNotExist, ErrLoop or ErrNotDir.
func (t *Tree) Resolve(path string) (Node, []Hop, error) {
	e, hops, err := t.resolve(path)
	if err != nil {
		return Node{}, hops, err
	}
	return *e.node, hops, nil
}

func (t *Tree) resolve(path string) (*entry, []Hop, error) {
	var hops []Hop
	at, rest := t.root, parts(path)
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if at.node.Type != Dir {
			return nil, hops, fmt.Errorf("looking up /%s: /%s: %w", path, at.node.Path, ErrNotDir)
		}
		if name == ".." {
			if at.parent != nil {
				at = at.parent
			} else if len(hops) > 0 {
				hops[len(hops)-1].Escapes = true
			}
			continue
		}
		next := at.children[name]
		if next == nil {
			return nil, hops, fmt.Errorf("looking up /%s: /%s: %w", path, join(at.node.Path, name), ErrNotExist)
		}
		if next.node.Type != Symlink {
			at = next
			continue
		}
		if len(hops) == maxLinks {
			return nil, hops, fmt.Errorf("looking up /%s: %w", path, ErrLoop)
		}
		hops = append(hops, Hop{Path: next.node.Path, Target: next.node.Link})
		if next.node.Link == "" {
			return nil, hops, fmt.Errorf("looking up /%s: /%s is an empty link: %w", path, next.node.Path, ErrNotExist)
		}
		if strings.HasPrefix(next.node.Link, "/") {
			at = t.root
		}
		rest = append(parts(next.node.Link), rest...)
	}
	return at, hops, nil
}

func join(dir, name string) string {
	if dir == "" || dir == "." {
		return name
	}
	return dir + "/" + name
}

// ReadFile returns the kept content of the regular file that a path leads to; ErrNoData when the layer was read
// without keeping it.
func (t *Tree) ReadFile(path string) ([]byte, error) {
	n, _, err := t.Resolve(path)
	if err != nil {
		return nil, err
	}
	if n.Type != Regular {
		return nil, fmt.Errorf("reading /%s: is a %s", path, n.Type)
	}
	if n.Data == nil && n.Size > 0 {
		return nil, fmt.Errorf("reading /%s: %w", path, ErrNoData)
	}
	return n.Data, nil
}

// ReadDir returns what the directory that a path leads to holds, sorted by name.
func (t *Tree) ReadDir(path string) ([]Node, error) {
	e, _, err := t.resolve(path)
	if err != nil {
		return nil, err
	}
	if e.node.Type != Dir {
		return nil, fmt.Errorf("reading directory /%s: %w", path, ErrNotDir)
	}
	out := make([]Node, 0, len(e.children))
	for _, c := range e.sorted {
		out = append(out, *c.node)
	}
	return out, nil
}

// Walk calls fn for the node at path and everything below, parents first, names sorted; it follows no link.
// fn may return fs.SkipDir or fs.SkipAll; any other error ends the walk and is returned. A path that is not in
// the tree has nothing to visit.
func (t *Tree) Walk(path string, fn func(Node) error) error {
	e := t.find(path)
	if e == nil {
		return nil
	}
	err := e.walk(fn)
	if errors.Is(err, fs.SkipAll) || errors.Is(err, fs.SkipDir) {
		return nil
	}
	return err
}

func (e *entry) walk(fn func(Node) error) error {
	if err := fn(*e.node); err != nil {
		return err
	}
	for _, c := range e.sorted {
		err := c.walk(fn)
		if err != nil && !errors.Is(err, fs.SkipDir) {
			return err
		}
	}
	return nil
}

// sort puts the children of e and of everything below in order.
func (e *entry) sort() {
	if len(e.children) == 0 {
		return
	}
	e.sorted = make([]*entry, 0, len(e.children))
	for _, name := range slices.Sorted(maps.Keys(e.children)) {
		c := e.children[name]
		e.sorted = append(e.sorted, c)
		c.sort()
	}
}
