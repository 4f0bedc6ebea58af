package elf

import (
	"bytes"
	stdelf "debug/elf"
	"slices"
)

// Part is a range of bytes of a file.
type Part struct{ Start, End int64 }

// Parts returns where Read looks in a file of which head is the beginning, besides head itself: the dynamic
// segment and the segments that the loader writes to, in file order and without overlap. Programs that edit
// libraries append names to such a segment. A head that is no ELF file has no parts.
func Parts(head []byte, size int64) []Part {
	f := file{r: bytes.NewReader(head), size: int64(len(head))}
	if f.header() != nil || f.ph.size < 32 || f.wide && f.ph.size < 56 || f.ph.numb > maxSegments {
		return nil
	}
	b, err := f.at(f.ph.off, f.ph.size*f.ph.numb)
	if err != nil {
		return nil
	}
	const writable = 2
	var all []Part
	for i := range f.ph.numb {
		raw := b[i*f.ph.size:]
		s, flags := f.segment(raw), f.order.Uint32(raw[24:])
		if f.wide {
			flags = f.order.Uint32(raw[4:])
		}
		if s.kind != stdelf.PT_DYNAMIC && (s.kind != stdelf.PT_LOAD || flags&writable == 0) {
			continue
		}
		// A string is asked for in portions that may reach behind the segment.
		start, end := int64(s.off), int64(s.off+s.filesz)
		if start < 0 || end <= start || end > size {
			continue
		}
		all = append(all, Part{start, min(end+stringPortion, size)})
	}
	slices.SortFunc(all, func(a, b Part) int { return int(min(max(a.Start-b.Start, -1), 1)) })
	var out []Part
	for _, p := range all {
		if n := len(out); n > 0 && p.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, p.End)
			continue
		}
		out = append(out, p)
	}
	return out
}
