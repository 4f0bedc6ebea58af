package witness

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"imgsmith/internal/rootfs"
)

// node is what trees are compared by.
type node struct {
	kind     string // dir, file, link, device
	mode     uint32 // octal 07777
	uid, gid int
	link     string
	digest   string // of a file's content
	mtime    int64  // of a file: bytecode is only used while it is the one of its source
}

func (n node) String() string {
	return fmt.Sprintf("%s %04o %d:%d %s%s %d", n.kind, n.mode, n.uid, n.gid, n.link, n.digest, n.mtime)
}

// tree is a root file system by path, without the root itself.
type tree map[string]node

// predicted is the tree that the tables promise.
func predicted(t *testing.T, from *rootfs.Tree) tree {
	t.Helper()
	out := tree{}
	err := from.Walk("", func(n rootfs.Node) error {
		if n.Path == "" || n.Path == "." {
			return nil
		}
		g := node{kind: string(n.Type), mode: n.Mode, uid: n.UID, gid: n.GID, digest: n.Digest}
		switch n.Type {
		case rootfs.Regular:
			g.mtime = n.MTime
		case rootfs.Symlink:
			g.mode, g.link = 0o777, n.Link // a link's mode means nothing on Linux; a further hard link has one too, and is a file
		}
		out[n.Path] = g
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// onDisk walks a mounted file system.
func onDisk(t *testing.T, root string) tree {
	t.Helper()
	out := tree{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		n := node{kind: "device", mode: st.Mode & 0o7777, uid: int(st.Uid), gid: int(st.Gid)}
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			n.kind = "dir"
		case syscall.S_IFLNK:
			n.kind, n.mode = "link", 0o777
			n.link, err = os.Readlink(p)
		case syscall.S_IFREG:
			n.kind, n.mtime = "file", st.Mtim.Sec
			var f *os.File
			if f, err = os.Open(p); err == nil {
				n.digest, err = sum(f)
				err = errors.Join(err, f.Close())
			}
		}
		out[strings.TrimPrefix(p, root+"/")] = n
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sum(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

// inTar reads a flat archive of a root file system.
func inTar(t *testing.T, r io.Reader) tree {
	t.Helper()
	out, hard := tree{}, map[string]string{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		p := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if p == "" {
			continue
		}
		n := node{kind: "device", mode: uint32(h.Mode & 0o7777), uid: h.Uid, gid: h.Gid}
		switch h.Typeflag {
		case tar.TypeDir:
			n.kind = "dir"
		case tar.TypeSymlink:
			n.kind, n.mode, n.link = "link", 0o777, h.Linkname
		case tar.TypeLink:
			hard[p] = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
			continue
		case tar.TypeReg:
			n.kind, n.mtime = "file", h.ModTime.Unix()
			if n.digest, err = sum(tr); err != nil {
				t.Fatal(err)
			}
		}
		if _, twice := out[p]; twice {
			t.Errorf("/%s is in the archive twice", p)
		}
		out[p] = n
	}
	for p, target := range hard {
		n, ok := out[target]
		if !ok {
			t.Errorf("/%s is a hard link to /%s, which is not there", p, target)
		}
		out[p] = n
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	return out
}

// equal demands that got is want, path for path.
func equal(t *testing.T, who string, want, got tree) {
	t.Helper()
	var faults []string
	for p, w := range want {
		if g, ok := got[p]; !ok {
			faults = append(faults, "/"+p+" is missing; want "+w.String())
		} else if g != w {
			faults = append(faults, "/"+p+" is "+g.String()+"; want "+w.String())
		}
	}
	for p, g := range got {
		if _, ok := want[p]; !ok {
			faults = append(faults, "/"+p+" is there and should not be: "+g.String())
		}
	}
	slices.Sort(faults)
	for _, f := range faults[:min(len(faults), 30)] {
		t.Errorf("%s: %s", who, f)
	}
	if len(faults) > 30 {
		t.Errorf("%s: %d differences in all", who, len(faults))
	}
}
