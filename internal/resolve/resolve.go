// Package resolve turns a matrix entry into a target: uv chooses package versions for the entry's Python and
// glibc, one wheel per package is chosen by tag order, and everything is pinned by name, version and sha256.
// It also fetches the wheels by hash with the host's index, proxy, CA and netrc settings. It does not read
// registries (the base arrives as facts), it does not unpack wheels, and no URL leaves it except in memory.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/matrix"
)

// DefaultEpoch is the SOURCE_DATE_EPOCH of a target when the environment names none: 2024-01-01 00:00 UTC. It
// is fixed so that two hosts on two days get the same bytes.
const DefaultEpoch = 1704067200

// BaseInfo is what is known about the base image of an entry.
type BaseInfo struct {
	Digest        string   // of the platform's manifest
	Config        string   // digest of the image config
	Local         bool     // replaced by --base, or an oci-layout reference
	ID, VersionID string   // of os-release
	Glibc         string   // major.minor; empty: from the facts of ID and VersionID
	Pythons       []string // major.minor of interpreters that the image has
}

// URLs says where wheels were found, by sha256 in hex. It lives in memory only.
type URLs map[string]string

// Warning is something a user should know that stops nothing.
type Warning struct {
	Entry   string
	Message string
	Remedy  string
}

// Resolver makes targets. It is safe for concurrent use.
type Resolver struct {
	UV       string            // path of uv; empty is a MissingUVError
	Facts    *facts.Table      // required
	Settings *Settings         // of the host, see HostSettings; required
	Encoders map[string]string // encoder name and version by compression algorithm
	Dir      string            // directory of the recipe, for a wheel of one's own
	Cache    string            // uv's cache directory; empty: uv's own default
	Offline  bool              // use uv's cache and local files only
	Log      *slog.Logger      // nil: silent
}

// Target resolves an entry for its base. The URLs found on the way are returned beside the target, so that
// Fetch needs no second run of uv.
func (r *Resolver) Target(ctx context.Context, e matrix.Entry, base BaseInfo) (matrix.Target, URLs, []Warning, error) {
	return r.TargetLike(ctx, e, base, nil)
}

// TargetLike is Target that keeps the versions of keep where the entry allows them: those of an older lock without
// the packages that are to move.
func (r *Resolver) TargetLike(ctx context.Context, e matrix.Entry, base BaseInfo, keep []matrix.Wheel) (matrix.Target, URLs, []Warning, error) {
	fail := func(err error) (matrix.Target, URLs, []Warning, error) {
		return matrix.Target{}, nil, nil, fmt.Errorf("%s:%d: entry %q: %w", e.File, e.Line("tensorflow"), e.Name, err)
	}
	if err := e.Buildable(); err != nil {
		return matrix.Target{}, nil, nil, err
	}
	glibc, err := r.glibc(e, base)
	if err != nil {
		return fail(err)
	}
	if err := r.interpreter(e, base); err != nil {
		return fail(err)
	}
	plan, err := r.plan(e)
	if err != nil {
		return fail(err)
	}
	for _, w := range keep {
		plan.prefer = append(plan.prefer, pin{w.Name, w.Version})
	}
	found, err := r.compile(ctx, plan, e.Python.Version, glibc)
	if err != nil {
		return fail(err)
	}
	wheels, urls, err := r.choose(ctx, found, e.Python.Version, glibc)
	if err != nil {
		return fail(err)
	}
	epoch, err := r.Settings.epoch()
	if err != nil {
		return fail(err)
	}
	t := matrix.Target{
		Entry: e.Name, Platform: e.Platform, Python: e.Python, Supplier: e.Supplier, Layout: e.Layout,
		Base:        matrix.Base{Name: e.Base, Digest: base.Digest, Config: base.Config, Local: base.Local, Glibc: glibc},
		Wheels:      wheels,
		Requested:   plan.requested,
		Environment: e.Variables(), Flavor: e.Flavor, Labels: maps.Clone(e.Labels), Thresholds: maps.Clone(e.Thresholds), User: e.User, Bytecode: e.Bytecode, Constraints: e.Constraints,
		Compression: e.Compression, Epoch: epoch, Lines: maps.Clone(e.Lines),
	}
	if t.Compression.Encoder = r.Encoders[t.Compression.Algorithm]; t.Compression.Encoder == "" {
		return fail(fmt.Errorf("this build has no encoder for compression %q", t.Compression.Algorithm))
	}
	if err := describe(&t, plan); err != nil {
		return fail(err)
	}
	if e.Python.From == matrix.PythonOS {
		t.OSPackages = r.Facts.InterpreterPackages(e.Python.Version)
	}
	t.OSPackages = append(t.OSPackages, e.OSPackages...)
	return t, urls, plan.warnings, nil
}

