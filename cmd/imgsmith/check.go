package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"imgsmith/internal/facts"
	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/static"
	"imgsmith/internal/view"
)

// checkFlags say what `imgsmith check` looks at and how it answers.
type checkFlags struct {
	deep     bool
	trace    []string
	gpus     []string
	maxSize  string
	maxFiles int
	format   string
	platform string
}

func (a *app) check() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check IMAGE",
		Short: "Static stage on any image: no GPU, no Docker needed",
		Long: `Reads the files of an image and says whether TensorFlow will find its GPU libraries,
which file the loader takes for each of them and why, and what is wrong. Runs nothing
of the image. Images of imgsmith are held against their own lock, any other against
what is known of the TensorFlow release in it.

IMAGE is a registry reference, oci-layout:DIR[:TAG|@DIGEST], docker-daemon:REF,
docker-archive:FILE or dir:DIR; a path that exists needs no prefix. '-' is an archive on
standard input.

` + exitHelp,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, image []string) error { return a.runCheck(cmd.Context(), image[0], f) },
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.deep, "deep", false, "read all contents: hashes of RECORD, duplicates, code for GPUs")
	fl.StringArrayVar(&f.trace, "trace", nil, "print how the loader searches for this name when TensorFlow opens it; may be repeated")
	fl.StringArrayVar(&f.gpus, "gpu", nil, "GPU (H200) or compute capability (9.0) that the image must run on; may be repeated")
	fl.StringVar(&f.maxSize, "max-size", "", "largest unpacked size, for example 6GB")
	fl.IntVar(&f.maxFiles, "max-files", defaultFiles, "most files that the layers may have together; each takes some 400 bytes of memory")
	fl.StringVar(&f.format, "format", "terminal", "terminal, json, sarif or junit")
	fl.StringVar(&f.platform, "platform", matrix.DefaultPlatform, "platform of which an index is followed")
	return cmd
}

// defaultFiles keeps the command under 300 MiB of memory.
const defaultFiles = 500_000

// checkMemory is where the collector of garbage starts to work hard, in bytes: the stage promises to stay small.
const checkMemory = 260 << 20

func (a *app) runCheck(ctx context.Context, ref string, f checkFlags) error {
	debug.SetMemoryLimit(checkMemory)
	debug.SetGCPercent(40)
	write, err := a.writer(f.format)
	if err != nil {
		return err
	}
	table, err := facts.Embedded()
	if err != nil {
		return err
	}
	in, err := f.input(table)
	if err != nil {
		return err
	}
	img, err := a.view(ctx, ref, f)
	if errors.Is(err, rootfs.ErrBudget) {
		return fmt.Errorf("%w; an image this large is more likely a fault or an attack: --max-files allows more", err)
	}
	if err != nil {
		return err
	}
	c := checking{table: table, img: img, in: in}
	re, err := c.entry(f.trace)
	if err != nil {
		return err
	}
	return a.writeWith(report.Document{Command: "check", Entries: []report.Entry{re}}, write)
}

// writer picks what the document is written with.
func (a *app) writer(format string) (func(io.Writer, report.Document) error, error) {
	if a.flags.json {
		format = "json"
	}
	switch format {
	case "terminal":
		return report.WriteTerminal, nil
	case "json":
		return report.WriteJSON, nil
	case "sarif":
		return report.WriteFindingsSARIF, nil
	case "junit":
		return report.WriteJUnit, nil
	}
	return nil, &usageError{fmt.Errorf("format %q: not terminal, json, sarif or junit", format)}
}

// input is what the flags say about the image's task.
func (f checkFlags) input(table *facts.Table) (static.Input, error) {
	in := static.Input{Deep: f.deep}
	for _, name := range f.gpus {
		if facts.Dotted(name) && strings.Count(name, ".") == 1 {
			in.Fleet = append(in.Fleet, static.GPU{Name: "compute capability " + name, Capability: name})
			continue
		}
		g, err := table.GPU(name)
		if err != nil {
			return in, &usageError{fmt.Errorf("%w; name a compute capability instead, or one of: %s", err, strings.Join(table.GPUs(), ", "))}
		}
		in.Fleet = append(in.Fleet, static.GPU{Name: g.Name, Capability: g.ComputeCapability, Consumer: g.Class == "geforce"})
	}
	if f.maxSize != "" {
		n, err := parseSize(f.maxSize)
		if err != nil {
			return in, &usageError{err}
		}
		in.Budget = n
	}
	return in, nil
}

