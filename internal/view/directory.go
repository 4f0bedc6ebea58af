package view

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
)

// Directory reads an unpacked root file system. It follows no link and stays on the file system that dir is on,
// so what is mounted below is not part of the image. A file that cannot be read is an error.
func Directory(ctx context.Context, dir string, opt Options) (Image, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Image{}, fmt.Errorf("reading directory %s: %w", dir, err)
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return Image{}, fmt.Errorf("reading directory %s: %w", dir, err)
	}
	w := walker{root: root, budget: newBudget(opt), device: device(info), seen: map[inode]string{}}
	var nodes rootfs.Layer
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		n, skip, err := w.node(p, d)
		if err != nil {
			return fmt.Errorf("/%s: %w", p, err)
		}
		if w.budget.nodes--; w.budget.nodes < 0 {
			return fmt.Errorf("%w: too many files", rootfs.ErrBudget)
		}
		nodes = append(nodes, n)
		if skip {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return Image{}, fmt.Errorf("reading directory %s: %w", dir, err)
	}
	img := Image{Ref: dir, Layers: []Layer{{Nodes: nodes}}}
	return img.finish()
}

type inode struct{ device, number uint64 }

// walker reads the nodes of a directory.
type walker struct {
	root   *os.Root
	budget *budget
	device uint64
	seen   map[inode]string // files with several names
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

func (w *walker) node(p string, d fs.DirEntry) (n rootfs.Node, skip bool, err error) {
	info, err := d.Info()
	if err != nil {
		return n, false, err
	}
	n = rootfs.Node{Path: filepath.ToSlash(p), Mode: unixMode(info.Mode()), MTime: info.ModTime().Unix()}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok {
		n.UID, n.GID = int(st.Uid), int(st.Gid)
	}
	switch m := info.Mode(); {
	case m.IsDir():
		n.Type = rootfs.Dir
		return n, device(info) != w.device, nil
	case m&fs.ModeSymlink != 0:
		n.Type = rootfs.Symlink
		n.Link, err = w.root.Readlink(p)
		return n, false, err
	case !m.IsRegular():
		n.Type = rootfs.Device
		return n, false, nil
	}
	n.Type, n.Size = rootfs.Regular, info.Size()
	if ok && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, again := w.seen[id]; again {
			n.Type, n.Link, n.Size = rootfs.Hardlink, first, 0
			return n, false, nil
		}
		w.seen[id] = n.Path
	}
	return n, false, w.content(p, &n)
}

// content reads what the options ask for; of a library only the parts that its facts are in.
func (w *walker) content(p string, n *rootfs.Node) error {
	if w.budget.bytes -= n.Size; w.budget.bytes < 0 {
		return fmt.Errorf("%w: too many bytes", rootfs.ErrBudget)
	}
	f, err := w.root.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	magic := make([]byte, rootfs.HeadSize)
	k, err := f.ReadAt(magic, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	opt := w.budget.opt
	switch {
	case elf.IsELF(magic[:k]):
		if err := rootfs.SetELF(n, f); err != nil {
			return err
		}
	case opt.Keep != nil && n.Size <= 16<<20 && opt.Keep(*n):
		if n.Data, err = io.ReadAll(io.LimitReader(f, n.Size)); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	case k == rootfs.HeadSize && head(*n):
		n.Head = (*[rootfs.HeadSize]byte)(magic)
	}
	if !opt.Deep {
		return nil
	}
	var gpu elf.GPUScanner
	sum := sha256.New()
	to := io.Writer(sum)
	if n.ELF != nil {
		to = io.MultiWriter(sum, &gpu)
	}
	if _, err := io.Copy(to, f); err != nil {
		return err
	}
	n.Digest, n.GPU = "sha256:"+hex.EncodeToString(sum.Sum(nil)), gpu.Code()
	return nil
}

// unixMode writes a mode as tar does.
func unixMode(m fs.FileMode) uint32 {
	out := uint32(m.Perm())
	for bit, v := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			out |= v
		}
	}
	return out
}
