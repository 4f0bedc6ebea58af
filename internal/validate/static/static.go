// Package static is the stage of proof that needs no GPU: it judges a finished root file system from names,
// links, modes and ELF headers alone, with the dynamic loader simulated. It is pure: the tree, the image
// configuration and the expectations are handed to it; it runs nothing, opens nothing and knows no image
// format.
package static

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// Input is everything that the stage looks at.
type Input struct {
	Tree   *rootfs.Tree
	Config Config
	Expect Expect
}

// Config is the part of an image configuration that processes inherit.
type Config struct {
	Env        []string // NAME=value
	User       string
	Entrypoint []string
	Cmd        []string
}

// Expect is what the entry promises about the image. Paths are relative to the root, without a leading slash.
type Expect struct {
	TensorFlow   facts.TensorFlow
	CuDNN        facts.CuDNNFamily // of the major that TensorFlow opens
	Packages     map[string]string // normalized distribution to exact version; nil: not known
	SitePackages string            // opt/venv/lib/python3.11/site-packages
	Venv         string            // opt/venv
	CUDARoot     string            // usr/local/cuda-12.5; empty: no CUDA tree of ours
	Machine      string            // as debug/elf prints it; empty: EM_X86_64
	// Complete demands the libraries that are opened for one purpose only (profiler, collectives, runtime
	// compilation), which an image may lack and still compute.
	Complete bool
	// ForwardCompat allows the driver library of the forward-compatibility package.
	ForwardCompat bool
}

// Result is the outcome of the stage with the files that the loader is predicted to map.
type Result struct {
	validate.LayerResult
	Mapped []Mapped `json:"mapped"` // in loading order, TensorFlow's dlopen set and what it needs
}

// Mapped is one predicted mapping.
type Mapped struct {
	Soname string `json:"soname"`
	Path   string `json:"path"` // without links, absolute, as /proc/self/maps shows it
	Opened string `json:"opened"`
	Rule   string `json:"rule"`
}

// Check judges the tree. A result without any check is not passed.
func Check(in Input) Result {
	r, err := loadRules()
	if err != nil || in.Tree == nil {
		f := validate.Finding{Check: "static.rules", Outcome: validate.OutcomeInconclusive, Message: "no tree to look at"}
		if err != nil {
			f.Message = err.Error()
		}
		return Result{LayerResult: validate.NewLayerResult(validate.LayerStatic, []validate.Finding{f})}
	}
	in.Expect.Machine = cmp.Or(in.Expect.Machine, "EM_X86_64")
	c := &checker{Input: in, rules: r}
	c.layers()
	c.loaderSetup()
	c.libraries()
	c.laterLibraries()
	c.everyELF()
	c.providers()
	c.elfFiles()
	c.sonames()
	c.links()
	c.modes()
	c.driver()
	c.stubs()
	c.compiler()
	c.packages()
	c.cudnnVersion()
	c.environment()
	c.entrypoint()
	return Result{LayerResult: validate.NewLayerResult(validate.LayerStatic, c.out), Mapped: c.mapped}
}

// Keep tells whose content this stage reads: what ReadLayer must keep.
func Keep(n rootfs.Node) bool {
	dir, base := path.Split(n.Path)
	switch {
	case n.Path == "etc/ld.so.cache", n.Path == "etc/ld.so.conf", strings.HasPrefix(n.Path, "etc/ld.so.conf.d/"):
		return true
	case base == "os-release":
		return true
	}
	return strings.HasSuffix(dir, ".dist-info/") && (base == "RECORD" || base == "METADATA")
}

// maxFindings bounds what one check reports; the rest is counted.
const maxFindings = 25

// checker collects the findings of one run.
type checker struct {
	Input
	rules     rules
	ld        *loader
	env       map[string]string
	confPaths []string // directories of ld.so.conf
	caller    *object  // the library that calls dlopen, nil when it is not there
	proc      *process // the process that opened the dlopen set
	mapped    []Mapped
	out       []validate.Finding
}

// report adds what one check found; nothing found is a pass with the message.
func (c *checker) report(check, passed string, found []validate.Finding) {
	if len(found) == 0 {
		c.out = append(c.out, validate.Finding{Check: check, Outcome: validate.OutcomePassed, Message: passed})
		return
	}
	for i := range found {
		found[i].Check = check
		found[i].Outcome = cmp.Or(found[i].Outcome, validate.OutcomeFailed)
	}
	if len(found) > maxFindings {
		rest := found[maxFindings:]
		found = found[:maxFindings]
		last := &found[maxFindings-1]
		last.Evidence = slices.Clone(last.Evidence)
		for _, f := range rest[:min(len(rest), maxFindings)] {
			last.Evidence = append(last.Evidence, "also: "+f.Subject)
		}
		if n := len(rest) - maxFindings; n > 0 {
			last.Evidence = append(last.Evidence, plural(n, "more"))
		}
	}
	c.out = append(c.out, found...)
}

// roots are the directories whose whole content is ours to judge.
func (c *checker) roots() []string {
	var out []string
	for _, r := range []string{c.Expect.Venv, c.Expect.CUDARoot} {
		if r != "" {
			out = append(out, r)
		}
	}
	return out
}

// walk visits every node below the roots, the root directories included.
func (c *checker) walk(fn func(rootfs.Node)) {
	for _, r := range c.roots() {
		// fn cannot fail, so the walk cannot either.
		_ = c.Tree.Walk(r, func(n rootfs.Node) error { fn(n); return nil })
	}
}

func (c *checker) layers() {
	var found []validate.Finding
	for _, v := range c.Tree.Violations() {
		found = append(found, validate.Finding{Subject: "/" + v.Path, Message: "runtimes would unpack this differently: " + v.Error(),
			Remedy: "keep directories directories and links links across layers"})
	}
	c.report("static.layers", "every layer replaces directories by directories only", found)
}
