package rootfs

import (
	"errors"
	"fmt"
	"io"

	"imgsmith/internal/elf"
)

// passing reads the facts of an ELF file from the parts that are kept while it passes.
func (l *layerReader) passing(n *Node, src io.Reader) error {
	if l.window == nil {
		l.window = make([]byte, windowHead) // pages are used only as far as files fill them
	}
	head := l.window[:min(n.Size, windowHead)]
	if k, err := io.ReadFull(src, head); err != nil {
		if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return err
		}
		head = head[:k]
	}
	w := window{head: head, size: n.Size}
	at := int64(len(head))
	for _, p := range elf.Parts(head, n.Size) {
		if p.End <= at || p.End-max(p.Start, at) > maxPart {
			continue
		}
		start := max(p.Start, at)
		if _, err := io.CopyN(io.Discard, src, start-at); err != nil {
			return fmt.Errorf("reading ELF file: %w", err)
		}
		b := make([]byte, p.End-start)
		if _, err := io.ReadFull(src, b); err != nil {
			return fmt.Errorf("reading ELF file: %w", err)
		}
		w.parts = append(w.parts, part{start, b})
		at = p.End
	}
	return SetELF(n, &w)
}

// maxPart bounds one kept part behind the head, in bytes.
const maxPart = 16 << 20

// window is an ELF file of which some parts are there.
type window struct {
	head  []byte
	parts []part
	size  int64
}

type part struct {
	start int64
	data  []byte
}

// ReadAt reads what lies in the kept parts; anything else wraps ErrWindow.
func (w *window) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) && off < w.size {
		k := w.at(off, p[done:])
		if k == 0 {
			return done, fmt.Errorf("%w: %d bytes at %d", ErrWindow, len(p)-done, off)
		}
		done, off = done+k, off+int64(k)
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

func (w *window) at(off int64, p []byte) int {
	if off < int64(len(w.head)) {
		return copy(p, w.head[off:])
	}
	for _, k := range w.parts {
		if off >= k.start && off < k.start+int64(len(k.data)) {
			return copy(p, k.data[off-k.start:])
		}
	}
	return 0
}
