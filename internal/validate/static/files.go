package static

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// elfFiles judges every file that is named like a library.
func (c *checker) elfFiles() {
	var found []validate.Finding
	count := 0
	c.walk(func(n rootfs.Node) {
		if n.Type != rootfs.Regular || !libraryName.MatchString(base(n.Path)) {
			return
		}
		count++
		f := validate.Finding{Subject: "/" + n.Path, Remedy: "install the package that holds this file again, from a file whose hash is known"}
		switch {
		case n.Size == 0:
			f.Message, f.Expected, f.Observed = "the library is empty", "an ELF shared object", "0 bytes"
		case n.ELFError != "":
			f.Message, f.Expected, f.Observed = "the library cannot be read", "an ELF shared object", n.ELFError
		case n.ELF == nil:
			f.Message, f.Expected, f.Observed = "the file is named like a library and is none", "an ELF shared object", plural(int(n.Size), "bytes of something else")
		case n.ELF.Class != 64 || n.ELF.Machine != c.Expect.Machine:
			f.Message, f.Expected = "the library is for another processor", "64 bit "+c.Expect.Machine
			f.Observed, f.Remedy = fmt.Sprintf("%d bit %s", n.ELF.Class, n.ELF.Machine), "choose the package of this platform"
		case n.ELF.Type != "ET_DYN":
			f.Message, f.Expected, f.Observed = "the file is no shared object", "ET_DYN", n.ELF.Type
		default:
			return
		}
		found = append(found, f)
	})
	c.report("static.elf.files", plural(count, "files named like a library are shared objects of this platform"), found)
}

// sonames compares the names in the CUDA directories with what the files behind them call themselves.
func (c *checker) sonames() {
	var found []validate.Finding
	count := 0
	for _, dir := range c.libraryDirs() {
		nodes, err := c.Tree.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, n := range nodes {
			name := base(n.Path)
			r, _, err := c.Tree.Resolve(n.Path)
			if err != nil || r.ELF == nil || r.ELF.Soname == "" || !libraryName.MatchString(name) {
				continue
			}
			count++
			s := r.ELF.Soname
			if name == s || strings.HasPrefix(name, s+".") || strings.HasPrefix(s, name+".") {
				continue
			}
			found = append(found, validate.Finding{Subject: "/" + n.Path, Message: fmt.Sprintf("%s leads to a library that calls itself %s", name, s), Expected: name,
				Observed: fmt.Sprintf("%s in /%s", s, r.Path), Remedy: "link the name to the file of that version: versions of different majors never replace each other"})
		}
	}
	c.report("static.soname", plural(count, "library names agree with the SONAME behind them"), found)
}

// libraryDirs are the real directories that hold a mapped library or lie in the CUDA root's library path.
func (c *checker) libraryDirs() []string {
	var out []string
	add := func(dir string) {
		n, _, err := c.Tree.Resolve(dir)
		if err == nil && n.Type == rootfs.Dir && !slices.Contains(out, n.Path) {
			out = append(out, n.Path)
		}
	}
	for _, d := range c.cudaConfDirs() {
		add(d)
	}
	if root := c.Expect.CUDARoot; root != "" {
		add(root + "/lib64")
	}
	for _, m := range c.mapped {
		for _, r := range c.roots() {
			if strings.HasPrefix(m.Path, "/"+r+"/") {
				add(path.Dir(m.Path))
			}
		}
	}
	return out
}

// links follows every link below the roots and the links to the CUDA root beside it.
func (c *checker) links() {
	var found []validate.Finding
	count := 0
	look := func(n rootfs.Node) {
		if n.Type != rootfs.Symlink {
			return
		}
		count++
		_, hops, err := c.Tree.Resolve(n.Path)
		f := validate.Finding{Subject: "/" + n.Path, Observed: "→ " + n.Link}
		for _, h := range hops {
			f.Evidence = append(f.Evidence, "/"+h.Path+" → "+h.Target)
		}
		switch {
		case errors.Is(err, rootfs.ErrLoop):
			f.Message, f.Remedy = "the link leads in a circle", "remove the link or point it at a file"
		case err != nil:
			f.Message, f.Remedy = "the link leads nowhere: "+err.Error(), "install what it points to, or remove the link"
		case slices.ContainsFunc(hops, func(h rootfs.Hop) bool { return h.Escapes }):
			f.Message, f.Remedy = "the link climbs out of the root", "write the link relative to its own directory"
		default:
			return
		}
		found = append(found, f)
	}
	c.walk(look)
	if root := c.Expect.CUDARoot; root != "" {
		beside, err := c.Tree.ReadDir(path.Dir(root))
		for _, n := range beside {
			if err == nil && strings.HasPrefix(base(n.Path), "cuda") {
				look(n)
			}
		}
	}
	c.report("static.links", plural(count, "links lead to something"), found)
}

