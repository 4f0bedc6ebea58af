// Package twin makes small stand-ins for big trees, on which a program of the image can run in their place:
// stub libraries for ldconfig, bare .py files for the bytecode compiler. The result of the program is the same
// as on the full tree. It writes nothing and runs nothing; a layer writer takes its entries.
package twin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
)

// ErrNoTwin tells that a file cannot have a stand-in with the same effect; the message names the file.
var ErrNoTwin = errors.New("no stand-in can be made")

// Ldconfig returns the entries on which ldconfig writes the same ld.so.cache as on tree: for every directory in
// dirs (as ld.so.conf names them), its links and a stub for each library, with the path, mode and ELF names of
// the real one, and the directories and links that lead there. Entries are sorted by path, parents first; mtime
// is in seconds since the epoch. Errors wrap ErrNoTwin or what the tree says about a missing directory.
func Ldconfig(tree *rootfs.Tree, dirs []string, mtime int64) ([]rootfs.Entry, error) {
	s := set{tree: tree, mtime: mtime, entries: map[string]rootfs.Entry{}}
	for _, d := range dirs {
		real, err := s.lead(d)
		if err != nil {
			return nil, fmt.Errorf("making a stand-in for ldconfig: %w", err)
		}
		nodes, err := tree.ReadDir(real)
		if err != nil {
			return nil, fmt.Errorf("making a stand-in for ldconfig: %w", err)
		}
		for _, n := range nodes {
			if !considered(path.Base(n.Path)) || n.Type == rootfs.Dir {
				continue
			}
			if err := s.library(n); err != nil {
				return nil, fmt.Errorf("making a stand-in for ldconfig: %w", err)
			}
		}
	}
	return s.sorted(), nil
}

// considered tells whether ldconfig looks at a name: lib*.so* and ld-*.so*.
func considered(name string) bool {
	return (strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "ld-")) && strings.Contains(name, ".so")
}

// set collects entries by path.
type set struct {
	tree    *rootfs.Tree
	mtime   int64
	entries map[string]rootfs.Entry
}

func (s *set) add(n rootfs.Node) {
	if n.Path == "." || n.Path == "" {
		return
	}
	n.MTime = s.mtime
	s.entries[n.Path] = rootfs.Entry{Node: n}
}

// lead adds the directories and links on the way to a path and returns where it leads.
func (s *set) lead(p string) (string, error) {
	n, hops, err := s.tree.Resolve(p)
	if err != nil {
		return "", err
	}
	for _, h := range hops {
		s.parents(h.Path)
		if link, ok := s.tree.Lstat(h.Path); ok {
			s.add(link)
		}
	}
	s.parents(n.Path)
	if n.Type == rootfs.Dir {
		s.add(n)
	}
	return n.Path, nil
}

// parents adds the real directories above a path without links.
func (s *set) parents(p string) {
	for dir := path.Dir(p); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if n, ok := s.tree.Lstat(dir); ok {
			s.add(n)
		}
	}
}

// library adds a library, or a link with the library behind it: ldconfig removes links that lead nowhere.
func (s *set) library(n rootfs.Node) error {
	if n.Type == rootfs.Symlink {
		real, err := s.lead(n.Path)
		if errors.Is(err, rootfs.ErrNotExist) || errors.Is(err, rootfs.ErrLoop) {
			return nil // not in the cache; the static stage names it
		}
		if err != nil {
			return err
		}
		target, _ := s.tree.Lstat(real)
		if target.Type == rootfs.Dir {
			return nil
		}
		return s.library(target)
	}
	if n.Type != rootfs.Regular || n.ELF == nil {
		return fmt.Errorf("%w: /%s is no readable ELF file (%s, %d bytes)", ErrNoTwin, n.Path, n.Type, n.Size)
	}
	content, err := elf.StubLibrary(*n.ELF)
	if err != nil {
		return fmt.Errorf("%w: /%s: %w", ErrNoTwin, n.Path, err)
	}
	sum := sha256.Sum256(content)
	n.ELF, n.Data, n.Size = nil, content, int64(len(content))
	n.Digest = "sha256:" + hex.EncodeToString(sum[:])
	s.add(n)
	return nil
}

// sorted returns the entries by path, which puts parents first.
func (s *set) sorted() []rootfs.Entry {
	out := make([]rootfs.Entry, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b rootfs.Entry) int {
		return slices.Compare(strings.Split(a.Path, "/"), strings.Split(b.Path, "/"))
	})
	return out
}

// Bytecode returns the .py files of one component below a directory ("" for all), at their final path with
// mtime (seconds since the epoch), and the directories above them as the component has them. open returns the
// content of a node and is called when an entry is written.
func Bytecode(layer rootfs.Layer, under string, mtime int64, open func(rootfs.Node) (io.ReadCloser, error)) []rootfs.Entry {
	s := set{mtime: mtime, entries: map[string]rootfs.Entry{}}
	dirs := map[string]rootfs.Node{}
	for _, n := range layer {
		if n.Type == rootfs.Dir {
			dirs[n.Path] = n
		}
	}
	for _, n := range layer {
		if n.Type != rootfs.Regular || path.Ext(n.Path) != ".py" || (under != "" && !strings.HasPrefix(n.Path, under+"/")) {
			continue
		}
		for dir := path.Dir(n.Path); dir != "."; dir = path.Dir(dir) {
			d, ok := dirs[dir]
			if !ok {
				d = rootfs.Node{Path: dir, Type: rootfs.Dir, Mode: 0o755}
			}
			s.add(d)
		}
		n.MTime = mtime
		s.entries[n.Path] = rootfs.Entry{Node: n, Open: func() (io.ReadCloser, error) { return open(n) }}
	}
	return s.sorted()
}