// parseSize reads a number of bytes with an optional decimal or binary unit.
func parseSize(s string) (int64, error) {
	number := strings.TrimRight(s, "KMGTiB ")
	unit := strings.TrimSpace(s[len(number):])
	scale, ok := map[string]float64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "K": 1 << 10, "KiB": 1 << 10, "M": 1 << 20, "MiB": 1 << 20, "G": 1 << 30, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !ok || v <= 0 || v > 1e15 {
		return 0, fmt.Errorf("size %q: want a number with B, MB, GB, MiB or GiB", s)
	}
	return int64(v * scale), nil
}

// checking is one image under the static stage.
type checking struct {
	table *facts.Table
	img   view.Image
	in    static.Input
}

// entry runs the stage and fills the document's entry.
func (c *checking) entry(trace []string) (report.Entry, error) {
	c.in.Tree = c.img.Tree
	var conf struct {
		Config static.Config `json:"config"`
	}
	if c.img.Config != nil {
		if err := json.Unmarshal(c.img.Config, &conf); err != nil {
			return report.Entry{}, fmt.Errorf("reading the image config of %s: %w", c.img.Ref, err)
		}
	}
	c.in.Config = conf.Config
	re := report.Entry{Name: c.img.Ref, Stage: report.StageStatic, Image: &report.Image{Reference: c.img.Ref, Digest: cmp.Or(c.img.Digest, c.img.ConfigDigest)}, Check: &report.Check{}}
	for _, l := range c.img.Layers {
		c.in.Layers = append(c.in.Layers, static.Layer{Digest: l.Digest, Origin: l.CreatedBy, Size: l.Size, Nodes: l.Nodes})
		re.Image.Layers = append(re.Image.Layers, report.Layer{Name: l.CreatedBy, Digest: l.Digest, DiffID: l.DiffID, Size: l.Size})
		re.Image.Size += l.Size
	}
	extra, err := c.expectations(&re)
	if err != nil {
		return re, err
	}
	r := static.Check(c.in)
	findings := append(extra, r.Findings...)
	res := validate.NewLayerResult(validate.LayerStatic, findings)
	re.Static, re.Result, re.Reason = &res, resultOf(res), res.Reason
	re.Versions = map[string]string{}
	for _, v := range r.Versions {
		re.Check.Found = append(re.Check.Found, report.Found{Name: v.Name, Version: v.Version, From: v.From})
		if slices.Contains([]string{"tensorflow", "python", "cuda", "cudnn", "nccl"}, v.Name) {
			re.Versions[v.Name] = v.Version
		}
	}
	for _, m := range r.Mapped {
		re.Check.Mapped = append(re.Check.Mapped, report.Mapped{Soname: m.Soname, Path: m.Path, Rule: m.Rule})
	}
	re.Check.Entry, re.Check.Lint = c.correspond(re.Versions)
	for _, soname := range trace {
		re.Check.Trace = append(re.Check.Trace, static.Trace(c.in, soname)...)
	}
	return re, nil
}

func resultOf(r validate.LayerResult) report.Result {
	switch r.Outcome {
	case validate.OutcomePassed:
		return report.ResultOK
	case validate.OutcomeFailed:
		return report.ResultFailed
	}
	return report.ResultNotProved
}

// expectations fills Expect: from the image's own manifest, or from what is recognised in it.
func (c *checking) expectations(re *report.Entry) ([]validate.Finding, error) {
	m, err := readManifest(c.img.Tree)
	if err == nil {
		return c.ownImage(m, re)
	}
	found := static.Recognise(c.img.Tree)
	i := slices.IndexFunc(found, func(f static.Found) bool { return !f.CPUOnly })
	if len(found) == 0 {
		return nil, nil // the stage says so
	}
	if i < 0 {
		c.in.Expect = found[0].Expect
		return []validate.Finding{{Check: "static.recognise", Outcome: validate.OutcomeFailed, Subject: found[0].From, Message: "the TensorFlow of the image is a build for the CPU", Observed: found[0].Distribution + " " + found[0].Version,
			Remedy: "install tensorflow, which holds the GPU code"}}, nil
	}
	f := found[i]
	var out []validate.Finding
	for k, other := range found {
		if k != i {
			out = append(out, validate.Finding{Check: "static.recognise", Outcome: validate.OutcomePassed, Note: true, Subject: other.From, Message: "a second TensorFlow is in the image, which was not checked", Observed: other.Distribution + " " + other.Version})
		}
	}
	c.in.Expect = f.Expect
	c.in.Expect.ForwardCompat = true // images of NVIDIA's bring the package; static.compat says what it means
	out = append(out, validate.Finding{Check: "static.recognise", Outcome: validate.OutcomePassed, Subject: f.From,
		Message: fmt.Sprintf("%s %s, compiled with CUDA %s and cuDNN %s", f.Distribution, f.Version, cmp.Or(f.CUDACompiled, "unknown"), cmp.Or(f.CuDNNHeader, "unknown"))})
	return append(out, c.factsOf(f.Version, f.CuDNNHeader)...), nil
}

