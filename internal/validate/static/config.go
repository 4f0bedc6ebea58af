package static

import (
	"fmt"
	"slices"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// environment judges the variables that every process of the image inherits.
func (c *checker) environment() {
	var found []validate.Finding
	for _, s := range c.rules.ScrubbedEnvironment {
		if v, ok := c.env[s.Name]; ok {
			found = append(found, validate.Finding{Subject: s.Name, Message: "the image sets " + s.Name + ", which " + s.Why, Expected: "not set", Observed: fmt.Sprintf("%q", v),
				Remedy: "remove it from the image; set it where a container is started"})
		}
	}
	if v, ok := c.env["NVIDIA_DRIVER_CAPABILITIES"]; ok && v != "all" {
		have := strings.Split(v, ",")
		for _, want := range c.rules.DriverCapabilities {
			if !slices.Contains(have, want) {
				found = append(found, validate.Finding{Subject: "NVIDIA_DRIVER_CAPABILITIES", Message: "the driver's " + want + " part is not injected", Expected: strings.Join(c.rules.DriverCapabilities, ","), Observed: v,
					Remedy: "set NVIDIA_DRIVER_CAPABILITIES=" + strings.Join(c.rules.DriverCapabilities, ",")})
			}
		}
	}
	c.hints()
	c.report("static.environment", plural(len(c.env), "variables leave loader and interpreter alone"), append(found, c.libraryPath()...))
}

// hints are variables of NVIDIA's that are no fault of the image and explain what a user may see.
func (c *checker) hints() {
	if c.env["NVIDIA_VISIBLE_DEVICES"] == "all" {
		c.note("static.environment.hint", validate.Finding{Subject: "NVIDIA_VISIBLE_DEVICES", Observed: "all", Message: "under a runtime that reads this variable every container of the image gets every GPU, asked for or not",
			Remedy: "leave it to whoever starts the container"})
	}
	if _, ok := c.env["NVIDIA_DRIVER_CAPABILITIES"]; !ok {
		c.note("static.environment.hint", validate.Finding{Subject: "NVIDIA_DRIVER_CAPABILITIES", Observed: "not set", Message: "under a runtime that reads this variable nvidia-smi and NVML may not be injected",
			Remedy: "set NVIDIA_DRIVER_CAPABILITIES=" + strings.Join(c.rules.DriverCapabilities, ",")})
	}
}

// libraryPath judges the elements of LD_LIBRARY_PATH. A missing directory is allowed: a container runtime may
// mount it.
func (c *checker) libraryPath() []validate.Finding {
	v, ok := c.env["LD_LIBRARY_PATH"]
	if !ok || v == "" {
		return nil
	}
	var found []validate.Finding
	for i, e := range strings.Split(strings.ReplaceAll(v, ";", ":"), ":") {
		f := validate.Finding{Subject: "LD_LIBRARY_PATH", Observed: fmt.Sprintf("element %d of %q", i+1, v), Expected: "absolute directories", Remedy: "remove the element; ld.so.conf.d needs no variable"}
		n, _, err := c.Tree.Resolve(e)
		switch {
		case e == "":
			f.Message = "an empty element means the working directory"
		case !strings.HasPrefix(e, "/"):
			f.Message = fmt.Sprintf("%q depends on the working directory", e)
		case err == nil && n.Type != rootfs.Dir:
			f.Message = fmt.Sprintf("%s is a %s: elements must be directories", e, n.Type)
		case err != nil && !strings.HasPrefix(e, "/usr/local/nvidia/"): // the host's driver is mounted there
			f.Message, f.Outcome, f.Note = e+" is not in the image", validate.OutcomePassed, true
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

// entrypoint demands that the program the image starts is there for every user.
func (c *checker) entrypoint() {
	args := slices.Concat(c.Config.Entrypoint, c.Config.Cmd)
	if len(args) == 0 {
		c.report("static.entrypoint", "the image starts no program of its own", nil)
		return
	}
	files := []string{args[0]}
	if !strings.Contains(args[0], "/") {
		files = nil
		for _, dir := range strings.Split(c.env["PATH"], ":") {
			files = append(files, strings.TrimRight(dir, "/")+"/"+args[0])
		}
	}
	f := validate.Finding{Subject: args[0], Message: "the program that the image starts is not there", Expected: "a program that every user may run", Evidence: files, Remedy: "correct ENTRYPOINT, CMD or PATH"}
	for _, file := range files {
		n, _, err := c.Tree.Resolve(file)
		if err != nil || n.Type != rootfs.Regular {
			continue
		}
		if n.Mode&0o001 != 0 {
			c.report("static.entrypoint", args[0]+" is /"+n.Path, nil)
			return
		}
		f.Message, f.Observed = "not every user may run the program that the image starts", fmt.Sprintf("/%s: mode %04o", n.Path, n.Mode)
	}
	c.report("static.entrypoint", "", []validate.Finding{f})
}
