package static

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"

	"imgsmith/internal/rootfs"
)

// ErrBadCache tells that ld.so.cache cannot be what ldconfig writes.
var ErrBadCache = errors.New("ld.so.cache is damaged")

// CacheEntry is one line of ld.so.cache.
type CacheEntry struct {
	Soname string
	Path   string
	Flags  int32  // library type and ABI
	HWCap  uint64 // not 0: only for some processors
}

// X8664 tells whether the entry counts for an x86-64 process with glibc.
func (e CacheEntry) X8664() bool { return e.Flags == 0x0303 }

// The two formats of ldconfig; the old one may stand in front of the new one.
const (
	cacheMagicNew = "glibc-ld.so.cache1.1"
	cacheMagicOld = "ld.so-1.7.0"
	cacheHead     = 48
	cacheEntry    = 24
)

// ParseCache reads ld.so.cache in glibc's new format, also behind the old one. Errors wrap ErrBadCache.
func ParseCache(b []byte) ([]CacheEntry, error) {
	le := binary.LittleEndian
	if bytes.HasPrefix(b, []byte(cacheMagicOld)) {
		if len(b) < 16 {
			return nil, fmt.Errorf("%w: %d bytes", ErrBadCache, len(b))
		}
		skip := (16 + 12*uint64(le.Uint32(b[12:])) + 7) &^ 7
		if skip >= uint64(len(b)) {
			return nil, fmt.Errorf("%w: only the old format is there", ErrBadCache)
		}
		b = b[skip:]
	}
	if !bytes.HasPrefix(b, []byte(cacheMagicNew)) || len(b) < cacheHead {
		return nil, fmt.Errorf("%w: no header of a known format", ErrBadCache)
	}
	count := uint64(le.Uint32(b[20:]))
	if cacheHead+count*cacheEntry > uint64(len(b)) {
		return nil, fmt.Errorf("%w: %d entries do not fit into %d bytes", ErrBadCache, count, len(b))
	}
	text := func(at uint32) (string, error) {
		if uint64(at) >= uint64(len(b)) {
			return "", fmt.Errorf("%w: a name lies at %d of %d bytes", ErrBadCache, at, len(b))
		}
		s, _, ok := bytes.Cut(b[at:], []byte{0})
		if !ok {
			return "", fmt.Errorf("%w: a name has no end", ErrBadCache)
		}
		return string(s), nil
	}
	out := make([]CacheEntry, 0, count)
	for i := range count {
		e := b[cacheHead+i*cacheEntry:]
		name, err := text(le.Uint32(e[4:]))
		if err != nil {
			return nil, err
		}
		file, err := text(le.Uint32(e[8:]))
		if err != nil {
			return nil, err
		}
		out = append(out, CacheEntry{Soname: name, Path: file, Flags: int32(le.Uint32(e)), HWCap: le.Uint64(e[16:])})
	}
	return out, nil
}

// confDirs returns the directories that ld.so.conf names, in order, with the files it includes.
func confDirs(t *rootfs.Tree, conf string) []string {
	var out []string
	done := map[string]bool{} // files that include each other are read once
	var read func(file string)
	read = func(file string) {
		if file = path.Clean("/" + file); done[file] {
			return
		}
		done[file] = true
		b, err := t.ReadFile(file)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(b)) {
			line, _, _ = strings.Cut(line, "#")
			fields := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n\r:,", r) })
			switch {
			case len(fields) == 0 || fields[0] == "hwcap":
			case fields[0] == "include":
				for _, pattern := range fields[1:] {
					for _, f := range glob(t, path.Dir(file), pattern) {
						read(f)
					}
				}
			default:
				// ldconfig's old "dir=type" form: the type does not matter.
				dir, _, _ := strings.Cut(fields[0], "=")
				out = append(out, dir)
			}
		}
	}
	read(conf)
	return out
}

// glob expands a pattern whose last component may hold wildcards.
func glob(t *rootfs.Tree, dir, pattern string) []string {
	if !path.IsAbs(pattern) {
		pattern = dir + "/" + pattern
	}
	nodes, err := t.ReadDir(path.Dir(pattern))
	if err != nil {
		return nil
	}
	var out []string
	for _, n := range nodes {
		if ok, err := path.Match(path.Base(pattern), path.Base(n.Path)); ok && err == nil {
			out = append(out, path.Dir(pattern)+"/"+path.Base(n.Path))
		}
	}
	return out
}
