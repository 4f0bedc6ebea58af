package elf

import (
	stdelf "debug/elf"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed versions.yaml
var versionsYAML []byte

// number says where one library carries its version; see versions.yaml.
type number struct {
	Library string `yaml:"library"`
	Symbol  string `yaml:"symbol"`
	Low     uint32 `yaml:"low"`
	High    uint32 `yaml:"high"`
	Major   uint32 `yaml:"major"`
	Minor   uint32 `yaml:"minor"`
	Source  string `yaml:"source"`
}

// numbers is the embedded table, parsed once; a broken table is found by the tests.
var numbers = sync.OnceValue(func() []number {
	var file struct {
		SchemaVersion int      `yaml:"schema_version"`
		Numbers       []number `yaml:"numbers"`
	}
	if err := yaml.UnmarshalWithOptions(versionsYAML, &file, yaml.Strict()); err != nil {
		return nil
	}
	return file.Numbers
})

// Bounds of the search for a number in code.
const (
	maxCode  = 4096 // bytes of the function
	maxCalls = 8    // functions that it calls directly
	maxInner = 64   // bytes of each of them: a setter of one value
	maxChain = 1 << 16
)

// version fills Version and VersionFrom where the table knows the library. What cannot be read stays empty: an
// unknown version is an answer, not a fault of the file.
func (f *file) version(t table) {
	stem, _, ok := strings.Cut(f.facts.Soname, ".so")
	if !ok || f.facts.Machine != stdelf.EM_X86_64.String() || !f.wide {
		return
	}
	for _, n := range numbers() {
		if n.Library != stem {
			continue
		}
		addr, size, ok := f.symbol(t, n.Symbol)
		if !ok {
			continue
		}
		if v, ok := f.find(n, addr, min(size, maxCode)); ok {
			f.facts.Version = fmt.Sprintf("%d.%d.%d", v/n.Major, v%n.Major/n.Minor, v%n.Minor)
			f.facts.VersionFrom = "number in the code of " + n.Symbol
			return
		}
	}
}

// find looks for the number in a function and in the small ones that it calls.
func (f *file) find(n number, addr uint64, size int) (uint32, bool) {
	code, err := f.code(addr, size)
	if err != nil {
		return 0, false
	}
	if v, ok := immediate(code, n.Low, n.High); ok {
		return v, true
	}
	calls := 0
	for i := 0; i+5 <= len(code) && calls < maxCalls; i++ {
		if code[i] != 0xe8 { // call rel32
			continue
		}
		target := addr + uint64(i) + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+1:]))))
		inner, err := f.code(target, maxInner)
		if err != nil {
			continue
		}
		calls++
		if v, ok := immediate(inner, n.Low, n.High); ok {
			return v, true
		}
	}
	return 0, false
}

func (f *file) code(addr uint64, size int) ([]byte, error) {
	off, err := f.offset(addr)
	if err != nil {
		return nil, err
	}
	return f.at(off, int(min(uint64(size), uint64(f.size)-min(off, uint64(f.size)))))
}

// immediate returns the first 32-bit operand in the range of an instruction that moves or compares a constant:
// mov to a register, mov to (%rdi) or to the frame, cmp with a register.
func immediate(code []byte, low, high uint32) (uint32, bool) {
	for i := 1; i+4 <= len(code); i++ {
		v := binary.LittleEndian.Uint32(code[i:])
		if v < low || v > high {
			continue
		}
		op := code[i-1]
		back := func(n int) byte { // the n-th byte before the operand
			if i < n {
				return 0
			}
			return code[i-n]
		}
		switch {
		case op >= 0xb8 && op <= 0xbf, // mov $imm32, reg
			back(2) == 0xc7 && op <= 0x07,                                                          // movl $imm32, (reg)
			back(3) == 0xc7 && back(2) >= 0x40 && back(2) <= 0x47,                                  // movl $imm32, disp8(reg)
			back(6) == 0xc7 && back(5) >= 0x80 && back(5) <= 0x87,                                  // movl $imm32, disp32(reg)
			back(2) == 0x81 && (op >= 0xf8 || op >= 0x38 && op <= 0x3f),                            // cmpl $imm32, reg or (reg)
			back(3) == 0x81 && back(2) >= 0x78 && back(2) <= 0x7f,                                  // cmpl $imm32, disp8(reg)
			op == 0x3d && back(2) != 0x8d && back(2) != 0x8b && back(2) != 0x89 && back(3) != 0x0f: // cmp $imm32, %eax
			return v, true
		}
	}
	return 0, false
}

