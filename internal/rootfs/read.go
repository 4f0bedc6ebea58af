package rootfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"

	"imgsmith/internal/elf"
)

// ErrBudget tells that a layer exceeds the limits it was read with.
var ErrBudget = errors.New("layer exceeds the limit")

// Marker names of the OCI layer format.
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	auxPrefix      = ".wh..wh." // a union file system's own files; runtimes drop them
)

// Options say what ReadLayer keeps and how much it accepts. The zero value keeps no content, reads ELF facts of
// files up to 64 MiB and has generous limits.
type Options struct {
	Keep      func(n Node) bool // whose content goes into Node.Data; files over MaxKeep are never kept
	MaxKeep   int64             // bytes of one kept file; 0 = 1 MiB
	MaxNodes  int               // 0 = 2,000,000
	MaxBytes  int64             // bytes of all content; 0 = 64 GiB
	MaxMemory int64             // bytes of an ELF file held in memory; 0 = 64 MiB
	// Spool stores a larger ELF file somewhere and returns it for reading at any place, and what frees it.
	// Without one, a larger ELF file is an error that wraps ErrBudget.
	Spool func(r io.Reader) (at io.ReaderAt, free func(), err error)

	MaxKept   int64             // bytes of all kept content; 0 = 64 MiB; what exceeds it is not kept
	NoDigests bool              // leaves Node.Digest empty, for callers that need names and headers only
	Head      func(n Node) bool // whose beginning goes into Node.Head
	GPUCode   bool              // fills Node.GPU, which looks at every byte of every ELF file
	// Window, when not nil, reads ELF files of any size without spooling them: only the first part and the parts that
	// the loader writes to are kept while the file passes, in this memory, which one reader uses at a time. A file
	// that has its names elsewhere is an error that wraps ErrWindow; read the layer again without Window then.
	Window *Window
}

// ErrWindow tells that an ELF file cannot be read in passing.
var ErrWindow = errors.New("the names of an ELF file lie outside its kept parts")

// windowHead is how much of an ELF file's beginning Window keeps. The names of libtensorflow_cc.so.2 reach
// 98 MB; those of every other library of a TensorFlow image lie in the first 9 MB or in an appended segment.
const windowHead = 112 << 20

func (o Options) filled() Options {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.MaxKeep, 1<<20)
	def(&o.MaxBytes, 64<<30)
	def(&o.MaxMemory, 64<<20)
	def(&o.MaxKept, 64<<20)
	if o.MaxNodes == 0 {
		o.MaxNodes = 2_000_000
	}
	return o
}

// ReadLayer reads one uncompressed layer: every entry with the digest of its content and, for ELF files, the
// facts; a file that only starts like ELF has ELFError instead, which the static check reports. Names
// with ".." wrap ErrBadPath. It reads r to its end-of-archive marker.
func ReadLayer(ctx context.Context, r io.Reader, opt Options) (Layer, error) {
	opt = opt.filled()
	tr := tar.NewReader(r)
	lr := layerReader{opt: opt, sum: sha256.New(), buf: bufio.NewReaderSize(nil, 256<<10)}
	var out Layer
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading layer: %w", context.Cause(ctx))
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading layer: after %d entries: %w", len(out), err)
		}
		n, ok, err := nodeOf(h)
		if err != nil {
			return nil, fmt.Errorf("reading layer: %w", err)
		}
		if !ok {
			continue
		}
		if len(out) == opt.MaxNodes {
			return nil, fmt.Errorf("reading layer: %w: more than %d entries", ErrBudget, opt.MaxNodes)
		}
		if n.Type == Regular {
			if err := lr.content(&n, tr); err != nil {
				return nil, fmt.Errorf("reading layer: /%s: %w", n.Path, err)
			}
		}
		out = append(out, n)
	}
}

