package component

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
)

// Entry is one path of a layer made from bytes.
type Entry struct {
	Path string // relative to the image's root
	Type rootfs.Type
	Mode uint32
	UID  int
	GID  int
	Link string // target of a symlink
	Data []byte // content of a regular file
}

// File is a regular file owned by root.
func File(path string, mode uint32, data []byte) Entry {
	return Entry{Path: path, Type: rootfs.Regular, Mode: mode, Data: data}
}

// Directory is a directory owned by root; missing parents need not be listed.
func Directory(path string, mode uint32) Entry {
	return Entry{Path: path, Type: rootfs.Dir, Mode: mode}
}

// Symlink is a symbolic link.
func Symlink(path, target string) Entry {
	return Entry{Path: path, Type: rootfs.Symlink, Mode: 0o777, Link: target}
}

// WriteLayer writes a layer from entries, in path order, with missing parents. The record has no image yet.
func WriteLayer(ctx context.Context, w io.Writer, entries []Entry, opts Options) (Record, rootfs.Layer, error) {
	l, err := newLayerWriter(w, opts)
	if err != nil {
		return Record{}, nil, fmt.Errorf("writing a layer: %w", err)
	}
	sorted := slices.SortedStableFunc(slices.Values(entries), func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	for _, e := range sorted {
		if err := l.entry(ctx, e); err != nil {
			l.abort()
			return Record{}, nil, fmt.Errorf("writing a layer: %w", err)
		}
	}
	rec, err := l.finish()
	return rec, l.table, err
}

func (l *layerWriter) entry(ctx context.Context, e Entry) error {
	n := rootfs.Node{Path: e.Path, Type: e.Type, Mode: e.Mode, UID: e.UID, GID: e.GID, Link: e.Link}
	if e.Type == rootfs.Regular {
		n.Size = int64(len(e.Data))
		return l.bytes(ctx, n, e.Data)
	}
	if err := l.parents(e.Path); err != nil {
		return err
	}
	return l.header(n)
}

func (l *layerWriter) bytes(ctx context.Context, n rootfs.Node, data []byte) error {
	return l.file(ctx, n, func(io.Writer) (io.Reader, error) { return bytes.NewReader(data), nil }, false, 0)
}
