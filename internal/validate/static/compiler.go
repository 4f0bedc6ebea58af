package static

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// compiler looks for the files that XLA needs where this release looks for them.
func (c *checker) compiler() {
	xla := c.Expect.TensorFlow.XLA
	if len(xla.Files) == 0 || len(xla.Search) == 0 {
		c.report("static.xla", "", []validate.Finding{{Outcome: validate.OutcomeInconclusive, Subject: "TensorFlow " + c.Expect.TensorFlow.Release,
			Message: "the facts do not say where XLA looks for its tools", Remedy: "add the release to the facts"}})
		return
	}
	for _, file := range xla.Files {
		c.report("static.xla", file+" is found and usable by every user", c.tool(file, xla.Search))
	}
}

// tool finds one file in the search directories: the first directory that has it wins.
func (c *checker) tool(file string, search []string) []validate.Finding {
	var tried []string
	for _, s := range search {
		dir, ok := c.searchDir(s)
		if !ok {
			continue
		}
		full := dir + "/" + file
		tried = append(tried, full)
		n, _, err := c.Tree.Resolve(full)
		if err != nil {
			continue
		}
		return c.usable(full, n)
	}
	return []validate.Finding{{Subject: file, Message: "XLA does not find " + path.Base(file), Expected: "in one of the directories that this release searches", Evidence: tried,
		Observed: "in none", Remedy: "install the CUDA compiler package (nvidia-cuda-nvcc) or link its directory there"}}
}

// searchDir turns an entry of the facts into an absolute directory.
func (c *checker) searchDir(s string) (string, bool) {
	if rel, ok := strings.CutPrefix(s, "wheel:"); ok {
		return "/" + c.Expect.SitePackages + "/" + rel, c.Expect.SitePackages != ""
	}
	if name, ok := strings.CutPrefix(s, "env:"); ok {
		dir := c.env[name]
		return strings.TrimRight(dir, "/"), strings.HasPrefix(dir, "/")
	}
	return strings.TrimRight(s, "/"), strings.HasPrefix(s, "/")
}

// usable judges the file that XLA takes. A program is one below bin.
func (c *checker) usable(full string, n rootfs.Node) []validate.Finding {
	f := validate.Finding{Subject: full, Observed: fmt.Sprintf("/%s: %s, mode %04o, %d bytes", n.Path, n.Type, n.Mode, n.Size), Remedy: "chmod a+rx " + full}
	need := uint32(0o004)
	program := path.Base(path.Dir(full)) == "bin"
	if program {
		need = 0o005
	}
	switch {
	case n.Type != rootfs.Regular || n.Size == 0:
		f.Message, f.Expected, f.Remedy = "the file is empty or none", "a file with content", "install the CUDA compiler package again"
	case n.Mode&need != need:
		f.Message, f.Expected = "not every user may use the file", fmt.Sprintf("mode with %03o", need)
	case program && (n.ELF == nil || n.ELF.Machine != c.Expect.Machine):
		f.Message, f.Expected, f.Remedy = "the program does not run on this platform", c.Expect.Machine, "install the CUDA compiler package of this platform"
	default:
		return c.closedParents(full, n)
	}
	return []validate.Finding{f}
}

// closedParents finds directories on the way to a file that not every user may pass.
func (c *checker) closedParents(full string, n rootfs.Node) []validate.Finding {
	for dir := path.Dir(n.Path); dir != "."; dir = path.Dir(dir) {
		if d, ok := c.Tree.Lstat(dir); ok && d.Mode&0o001 == 0 {
			return []validate.Finding{{Subject: full, Message: "not every user may pass /" + dir, Observed: fmt.Sprintf("mode %04o", d.Mode),
				Expected: "mode with 001", Remedy: "chmod a+x /" + dir}}
		}
	}
	return nil
}
