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
	Layers []Layer // bottom first, as Tree counts them; nil: not known
	Deep   bool    // the tree has digests of all contents and the code for GPUs
	Fleet  []GPU   // on which the image must run; nil: not declared
	Budget int64   // bytes that the unpacked image may have; 0: no limit
}

// Layer is one layer of the image.
type Layer struct {
	Digest string
	Origin string // component or build step
	Size   int64  // compressed bytes; 0: not known
	Nodes  rootfs.Layer
}

// GPU is one kind of GPU of the fleet.
type GPU struct {
	Name       string
	Capability string // compute capability, "9.0"
	Consumer   bool   // forward compatibility is not supported on it
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
	Complete  bool
	MoreSites []string // further directories of Python packages that the interpreter searches
	Python    string   // major.minor; empty: taken from SitePackages
	// ForwardCompat allows the driver library of the forward-compatibility package.
	ForwardCompat bool
}

// Result is the outcome of the stage with the files that the loader is predicted to map.
type Result struct {
	validate.LayerResult
	Mapped   []Mapped  `json:"mapped"`   // in loading order, TensorFlow's dlopen set and what it needs
	Versions []Version `json:"versions"` // what is in the image, with the source of each
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
	c.run()
	c.locate()
	return Result{LayerResult: validate.NewLayerResult(validate.LayerStatic, c.out), Mapped: c.mapped, Versions: c.versions}
}

// run asks every question, in the order of the report.
func (c *checker) run() {
	c.layers()
	c.loaderSetup()
	if c.Expect.SitePackages == "" {
		c.report("static.tensorflow", "", []validate.Finding{{Outcome: validate.OutcomeInconclusive, Subject: "TensorFlow", Message: "no environment with TensorFlow is known in this image: what it needs cannot be told",
			Remedy: "install TensorFlow as a Python package, with its metadata directory"}})
		c.driver()
		c.stubs()
		c.surroundings()
		return
	}
	c.libraries()
	c.laterLibraries()
	c.everyELF()
	c.providers()
	c.elfFiles()
	c.sonames()
	c.links()
	c.modes()
	c.driver()
	c.compat()
	c.stubs()
	c.compiler()
	c.packages()
	c.python()
	c.bytecode()
	c.installedVersions()
	c.cudnnVersion()
	c.ncclVersion()
	c.surroundings()
	c.gpuCode()
}

// surroundings judges what does not depend on TensorFlow.
func (c *checker) surroundings() {
	c.systemPackages()
	c.conda()
	c.ldconfig()
	c.environment()
	c.entrypoint()
	c.image()
}

// locate names the layer and the step that wrote the file a finding is about.
func (c *checker) locate() {
	for i := range c.out {
		f := &c.out[i]
		if !strings.HasPrefix(f.Subject, "/") {
			continue
		}
		n, _, err := c.Tree.Resolve(f.Subject)
		if link, ok := c.Tree.Lstat(f.Subject); ok {
			n, err = link, nil
		}
		if err != nil {
			continue
		}
		if at := c.Tree.LayerOf(n.Path); at >= 0 && at < len(c.Layers) {
			f.Layer, f.Origin = c.Layers[at].Digest, c.Layers[at].Origin
		}
	}
}

// Keep tells whose content this stage reads: what ReadLayer must keep.
func Keep(n rootfs.Node) bool {
	dir, base := path.Split(n.Path)
	switch n.Path {
	case "etc/ld.so.cache", "etc/ld.so.conf", "var/lib/dpkg/status", "opt/imgsmith/manifest.json":
		return true
	case "sbin/ldconfig", "usr/sbin/ldconfig":
		return n.Size < 4<<10
	}
	switch {
	case strings.HasPrefix(n.Path, "etc/ld.so.conf.d/"), base == "os-release", base == "pyvenv.cfg":
		return true
	case base == "cuda_config.h", base == "cudnn_version.h":
		return strings.Contains(dir, "/tensorflow/include/third_party/gpus/")
	}
	return strings.HasSuffix(dir, ".dist-info/") && (base == "RECORD" || base == "METADATA" || base == "WHEEL")
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
	versions  []Version
	owners    map[string]string // file name of a library to distribution
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

// note adds something that is no fault and still worth reading.
func (c *checker) note(check string, f validate.Finding) {
	f.Outcome, f.Note = validate.OutcomePassed, true
	c.report(check, "", []validate.Finding{f})
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
