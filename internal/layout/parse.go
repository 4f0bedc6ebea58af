package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/goccy/go-yaml"

	"imgsmith/recipes"
)

// Error is a fault in a layout file, with its place where the YAML reader knows it.
type Error struct {
	File    string
	Line    int // 1-based, 0 when unknown
	Column  int
	Reason  string
	Excerpt string // the lines around the fault, may be empty
}

// Error gives place, reason and excerpt.
func (e *Error) Error() string {
	place := e.File
	if e.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column)
	}
	if e.Excerpt == "" {
		return fmt.Sprintf("reading layout %s: %s", place, e.Reason)
	}
	return fmt.Sprintf("reading layout %s: %s\n%s", place, e.Reason, e.Excerpt)
}

// Shipped returns the layout of that name that comes with imgsmith.
func Shipped(name string) (Layout, error) {
	file := "layouts/" + name + ".yaml"
	data, err := fs.ReadFile(recipes.Files, file)
	if err != nil {
		return Layout{}, &Error{File: name, Reason: "no shipped layout has this name; a path to a file ends in .yaml"}
	}
	return Parse(file, data)
}

// Parse reads a layout strictly: unknown keys and values that cannot work are errors of type *Error.
func Parse(file string, data []byte) (Layout, error) {
	var l Layout
	if err := yaml.UnmarshalWithOptions(data, &l, yaml.Strict()); err != nil {
		return Layout{}, decodeError(file, err)
	}
	if l.Extends != "" {
		base, err := extend(file, l, data)
		if err != nil {
			return Layout{}, err
		}
		l = base
	}
	if reason := l.check(); reason != "" {
		return Layout{}, &Error{File: file, Reason: reason}
	}
	return l, nil
}

func decodeError(file string, err error) error {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		return &Error{File: file, Reason: err.Error()}
	}
	e := &Error{File: file, Reason: ye.GetMessage()}
	if tok := ye.GetToken(); tok != nil && tok.Position != nil {
		e.Line, e.Column = tok.Position.Line, tok.Position.Column
	}
	if _, excerpt, ok := strings.Cut(ye.FormatError(false, true), "\n"); ok {
		e.Excerpt = strings.TrimRight(excerpt, "\n")
	}
	return e
}

// extend decodes data once more over the shipped layout that it names.
func extend(file string, l Layout, data []byte) (Layout, error) {
	if !l.Test {
		return Layout{}, &Error{File: file, Reason: "extends is for test layouts; add test: true"}
	}
	base, err := Shipped(l.Extends)
	if err != nil {
		return Layout{}, &Error{File: file, Reason: "extends names no shipped layout: " + l.Extends}
	}
	if err := yaml.UnmarshalWithOptions(data, &base, yaml.Strict()); err != nil {
		return Layout{}, decodeError(file, err)
	}
	return base, nil
}

// check returns the first reason why the layout cannot work, or "".
func (l Layout) check() string {
	required := []struct{ key, value string }{
		{"name", l.Name}, {"cuda.root", l.CUDA.Root}, {"cuda.namespace", l.CUDA.Namespace},
		{"cuda.package_root", l.CUDA.PackageRoot}, {"cuda.keep_file", l.CUDA.KeepFile},
		{"python.venv", l.Python.Venv}, {"python.site_packages", l.Python.SitePackages},
		{"python.headers", l.Python.Headers}, {"python.interpreter", l.Python.Interpreter},
		{"loader.file", l.Loader.File},
	}
	for _, r := range required {
		if r.value == "" {
			return "missing value for " + r.key
		}
	}
	if len(l.Python.Scripts) == 0 || l.Python.Scripts[len(l.Python.Scripts)-1].Before != "" {
		return "python.scripts needs a last item without before"
	}
	if len(l.Break) > 0 && !l.Test {
		return "break damages images; it is for layouts with test: true"
	}
	for _, m := range l.Break {
		if m.Path == "" || m.Drop == (m.Link != "") {
			return fmt.Sprintf("break of %q needs a path and either drop or link", m.Path)
		}
	}
	return checkGroups(l.Groups)
}

func checkGroups(groups []Group) string {
	if len(groups) == 0 {
		return "missing value for layers"
	}
	seen := map[string]bool{}
	for _, g := range groups {
		switch {
		case g.Name == "" || len(g.Match) == 0:
			return fmt.Sprintf("layer %q needs a name and match", g.Name)
		case seen[g.Name]:
			return fmt.Sprintf("layer %q is there twice", g.Name)
		case g.Side != SideCUDA && g.Side != SidePython && g.Side != SideAll:
			return fmt.Sprintf("layer %q has side %q; use cuda, python or all", g.Name, g.Side)
		}
		seen[g.Name] = true
		for _, m := range g.Match {
			if _, err := path.Match(m, "x"); err != nil {
				return fmt.Sprintf("layer %q: bad pattern %q", g.Name, m)
			}
		}
	}
	return ""
}
