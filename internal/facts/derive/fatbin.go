package derive

import (
	"bytes"
	"context"
	stdelf "debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

// Modules is a kind of device code module: how many fat binaries hold the same set of code. A GPU runs a module
// when the module has machine code for it, or PTX that its driver can compile.
type Modules struct {
	SASS   []string `yaml:"sass,flow" json:"sass"`
	PTX    []string `yaml:"ptx,flow" json:"ptx"`
	PTXISA string   `yaml:"ptx_isa,omitempty" json:"ptx_isa,omitempty"` // highest version of the PTX language among them
	Count  int      `yaml:"count" json:"count"`
}

// GPUCode counts the modules of libraries, by their set of code.
type GPUCode map[string]*Modules

// fatbinSection is where compilers put the modules that a library registers when it is loaded. The kernels that
// TensorFlow generates at build time are modules too; they lie among the constants and are loaded by the first
// call. Relocatable device code (__nv_relfatbin) is the input of a link that has been made: nothing loads it.
const (
	fatbinSection      = ".nv_fatbin"
	relocatableSection = "__nv_relfatbin"
)

// Layout of a fat binary: a header of 16 bytes (magic, version, header size, size of what follows), then entries,
// each with its own header (kind, header size, payload size, version, architecture). Read from what the
// compilers write; NVIDIA documents it nowhere.
const (
	fatbinMagic  = 0xBA55ED50
	fatbinHeader = 16
	entryHeader  = 32 // the part of it that is read
	kindPTX      = 1
	kindSASS     = 2

	maxModules = 1 << 20
	maxEntries = 256 // of one module; the largest seen has 8
)

// ErrFatbin says that a section of GPU code does not have the known form.
var ErrFatbin = errors.New("GPU code section of unknown form")

// AddGPUCode counts the modules of one library. It reads headers only, whatever the size of the code.
func (g GPUCode) AddGPUCode(ctx context.Context, r io.ReaderAt) error {
	f, err := stdelf.NewFile(r)
	if err != nil {
		return fmt.Errorf("reading section headers: %w", err)
	}
	for _, s := range f.Sections {
		if s.Type != stdelf.SHT_PROGBITS || s.Flags&stdelf.SHF_ALLOC == 0 || s.Flags&stdelf.SHF_EXECINSTR != 0 || s.Name == relocatableSection {
			continue
		}
		look := g.search
		if s.Name == fatbinSection {
			look = g.section
		}
		if err := look(ctx, r, int64(s.Offset), int64(s.FileSize)); err != nil {
			return err
		}
	}
	return nil
}

// search looks for modules among constants. What only looks like one is passed over.
func (g GPUCode) search(ctx context.Context, r io.ReaderAt, off, size int64) error {
	if off < 0 || size < 0 || off+size < off {
		return fmt.Errorf("%w: offset %d, size %d", ErrFatbin, off, size)
	}
	magic := binary.LittleEndian.AppendUint32(nil, fatbinMagic)
	buf := make([]byte, 1<<20)
	for end := off + size; off+fatbinHeader <= end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		if n < fatbinHeader {
			return err
		}
		i := bytes.Index(buf[:n], magic)
		if i < 0 {
			off += int64(n - len(magic) + 1)
			continue
		}
		next, err := g.at(r, off+int64(i), end)
		if errors.Is(err, ErrFatbin) {
			next = off + int64(i) + 1
		} else if err != nil {
			return err
		}
		off = next
	}
	return nil
}

// at reads the module at a place and returns where it ends.
func (g GPUCode) at(r io.ReaderAt, off, end int64) (int64, error) {
	var head [fatbinHeader]byte
	if off+fatbinHeader > end {
		return 0, fmt.Errorf("%w: module at byte %d", ErrFatbin, off)
	}
	if _, err := r.ReadAt(head[:], off); err != nil {
		return 0, err
	}
	hs, body := int64(binary.LittleEndian.Uint16(head[6:])), binary.LittleEndian.Uint64(head[8:])
	if binary.LittleEndian.Uint32(head[:]) != fatbinMagic || hs < fatbinHeader || body > uint64(end-off) || off+hs+int64(body) > end {
		return 0, fmt.Errorf("%w: no module at byte %d", ErrFatbin, off)
	}
	return off + hs + int64(body), g.module(r, off+hs, int64(body))
}