// Locate finds the URLs of a locked target's wheels again, each by its exact version and sha256. Callers may
// leave wheels out of t that they have. A wheel that the index no longer has under its hash is a *GoneError;
// offline, wheels that neither uv's cache nor a local directory has are a *MissingError.
func (r *Resolver) Locate(ctx context.Context, e matrix.Entry, t matrix.Target) (URLs, error) {
	plan := &plan{noDeps: true}
	var own *matrix.Wheel
	for _, w := range t.Wheels {
		if e.TensorFlow.Wheel != "" && w.Name == "tensorflow" {
			own = &w
			continue
		}
		plan.requirements = append(plan.requirements, w.Name+"=="+w.Version)
	}
	found, err := r.compile(ctx, plan, t.Python.Version, t.Base.Glibc)
	var fault *Error
	if r.Offline && errors.As(err, &fault) { // uv names the first package it lacks; the user needs all of them
		return nil, fmt.Errorf("entry %q: %w", t.Entry, &MissingError{Wheels: t.Wheels})
	}
	if errors.As(err, &fault) && fault.Class == Unsatisfiable { // an exact version that the index no longer lists
		names := missingIn(fault.Detail)
		gone := slices.DeleteFunc(slices.Clone(t.Wheels), func(w matrix.Wheel) bool { return !slices.Contains(names, w.Name) })
		if len(gone) > 0 {
			return nil, &GoneError{Entry: t.Entry, Wheels: gone}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("entry %q: finding locked wheels: %w", t.Entry, err)
	}
	urls := URLs{}
	if own != nil {
		path, err := filepath.Abs(filepath.Join(r.Dir, e.TensorFlow.Wheel))
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", t.Entry, err)
		}
		urls[own.SHA256] = fileURL(path)
	}
	for _, p := range found {
		for _, c := range p.candidates {
			if c.sha256 != "" {
				urls[c.sha256] = c.url
			}
		}
	}
	var gone []matrix.Wheel
	for _, w := range t.Wheels {
		if _, ok := urls[w.SHA256]; !ok {
			gone = append(gone, w)
		}
	}
	if len(gone) > 0 {
		return urls, &GoneError{Entry: t.Entry, Wheels: gone}
	}
	return urls, nil
}

// plan is the input of one resolution.
type plan struct {
	requirements []string
	constraints  []string
	requested    []string
	noDeps       bool
	cuda, cudnn  string // major.minor asked for
	prefer       []pin
	warnings     []Warning
}

// pin is a version that is kept where it can be.
type pin struct{ name, version string }

// plan writes requirements and constraints of an entry. The constraints hold the NVIDIA wheels of the CUDA and
// cuDNN pair, so that an extra with ranges gives the same files as one with exact versions.
func (r *Resolver) plan(e matrix.Entry) (*plan, error) {
	p := &plan{requested: []string{"pip", "tensorflow"}, requirements: []string{"pip"}}
	tf, err := r.Facts.TensorFlow(e.TensorFlow.Version)
	if err != nil && (auto(e.CUDA) || auto(e.CuDNN)) {
		return nil, fmt.Errorf("cuda and cudnn cannot be chosen: %w; write their versions into the recipe", err)
	}
	if p.cuda = e.CUDA; auto(e.CUDA) {
		p.cuda = tf.CUDATested
	}
	if p.cudnn = e.CuDNN; auto(e.CuDNN) {
		p.cudnn = tf.CuDNNTested
	}
	if err == nil && tf.Inferred {
		p.warnings = append(p.warnings, Warning{e.Name, fmt.Sprintf("TensorFlow %s is not in the facts: those of %s are used", tf.Release, tf.Minor), ""})
	}
	if tf.Extra.Style == "range" && auto(e.CUDA) && auto(e.CuDNN) {
		p.warnings = append(p.warnings, Warning{e.Name, fmt.Sprintf("the CUDA extra of TensorFlow %s is an open range: taken is the tested set at its floor, CUDA %s with cuDNN %s", tf.Release, p.cuda, p.cudnn),
			"write cuda and cudnn to choose others"})
	}
	pins, err := r.nvidia(p, tf)
	if err != nil {
		return nil, err
	}
	p.constraints = append(p.constraints, pins...)
	if err := r.requireTensorFlow(p, e, tf, pins); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(e.Packages)) {
		p.requirements = append(p.requirements, name+"=="+e.Packages[name])
		p.requested = append(p.requested, name)
	}
	for _, name := range flavorPackages(e.Flavor) {
		if _, pinned := e.Packages[name]; !pinned {
			p.requirements = append(p.requirements, name)
			p.requested = append(p.requested, name)
		}
	}
	for name, spec := range map[string]string{"numpy": tf.NumPy, "protobuf": tf.Protobuf} {
		if _, pinned := e.Packages[name]; !pinned && spec != "" {
			p.constraints = append(p.constraints, name+spec)
		}
	}
	slices.Sort(p.constraints)
	p.requested = slices.Compact(slices.Sorted(slices.Values(p.requested)))
	return p, nil
}

// flavorPackages are the distributions that a flavor adds.
func flavorPackages(flavor string) []string {
	if flavor == matrix.FlavorJupyter {
		return []string{"ipykernel", "jupyterlab"}
	}
	return nil
}