// nodeOf converts a tar header; ok is false for an entry that is no part of the tree.
func nodeOf(h *tar.Header) (n Node, ok bool, err error) {
	p, err := layerPath(h.Name)
	if err != nil {
		return n, false, err
	}
	n = Node{Path: p, Mode: uint32(h.Mode & 0o7777), UID: h.Uid, GID: h.Gid, MTime: h.ModTime.Unix()}
	dir, base := path.Split(p)
	switch {
	case base == opaqueName:
		return Node{Path: path.Clean(dir + "."), Type: Opaque}, true, nil
	case strings.HasPrefix(base, auxPrefix):
		return n, false, nil
	case strings.HasPrefix(base, whiteoutPrefix):
		return Node{Path: dir + strings.TrimPrefix(base, whiteoutPrefix), Type: Whiteout}, true, nil
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		n.Type, n.Size = Regular, h.Size
	case tar.TypeDir:
		n.Type = Dir
	case tar.TypeSymlink:
		n.Type, n.Link = Symlink, h.Linkname
	case tar.TypeLink:
		n.Type = Hardlink
		if n.Link, err = layerPath(h.Linkname); err != nil {
			return n, false, err
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		n.Type = Device
	case tar.TypeXGlobalHeader:
		return n, false, nil
	default:
		return n, false, fmt.Errorf("%w: %q is of the unknown type %q", ErrBadPath, h.Name, h.Typeflag)
	}
	return n, true, nil
}

// layerPath makes a tar name relative; "." is the root.
func layerPath(name string) (string, error) {
	for c := range strings.SplitSeq(name, "/") {
		if c == ".." {
			return "", fmt.Errorf("%w: %q", ErrBadPath, name)
		}
	}
	if strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: %q", ErrBadPath, name)
	}
	if p := strings.TrimPrefix(path.Clean("/"+name), "/"); p != "" {
		return p, nil
	}
	return ".", nil
}

// layerReader reads the contents of one layer with reused buffers.
type layerReader struct {
	opt         Options
	total, kept int64
	sum         hash.Hash
	buf         *bufio.Reader
}

func (l *layerReader) content(n *Node, r io.Reader) error {
	if l.total += n.Size; n.Size < 0 || l.total > l.opt.MaxBytes {
		return fmt.Errorf("%w: more than %d bytes of content", ErrBudget, l.opt.MaxBytes)
	}
	if !l.opt.NoDigests {
		l.sum.Reset()
		r = io.TeeReader(r, l.sum)
	}
	l.buf.Reset(r)
	head, err := l.buf.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case elf.IsELF(head):
		if err := l.elf(n); err != nil {
			return err
		}
	case l.opt.Keep != nil && n.Size <= l.opt.MaxKeep && l.kept+n.Size <= l.opt.MaxKept && l.opt.Keep(*n):
		l.kept += n.Size
		if n.Data, err = io.ReadAll(l.buf); err != nil {
			return err
		}
	case l.opt.Head != nil && n.Size >= HeadSize && l.opt.Head(*n):
		n.Head = new([HeadSize]byte)
		if _, err := io.ReadFull(l.buf, n.Head[:]); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, l.buf); err != nil {
		return err
	}
	if !l.opt.NoDigests {
		n.Digest = "sha256:" + hex.EncodeToString(l.sum.Sum(nil))
	}
	return nil
}

// elf reads the facts and, when asked to, the code for GPUs of an ELF file.
func (l *layerReader) elf(n *Node) error {
	var gpu elf.GPUScanner
	var src io.Reader = l.buf
	if l.opt.GPUCode {
		src = io.TeeReader(l.buf, &gpu)
	}
	var err error
	if l.opt.Window != nil {
		err = l.passing(n, src)
	} else {
		err = l.facts(n, src)
	}
	if err != nil {
		return err
	}
	if l.opt.GPUCode {
		if _, err := io.Copy(io.Discard, src); err != nil {
			return err
		}
		n.GPU = gpu.Code()
	}
	return nil
}

// facts reads the whole ELF file to a place where it can be read at any offset.
func (l *layerReader) facts(n *Node, src io.Reader) error {
	var at io.ReaderAt
	switch {
	case n.Size <= l.opt.MaxMemory:
		b := make([]byte, 0, n.Size)
		w := bytes.NewBuffer(b)
		if _, err := io.Copy(w, src); err != nil {
			return err
		}
		at = bytes.NewReader(w.Bytes())
	case l.opt.Spool == nil:
		return fmt.Errorf("%w: ELF file of %d bytes, at most %d are held in memory", ErrBudget, n.Size, l.opt.MaxMemory)
	default:
		spooled, free, err := l.opt.Spool(src)
		if err != nil {
			return err
		}
		defer free()
		at = spooled
	}
	return SetELF(n, at)
}

// SetELF fills n's ELF facts from its content, or ELFError when the content is no valid ELF file; any other
// error is the reader's own.
func SetELF(n *Node, content io.ReaderAt) error {
	f, err := elf.Read(content, n.Size)
	switch {
	case err == nil:
		n.ELF = &f
	case errors.Is(err, elf.ErrNotELF), errors.Is(err, elf.ErrTruncated), errors.Is(err, elf.ErrMalformed):
		n.ELFError = err.Error()
	default:
		return err
	}
	return nil
}
