package elf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// GPUCode lists the GPU architectures that a file holds code for, as compute capabilities ("9.0"), sorted.
type GPUCode struct {
	SASS []string `json:"sass,omitempty"` // machine code
	PTX  []string `json:"ptx,omitempty"`  // code that the driver compiles
}

// GPUScanner finds the fat binaries in a file that is written to it from its start to its end. Any file may be
// written; the zero value is ready.
type GPUScanner struct {
	buf  []byte // not looked at yet
	pos  uint64 // offset of buf in the file
	skip uint64 // bytes to leave out
	end  uint64 // of the fat binary that is being read; 0: none
	sass map[uint32]bool
	ptx  map[uint32]bool
}

// Layout of a fat binary: a header of 16 bytes (magic, version, header size, size of what follows), then
// entries, each with a header (kind, header size at 4, size at 8, architecture at 28) and its code. Source:
// read from the sections .nv_fatbin of CUDA 11 and 12 libraries.
const (
	fatMagic   = "\x50\xed\x55\xba"
	fatHead    = 16
	fatEntry   = 64
	maxFatHead = 4096
	kindPTX    = 1
	kindSASS   = 2
)

// Write looks at the next part of the file; it never fails.
func (s *GPUScanner) Write(p []byte) (int, error) {
	n := len(p)
	if s.skip > 0 {
		d := min(s.skip, uint64(len(p)))
		s.skip -= d
		s.pos += d
		p = p[d:]
	}
	if len(p) == 0 {
		return n, nil
	}
	s.buf = append(s.buf, p...)
	for s.step() {
	}
	if cap(s.buf) > 1<<20 && len(s.buf) < fatEntry {
		s.buf = slices.Clone(s.buf)
	}
	return n, nil
}

// drop leaves out n bytes, also such that are not there yet.
func (s *GPUScanner) drop(n uint64) {
	d := min(n, uint64(len(s.buf)))
	rest := copy(s.buf, s.buf[d:])
	s.buf = s.buf[:rest]
	s.pos += d
	s.skip += n - d
}

// step looks at one thing; false: more bytes are needed.
func (s *GPUScanner) step() bool {
	if s.skip > 0 {
		return false
	}
	if s.end > 0 {
		return s.entry()
	}
	from := 0
	for {
		i := bytes.Index(s.buf[from:], []byte(fatMagic))
		if i < 0 {
			s.drop(uint64(max(len(s.buf)-len(fatMagic)+1, 0)))
			return false
		}
		at := from + i
		if (s.pos+uint64(at))%8 != 0 {
			from = at + 1
			continue
		}
		s.drop(uint64(at))
		break
	}
	if len(s.buf) < fatHead {
		return false
	}
	le := binary.LittleEndian
	size := le.Uint64(s.buf[8:])
	if le.Uint16(s.buf[4:]) == 1 && le.Uint16(s.buf[6:]) == fatHead && size < 1<<40 {
		s.end = s.pos + fatHead + size
		s.drop(fatHead)
		return true
	}
	s.drop(8)
	return true
}

func (s *GPUScanner) entry() bool {
	if s.pos+fatEntry > s.end {
		s.end = 0
		return true
	}
	if len(s.buf) < fatEntry {
		return false
	}
	le := binary.LittleEndian
	kind, head, size, arch := le.Uint16(s.buf), le.Uint32(s.buf[4:]), le.Uint64(s.buf[8:]), le.Uint32(s.buf[28:])
	if head < fatEntry/2 || head > maxFatHead || size > s.end-s.pos {
		s.end = 0 // not what it looked like
		return true
	}
	if arch >= 10 && arch < 1000 {
		switch kind {
		case kindSASS:
			s.note(&s.sass, arch)
		case kindPTX:
			s.note(&s.ptx, arch)
		}
	}
	s.drop(uint64(head) + size)
	return true
}

func (s *GPUScanner) note(m *map[uint32]bool, arch uint32) {
	if *m == nil {
		*m = map[uint32]bool{}
	}
	(*m)[arch] = true
}

// Code returns what was found; nil when the file holds no code for a GPU.
func (s *GPUScanner) Code() *GPUCode {
	if len(s.sass)+len(s.ptx) == 0 {
		return nil
	}
	list := func(m map[uint32]bool) []string {
		var out []string
		for _, a := range slices.Sorted(maps.Keys(m)) {
			out = append(out, fmt.Sprintf("%d.%d", a/10, a%10))
		}
		return out
	}
	return &GPUCode{SASS: list(s.sass), PTX: list(s.ptx)}
}
