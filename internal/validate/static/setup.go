package static

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// loaderSetup reads what the image tells its loader, and judges the cache.
func (c *checker) loaderSetup() {
	c.env = map[string]string{}
	for _, e := range c.Config.Env {
		name, value, _ := strings.Cut(e, "=")
		c.env[name] = value
	}
	rule := c.rules.loader(osIDs(c.Tree))
	c.ld = &loader{tree: c.Tree, dirs: rule.Directories, lib: rule.Lib, machine: c.Expect.Machine, cache: map[string][]string{}}
	if v := c.env["LD_LIBRARY_PATH"]; v != "" {
		c.ld.libPath = strings.FieldsFunc(v, func(r rune) bool { return r == ':' || r == ';' })
	}
	c.confPaths = confDirs(c.Tree, "etc/ld.so.conf")
	c.report("static.loader.cache", "ld.so.cache is readable and holds what the loader configuration names", c.cache())
}

// osIDs returns ID and ID_LIKE of os-release.
func osIDs(t *rootfs.Tree) []string {
	b, err := t.ReadFile("etc/os-release")
	if err != nil {
		if b, err = t.ReadFile("usr/lib/os-release"); err != nil {
			return nil
		}
	}
	var id, like []string
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch name {
		case "ID":
			id = []string{value}
		case "ID_LIKE":
			like = strings.Fields(value)
		}
	}
	return append(id, like...)
}

// cache loads ld.so.cache into the simulated loader and compares it with the configured CUDA directories.
func (c *checker) cache() []validate.Finding {
	const file = "etc/ld.so.cache"
	remedy := "run ldconfig of the image's own C library as the last step that changes libraries"
	b, err := c.Tree.ReadFile(file)
	switch {
	case errors.Is(err, rootfs.ErrNotExist):
		if len(c.cudaConfDirs()) == 0 {
			return nil
		}
		return []validate.Finding{{Subject: "/" + file, Message: "there is no loader cache, so the configured CUDA directories are not searched", Remedy: remedy}}
	case err != nil:
		return []validate.Finding{{Outcome: validate.OutcomeInconclusive, Subject: "/" + file, Message: err.Error(), Remedy: "read the layer with this file's content"}}
	}
	entries, err := ParseCache(b)
	if err != nil {
		return []validate.Finding{{Subject: "/" + file, Message: err.Error(), Remedy: remedy}}
	}
	var found []validate.Finding
	for _, e := range entries {
		if !e.X8664() || e.HWCap != 0 {
			continue
		}
		c.ld.cache[e.Soname] = append(c.ld.cache[e.Soname], e.Path)
		if _, _, err := c.Tree.Resolve(e.Path); err != nil && c.underCUDA(e.Path) {
			found = append(found, validate.Finding{Subject: e.Path, Message: "the loader cache names a file that is not there", Observed: err.Error(), Remedy: remedy})
		}
	}
	return append(found, c.uncached(remedy)...)
}

// uncached finds libraries of the configured CUDA directories that the cache lacks.
func (c *checker) uncached(remedy string) []validate.Finding {
	var found []validate.Finding
	for _, dir := range c.cudaConfDirs() {
		nodes, err := c.Tree.ReadDir(dir)
		if err != nil {
			found = append(found, validate.Finding{Subject: dir, Message: "the loader configuration names a directory that is not there", Observed: err.Error(),
				Remedy: "remove the line or install the libraries"})
			continue
		}
		for _, n := range nodes {
			r, _, err := c.Tree.Resolve(n.Path)
			if err != nil || r.ELF == nil || r.ELF.Soname == "" || r.ELF.Soname != base(n.Path) {
				continue
			}
			if !slices.ContainsFunc(c.ld.cache[base(n.Path)], c.leadsTo(r.Path)) {
				found = append(found, validate.Finding{Subject: dir + "/" + base(n.Path), Message: "the loader cache does not hold this library", Remedy: remedy})
			}
		}
	}
	return found
}

// leadsTo matches paths behind which one file lies: ldconfig keeps one of several names of a directory.
func (c *checker) leadsTo(real string) func(string) bool {
	return func(p string) bool {
		n, _, err := c.Tree.Resolve(p)
		return err == nil && n.Path == real
	}
}

// cudaConfDirs are the configured directories below a CUDA root.
func (c *checker) cudaConfDirs() []string {
	var out []string
	for _, d := range c.confPaths {
		if c.underCUDA(d) {
			out = append(out, strings.TrimRight(d, "/"))
		}
	}
	return out
}

// underCUDA tells whether an absolute path lies, links followed, below the expected CUDA root.
func (c *checker) underCUDA(file string) bool {
	root := c.Expect.CUDARoot
	if root == "" {
		return false
	}
	if n, _, err := c.Tree.Resolve(file); err == nil {
		file = "/" + n.Path
	}
	return strings.HasPrefix(file+"/", "/"+root+"/")
}

// base is the last component of a path.
func base(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }

func plural(n int, what string) string { return fmt.Sprintf("%d %s", n, what) }
