package elf

import (
	"bytes"
	stdelf "debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNotELF tells that a file does not start with an ELF header of a known class and byte order.
var ErrNotELF = errors.New("not an ELF file")

// ErrTruncated tells that a header points behind the end of the file.
var ErrTruncated = errors.New("truncated ELF file")

// ErrMalformed tells that a table of the file contradicts itself or exceeds what any real library has.
var ErrMalformed = errors.New("malformed ELF file")

// Bounds against hostile tables. Each is some hundred times what the largest library of a CUDA set uses.
const (
	maxSegments   = 4096
	maxDynamic    = 1 << 16 // entries
	maxString     = 1 << 16 // bytes; TensorFlow's RUNPATH is the longest seen, about 2 KiB
	maxVersions   = 1 << 16 // records over all tables
	maxNote       = 1 << 16 // bytes of one note segment that are looked at
	maxStrings    = 4 << 20 // bytes of all strings together
	stringPortion = 256     // bytes asked for at a time
)

// IsELF tells whether head, the first bytes of a file, starts like an ELF file.
func IsELF(head []byte) bool { return len(head) >= 4 && string(head[:4]) == stdelf.ELFMAG }

// Read returns the facts of the ELF file in r, size bytes long. It follows the program headers only, as the
// loader does, so files without section headers are read too, and a library of gigabytes costs a few small
// reads. Errors wrap ErrNotELF, ErrTruncated, ErrMalformed or the reader's own error.
func Read(r io.ReaderAt, size int64) (Facts, error) {
	f := file{r: r, size: size}
	if err := f.header(); err != nil {
		return Facts{}, err
	}
	if err := f.segments(); err != nil {
		return Facts{}, err
	}
	if err := f.dynamic(); err != nil {
		return Facts{}, err
	}
	return f.facts, nil
}

// file is the state of one Read.
type file struct {
	r     io.ReaderAt
	size  int64
	order binary.ByteOrder
	wide  bool // 64 bit
	ph    struct {
		off        uint64
		size, numb int
	}
	load  []segment
	dyn   *segment
	spent int // bytes of strings read so far
	facts Facts
}

// segment is one program header in class-independent form.
type segment struct {
	kind                         stdelf.ProgType
	off, vaddr, filesz, memAlign uint64
}

// at reads n bytes at off, all of them.
func (f *file) at(off uint64, n int) ([]byte, error) {
	if f.size < 0 || off > uint64(f.size) || uint64(n) > uint64(f.size)-off {
		return nil, fmt.Errorf("%w: %d bytes at %d are asked for, the file has %d", ErrTruncated, n, off, f.size)
	}
	b := make([]byte, n)
	m, err := f.r.ReadAt(b, int64(off))
	if m == n {
		return b, nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: the content ends at %d", ErrTruncated, off+uint64(m))
	}
	return nil, fmt.Errorf("reading ELF file: %w", err)
}

func (f *file) word(b []byte) uint64 {
	if f.wide {
		return f.order.Uint64(b)
	}
	return uint64(f.order.Uint32(b))
}

// header reads the ELF header.
func (f *file) header() error {
	head := make([]byte, min(max(f.size, 0), 64))
	n, err := f.r.ReadAt(head, 0)
	if n < len(head) && err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading ELF file: %w", err)
	}
	head = head[:n]
	if !IsELF(head) {
		return ErrNotELF
	}
	if len(head) < stdelf.EI_NIDENT {
		return fmt.Errorf("%w: %d bytes of header", ErrTruncated, len(head))
	}
	switch stdelf.Data(head[stdelf.EI_DATA]) {
	case stdelf.ELFDATA2LSB:
		f.order = binary.LittleEndian
	case stdelf.ELFDATA2MSB:
		f.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: byte order %d", ErrNotELF, head[stdelf.EI_DATA])
	}
	want := 52
	switch stdelf.Class(head[stdelf.EI_CLASS]) {
	case stdelf.ELFCLASS64:
		f.wide, want, f.facts.Class = true, 64, 64
	case stdelf.ELFCLASS32:
		f.facts.Class = 32
	default:
		return fmt.Errorf("%w: class %d", ErrNotELF, head[stdelf.EI_CLASS])
	}
	if len(head) < want {
		return fmt.Errorf("%w: %d bytes of header", ErrTruncated, len(head))
	}
	f.facts.Type = stdelf.Type(f.order.Uint16(head[16:])).String()
	f.facts.Machine = stdelf.Machine(f.order.Uint16(head[18:])).String()
	counts := head[42:]
	f.ph.off = f.word(head[28:])
	if f.wide {
		f.ph.off, counts = f.word(head[32:]), head[54:]
	}
	f.ph.size, f.ph.numb = int(f.order.Uint16(counts)), int(f.order.Uint16(counts[2:]))
	return nil
}