func (g GPUCode) section(ctx context.Context, r io.ReaderAt, off, size int64) error {
	if off < 0 || size < 0 || off+size < off {
		return fmt.Errorf("%w: offset %d, size %d", ErrFatbin, off, size)
	}
	end := off + size
	var head [4]byte
	for n := 0; off+fatbinHeader <= end; n++ {
		if n > maxModules {
			return fmt.Errorf("%w: more than %d modules", ErrFatbin, maxModules)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := r.ReadAt(head[:], off); err != nil {
			return fmt.Errorf("%w: at byte %d: %w", ErrFatbin, off, err)
		}
		if binary.LittleEndian.Uint32(head[:]) == 0 { // padding up to the next aligned place
			off += 8
			continue
		}
		next, err := g.at(r, off, end)
		if err != nil {
			return err
		}
		off = (next + 7) &^ 7
	}
	return nil
}

func (g GPUCode) module(r io.ReaderAt, off, size int64) error {
	var m Modules
	var head [entryHeader]byte
	end := off + size
	for n := 0; off+entryHeader <= end; n++ {
		if n > maxEntries {
			return fmt.Errorf("%w: more than %d entries in a module", ErrFatbin, maxEntries)
		}
		if _, err := r.ReadAt(head[:], off); err != nil {
			return fmt.Errorf("%w: at byte %d: %w", ErrFatbin, off, err)
		}
		kind := binary.LittleEndian.Uint16(head[:])
		hs, body := int64(binary.LittleEndian.Uint32(head[4:])), binary.LittleEndian.Uint64(head[8:])
		arch := binary.LittleEndian.Uint32(head[28:])
		if hs < entryHeader || body > uint64(size) || off+hs+int64(body) > end || arch == 0 || arch > 9999 {
			return fmt.Errorf("%w: entry at byte %d", ErrFatbin, off)
		}
		cc := Capability(arch)
		switch kind {
		case kindSASS:
			m.SASS = append(m.SASS, cc)
		case kindPTX:
			m.PTX = append(m.PTX, cc+entryTarget(r, off, hs, int64(body)))
			isa := fmt.Sprintf("%d.%d", binary.LittleEndian.Uint16(head[26:]), binary.LittleEndian.Uint16(head[24:]))
			if facts.Compare(isa, m.PTXISA) > 0 {
				m.PTXISA = isa
			}
		}
		off += hs + int64(body)
	}
	g.add(m)
	return nil
}

// entryTarget reads the flags of an entry and the target that its text names.
func entryTarget(r io.ReaderAt, off, header, body int64) string {
	var head [headerWithFlags]byte
	if header < headerWithFlags {
		return ""
	}
	if _, err := r.ReadAt(head[:], off); err != nil {
		return ""
	}
	if n := int64(binary.LittleEndian.Uint32(head[offsetCompressed:])); n > 0 && n < body {
		body = n
	}
	return target(r, off+header, body, binary.LittleEndian.Uint64(head[offsetFlags:]))
}

func (g GPUCode) add(m Modules) {
	for _, l := range []*[]string{&m.SASS, &m.PTX} {
		slices.SortFunc(*l, facts.Compare)
		*l = slices.Compact(*l)
	}
	key := strings.Join(m.SASS, " ") + "|" + strings.Join(m.PTX, " ") + "|" + m.PTXISA
	if g[key] == nil {
		g[key] = &m
	}
	g[key].Count++
}

// List returns the kinds of modules, most frequent first.
func (g GPUCode) List() []Modules {
	var out []Modules
	for _, m := range g {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Modules) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return strings.Compare(strings.Join(a.SASS, " ")+"|"+strings.Join(a.PTX, " ")+a.PTXISA, strings.Join(b.SASS, " ")+"|"+strings.Join(b.PTX, " ")+b.PTXISA)
	})
	return out
}

// Capability writes an architecture number as compilers do (75, 120) as major.minor.
func Capability(arch uint32) string { return fmt.Sprintf("%d.%d", arch/10, arch%10) }
