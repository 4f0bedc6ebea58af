package rootfs

import (
	"fmt"
	"path"
	"strings"
)

// ViolationKind names one broken rule of what a layer of ours may hold.
type ViolationKind string

// The rules. The first holds for every layer, the others for components only.
const (
	DirOverLink   ViolationKind = "directory_over_link" // a directory entry is no directory in a lower layer
	LinkOverDir   ViolationKind = "link_over_directory"
	LinkNotNew    ViolationKind = "link_not_new"    // a link replaces something
	FileOverOther ViolationKind = "file_over_other" // a file replaces a directory or link
	ParentMissing ViolationKind = "parent_missing"  // no layer so far has the parent directory
	ParentChanged ViolationKind = "parent_changed"  // a lower layer's directory gets another mode or owner
	Forbidden     ViolationKind = "forbidden_entry" // marker, device, bad name
	Duplicate     ViolationKind = "duplicate_entry" // a path twice in one layer
)

// Violation is one broken rule.
type Violation struct {
	Kind   ViolationKind
	Path   string
	Layer  int    // index in the layers that were given, the base not counted by CheckLayerOrder
	Name   string // of the layer, where known
	Detail string
}

// Error makes a violation usable as an error.
func (v Violation) Error() string {
	name := v.Name
	if name == "" {
		name = fmt.Sprintf("layer %d", v.Layer)
	}
	return fmt.Sprintf("%s: /%s: %s: %s", name, v.Path, v.Kind, v.Detail)
}

// Part is one layer of an image with what is expected of it.
type Part struct {
	Name  string
	Layer Layer
	// Component tells that every rule holds. The result of a build step may replace what the base has, so only
	// the rule about directories holds for it.
	Component bool
}

// seen remembers what lower layers have at one path.
type seen struct {
	dir, link, other bool
	mode             uint32 // of the topmost directory
	uid, gid         int
}

// CheckLayerOrder tells where parts, put on base in their order, would be seen differently by different
// runtimes, or break what a component may hold. The result is in layer order and then entry order.
func CheckLayerOrder(base Layer, parts []Part) []Violation {
	below := make(map[string]seen, len(base))
	for _, n := range base {
		note(below, n)
	}
	var out []Violation
	for i, p := range parts {
		c := order{below: below, part: p, index: i, own: make(map[string]Type, len(p.Layer))}
		for _, n := range p.Layer {
			c.check(n)
		}
		for _, n := range p.Layer {
			note(below, n)
		}
		out = append(out, c.out...)
	}
	return out
}

// Compose applies base and parts and returns the tree with every violation of CheckLayerOrder.
func Compose(base Layer, parts []Part) (*Tree, []Violation, error) {
	layers := []Layer{base}
	for _, p := range parts {
		layers = append(layers, p.Layer)
	}
	t, err := Apply(layers...)
	if err != nil {
		return nil, nil, err
	}
	return t, CheckLayerOrder(base, parts), nil
}

func note(below map[string]seen, n Node) {
	p := clean(n.Path)
	s := below[p]
	switch n.Type {
	case Whiteout:
		s.dir = false // what was a link or file once stays a reason to refuse
	case Opaque:
		return
	case Dir:
		s.dir, s.mode, s.uid, s.gid = true, n.Mode, n.UID, n.GID
	case Symlink:
		s.link = true
	default:
		s.other = true
	}
	below[p] = s
}

func clean(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

// order checks one layer against what lies below it.
type order struct {
	below map[string]seen
	part  Part
	index int
	own   map[string]Type
	out   []Violation
}

func (c *order) add(kind ViolationKind, p, format string, args ...any) {
	c.out = append(c.out, Violation{Kind: kind, Path: p, Layer: c.index, Name: c.part.Name, Detail: fmt.Sprintf(format, args...)})
}

func (c *order) check(n Node) {
	p := clean(n.Path)
	if n.Type == Whiteout || n.Type == Opaque {
		if c.part.Component {
			c.add(Forbidden, p, "a component holds no %s marker", n.Type)
		}
		return
	}
	low := c.below[p]
	if n.Type == Dir && (low.link || low.other) {
		c.add(DirOverLink, p, "a lower layer has a link or file there")
	}
	c.parents(p)
	if c.part.Component {
		c.component(n, p, low)
	}
	c.own[p] = n.Type
}

// component applies the rules that only components must keep.
func (c *order) component(n Node, p string, low seen) {
	base := path.Base(p)
	switch {
	case p == "" || strings.HasPrefix(n.Path, "/") || p != strings.TrimSuffix(n.Path, "/"):
		if n.Type != Dir || p != "" {
			c.add(Forbidden, p, "the name %q is not a clean relative path", n.Path)
		}
	case strings.HasPrefix(base, ".wh."):
		c.add(Forbidden, p, "the name means a removed file to a runtime")
	case n.Type == Device:
		c.add(Forbidden, p, "a component holds no device, pipe or socket")
	}
	if _, twice := c.own[p]; twice {
		c.add(Duplicate, p, "the path is in the layer twice")
	}
	switch n.Type {
	case Dir:
		if low.dir && (low.mode != n.Mode || low.uid != n.UID || low.gid != n.GID) {
			c.add(ParentChanged, p, "mode %04o owner %d:%d below, %04o %d:%d here", low.mode, low.uid, low.gid, n.Mode, n.UID, n.GID)
		}
	case Symlink:
		if low.dir {
			c.add(LinkOverDir, p, "a lower layer has a directory there")
		} else if low.link || low.other {
			c.add(LinkNotNew, p, "a lower layer has the path already")
		}
	default:
		if low.dir || low.link {
			c.add(FileOverOther, p, "a lower layer has a directory or link there")
		}
	}
}

// parents demands that every parent is a real directory, here or below.
func (c *order) parents(p string) {
	for dir := path.Dir(p); dir != "." && dir != "/"; dir = path.Dir(dir) {
		own, here := c.own[dir]
		if here && own == Dir {
			return // its own parents were looked at when it was
		}
		low := c.below[dir]
		switch {
		case here || low.link || low.other:
			c.add(DirOverLink, dir, "/%s is written below it, and it is no directory", p)
			return
		case !low.dir && c.part.Component:
			c.add(ParentMissing, dir, "/%s is written below it, and no layer has the directory", p)
			return
		}
	}
}