// factsOf fills what is known of the release.
func (c *checking) factsOf(version, cudnn string) []validate.Finding {
	tf, err := c.table.TensorFlow(release(version))
	if err == nil {
		tf.CuDNNCompiled = cmp.Or(cudnn, tf.CuDNNCompiled) // the wheel itself knows best
		c.in.Expect.TensorFlow = tf
		c.in.Expect.CuDNN, err = c.table.CuDNN(tf.CuDNNMajor)
	}
	if err != nil {
		return []validate.Finding{{Check: "static.recognise", Outcome: validate.OutcomeInconclusive, Subject: "TensorFlow " + version, Message: "nothing is known of this release: " + err.Error(), Remedy: "use a newer imgsmith, or a release it knows"}}
	}
	return nil
}

// ownImage holds an image of imgsmith, or a child of one, against its own lock.
func (c *checking) ownImage(m manifest, re *report.Entry) ([]validate.Finding, error) {
	lay, err := shippedOrTest(m.Target.Layout)
	if err != nil {
		return nil, err
	}
	r, err := lay.At(layout.Vars{CUDA: m.Target.CUDA, Python: m.Target.Python.Version, Platform: m.Target.Platform})
	if err != nil {
		return nil, err
	}
	packages := map[string]string{}
	for _, w := range m.Target.Wheels {
		packages[w.Name] = w.Version
	}
	c.in.Expect = static.Expect{Packages: packages, SitePackages: r.Site, Venv: r.Venv, CUDARoot: r.CUDARoot, Python: m.Target.Python.Version, Complete: true}
	re.Name = cmp.Or(m.Target.Entry, re.Name)
	out := c.factsOf(m.Target.TensorFlow, "")
	return append(out, c.child(m)...), nil
}

// correspond names the recipe entry that the image corresponds to, and what the rules say against it.
func (c *checking) correspond(v map[string]string) (entry string, lint []report.LintFinding) {
	if v["tensorflow"] == "" || v["python"] == "" || v["cuda"] == "" {
		return "", []report.LintFinding{{Rule: "incomplete", Severity: string(matrix.Unproved), Message: "not every version of a matrix entry is known: TensorFlow, Python and CUDA are needed"}}
	}
	var sb strings.Builder
	fmt.Fprintf(&sb, "name: image\npython: %q\ntensorflow: %q\ncuda: %q\n", v["python"], release(v["tensorflow"]), facts.Minor(v["cuda"]))
	if v["cudnn"] != "" {
		fmt.Fprintf(&sb, "cudnn: %q\n", facts.Minor(v["cudnn"]))
	}
	r, err := matrix.Load("image", []byte(sb.String()))
	if err != nil {
		var problems *matrix.LoadError
		if errors.As(err, &problems) && len(problems.Problems) > 0 {
			err = errors.New(problems.Problems[0].Message)
		}
		return "", []report.LintFinding{{Rule: "entry", Severity: string(matrix.Refuse), Message: err.Error()}}
	}
	for _, f := range matrix.Lint(r.Entries, c.table, nil) {
		lint = append(lint, report.LintFinding{Rule: f.Rule, Severity: string(f.Severity), Message: f.Message, Remedy: f.Remedy, Nearest: f.Nearest, Source: f.Source})
	}
	return strings.ReplaceAll(strings.TrimSpace(strings.TrimPrefix(sb.String(), "name: image\n")), "\n", ", "), lint
}