// nvidia returns NVIDIA's wheels of the pair as requirement lines, with the NCCL that the release names.
func (r *Resolver) nvidia(p *plan, tf facts.TensorFlow) ([]string, error) {
	set, err := r.Facts.CUDAWheels(p.cuda, p.cudnn)
	if err != nil {
		return nil, fmt.Errorf("choosing NVIDIA's wheels: %w; known are CUDA %s", err, strings.Join(r.Facts.CUDASets(), ", "))
	}
	var out []string
	for _, w := range set {
		out = append(out, w.Distribution+"=="+w.Version)
	}
	for name, version := range tf.Extra.Packages {
		if strings.HasPrefix(name, "nvidia-nccl-") {
			out = append(out, name+"=="+version)
		}
	}
	slices.Sort(out)
	return out, nil
}

// requireTensorFlow names TensorFlow with its and-cuda extra, which brings NVIDIA's wheels. Where the extra
// does not exist, cannot be resolved, or pins another pair than the entry's, the wheels are named one by one.
func (r *Resolver) requireTensorFlow(p *plan, e matrix.Entry, tf facts.TensorFlow, pins []string) error {
	version := e.TensorFlow.Version
	if e.TensorFlow.Wheel != "" {
		path, err := filepath.Abs(filepath.Join(r.Dir, e.TensorFlow.Wheel))
		if err != nil {
			return err
		}
		if err := checkFile(path, e.TensorFlow.SHA256); err != nil {
			return fmt.Errorf("tensorflow.wheel: %w", err)
		}
		p.requirements = append(p.requirements, "tensorflow[and-cuda] @ "+fileURL(path))
		return nil
	}
	if strings.Count(version, ".") == 1 {
		version += ".*"
	}
	_, broken := r.Facts.BrokenExtra(e.TensorFlow.Version, e.Python.Version)
	tested := facts.Minor(p.cuda) == tf.CUDATested && facts.Minor(p.cudnn) == tf.CuDNNTested
	if !broken && (tf.Release == "" || tf.Extra.Style == "range" || (tf.Extra.Style == "exact" && tested)) {
		p.requirements = append(p.requirements, "tensorflow[and-cuda]=="+version)
		return nil
	}
	p.requirements = append(p.requirements, "tensorflow=="+version)
	p.requirements = append(p.requirements, pins...)
	return nil
}

// describe fills in what follows from the chosen wheels.
func describe(t *matrix.Target, p *plan) error {
	for _, w := range t.Wheels {
		switch {
		case w.Name == "tensorflow":
			t.TensorFlow = w.Version
		case strings.HasPrefix(w.Name, "nvidia-cudnn-cu"):
			t.CuDNN = w.Version
		case strings.HasPrefix(w.Name, "nvidia-cuda-runtime-cu"):
			t.CUDA = facts.Minor(w.Version)
		}
	}
	if t.TensorFlow == "" || t.CUDA == "" || t.CuDNN == "" {
		return fmt.Errorf("the resolved set lacks tensorflow, the CUDA runtime or cuDNN; asked for CUDA %s, cuDNN %s", p.cuda, p.cudnn)
	}
	return nil
}

func (r *Resolver) glibc(e matrix.Entry, base BaseInfo) (string, error) {
	if base.Glibc != "" {
		return base.Glibc, nil
	}
	o, err := r.Facts.OS(base.ID, base.VersionID)
	if base.ID == "" {
		o, err = r.Facts.OSOfReference(e.Base)
	}
	if err != nil {
		return "", fmt.Errorf("the glibc of base %s is not known: %w", e.Base, err)
	}
	if o.Libc != "glibc" {
		return "", fmt.Errorf("base %s has %s: TensorFlow has wheels for glibc only; use a Debian or Ubuntu base", e.Base, o.Libc)
	}
	return o.Glibc, nil
}

// interpreter checks that a base which was looked into has, or can install, the entry's Python.
func (r *Resolver) interpreter(e matrix.Entry, base BaseInfo) error {
	if base.ID == "" {
		return nil
	}
	has, how := base.Pythons, "has"
	if e.Python.From == matrix.PythonOS {
		o, err := r.Facts.OS(base.ID, base.VersionID)
		if err != nil {
			return nil // what its packages provide is not known: the build step will tell
		}
		has, how = o.Pythons, "provides"
	}
	if slices.Contains(has, e.Python.Version) {
		return nil
	}
	list := strings.Join(has, ", ")
	if list == "" {
		list = "none"
	}
	remedy := ""
	if with := r.Facts.BasesWith(e.Python.Version); len(with) > 0 {
		remedy = fmt.Sprintf("; bases that provide it: %s, with from: os", strings.Join(with, ", "))
	}
	return fmt.Errorf("the base (%s %s) %s Python %s, not %s%s", base.ID, base.VersionID, how, list, e.Python.Version, remedy)
}

func auto(version string) bool { return version == "" || version == matrix.Auto }

func (s *Settings) epoch() (int64, error) {
	v := s.get("SOURCE_DATE_EPOCH")
	if v == "" {
		return DefaultEpoch, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("SOURCE_DATE_EPOCH %q is no positive number of seconds; unset it or correct it", v)
	}
	return n, nil
}
