package component

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"path"
	"strings"
	"time"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/wheel"
)

// passthroughMin is the size in bytes above which a wheel's own deflate stream is kept.
const passthroughMin = 128 << 10

// layerWriter writes one layer: tar, compression, both digests and the table, in one pass.
type layerWriter struct {
	opts  Options
	tw    *tar.Writer
	enc   encoder
	out   *counter // compressed side
	outA  *async
	diff  *counter // uncompressed side
	diffA *async
	table rootfs.Layer
	paths map[string]rootfs.Type
	spool *spool
	buf   []byte
}

func newLayerWriter(w io.Writer, opts Options) (*layerWriter, error) {
	l := &layerWriter{opts: opts, out: newCounter(w), diff: newCounter(nil), paths: map[string]rootfs.Type{},
		spool: &spool{dir: opts.TempDir}, buf: make([]byte, asyncChunk)}
	l.outA = newAsync(l.out)
	enc, err := newEncoder(l.outA, opts.Compression)
	if err != nil {
		return nil, errors.Join(err, l.outA.Close())
	}
	l.enc = enc
	l.diffA = newAsync(l.diff)
	l.tw = tar.NewWriter(io.MultiWriter(l.diffA, l.enc))
	return l, nil
}

// header writes a tar header and remembers the node.
func (l *layerWriter) header(n rootfs.Node) error {
	if reason := wheel.BadName(n.Path); reason != "" {
		return &RuleError{Path: n.Path, Reason: reason}
	}
	if _, dup := l.paths[n.Path]; dup && !marker(n) {
		return &RuleError{Path: n.Path, Reason: "there twice in one layer"}
	}
	if t, ok := l.paths[path.Dir(n.Path)]; ok && t != rootfs.Dir {
		return &RuleError{Path: n.Path, Reason: "its directory is a " + string(t)}
	}
	h := &tar.Header{Name: n.Path, Mode: int64(n.Mode), Uid: n.UID, Gid: n.GID, ModTime: time.Unix(l.opts.Epoch, 0)}
	switch n.Type {
	case rootfs.Dir:
		h.Typeflag, h.Name = tar.TypeDir, n.Path+"/"
	case rootfs.Regular:
		h.Typeflag, h.Size = tar.TypeReg, n.Size
	case rootfs.Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, n.Link
	case rootfs.Hardlink:
		h.Typeflag, h.Linkname = tar.TypeLink, n.Link
	case rootfs.Whiteout:
		h.Typeflag, h.Name = tar.TypeReg, path.Join(path.Dir(n.Path), ".wh."+path.Base(n.Path))
	case rootfs.Opaque:
		h.Typeflag, h.Name = tar.TypeReg, n.Path+"/.wh..wh..opq"
	default:
		return &RuleError{Path: n.Path, Reason: "a " + string(n.Type)}
	}
	if err := l.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("writing the header of /%s: %w", n.Path, err)
	}
	n.MTime = l.opts.Epoch
	if !marker(n) {
		l.paths[n.Path] = n.Type
	}
	l.table = append(l.table, n)
	return nil
}

// marker tells deletions from things that exist.
func marker(n rootfs.Node) bool { return n.Type == rootfs.Whiteout || n.Type == rootfs.Opaque }

// parents writes the missing directories above p.
func (l *layerWriter) parents(p string) error {
	if reason := wheel.BadName(p); reason != "" {
		return &RuleError{Path: p, Reason: reason}
	}
	dir := path.Dir(p)
	if dir == "." {
		return nil
	}
	if _, ok := l.paths[dir]; ok {
		return nil
	}
	if err := l.parents(dir); err != nil {
		return err
	}
	n := rootfs.Node{Path: dir, Type: rootfs.Dir, Mode: 0o755}
	for _, p := range l.opts.Parents {
		if p.Path == dir {
			n.Mode, n.UID, n.GID = p.Mode, p.UID, p.GID
		}
	}
	return l.header(n)
}

// content gives a file's bytes to dst. raw is where a ready deflate stream goes, nil when none is wanted.
type content func(raw io.Writer) (io.Reader, error)

