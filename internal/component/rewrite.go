package component

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
)

// RewriteOptions say how a step's result is written again.
type RewriteOptions struct {
	Options
	// Drop holds globs of paths that are left out: path.Match over the whole path, or "DIR/**" for everything
	// below a directory. Deletions (whiteouts) are kept.
	Drop []string
	// Keep, when set, is asked for every path that Drop spares; false leaves it out.
	Keep func(rootfs.Node) bool
	// Limit bounds the content in bytes; 0 is 16 GiB.
	Limit int64
}

// rewritten is one entry of the result with the place of its content in the spool file.
type rewritten struct {
	rootfs.Node
	at int64
}

// Rewrite reads the uncompressed tar of a build step's result and writes it again: path order, numeric owners
// kept, mtime set to the epoch, no names of users, no extended attributes, what Drop names left out. Deletions
// come before other entries of their directory. Devices and names outside the root are *RuleError.
func Rewrite(ctx context.Context, w io.Writer, src io.Reader, opts RewriteOptions) (Record, rootfs.Layer, error) {
	fail := func(err error) (Record, rootfs.Layer, error) {
		return Record{}, nil, fmt.Errorf("rewriting a step's result: %w", err)
	}
	f, err := os.CreateTemp(opts.TempDir, "rewrite-")
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return fail(err)
	}
	entries, err := readStep(ctx, src, f, opts)
	if err != nil {
		return fail(err)
	}
	entries, err = orderStep(entries)
	if err != nil {
		return fail(err)
	}
	l, err := newLayerWriter(w, opts.Options)
	if err != nil {
		return fail(err)
	}
	for _, e := range entries {
		if err := l.rewritten(ctx, e, f); err != nil {
			l.abort()
			return fail(err)
		}
	}
	rec, err := l.finish()
	if err != nil {
		return fail(err)
	}
	return rec, l.table, nil
}

func (l *layerWriter) rewritten(ctx context.Context, e rewritten, f io.ReaderAt) error {
	if e.Type == rootfs.Regular {
		open := func(io.Writer) (io.Reader, error) { return io.NewSectionReader(f, e.at, e.Size), nil }
		return l.file(ctx, e.Node, open, false, 0)
	}
	if err := l.parents(e.Path); err != nil {
		return err
	}
	return l.header(e.Node)
}

// readStep collects the entries and puts their content into f.
func readStep(ctx context.Context, src io.Reader, f *os.File, opts RewriteOptions) ([]rewritten, error) {
	limit := cmp.Or(opts.Limit, 16<<30)
	var out []rewritten
	var at int64
	tr := tar.NewReader(src)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading its tar: %w", err)
		}
		n, err := stepNode(h)
		if err != nil {
			return nil, err
		}
		if n.Path == "" || dropped(n, opts) {
			continue
		}
		e := rewritten{Node: n, at: at}
		if n.Type == rootfs.Regular {
			if at+n.Size > limit {
				return nil, fmt.Errorf("more than %d bytes of content; raise the limit if the step is meant to be so large", limit)
			}
			c, err := io.Copy(io.NewOffsetWriter(f, at), tr)
			if err != nil {
				return nil, fmt.Errorf("setting aside /%s: %w", n.Path, err)
			}
			at += c
		}
		out = append(out, e)
	}
}

// stepNode turns a tar header into a node; Path is empty for the root itself.
func stepNode(h *tar.Header) (rootfs.Node, error) {
	name := path.Clean(strings.TrimPrefix(h.Name, "/"))
	n := rootfs.Node{Path: name, Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid}
	if name == "." {
		n.Path = ""
		return n, nil
	}
	if strings.HasPrefix(name, "../") || name == ".." {
		return n, &RuleError{Path: h.Name, Reason: "outside the root"}
	}
	dir, base := path.Split(name)
	if base == ".wh..wh..opq" {
		n.Path, n.Type = strings.TrimSuffix(dir, "/"), rootfs.Opaque
		if n.Path == "" {
			return n, &RuleError{Path: h.Name, Reason: "it hides the whole base"}
		}
		return n, nil
	}
	if gone, ok := strings.CutPrefix(base, ".wh."); ok {
		if strings.HasPrefix(gone, ".wh.") || gone == "" {
			return n, &RuleError{Path: h.Name, Reason: "a deletion marker of an unknown kind"}
		}
		n.Path, n.Type = dir+gone, rootfs.Whiteout
		return n, nil
	}
	switch h.Typeflag {
	case tar.TypeReg:
		n.Type, n.Size = rootfs.Regular, h.Size
	case tar.TypeDir:
		n.Type = rootfs.Dir
	case tar.TypeSymlink:
		n.Type, n.Link, n.Mode = rootfs.Symlink, h.Linkname, 0o777
	case tar.TypeLink:
		n.Type, n.Link = rootfs.Hardlink, path.Clean(strings.TrimPrefix(h.Linkname, "/"))
	default:
		return n, &RuleError{Path: h.Name, Reason: fmt.Sprintf("a device, pipe or other special file (tar type %q)", h.Typeflag)}
	}
	return n, nil
}

func dropped(n rootfs.Node, opts RewriteOptions) bool {
	if marker(n) {
		return false
	}
	for _, g := range opts.Drop {
		if below, ok := strings.CutSuffix(g, "/**"); ok {
			if strings.HasPrefix(n.Path, below+"/") {
				return true
			}
		} else if ok, err := path.Match(g, n.Path); ok && err == nil {
			return true
		}
	}
	return opts.Keep != nil && !opts.Keep(n)
}

// orderStep sorts by path, deletions first in their directory, and turns hard links so that the first name of a
// file in this order carries its content.
func orderStep(entries []rewritten) ([]rewritten, error) {
	byPath := map[string]int{}
	for i, e := range entries {
		if marker(e.Node) {
			continue
		}
		if _, dup := byPath[e.Path]; dup {
			return nil, &RuleError{Path: e.Path, Reason: "there twice in the step's result"}
		}
		byPath[e.Path] = i
	}
	names := map[int][]int{} // entry with the content -> its hard links
	for i, e := range entries {
		if e.Type != rootfs.Hardlink {
			continue
		}
		j, ok := byPath[e.Link]
		if !ok || entries[j].Type != rootfs.Regular {
			return nil, &RuleError{Path: e.Path, Reason: fmt.Sprintf("a hard link to %q, which the step's result does not hold as a file", e.Link)}
		}
		names[j] = append(names[j], i)
	}
	for j, links := range names {
		least := j
		for _, i := range links {
			if entries[i].Path < entries[least].Path {
				least = i
			}
		}
		home := entries[least].Path
		body := entries[j]
		for _, i := range append(links, j) {
			e := body
			e.Path = entries[i].Path
			if i != least {
				e.Type, e.Link, e.Size = rootfs.Hardlink, home, 0
			}
			entries[i] = e
		}
	}
	slices.SortFunc(entries, func(a, b rewritten) int { return strings.Compare(orderKey(a.Node), orderKey(b.Node)) })
	return entries, nil
}

// orderKey puts deletions before everything else in their directory.
func orderKey(n rootfs.Node) string {
	switch n.Type {
	case rootfs.Opaque:
		return n.Path + "/\x00"
	case rootfs.Whiteout:
		return path.Join(path.Dir(n.Path)) + "/\x01" + path.Base(n.Path)
	}
	return n.Path
}