// modes demands that any user can read what is below the roots.
func (c *checker) modes() {
	var found []validate.Finding
	count := 0
	look := func(n rootfs.Node) {
		need := map[rootfs.Type]uint32{rootfs.Regular: 0o004, rootfs.Dir: 0o005}[n.Type]
		if need == 0 {
			return
		}
		count++
		if n.Mode&need != need {
			found = append(found, validate.Finding{Subject: "/" + n.Path, Message: "not every user can read this " + string(n.Type),
				Expected: fmt.Sprintf("mode with %03o", need), Observed: fmt.Sprintf("%04o", n.Mode), Remedy: "chmod a+rX"})
		}
	}
	for _, r := range c.roots() {
		for dir := path.Dir(r); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if n, ok := c.Tree.Lstat(dir); ok {
				look(n)
			}
		}
	}
	if n, ok := c.Tree.Lstat("."); ok {
		look(n)
	}
	c.walk(look)
	c.report("static.modes", plural(count, "files and directories are readable by every user"), found)
}

// driver looks for files of the host's driver package in the whole tree.
func (c *checker) driver() {
	var found []validate.Finding
	_ = c.Tree.Walk("", func(n rootfs.Node) error {
		name, dir := base(n.Path), path.Base(path.Dir(n.Path))
		isLib := c.rules.driverLibrary(name) && dir != c.rules.StubDirectory
		isProg := slices.Contains(c.rules.Driver.Programs, name) && (dir == "bin" || dir == "sbin")
		if n.Type == rootfs.Dir || (!isLib && !isProg) || (c.Expect.ForwardCompat && dir == c.rules.Driver.CompatDirectory) {
			return nil
		}
		f := validate.Finding{Subject: "/" + n.Path, Message: "a file of the host's driver is in the image", Expected: "injected at run time only",
			Observed: fmt.Sprintf("%s, %d bytes", n.Type, n.Size), Remedy: "remove the driver packages from the image: the container runtime mounts the host's"}
		if n.Type == rootfs.Regular && n.Size == 0 {
			f.Message = "an empty driver file is in the image: it was built under the GPU runtime, whose mount targets stayed"
			f.Remedy = "build without the GPU runtime and delete the empty files"
		}
		found = append(found, f)
		return nil
	})
	c.report("static.driver", "no file of the host's driver is in the image", found)
}

// compat judges the forward-compatibility package: one driver library, on GPUs that it works on.
func (c *checker) compat() {
	root := c.Expect.CUDARoot
	if root == "" || !c.Expect.ForwardCompat {
		return
	}
	dir := root + "/" + c.rules.Driver.CompatDirectory
	nodes, err := c.Tree.ReadDir(dir)
	if err != nil {
		return
	}
	f := validate.Finding{Subject: "/" + dir, Expected: "exactly one libcuda", Remedy: "install one cuda-compat package, or none"}
	for _, n := range nodes {
		if n.Type == rootfs.Regular && strings.HasPrefix(base(n.Path), "libcuda.so") {
			f.Evidence = append(f.Evidence, "/"+n.Path)
		}
	}
	f.Observed = fmt.Sprint(len(f.Evidence))
	if len(f.Evidence) != 1 {
		f.Message = "the forward-compatibility directory does not hold exactly one driver library"
		c.report("static.compat", "", []validate.Finding{f})
		return
	}
	for _, g := range c.Fleet {
		if g.Consumer {
			f.Message, f.Expected, f.Observed = "the image brings a driver library that does not work on "+g.Name, "data centre GPUs only", g.Name
			f.Remedy = "remove the cuda-compat package: with a driver older than the CUDA it ends with error 804 on this GPU"
			c.report("static.compat", "", []validate.Finding{f})
			return
		}
	}
	f.Message, f.Expected, f.Remedy = "the image brings a driver library for older hosts: it works on data centre GPUs only", "", "leave the cuda-compat package out when the fleet has other GPUs"
	c.note("static.compat", f)
}

// stubs looks for directories of link-time placeholders wherever the loader may search.
func (c *checker) stubs() {
	var found []validate.Finding
	look := func(where, dir string) {
		real := dir
		if n, _, err := c.Tree.Resolve(dir); err == nil {
			real = n.Path
		}
		if slices.Contains(strings.Split(dir+"/"+real, "/"), c.rules.StubDirectory) {
			found = append(found, validate.Finding{Subject: dir, Message: "a directory of stub libraries is searched at run time, by " + where,
				Remedy: "remove it: a stub of the driver library makes every CUDA call fail with error 34"})
		}
	}
	for _, d := range c.ld.libPath {
		look("LD_LIBRARY_PATH", d)
	}
	for _, d := range c.confPaths {
		look("ld.so.conf", d)
	}
	for _, name := range sortedKeys(c.ld.cache) {
		for _, p := range c.ld.cache[name] {
			look("ld.so.cache", dirOf(p))
		}
	}
	if c.proc != nil {
		for _, o := range c.proc.order {
			for _, p := range c.ld.before(o) {
				look(p.rule, p.dir)
			}
		}
	}
	found = slices.CompactFunc(found, func(a, b validate.Finding) bool { return a.Subject == b.Subject && a.Message == b.Message })
	c.report("static.stubs", "no directory of stub libraries is searched", found)
}
