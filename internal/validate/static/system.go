package static

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// systemPackage is one installed package of dpkg.
type systemPackage struct{ name, version string }

// dpkg reads dpkg's list of installed packages; nil when there is none.
func (c *checker) dpkg() []systemPackage {
	b, err := c.Tree.ReadFile("var/lib/dpkg/status")
	if err != nil {
		return nil
	}
	var out []systemPackage
	for block := range strings.SplitSeq(string(b), "\n\n") {
		h := headers([]byte(block))
		if len(h["package"]) == 1 && len(h["version"]) == 1 && strings.HasSuffix(strings.Join(h["status"], ""), " installed") {
			out = append(out, systemPackage{h["package"][0], h["version"][0]})
		}
	}
	return out
}

// builtFor is the CUDA that a package of NVIDIA's repository was built for: libcudnn8 8.9.4.25-1+cuda12.2.
var builtFor = regexp.MustCompile(`\+cuda(\d+)\.(\d+)`)

// systemPackages judges what the operating system's packages bring of NVIDIA.
func (c *checker) systemPackages() {
	list := c.dpkg()
	if list == nil {
		return
	}
	var found []validate.Finding
	for _, p := range list {
		if matchAny(c.rules.DriverPackages, p.name) {
			found = append(found, validate.Finding{Subject: p.name, Message: "a package of the host's driver is installed", Expected: "injected at run time only",
				Observed: p.name + " " + p.version, Remedy: "leave the package out: its files collide with those that the container runtime mounts"})
		}
		m := builtFor.FindStringSubmatch(p.version)
		if m != nil && strings.HasPrefix(p.name, "lib") && c.Expect.TensorFlow.CUDAMajor != 0 && m[1] != fmt.Sprint(c.Expect.TensorFlow.CUDAMajor) {
			found = append(found, validate.Finding{Subject: p.name, Message: "the package was built for another CUDA than TensorFlow opens", Expected: fmt.Sprintf("+cuda%d.x", c.Expect.TensorFlow.CUDAMajor),
				Observed: p.version, Remedy: "pin " + p.name + " to a version for that CUDA and hold it (apt-mark hold) before any upgrade"})
		}
	}
	c.report("static.system.packages", plural(len(list), "system packages hold no driver, and NVIDIA's fit this CUDA"), found)
}

// ldconfig demands that the image's own ldconfig can run where there is one: the container runtime runs it after
// it mounted the driver.
func (c *checker) ldconfig() {
	for _, file := range []string{"sbin/ldconfig", "usr/sbin/ldconfig"} {
		n, _, err := c.Tree.Resolve(file)
		if err != nil {
			continue
		}
		f := validate.Finding{Subject: "/" + n.Path, Message: "ldconfig of the image cannot run: the container runtime fails with it", Expected: "the program of the C library, executable",
			Observed: fmt.Sprintf("%s, mode %04o, %d bytes", n.Type, n.Mode, n.Size), Remedy: "install the C library's package again (libc-bin)"}
		_, real := c.Tree.Lstat(n.Path + ".real") // Ubuntu wraps it in a script
		switch {
		case n.Type != rootfs.Regular || n.Size == 0 || n.Mode&0o111 == 0 || n.ELFError != "":
		case n.ELF != nil && n.ELF.Machine == c.Expect.Machine:
			f.Message = ""
		case n.ELF == nil && real && strings.Contains(string(n.Data), path.Base(n.Path)+".real"):
			f.Message = ""
		}
		if f.Message == "" {
			c.report("static.ldconfig", "/"+n.Path+" can run", nil)
		} else {
			c.report("static.ldconfig", "", []validate.Finding{f})
		}
		return
	}
	c.note("static.ldconfig", validate.Finding{Subject: "/sbin/ldconfig", Message: "the image has no ldconfig; container runtimes then use the host's"})
}

// conda names the environments of conda: they bring their own CUDA, which static.providers compares.
func (c *checker) conda() {
	_ = c.Tree.Walk("", func(n rootfs.Node) error {
		if n.Type != rootfs.Dir || path.Base(n.Path) != "conda-meta" {
			return nil
		}
		f := validate.Finding{Subject: "/" + path.Dir(n.Path), Message: "a conda environment is in the image", Remedy: "keep one supplier of CUDA: conda's libraries are found by programs of the environment only"}
		packages, err := c.Tree.ReadDir(n.Path)
		if err != nil {
			return nil
		}
		for _, p := range packages {
			name, ok := strings.CutSuffix(path.Base(p.Path), ".json")
			if ok && (strings.HasPrefix(name, "cud") || strings.HasPrefix(name, "libcu") || strings.HasPrefix(name, "tensorflow") || strings.HasPrefix(name, "nccl")) {
				f.Evidence = append(f.Evidence, name)
			}
		}
		c.note("static.conda", f)
		return nil
	})
}
