package rootfs

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// ErrBadPath tells that a layer names a path that leaves the root or cannot exist.
var ErrBadPath = errors.New("bad path in layer")

// ErrBadHardlink tells that a hard link's source is missing or is no file.
var ErrBadHardlink = errors.New("hard link without a file behind it")

// maxDepth bounds the components of one path, so that walking stays within the stack.
const maxDepth = 256

// Apply puts layers on top of each other, the first one lowest, with overlay semantics: whiteouts and opaque
// markers hide only lower layers, a directory merges with a directory and replaces anything else. A directory
// that meets a link, or a link that meets a directory, is applied and recorded as a Violation, because
// runtimes differ there. The tree keeps pointers into the layers: do not change them after. Errors wrap ErrBadPath or ErrBadHardlink and name the layer.
func Apply(layers ...Layer) (*Tree, error) {
	t := &Tree{root: &entry{node: &Node{Path: ".", Type: Dir, Mode: 0o755}}}
	for i, l := range layers {
		for _, n := range l {
			if n.Type == Whiteout || n.Type == Opaque {
				t.hide(n)
			}
		}
		for k := range l {
			if n := &l[k]; n.Type == Whiteout || n.Type == Opaque {
				continue
			}
			if err := t.put(&l[k], i); err != nil {
				return nil, fmt.Errorf("applying layer %d: %w", i, err)
			}
		}
	}
	t.root.sort()
	return t, nil
}

// hide removes what a marker hides in the layers below.
func (t *Tree) hide(n Node) {
	e := t.find(n.Path)
	switch {
	case e == nil:
	case n.Type == Opaque || e.parent == nil:
		t.count -= e.size() - 1
		e.children = nil
	default:
		t.count -= e.size()
		delete(e.parent.children, path.Base(e.node.Path))
	}
}

func (e *entry) size() int {
	n := 1
	for _, c := range e.children {
		n += c.size()
	}
	return n
}

// put writes one node of a layer.
func (t *Tree) put(n *Node, layer int) error {
	names := parts(n.Path)
	if len(names) > maxDepth {
		return fmt.Errorf("%w: %d components in %.80q…", ErrBadPath, len(names), n.Path)
	}
	for _, name := range names {
		if name == ".." {
			return fmt.Errorf("%w: %q", ErrBadPath, n.Path)
		}
	}
	if len(names) == 0 {
		if n.Type == Dir {
			t.root.node = renamed(n, ".")
		}
		return nil
	}
	if n.Type == Hardlink {
		src := t.find(n.Link)
		if src == nil || src.node.Type == Dir {
			return fmt.Errorf("%w: /%s → /%s", ErrBadHardlink, n.Path, n.Link)
		}
		n = linkedTo(*src.node, n.Path)
	}
	n = renamed(n, strings.Join(names, "/"))
	at := t.root
	for i, name := range names[:len(names)-1] {
		next := at.children[name]
		if next == nil || next.node.Type != Dir {
			// Runtimes make missing parents themselves, and put a directory where a lower layer has a link.
			parent := &Node{Path: strings.Join(names[:i+1], "/"), Type: Dir, Mode: 0o755}
			if next != nil {
				t.judge(next, parent, layer)
			}
			next = t.set(at, name, parent, layer)
		}
		at = next
	}
	name := names[len(names)-1]
	if old := at.children[name]; old != nil {
		t.judge(old, n, layer)
		if old.node.Type == Dir && n.Type == Dir {
			old.node, old.layer = n, layer
			return nil
		}
	}
	t.set(at, name, n, layer)
	return nil
}

// linkedTo is the node at path that shares its content with n.
func linkedTo(n Node, path string) *Node {
	if n.Type == Regular {
		n.Link = n.Path
	}
	n.Path = path
	return &n
}

// renamed is n under a clean path; n itself where it has that path.
func renamed(n *Node, path string) *Node {
	if n.Path == path {
		return n
	}
	out := *n
	out.Path = path
	return &out
}

func (t *Tree) set(dir *entry, name string, n *Node, layer int) *entry {
	if old := dir.children[name]; old != nil {
		t.count -= old.size()
	}
	if dir.children == nil {
		dir.children = map[string]*entry{}
	}
	e := &entry{node: n, layer: layer, parent: dir}
	dir.children[name] = e
	t.count++
	return e
}

// judge records a replacement on which runtimes do not agree.
func (t *Tree) judge(old *entry, n *Node, layer int) {
	switch {
	case old.node.Type == Symlink && n.Type == Dir:
		t.violations = append(t.violations, Violation{Kind: DirOverLink, Path: old.node.Path, Layer: layer,
			Detail: fmt.Sprintf("layer %d has a link to %s there", old.layer, old.node.Link)})
	case old.node.Type == Dir && n.Type == Symlink:
		t.violations = append(t.violations, Violation{Kind: LinkOverDir, Path: old.node.Path, Layer: layer,
			Detail: fmt.Sprintf("layer %d has a directory there", old.layer)})
	}
}
