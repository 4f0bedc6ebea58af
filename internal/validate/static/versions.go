package static

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/validate"
)

// Version is one version found in the image.
type Version struct {
	Name    string `json:"name"` // tensorflow, python, cuda, cudnn, nccl, or a soname
	Version string `json:"version"`
	From    string `json:"from"` // what said so
}

// installedVersions collects what the image itself says, binaries first: names and metadata can lie.
func (c *checker) installedVersions() {
	add := func(name, version, from string) {
		if version != "" {
			c.versions = append(c.versions, Version{name, version, from})
		}
	}
	dists, _ := c.distributions() // told by static.packages
	for _, d := range dists {
		if d.name == "tensorflow" {
			add("tensorflow", d.version, "/"+d.dir)
		}
	}
	add("python", c.pythonVersion(), "/"+c.Expect.SitePackages)
	for _, v := range []struct{ name, stem, distribution string }{
		{"cuda", "libcudart.so.", "nvidia-cuda-runtime"}, {"cudnn", c.Expect.CuDNN.Soname, "nvidia-cudnn"}, {"nccl", "libnccl.so.", "nvidia-nccl"},
	} {
		version, from := c.libraryVersion(v.stem, v.distribution)
		add(v.name, version, from)
	}
	for _, m := range c.mapped {
		if n, ok := c.Tree.Lstat(m.Path); ok && n.ELF != nil && n.ELF.Version != "" {
			add(m.Soname, n.ELF.Version, m.Path+", "+n.ELF.VersionFrom)
		}
	}
	c.metadataLies()
}

// libraryVersion tells the version of a mapped library: from its code, or that of a sub-library beside it, from
// the Python package that put it there, or from its file name.
func (c *checker) libraryVersion(soname, distribution string) (version, from string) {
	stem, _, _ := strings.Cut(soname, ".so")
	if c.proc != nil {
		for _, o := range c.proc.order {
			if e := o.node.ELF; (strings.HasPrefix(e.Soname, soname) || strings.HasPrefix(e.Soname, stem+"_")) && e.Version != "" {
				return e.Version, "/" + o.node.Path + ", " + e.VersionFrom
			}
		}
	}
	if dists, err := c.distributions(); err == nil {
		for _, d := range dists {
			if strings.HasPrefix(d.name, distribution) && d.version != "" {
				return d.version, "/" + d.dir
			}
		}
	}
	for _, m := range c.mapped {
		_, v, ok := strings.Cut(path.Base(m.Path), ".so.")
		if ok && strings.HasPrefix(m.Soname, soname) && strings.Contains(v, ".") && facts.Dotted(v) {
			return v, m.Path
		}
	}
	return "", ""
}

// metadataLies compares what Python packages say about NVIDIA's libraries with the code of the mapped ones.
func (c *checker) metadataLies() {
	var found []validate.Finding
	compared := 0
	dists, _ := c.distributions()
	for _, d := range dists {
		for _, v := range c.rules.BinaryVersions {
			if !strings.HasPrefix(d.name, v.Distribution) || c.proc == nil {
				continue
			}
			for _, o := range c.proc.order {
				e := o.node.ELF
				if !strings.HasPrefix(e.Soname, v.Library+".so") || e.Version == "" || !strings.HasPrefix(c.owner(o.node.Path), d.name) {
					continue
				}
				compared++
				if facts.Minor(e.Version) != facts.Minor(d.version) {
					found = append(found, validate.Finding{Subject: "/" + o.node.Path, Message: d.name + " is installed in another version than its library says",
						Expected: d.version + " (/" + d.dir + ")", Observed: e.Version + " (" + e.VersionFrom + ")", Remedy: "install " + d.name + " again"})
				}
			}
		}
	}
	c.report("static.versions.binary", fmt.Sprintf("%d libraries are of the version that their package says", compared), found)
}

// owner tells which Python package lists a file in its RECORD, by the name of the file: our layout moves the
// directories.
func (c *checker) owner(file string) string {
	if c.owners == nil {
		c.owners = map[string]string{}
		dists, _ := c.distributions()
		for _, d := range dists {
			if !matchAny(c.rules.NVIDIADistributions, d.name) {
				continue
			}
			b, err := c.Tree.ReadFile(d.dir + "/RECORD")
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				listed, _, _ := strings.Cut(line, ",")
				if strings.Contains(listed, ".so") {
					c.owners[path.Base(listed)] = d.name
				}
			}
		}
	}
	return c.owners[path.Base(file)]
}

// ncclVersion demands the NCCL that the release asks for: a package added later may bring an older one, and no
// metadata of TensorFlow says so.
func (c *checker) ncclVersion() {
	var floor string
	for name, v := range c.Expect.TensorFlow.Extra.Packages {
		if strings.HasPrefix(name, "nvidia-nccl") {
			floor = v
		}
	}
	have, from := c.libraryVersion("libnccl.so.", "nvidia-nccl")
	if floor == "" || have == "" {
		return // NCCL is optional; that it is missing is told by static.later
	}
	var found []validate.Finding
	if facts.Compare(have, floor) < 0 {
		found = append(found, validate.Finding{Subject: cmp.Or(c.mappedAs("libnccl.so.2"), "libnccl.so.2"), Message: "NCCL is older than this TensorFlow was released with", Expected: floor + " or newer",
			Observed: have + " (" + from + ")", Remedy: "install nvidia-nccl of " + floor + " or newer; a package that pins an older one cannot share the environment"})
	}
	c.report("static.nccl.version", fmt.Sprintf("NCCL %s is not below %s", have, floor), found)
}

// pythonVersion is the interpreter's major.minor, empty when it cannot be told.
func (c *checker) pythonVersion() string {
	if c.Expect.Python != "" {
		return c.Expect.Python
	}
	for part := range strings.SplitSeq(c.Expect.SitePackages, "/") {
		if v, ok := strings.CutPrefix(part, "python"); ok && strings.Contains(v, ".") && facts.Dotted(v) {
			return v
		}
	}
	return ""
}
