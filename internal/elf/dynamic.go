package elf

import (
	stdelf "debug/elf"
	"fmt"
	"strings"
)

// table is the part of a dynamic section that decides how a library is found.
type table struct {
	needed                  []uint64
	soname, rpath, runpath  *uint64
	strtab, strsz           uint64
	verneed, verneedCount   uint64
	verdef, verdefCount     uint64
	symtab, hash, gnuHash   uint64
	hasStrtab, hasVn, hasVd bool
}

// dynamic reads the dynamic segment and what it points to.
func (f *file) dynamic() error {
	if f.dyn == nil {
		return nil
	}
	f.facts.Dynamic = true
	t, err := f.table()
	if err != nil {
		return fmt.Errorf("reading dynamic section: %w", err)
	}
	if !t.hasStrtab {
		return nil // nothing can be named
	}
	base, err := f.offset(t.strtab)
	if err != nil {
		return fmt.Errorf("reading dynamic strings: %w", err)
	}
	name := func(i uint64) (string, error) {
		if i >= t.strsz {
			return "", fmt.Errorf("%w: string %d of a table of %d bytes", ErrMalformed, i, t.strsz)
		}
		return f.text(base + i)
	}
	if err := f.names(t, name); err != nil {
		return fmt.Errorf("reading dynamic strings: %w", err)
	}
	if err := f.versionNeeds(t, name); err != nil {
		return fmt.Errorf("reading needed versions: %w", err)
	}
	if err := f.versionDefs(t, name); err != nil {
		return fmt.Errorf("reading defined versions: %w", err)
	}
	f.version(t)
	return nil
}

func (f *file) table() (table, error) {
	var t table
	width := 8
	if f.wide {
		width = 16
	}
	count := f.dyn.filesz / uint64(width)
	if count > maxDynamic {
		return t, fmt.Errorf("%w: %d entries", ErrMalformed, count)
	}
	b, err := f.at(f.dyn.off, int(count)*width)
	if err != nil {
		return t, err
	}
	for ; len(b) >= width; b = b[width:] {
		tag, val := f.word(b), f.word(b[width/2:])
		if stdelf.DynTag(tag) == stdelf.DT_NULL {
			break
		}
		t.set(stdelf.DynTag(tag), val)
	}
	return t, nil
}

func (t *table) set(tag stdelf.DynTag, val uint64) {
	switch tag {
	case stdelf.DT_NEEDED:
		t.needed = append(t.needed, val)
	case stdelf.DT_SONAME:
		t.soname = &val
	case stdelf.DT_RPATH:
		t.rpath = &val
	case stdelf.DT_RUNPATH:
		t.runpath = &val
	case stdelf.DT_STRTAB:
		t.strtab, t.hasStrtab = val, true
	case stdelf.DT_STRSZ:
		t.strsz = val
	case stdelf.DT_SYMTAB:
		t.symtab = val
	case stdelf.DT_HASH:
		t.hash = val
	case stdelf.DT_GNU_HASH:
		t.gnuHash = val
	case stdelf.DT_VERNEED:
		t.verneed, t.hasVn = val, true
	case stdelf.DT_VERNEEDNUM:
		t.verneedCount = val
	case stdelf.DT_VERDEF:
		t.verdef, t.hasVd = val, true
	case stdelf.DT_VERDEFNUM:
		t.verdefCount = val
	}
}

func (f *file) names(t table, name func(uint64) (string, error)) error {
	for _, i := range t.needed {
		s, err := name(i)
		if err != nil {
			return err
		}
		f.facts.Needed = append(f.facts.Needed, s)
	}
	if t.soname != nil {
		s, err := name(*t.soname)
		if err != nil {
			return err
		}
		f.facts.Soname = s
	}
	for _, p := range []struct {
		at *uint64
		to *[]string
	}{{t.rpath, &f.facts.RPath}, {t.runpath, &f.facts.RunPath}} {
		if p.at == nil {
			continue
		}
		s, err := name(*p.at)
		if err != nil {
			return err
		}
		*p.to = strings.Split(s, ":")
	}
	return nil
}

// versionNeeds walks the chain of needed libraries and, for each, the chain of its versions.
func (f *file) versionNeeds(t table, name func(uint64) (string, error)) error {
	if !t.hasVn {
		return nil
	}
	off, err := f.offset(t.verneed)
	if err != nil {
		return err
	}
	left := maxVersions
	for range min(t.verneedCount, maxVersions) {
		b, err := f.at(off, 16)
		if err != nil {
			return err
		}
		file, err := name(uint64(f.order.Uint32(b[4:])))
		if err != nil {
			return err
		}
		need := VersionNeed{File: file}
		aux := off + uint64(f.order.Uint32(b[8:]))
		for range int(f.order.Uint16(b[2:])) {
			if left--; left < 0 {
				return fmt.Errorf("%w: more than %d versions", ErrMalformed, maxVersions)
			}
			a, err := f.at(aux, 16)
			if err != nil {
				return err
			}
			v, err := name(uint64(f.order.Uint32(a[8:])))
			if err != nil {
				return err
			}
			need.Versions = append(need.Versions, v)
			aux += uint64(f.order.Uint32(a[12:]))
		}
		f.facts.VersionNeeds = append(f.facts.VersionNeeds, need)
		next := uint64(f.order.Uint32(b[12:]))
		if next == 0 {
			return nil
		}
		off += next
	}
	return nil
}

// versionDefs walks the defined versions, leaving out the base entry, which names the file itself.
func (f *file) versionDefs(t table, name func(uint64) (string, error)) error {
	const flagBase = 1
	if !t.hasVd {
		return nil
	}
	off, err := f.offset(t.verdef)
	if err != nil {
		return err
	}
	for range min(t.verdefCount, maxVersions) {
		b, err := f.at(off, 20)
		if err != nil {
			return err
		}
		if f.order.Uint16(b[2:])&flagBase == 0 {
			a, err := f.at(off+uint64(f.order.Uint32(b[12:])), 8)
			if err != nil {
				return err
			}
			v, err := name(uint64(f.order.Uint32(a)))
			if err != nil {
				return err
			}
			f.facts.VersionDefs = append(f.facts.VersionDefs, v)
		}
		next := uint64(f.order.Uint32(b[16:]))
		if next == 0 {
			return nil
		}
		off += next
	}
	return nil
}
