package rootfs

import (
	"errors"
	"fmt"
	"io"

	"imgsmith/internal/elf"
)

// Window is memory for the beginning of one file, reused from file to file. The zero value is ready.
type Window struct{ chunks [][]byte }

// chunkSize is how much memory a Window takes at a time, in bytes.
const chunkSize = 4 << 20

// fill reads up to windowHead bytes and returns how many there were.
func (w *Window) fill(r io.Reader, size int64) (int64, error) {
	var n int64
	for want := min(size, windowHead); n < want; {
		i := int(n / chunkSize)
		if i == len(w.chunks) {
			w.chunks = append(w.chunks, make([]byte, chunkSize))
		}
		k, err := io.ReadFull(r, w.chunks[i][:min(want-n, chunkSize)])
		n += int64(k)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return n, nil // cut short: the facts will say so
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// passing reads the facts of an ELF file from the parts that are kept while it passes.
func (l *layerReader) passing(n *Node, src io.Reader) error {
	at, err := l.opt.Window.fill(src, n.Size)
	if err != nil {
		return err
	}
	w := window{chunks: l.opt.Window.chunks, head: at, size: n.Size}
	var first []byte
	if at > 0 {
		first = w.chunks[0][:min(at, chunkSize)]
	}
	for _, p := range elf.Parts(first, n.Size) {
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
	chunks [][]byte
	head   int64 // bytes in chunks
	parts  []part
	size   int64
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
	if off < w.head {
		i := off / chunkSize
		return copy(p, w.chunks[i][off%chunkSize:min(w.head-i*chunkSize, chunkSize)])
	}
	for _, k := range w.parts {
		if off >= k.start && off < k.start+int64(len(k.data)) {
			return copy(p, k.data[off-k.start:])
		}
	}
	return 0
}