// segments reads the program headers, the interpreter and the ABI note.
func (f *file) segments() error {
	if f.ph.numb == 0 {
		return nil
	}
	least := 32
	if f.wide {
		least = 56
	}
	if f.ph.size < least || f.ph.numb > maxSegments {
		return fmt.Errorf("%w: %d program headers of %d bytes", ErrMalformed, f.ph.numb, f.ph.size)
	}
	b, err := f.at(f.ph.off, f.ph.size*f.ph.numb)
	if err != nil {
		return fmt.Errorf("reading program headers: %w", err)
	}
	for i := range f.ph.numb {
		s := f.segment(b[i*f.ph.size:])
		switch s.kind {
		case stdelf.PT_LOAD:
			// A file cut short keeps its headers: only the segments' extent shows what is missing.
			if end := s.off + s.filesz; end < s.off || end > uint64(f.size) {
				return fmt.Errorf("%w: a segment ends at %d, the file has %d bytes", ErrTruncated, end, f.size)
			}
			f.load = append(f.load, s)
		case stdelf.PT_DYNAMIC:
			f.dyn = &s
		case stdelf.PT_INTERP:
			if f.facts.Interp, err = f.text(s.off); err != nil {
				return fmt.Errorf("reading interpreter: %w", err)
			}
		case stdelf.PT_NOTE:
			if err := f.note(s); err != nil {
				return fmt.Errorf("reading notes: %w", err)
			}
		}
	}
	return nil
}

func (f *file) segment(b []byte) segment {
	kind := stdelf.ProgType(f.order.Uint32(b))
	if f.wide {
		return segment{kind, f.word(b[8:]), f.word(b[16:]), f.word(b[32:]), f.word(b[48:])}
	}
	return segment{kind, f.word(b[4:]), f.word(b[8:]), f.word(b[16:]), f.word(b[28:])}
}

// note finds the GNU ABI tag in one note segment.
func (f *file) note(s segment) error {
	b, err := f.at(s.off, int(min(s.filesz, maxNote)))
	if err != nil {
		return err
	}
	align := uint64(4)
	if s.memAlign == 8 {
		align = 8
	}
	for len(b) >= 12 {
		nameLen, descLen := uint64(f.order.Uint32(b)), uint64(f.order.Uint32(b[4:]))
		kind := f.order.Uint32(b[8:])
		desc := roundUp(12+nameLen, align)
		end := roundUp(desc+descLen, align)
		if desc+descLen > uint64(len(b)) {
			return nil // a cut or foreign note decides nothing
		}
		if kind == 1 && string(b[12:12+nameLen]) == "GNU\x00" && descLen >= 16 {
			d := b[desc:]
			f.facts.OSABINote = fmt.Sprintf("%s %d.%d.%d", abiOS(f.order.Uint32(d)),
				f.order.Uint32(d[4:]), f.order.Uint32(d[8:]), f.order.Uint32(d[12:]))
			return nil
		}
		b = b[min(end, uint64(len(b))):]
	}
	return nil
}

func roundUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }

// abiNames are the operating systems of the GNU ABI tag, by number.
func abiNames() []string { return []string{"linux", "hurd", "solaris", "freebsd"} }

func abiOS(n uint32) string {
	if names := abiNames(); n < uint32(len(names)) {
		return names[n]
	}
	return fmt.Sprintf("os%d", n)
}

// text reads the zero-terminated string at a file offset.
func (f *file) text(off uint64) (string, error) {
	var sb strings.Builder
	for sb.Len() < maxString && f.spent < maxStrings {
		if off >= uint64(f.size) {
			return "", fmt.Errorf("%w: a string runs over the end", ErrTruncated)
		}
		b, err := f.at(off, int(min(stringPortion, uint64(f.size)-off)))
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			sb.Write(b[:i])
			f.spent += i + 1
			return sb.String(), nil
		}
		sb.Write(b)
		f.spent += len(b)
		off += uint64(len(b))
	}
	return "", fmt.Errorf("%w: strings are longer than %d bytes, or than %d together", ErrMalformed, maxString, maxStrings)
}

// offset maps an address of the loaded image to its place in the file.
func (f *file) offset(vaddr uint64) (uint64, error) {
	for _, s := range f.load {
		if vaddr >= s.vaddr && vaddr-s.vaddr < s.filesz {
			return vaddr - s.vaddr + s.off, nil
		}
	}
	return 0, fmt.Errorf("%w: address %#x lies in no loaded segment", ErrMalformed, vaddr)
}
