// Package view reads the root file system of an image, wherever the image is, as a tree for the static stage:
// layers in a registry or a layout, archives of docker save or in OCI form, directories. It reads every byte at
// most once, writes nothing but a temporary file for an unusual library, and judges nothing.
package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"imgsmith/internal/rootfs"
)

// Image is one image with the tree that a runtime would show. Digests are "sha256:<hex>", empty where the kind
// of image has none.
type Image struct {
	Ref          string
	Digest       string // of the manifest
	ConfigDigest string
	Config       []byte // image config, JSON; nil for a directory
	Layers       []Layer
	Tree         *rootfs.Tree
}

// Layer is one layer, bottom first in Image.Layers.
type Layer struct {
	Digest    string
	DiffID    string
	Size      int64  // compressed bytes; 0: not known
	Unpacked  int64  // bytes of its files
	CreatedBy string // the step that made it, from the image's history
	Indexed   bool   // what is in it was known by its digest: nothing was read
	Nodes     rootfs.Layer
}

// Options say how deep to look. The zero value reads names, links and headers.
type Options struct {
	Deep     bool                                     // digests of all contents and code for GPUs
	Keep     func(rootfs.Node) bool                   // whose content the tree keeps
	Table    func(digest string) (rootfs.Layer, bool) // what is inside a layer, by its digest; nil: nothing is known
	Platform string                                   // os/arch of which an index is followed; empty: linux/amd64
	Progress func(layer, layers int, digest string)   // nil: silent
	MaxBytes int64                                    // of all contents of all layers; 0 = 256 GiB
	MaxNodes int                                      // entries of all layers; 0 = 500,000
}

// ErrFormat tells that an archive or directory is no image that can be read.
var ErrFormat = errors.New("not an image")

// budget is what remains of the limits over all layers.
type budget struct {
	opt   Options
	bytes int64
	nodes int
	mem   rootfs.Window
}

func newBudget(opt Options) *budget {
	b := &budget{opt: opt, bytes: opt.MaxBytes, nodes: opt.MaxNodes}
	if b.bytes == 0 {
		b.bytes = 256 << 30
	}
	if b.nodes == 0 {
		b.nodes = 500_000
	}
	return b
}

// layer reads one uncompressed layer. window chooses the way that holds no library in memory.
func (b *budget) layer(ctx context.Context, r io.Reader, window bool) (rootfs.Layer, int64, error) {
	opt := rootfs.Options{Keep: b.opt.Keep, MaxKeep: 16 << 20, MaxKept: 96 << 20,
		MaxBytes: max(b.bytes, 1), MaxNodes: max(b.nodes, 1), MaxMemory: 8 << 20, NoDigests: !b.opt.Deep, GPUCode: b.opt.Deep,
		Spool: spool, Head: head}
	if window {
		opt.Window = &b.mem
	}
	nodes, err := rootfs.ReadLayer(ctx, r, opt)
	if err != nil {
		return nil, 0, err
	}
	var size int64
	for _, n := range nodes {
		if n.Type == rootfs.Regular {
			size += n.Size
		}
	}
	b.bytes -= size
	b.nodes -= len(nodes)
	return nodes, size, nil
}

func head(n rootfs.Node) bool { return path.Ext(n.Path) == ".pyc" }

// spool sets a library aside in a file that has no name any more.
func spool(r io.Reader) (io.ReaderAt, func(), error) {
	f, err := os.CreateTemp("", "imgsmith-elf-")
	if err != nil {
		return nil, nil, err
	}
	free := func() { f.Close() }
	if err := os.Remove(f.Name()); err != nil {
		free()
		return nil, nil, err
	}
	if _, err := io.Copy(f, r); err != nil {
		free()
		return nil, nil, err
	}
	return f, free, nil
}

// Layered reads an image whose layers are opened one by one, bottom first. layers holds Digest and Size; open
// returns the compressed content of one of them and is called again for a layer that cannot be read in passing.
func Layered(ctx context.Context, img Image, open func(ctx context.Context, i int) (io.ReadCloser, error), opt Options) (Image, error) {
	b := newBudget(opt)
	for i := range img.Layers {
		l := &img.Layers[i]
		if opt.Progress != nil {
			opt.Progress(i, len(img.Layers), l.Digest)
		}
		if opt.Table != nil && !opt.Deep {
			if nodes, ok := opt.Table(l.Digest); ok {
				l.Nodes, l.Indexed = nodes, true
				for _, n := range nodes {
					l.Unpacked += n.Size
				}
				continue
			}
		}
		var err error
		for _, window := range []bool{true, false} {
			l.Nodes, l.Unpacked, err = one(ctx, b, i, open, window)
			if !errors.Is(err, rootfs.ErrWindow) {
				break
			}
		}
		if err != nil {
			return Image{}, fmt.Errorf("reading layer %d of %s (%s): %w", i, img.Ref, l.Digest, err)
		}
	}
	return img.finish()
}

func one(ctx context.Context, b *budget, i int, open func(context.Context, int) (io.ReadCloser, error), window bool) (rootfs.Layer, int64, error) {
	raw, err := open(ctx, i)
	if err != nil {
		return nil, 0, err
	}
	defer raw.Close()
	r, err := decompress(raw)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	nodes, size, err := b.layer(ctx, r, window)
	if err != nil {
		return nil, 0, err
	}
	// The rest is padding; the digest is compared at the end of the compressed bytes.
	if _, err := io.Copy(io.Discard, io.LimitReader(r, maxPadding)); err != nil {
		return nil, 0, err
	}
	r.Close()
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return nil, 0, err
	}
	return nodes, size, nil
}

// maxPadding bounds what may follow the end mark of a layer's archive, in bytes.
const maxPadding = 64 << 20

// finish applies the layers and names the steps that made them.
func (img Image) finish() (Image, error) {
	var c struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []struct {
			CreatedBy  string `json:"created_by"`
			EmptyLayer bool   `json:"empty_layer"`
		} `json:"history"`
	}
	if img.Config != nil {
		if err := json.Unmarshal(img.Config, &c); err != nil {
			return Image{}, fmt.Errorf("reading the image config of %s: %w", img.Ref, err)
		}
	}
	steps := 0
	for _, h := range c.History {
		if !h.EmptyLayer && steps < len(img.Layers) {
			img.Layers[steps].CreatedBy = strings.Join(strings.Fields(h.CreatedBy), " ")
			steps++
		}
	}
	all := make([]rootfs.Layer, len(img.Layers))
	for i := range img.Layers {
		if i < len(c.RootFS.DiffIDs) {
			img.Layers[i].DiffID = c.RootFS.DiffIDs[i]
		}
		all[i] = img.Layers[i].Nodes
	}
	var err error
	img.Tree, err = rootfs.Apply(all...)
	if err != nil {
		return Image{}, fmt.Errorf("reading %s: %w", img.Ref, err)
	}
	return img, nil
}