// file writes one regular file. through tells that content can deliver a ready deflate stream of that CRC.
func (l *layerWriter) file(ctx context.Context, n rootfs.Node, open content, through bool, crc uint32) error {
	if err := l.parents(n.Path); err != nil {
		return err
	}
	if err := l.header(n); err != nil {
		return err
	}
	var raw io.Writer
	if through {
		w, err := l.enc.passthrough()
		if err != nil {
			return err
		}
		raw = w
	}
	r, err := open(raw)
	if err != nil {
		return err
	}
	node := &l.table[len(l.table)-1]
	if err := l.scan(ctx, node, r, l.tw); err != nil {
		return err
	}
	if raw != nil {
		if err := l.enc.endPassthrough(crc, n.Size); err != nil {
			return err
		}
	}
	return l.tw.Flush()
}

// hasher is a reader that knows the digest of what it gave, "sha256:<hex>", at its end.
type hasher interface{ SHA256() string }

// scan reads a file's content, fills in digest, ELF facts and kept data, and hands the bytes to w, which may be
// nil.
func (l *layerWriter) scan(ctx context.Context, node *rootfs.Node, r io.Reader, w io.Writer) error {
	own, hashed := r.(hasher)
	h := sha256.New()
	br := bufio.NewReaderSize(r, 16)
	head, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return err
	}
	l.spool.reset()
	if elf.IsELF(head) {
		l.spool.start(node.Size)
	}
	keep := keepData(node.Path)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := br.Read(l.buf)
		p := l.buf[:n]
		if !hashed {
			h.Write(p)
		}
		if werr := l.spool.write(p); werr != nil {
			return fmt.Errorf("setting aside /%s: %w", node.Path, werr)
		}
		if keep {
			node.Data = append(node.Data, p...)
		}
		if w != nil {
			if _, werr := w.Write(p); werr != nil {
				return fmt.Errorf("writing /%s: %w", node.Path, werr)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	node.Digest = fmt.Sprintf("sha256:%x", h.Sum(nil))
	if hashed {
		node.Digest = own.SHA256()
	}
	return l.facts(node)
}

// facts reads the ELF facts of the file in the spool, if it holds one.
func (l *layerWriter) facts(node *rootfs.Node) error {
	r, size := l.spool.reader()
	if r == nil {
		return nil
	}
	if size != node.Size {
		return fmt.Errorf("reading ELF facts of /%s: %d of %d bytes were set aside", node.Path, size, node.Size)
	}
	return rootfs.SetELF(node, r)
}

// finish ends the layer and describes it. The table is in tar order.
func (l *layerWriter) finish() (Record, error) {
	err := l.tw.Close()
	for _, c := range []io.Closer{l.diffA, l.enc, l.outA, l.spool} {
		if cerr := c.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return Record{}, fmt.Errorf("ending a layer: %w", err)
	}
	return Record{Digest: l.out.digest(), DiffID: l.diff.digest(), Size: l.out.n, UncompressedSize: l.diff.n,
		MediaType: mediaType(l.opts.Compression)}, nil
}

// abort ends the goroutines of a layer that failed.
func (l *layerWriter) abort() {
	for _, c := range []io.Closer{l.diffA, l.enc, l.outA, l.spool} {
		_ = c.Close() // the first error is what the caller reports
	}
}

// RuleError is a path that may not be in a layer of ours (design decision 5a).
type RuleError struct {
	Path   string
	Reason string
}

// Error names path and rule.
func (e *RuleError) Error() string {
	return fmt.Sprintf("path %q may not be in a layer: %s", e.Path, e.Reason)
}

// keepData tells which files checks want to read.
func keepData(p string) bool {
	dir, base := path.Split(p)
	switch {
	case strings.HasSuffix(dir, ".dist-info/"):
		return base == "METADATA" || base == "WHEEL" || base == "RECORD" || base == "INSTALLER" || base == "top_level.txt" || base == "entry_points.txt"
	case strings.HasPrefix(p, "etc/ld.so.c"), p == "opt/imgsmith/manifest.json": // ld.so.conf, ld.so.conf.d, ld.so.cache
		return true
	}
	return base == "pyvenv.cfg" || p == "etc/os-release" || p == "usr/lib/os-release" || p == "opt/venv/pip.conf"
}
