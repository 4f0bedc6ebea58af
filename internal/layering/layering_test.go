package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

type rules struct {
	Pure struct {
		Reason    string   `yaml:"reason"`
		Packages  []string `yaml:"packages"`
		Forbidden []string `yaml:"forbidden"`
		Except    []struct {
			Package string `yaml:"package"`
			Import  string `yaml:"import"`
			Reason  string `yaml:"reason"`
		} `yaml:"except"`
	} `yaml:"pure"`
	Only []struct {
		Import string   `yaml:"import"`
		By     []string `yaml:"by"`
		Reason string   `yaml:"reason"`
	} `yaml:"only"`
	Deny []struct {
		Package string   `yaml:"package"`
		Imports []string `yaml:"imports"`
		Reason  string   `yaml:"reason"`
	} `yaml:"deny"`
}

// source is one parsed Go file of the main module.
type source struct {
	dir, name string // dir relative to the module root
	file      *ast.File
	fset      *token.FileSet
	lines     int
	test      bool
}

const root = "../.."

func load(t *testing.T) ([]source, rules) {
	t.Helper()
	raw, err := os.ReadFile("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r rules
	if err := yaml.UnmarshalWithOptions(raw, &r, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	var out []source
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "tools" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		out = append(out, source{dir: rel, name: d.Name(), file: f, fset: fset,
			lines: strings.Count(string(text), "\n"), test: strings.HasSuffix(p, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("found %d Go files: the walk is broken", len(out))
	}
	return out, r
}

func (s source) imports() []string {
	var out []string
	for _, i := range s.file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		out = append(out, p)
	}
	return out
}

// covers tells whether a pattern (a path, or a path with /...) covers a path.
func covers(pattern, path string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return pattern == path
}

func TestImports(t *testing.T) {
	files, r := load(t)
	for _, s := range files {
		if s.test {
			continue
		}
		for _, imp := range s.imports() {
			for _, o := range r.Only {
				if covers(o.Import, imp) && !slices.ContainsFunc(o.By, func(by string) bool { return covers(by, s.dir) }) {
					t.Errorf("%s/%s imports %s, only %v may: %s", s.dir, s.name, imp, o.By, o.Reason)
				}
			}
			for _, d := range r.Deny {
				if d.Package == s.dir && slices.ContainsFunc(d.Imports, func(x string) bool { return covers(x, imp) }) {
					t.Errorf("%s/%s imports %s: %s", s.dir, s.name, imp, d.Reason)
				}
			}
			if slices.Contains(r.Pure.Packages, s.dir) && slices.Contains(r.Pure.Forbidden, imp) && !excepted(r, s.dir, imp) {
				t.Errorf("%s/%s imports %s: %s", s.dir, s.name, imp, r.Pure.Reason)
			}
		}
	}
}

func excepted(r rules, dir, imp string) bool {
	for _, e := range r.Pure.Except {
		if e.Package == dir && e.Import == imp {
			return true
		}
	}
	return false
}

// TestNames fails when a rule speaks of a package that does not exist any more.
func TestNames(t *testing.T) {
	files, r := load(t)
	have := map[string]bool{}
	for _, s := range files {
		have[s.dir] = true
	}
	for _, p := range r.Pure.Packages {
		if !have[p] {
			t.Errorf("rule pure names %s, which holds no code", p)
		}
	}
	for _, d := range r.Deny {
		if !have[d.Package] {
			t.Errorf("rule deny names %s, which holds no code", d.Package)
		}
	}
}

func TestPackageComments(t *testing.T) {
	files, _ := load(t)
	documented := map[string]bool{}
	for _, s := range files {
		if !s.test {
			documented[s.dir] = documented[s.dir] || s.file.Doc != nil && len(s.file.Doc.Text()) > 40
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment that says what it is for", dir)
		}
	}
}

func TestBudgets(t *testing.T) {
	const fileLines, functionLines = 400, 60 // style: above these, ask which second noun is in it
	files, _ := load(t)
	for _, s := range files {
		if s.test {
			continue
		}
		if s.lines > fileLines {
			t.Errorf("%s/%s has %d lines, budget %d", s.dir, s.name, s.lines, fileLines)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > functionLines {
				t.Errorf("%s/%s: function %s has %d lines, budget %d", s.dir, s.name, f.Name.Name, n, functionLines)
			}
			if f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s/%s has an init function: effects at import are not seen by readers", s.dir, s.name)
			}
		}
	}
}

// TestExits keeps process exits and panics for bad input out of libraries.
func TestExits(t *testing.T) {
	files, _ := load(t)
	for _, s := range files {
		if s.test || s.file.Name.Name == "main" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if id, ok := c.Fun.(*ast.Ident); ok && id.Name == "panic" {
				t.Errorf("%s: panic in a library", s.fset.Position(n.Pos()))
			}
			if sel, ok := c.Fun.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "os" && sel.Sel.Name == "Exit" || x.Name == "log" && strings.HasPrefix(sel.Sel.Name, "Fatal")) {
					t.Errorf("%s: %s.%s in a library", s.fset.Position(n.Pos()), x.Name, sel.Sel.Name)
				}
			}
			return true
		})
	}
}
