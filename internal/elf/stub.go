package elf

import (
	"bytes"
	stdelf "debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ErrNoStub tells that a stub of the wanted kind cannot be written.
var ErrNoStub = errors.New("no stub library can be written")

// StubLibrary returns a shared object without code that carries the names in f: SONAME, NEEDED, RPATH,
// RUNPATH, versions needed and defined, and the ABI note. ldconfig treats it as it treats the real library,
// and Read gives f back. Only 64-bit x86-64 shared objects have stubs; anything else wraps ErrNoStub.
func StubLibrary(f Facts) ([]byte, error) {
	if f.Class != 64 || f.Machine != stdelf.EM_X86_64.String() || f.Type != stdelf.ET_DYN.String() {
		return nil, fmt.Errorf("%w: class %d, machine %s, type %s; want 64, EM_X86_64, ET_DYN", ErrNoStub, f.Class, f.Machine, f.Type)
	}
	s := stub{strings: strtab{data: []byte{0}, at: map[string]uint32{"": 0}}}
	if err := s.addNote(f.OSABINote); err != nil {
		return nil, err
	}
	s.addSymbols()
	s.addVersionNeeds(f.VersionNeeds)
	s.addVersionDefs(f)
	s.addNames(f)
	return s.assemble(f.Interp), nil
}

// stub collects the parts of the file. Every part has the same offset and address.
type stub struct {
	body    bytes.Buffer // follows the headers
	strings strtab
	dyn     []stdelf.Dyn64
	note    [2]uint64 // offset, size
}

// stubBody is where the parts begin: the ELF header and room for four program headers.
const stubBody = 64 + 4*56

// strtab is a string table under construction.
type strtab struct {
	data []byte
	at   map[string]uint32
}

func (t *strtab) add(s string) uint32 {
	if i, ok := t.at[s]; ok {
		return i
	}
	i := uint32(len(t.data))
	t.data = append(append(t.data, s...), 0)
	t.at[s] = i
	return i
}

// put appends fixed-size values at an aligned place and returns their offset and size.
func (s *stub) put(values ...any) (off, size uint64) {
	for s.body.Len()%8 != 0 {
		s.body.WriteByte(0)
	}
	start := s.body.Len()
	for _, v := range values {
		// A bytes.Buffer never fails and every value here has a fixed size.
		_ = binary.Write(&s.body, binary.LittleEndian, v)
	}
	return stubBody + uint64(start), uint64(s.body.Len() - start)
}

func (s *stub) tag(tag stdelf.DynTag, val uint64) {
	s.dyn = append(s.dyn, stdelf.Dyn64{Tag: int64(tag), Val: val})
}

func (s *stub) addNote(abi string) error {
	if abi == "" {
		return nil
	}
	var osName string
	var v [3]uint32
	if n, err := fmt.Sscanf(abi, "%s %d.%d.%d", &osName, &v[0], &v[1], &v[2]); n != 4 {
		return fmt.Errorf("%w: ABI note %q: %w", ErrNoStub, abi, err)
	}
	for i, name := range abiNames() {
		if name == osName {
			s.note[0], s.note[1] = s.put([3]uint32{4, 16, 1}, [4]byte{'G', 'N', 'U', 0}, uint32(i), v)
			return nil
		}
	}
	return fmt.Errorf("%w: ABI note %q names an unknown system", ErrNoStub, abi)
}

// addSymbols writes an empty symbol table with its hash: the loader reads both without asking.
func (s *stub) addSymbols() {
	off, _ := s.put(stdelf.Sym64{})
	s.tag(stdelf.DT_SYMTAB, off)
	s.tag(stdelf.DT_SYMENT, 24)
	off, _ = s.put([4]uint32{1, 1, 0, 0})
	s.tag(stdelf.DT_HASH, off)
}

func (s *stub) addVersionNeeds(needs []VersionNeed) {
	if len(needs) == 0 {
		return
	}
	var records []any
	for i, n := range needs {
		next := uint32(16 + 16*len(n.Versions))
		if i == len(needs)-1 {
			next = 0
		}
		records = append(records, uint16(1), uint16(len(n.Versions)), s.strings.add(n.File), uint32(16), next)
		for k, v := range n.Versions {
			step := uint32(16)
			if k == len(n.Versions)-1 {
				step = 0
			}
			records = append(records, sysvHash(v), uint16(0), uint16(2), s.strings.add(v), step)
		}
	}
	off, _ := s.put(records...)
	s.tag(stdelf.DT_VERNEED, off)
	s.tag(stdelf.DT_VERNEEDNUM, uint64(len(needs)))
}

func (s *stub) addVersionDefs(f Facts) {
	if len(f.VersionDefs) > 0 {
		var records []any
		for i, v := range append([]string{f.Soname}, f.VersionDefs...) {
			flags, next := uint16(0), uint32(28)
			if i == 0 {
				flags = 1
			}
			if i == len(f.VersionDefs) {
				next = 0
			}
			records = append(records, uint16(1), flags, uint16(i+1), uint16(1), sysvHash(v), uint32(20), next,
				s.strings.add(v), uint32(0))
		}
		off, _ := s.put(records...)
		s.tag(stdelf.DT_VERDEF, off)
		s.tag(stdelf.DT_VERDEFNUM, uint64(len(f.VersionDefs)+1))
	}
	if len(f.VersionDefs)+len(f.VersionNeeds) > 0 {
		off, _ := s.put(uint16(0))
		s.tag(stdelf.DT_VERSYM, off)
	}
}

func (s *stub) addNames(f Facts) {
	for _, n := range f.Needed {
		s.tag(stdelf.DT_NEEDED, uint64(s.strings.add(n)))
	}
	if f.Soname != "" {
		s.tag(stdelf.DT_SONAME, uint64(s.strings.add(f.Soname)))
	}
	if f.RPath != nil {
		s.tag(stdelf.DT_RPATH, uint64(s.strings.add(strings.Join(f.RPath, ":"))))
	}
	if f.RunPath != nil {
		s.tag(stdelf.DT_RUNPATH, uint64(s.strings.add(strings.Join(f.RunPath, ":"))))
	}
}

// assemble writes the string table, the dynamic section and the headers in front.
func (s *stub) assemble(interp string) []byte {
	progs := []stdelf.Prog64{{}}
	region := func(kind stdelf.ProgType, flags stdelf.ProgFlag, off, size, align uint64) {
		progs = append(progs, stdelf.Prog64{Type: uint32(kind), Flags: uint32(flags), Off: off, Vaddr: off, Paddr: off,
			Filesz: size, Memsz: size, Align: align})
	}
	if interp != "" {
		off, size := s.put(append([]byte(interp), 0))
		region(stdelf.PT_INTERP, stdelf.PF_R, off, size, 1)
	}
	if s.note[1] > 0 {
		region(stdelf.PT_NOTE, stdelf.PF_R, s.note[0], s.note[1], 4)
	}
	off, size := s.put(s.strings.data)
	s.tag(stdelf.DT_STRTAB, off)
	s.tag(stdelf.DT_STRSZ, size)
	s.tag(stdelf.DT_NULL, 0)
	off, size = s.put(s.dyn)
	// The loader writes into the dynamic section when it relocates it.
	region(stdelf.PT_DYNAMIC, stdelf.PF_R|stdelf.PF_W, off, size, 8)
	whole := uint64(stubBody + s.body.Len())
	progs[0] = stdelf.Prog64{Type: uint32(stdelf.PT_LOAD), Flags: uint32(stdelf.PF_R | stdelf.PF_W),
		Filesz: whole, Memsz: whole, Align: 4096}

	head := stdelf.Header64{Type: uint16(stdelf.ET_DYN), Machine: uint16(stdelf.EM_X86_64), Version: 1,
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(progs)), Shentsize: 64}
	copy(head.Ident[:], stdelf.ELFMAG)
	head.Ident[stdelf.EI_CLASS] = byte(stdelf.ELFCLASS64)
	head.Ident[stdelf.EI_DATA] = byte(stdelf.ELFDATA2LSB)
	head.Ident[stdelf.EI_VERSION] = byte(stdelf.EV_CURRENT)
	out := bytes.NewBuffer(make([]byte, 0, whole))
	_ = binary.Write(out, binary.LittleEndian, head)
	_ = binary.Write(out, binary.LittleEndian, progs)
	out.Write(make([]byte, stubBody-out.Len()))
	out.Write(s.body.Bytes())
	return out.Bytes()
}

// sysvHash is the hash of the System V ABI that version records carry.
func sysvHash(s string) uint32 {
	var h uint32
	for i := range len(s) {
		h = h<<4 + uint32(s[i])
		if g := h & 0xf0000000; g != 0 {
			h ^= g>>24 ^ g
		}
	}
	return h
}