// symbol looks an exported function up by the hash tables, as the loader does.
func (f *file) symbol(t table, name string) (addr uint64, size int, ok bool) {
	if t.symtab == 0 {
		return 0, 0, false
	}
	next, ok := f.gnuChain(t, name)
	if !ok {
		next, ok = f.sysvChain(t, name)
	}
	if !ok {
		return 0, 0, false
	}
	symtab, err := f.offset(t.symtab)
	if err != nil {
		return 0, 0, false
	}
	strtab, err := f.offset(t.strtab)
	if err != nil {
		return 0, 0, false
	}
	for range maxChain {
		i, more := next()
		if !more {
			return 0, 0, false
		}
		b, err := f.at(symtab+uint64(i)*24, 24)
		if err != nil {
			return 0, 0, false
		}
		s, err := f.at(strtab+uint64(f.order.Uint32(b)), len(name)+1)
		if err == nil && string(s) == name+"\x00" && f.order.Uint16(b[6:]) != 0 {
			return f.order.Uint64(b[8:]), int(min(max(f.order.Uint64(b[16:]), maxInner), maxCode)), true
		}
	}
	return 0, 0, false
}

// gnuChain walks the symbols with the hash of name in DT_GNU_HASH.
func (f *file) gnuChain(t table, name string) (func() (uint32, bool), bool) {
	off, err := f.offset(t.gnuHash)
	if t.gnuHash == 0 || err != nil {
		return nil, false
	}
	head, err := f.at(off, 16)
	if err != nil {
		return nil, false
	}
	buckets, first, bloom := f.order.Uint32(head), f.order.Uint32(head[4:]), f.order.Uint32(head[8:])
	if buckets == 0 {
		return nil, false
	}
	h := uint32(5381)
	for i := range len(name) {
		h = h*33 + uint32(name[i])
	}
	start := off + 16 + uint64(bloom)*8
	b, err := f.at(start+uint64(h%buckets)*4, 4)
	if err != nil {
		return nil, false
	}
	i, done, left := f.order.Uint32(b), false, maxChain
	chain := start + uint64(buckets)*4
	return func() (uint32, bool) {
		for ; left > 0; left-- {
			if done || i < first {
				return 0, false
			}
			c, err := f.at(chain+uint64(i-first)*4, 4)
			if err != nil {
				return 0, false
			}
			v, at := f.order.Uint32(c), i
			i++
			done = v&1 == 1
			if v|1 == h|1 {
				return at, true
			}
		}
		return 0, false
	}, true
}

// sysvChain walks the symbols in the bucket of name in DT_HASH.
func (f *file) sysvChain(t table, name string) (func() (uint32, bool), bool) {
	off, err := f.offset(t.hash)
	if t.hash == 0 || err != nil {
		return nil, false
	}
	head, err := f.at(off, 8)
	if err != nil {
		return nil, false
	}
	buckets := f.order.Uint32(head)
	if buckets == 0 {
		return nil, false
	}
	word := func(i uint64) uint32 {
		b, err := f.at(off+8+i*4, 4)
		if err != nil {
			return 0
		}
		return f.order.Uint32(b)
	}
	i := word(uint64(sysvHash(name) % buckets))
	return func() (uint32, bool) {
		at := i
		if at == 0 {
			return 0, false
		}
		i = word(uint64(buckets) + uint64(at))
		return at, true
	}, true
}
