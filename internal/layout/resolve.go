package layout

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// At expands the placeholders. An error names the value that is missing or malformed.
func (l Layout) At(v Vars) (Resolved, error) {
	ex, err := l.expander(v)
	if err != nil {
		return Resolved{}, fmt.Errorf("resolving layout %s: %w", l.Name, err)
	}
	r := Resolved{
		Name: l.Name, Test: l.Test, Vars: v,
		CUDARoot: ex.path("{root}"), Namespace: l.CUDA.Namespace, PackageRoot: ex.path("{package_root}"),
		Directories: map[string]string{}, KeepText: l.CUDA.KeepText,
		Venv: ex.path("{venv}"), Site: ex.path("{site}"),
		Headers:     ex.path("{venv}/" + l.Python.Headers),
		Interpreter: ex.path("{venv}/" + l.Python.Interpreter),
		LoaderFile:  ex.path(l.Loader.File), Groups: l.Groups, StepDrop: l.StepDrop,
	}
	for from, to := range l.CUDA.Directories {
		r.Directories[from] = ex.path("{root}/" + to)
		r.KeepFiles = append(r.KeepFiles, r.Directories[from]+"/"+l.CUDA.KeepFile)
	}
	r.KeepFiles = append(r.KeepFiles, r.PackageRoot+"/"+l.CUDA.KeepFile)
	slices.Sort(r.KeepFiles)
	for _, g := range l.Python.Reserved {
		r.Reserved = append(r.Reserved, ex.path("{venv}/"+g))
	}
	for _, k := range l.Links {
		r.Links = append(r.Links, Link{Path: ex.path(k.Path), Target: ex.text(k.Target)})
	}
	for _, d := range l.Loader.Directories {
		r.LoaderText += ex.text(d) + "\n"
	}
	for _, m := range l.Break {
		r.Break = append(r.Break, Mutation{Path: ex.path(m.Path), Drop: m.Drop, Link: ex.text(m.Link)})
	}
	for _, s := range slices.Backward(l.Python.Scripts) {
		if s.Before == "" || versionLess(v.Python, s.Before) {
			r.Script = s.Text
		}
	}
	return r, ex.err
}

type expander struct {
	r   *strings.Replacer
	err error
}

// expander nests the path values three deep at most: {site} holds {venv}, {package_root} holds {root}.
func (l Layout) expander(v Vars) (*expander, error) {
	if !isVersion(v.Python) {
		return nil, fmt.Errorf("python version %q is not major.minor", v.Python)
	}
	if !isVersion(v.CUDA) {
		return nil, fmt.Errorf("cuda version %q is not major.minor", v.CUDA)
	}
	target, ok := l.CUDA.Targets[v.Platform]
	if !ok {
		return nil, fmt.Errorf("platform %q has no entry in cuda.targets", v.Platform)
	}
	major, _, _ := strings.Cut(v.CUDA, ".")
	pairs := []string{"{cuda}", v.CUDA, "{cuda_major}", major, "{python}", v.Python, "{target}", target}
	for _, p := range [][2]string{
		{"{root}", l.CUDA.Root}, {"{package_root}", l.CUDA.PackageRoot},
		{"{venv}", l.Python.Venv}, {"{site}", "{venv}/" + l.Python.SitePackages},
	} {
		pairs = append(pairs, p[0], strings.NewReplacer(pairs...).Replace(p[1]))
	}
	return &expander{r: strings.NewReplacer(pairs...)}, nil
}

func (e *expander) text(s string) string { return e.r.Replace(s) }

// path expands s and refuses what is not a clean relative path.
func (e *expander) path(s string) string {
	p := e.text(s)
	if e.err == nil && (p == "" || p != path.Clean(p) || path.IsAbs(p) || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsAny(p, "{}")) {
		e.err = fmt.Errorf("resolving layout: %q gives %q, not a clean path relative to the root", s, p)
	}
	return p
}

func isVersion(s string) bool {
	major, minor, ok := strings.Cut(s, ".")
	_, err1 := strconv.ParseUint(major, 10, 16)
	_, err2 := strconv.ParseUint(minor, 10, 16)
	return ok && err1 == nil && err2 == nil
}

// versionLess compares two major.minor versions.
func versionLess(a, b string) bool {
	parse := func(s string) (int, int) {
		major, minor, _ := strings.Cut(s, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return x, y
	}
	a1, a2 := parse(a)
	b1, b2 := parse(b)
	return a1 < b1 || a1 == b1 && a2 < b2
}

// SitePath returns where a path relative to site-packages lands and on which side. Paths below the namespace
// directory go to the CUDA tree.
func (r Resolved) SitePath(rel string) (string, Side) {
	rest, ok := strings.CutPrefix(rel, r.Namespace+"/")
	if !ok {
		return r.Site + "/" + rel, SidePython
	}
	_, inner, ok := strings.Cut(rest, "/")
	if ok {
		dir, file, ok := strings.Cut(inner, "/")
		if to, mapped := r.Directories[dir]; ok && mapped {
			return to + "/" + file, SideCUDA
		}
	}
	return r.PackageRoot + "/" + rest, SideCUDA
}

// PackageLink returns the link that stands for one directory of a package, for a site-packages path that goes
// through it; ok is false for every other path.
func (r Resolved) PackageLink(rel string) (Link, bool) {
	parts := strings.SplitN(rel, "/", 4)
	if len(parts) != 4 || parts[0] != r.Namespace {
		return Link{}, false
	}
	to, ok := r.Directories[parts[2]]
	if !ok {
		return Link{}, false
	}
	at := r.PackageRoot + "/" + parts[1]
	up := strings.Repeat("../", strings.Count(strings.TrimPrefix(at, r.CUDARoot+"/"), "/")+1)
	return Link{Path: at + "/" + parts[2], Target: up + strings.TrimPrefix(to, r.CUDARoot+"/")}, true
}

// IsReserved reports whether a path belongs to the interpreter's own layer.
func (r Resolved) IsReserved(p string) bool {
	for _, g := range r.Reserved {
		if ok, err := path.Match(g, p); err == nil && ok {
			return true
		}
		if strings.HasPrefix(p, g+"/") {
			return true
		}
	}
	return false
}
