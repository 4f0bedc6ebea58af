package matrix

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// RecipeSchema is the version of the recipe file that this build reads.
const RecipeSchema = 1

const (
	maxRecipeBytes = 1 << 20 // a recipe is written by hand
	maxNesting     = 32      // brackets open at once, and dashes in one line
	maxProblems    = 20      // reported at once
	maxEntries     = 1000
)

// Load reads a recipe strictly: unknown keys, wrong types, duplicate keys, anchors, several documents, NUL
// bytes and files over 1 MiB are refused. file is used in errors and kept in the entries. The error is a
// *LoadError with every problem found.
func Load(file string, data []byte) (*Recipe, error) {
	r, problems := Read(file, data)
	if len(problems) > 0 {
		return nil, &LoadError{Problems: problems}
	}
	return r, nil
}

// Read is Load for callers that want to judge also what could be read of a recipe with problems. The recipe is
// nil when nothing could be read; an entry holds the zero value of a key that has a problem.
func Read(file string, data []byte) (*Recipe, []*Problem) {
	d := &decoder{file: file}
	body := d.parse(data)
	if body == nil {
		return nil, d.sorted()
	}
	r := &Recipe{File: file, Checksum: Checksum(data), Impossible: RefuseCells}
	top := d.mapping(body, "the recipe", append(entryKeys(), topKeys()...))
	own := map[string]field{}
	for _, key := range topKeys() {
		if f, ok := top[key]; ok {
			own[key] = f
			delete(top, key)
		}
	}
	if n, ok := top["name"]; ok {
		r.Name = d.name(n.value)
	} else {
		d.problem(body, "the recipe has no name", `add a line such as name: quickstart`)
	}
	d.defaults(own, top)
	d.entries(r, own, top, body)
	return r, d.sorted()
}

// defaults reads the keys of the whole recipe that are simple, and merges the defaults into the shared keys.
func (d *decoder) defaults(own, top map[string]field) {
	if v, ok := own["schema_version"]; ok {
		if n, isInt := v.value.(*ast.IntegerNode); !isInt || n.GetToken().Value != strconv.Itoa(RecipeSchema) {
			d.problem(v.value, "schema_version is not known", fmt.Sprintf("this build reads version %d", RecipeSchema))
		}
	}
	v, ok := own["defaults"]
	if !ok {
		return
	}
	known := slices.DeleteFunc(entryKeys(), func(k string) bool { return k == "name" })
	for key, f := range d.mapping(v.value, "defaults", known) {
		if _, twice := top[key]; twice {
			d.problem(f.key, fmt.Sprintf("%s is among the defaults and at the top", key), "keep one of them: both mean the same")
			continue
		}
		top[key] = f
	}
}

// entries makes the entries: cells of the product, then the items of include, or the one of a flat recipe.
func (d *decoder) entries(r *Recipe, own, top map[string]field, body *ast.MappingNode) {
	if v, ok := own["impossible"]; ok {
		r.Impossible = d.oneOf(v.value, "impossible", RefuseCells, DropCells)
	}
	if v, ok := own["entry_name"]; ok {
		r.entryName = d.entryName(v.value)
	}
	ax, product := own["axes"]
	if product {
		axes := d.axes(ax.value)
		if v, ok := own["exclude"]; ok && axes != nil {
			r.Excludes = d.excludes(v.value, axes)
		}
		for _, a := range axes {
			if f, twice := top[a.key]; twice {
				d.problem(f.key, fmt.Sprintf("%s is an axis and a default", a.key), "keep one of them")
			}
		}
		if axes != nil {
			d.product(r, top, axes, ax.value)
		}
	} else {
		for _, key := range []string{"exclude", "entry_name", "impossible"} {
			if f, ok := own[key]; ok {
				d.problem(f.key, key+" has no meaning without axes", "add axes, or leave it out")
			}
		}
	}
	if v, ok := own["include"]; ok {
		r.Entries = append(r.Entries, d.include(v.value, top)...)
	} else if !product {
		r.Entries = []Entry{d.entry(top, nil, body)}
	}
	if product && len(r.Entries) == 0 && len(d.problems) == 0 {
		d.problem(ax.value, "no cell is left", "exclude leaves out every cell of the product")
	}
}

// Checksum returns "sha256:<hex>" of recipe bytes, with line ends and the byte order mark normalised.
func Checksum(data []byte) string {
	sum := sha256.Sum256(normalise(data))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func normalise(data []byte) []byte {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	return append(bytes.TrimRight(data, "\n"), '\n')
}

// decoder walks the syntax tree and collects problems with their place.
type decoder struct {
	file     string
	lines    []string
	problems []*Problem
}

// field is a key of a mapping with its value.
type field struct {
	key   ast.Node
	value ast.Node
}

func (d *decoder) err() error { return &LoadError{Problems: d.sorted()} }

// sorted returns the problems in file order, the first of them when there are many.
func (d *decoder) sorted() []*Problem {
	slices.SortStableFunc(d.problems, func(a, b *Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if len(d.problems) > maxProblems {
		d.problems = d.problems[:maxProblems]
	}
	return d.problems
}

func (d *decoder) at(line, column int, message, remedy string) {
	for _, p := range d.problems { // a key shared by several entries is reported once
		if p.Line == line && p.Column == column && p.Message == message {
			return
		}
	}
	d.problems = append(d.problems, &Problem{File: d.file, Line: line, Column: column,
		Message: message, Remedy: remedy, Excerpt: excerpt(d.lines, line, column)})
}

func (d *decoder) problem(n ast.Node, message, remedy string) {
	line, column := position(n)
	d.at(line, column, message, remedy)
}

func position(n ast.Node) (line, column int) {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line, t.Position.Column
	}
	return 0, 0
}

// parse returns the root mapping, or nil after noting problems. What would make the parser slow or deep is
// refused before it.
func (d *decoder) parse(data []byte) *ast.MappingNode {
	if len(data) > maxRecipeBytes {
		d.at(0, 0, fmt.Sprintf("%d bytes is more than a recipe may have", len(data)), "the limit is 1 MiB")
		return nil
	}
	data = normalise(data)
	d.lines = strings.Split(string(data), "\n")
	if !d.plausible(data) {
		return nil
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		d.syntax(err)
		return nil
	}
	var docs []*ast.DocumentNode
	for _, doc := range f.Docs {
		if doc != nil && doc.Body != nil {
			docs = append(docs, doc)
		}
	}
	switch {
	case len(docs) == 0:
		d.at(0, 0, "the file is empty", "a recipe has at least a name")
		return nil
	case len(docs) > 1:
		d.problem(docs[1].Body, "a second document begins here", "a recipe is one document: remove the --- line")
		return nil
	}
	m, ok := docs[0].Body.(*ast.MappingNode)
	if !ok {
		d.problem(docs[0].Body, "expected keys with values, found "+kind(docs[0].Body), "write key: value lines")
		return nil
	}
	return m
}

// plausible refuses bytes that are no text, and nesting that no recipe has.
func (d *decoder) plausible(data []byte) bool {
	depth := 0
	for i, line := range d.lines {
		if c := strings.IndexByte(line, 0); c >= 0 {
			d.at(i+1, c+1, "a NUL byte", "a recipe is plain text")
			return false
		}
		depth += strings.Count(line, "[") + strings.Count(line, "{") - strings.Count(line, "]") - strings.Count(line, "}")
		open := strings.Count(line, "[") + strings.Count(line, "{")
		if depth > maxNesting || open > 8*maxNesting || strings.Count(line, "- ") > maxNesting || strings.Count(line, "? ") > maxNesting {
			d.at(i+1, 1, "nested too deeply for a recipe", fmt.Sprintf("the limit is %d levels", maxNesting))
			return false
		}
	}
	if !utf8.Valid(data) {
		d.at(0, 0, "the file is not UTF-8", "save it as UTF-8")
		return false
	}
	return true
}

func (d *decoder) syntax(err error) {
	var s *yaml.SyntaxError
	if !errors.As(err, &s) || s.Token == nil || s.Token.Position == nil {
		d.at(0, 0, "reading YAML: "+err.Error(), "")
		return
	}
	d.at(s.Token.Position.Line, s.Token.Position.Column, "reading YAML: "+s.Message, "")
}

// include turns the list of overrides into entries.
func (d *decoder) include(n ast.Node, top map[string]field) []Entry {
	seq, ok := n.(*ast.SequenceNode)
	if !ok || len(seq.Values) == 0 {
		d.problem(n, "include must be a list with at least one entry, found "+kind(n), "write - name: … below it")
		return nil
	}
	if len(seq.Values) > maxEntries {
		d.problem(n, fmt.Sprintf("%d entries are more than a recipe may have", len(seq.Values)), fmt.Sprintf("the limit is %d", maxEntries))
		return nil
	}
	var out []Entry
	for _, v := range seq.Values {
		m, ok := v.(*ast.MappingNode)
		if !ok {
			d.problem(v, "an item of include must be keys with values, found "+kind(v), "write - name: …")
			continue
		}
		own := d.mapping(m, "an entry of include", entryKeys())
		if _, ok := own["name"]; !ok {
			d.problem(m, "an entry of include has no name", "add name: … to it")
			continue
		}
		out = append(out, d.entry(top, own, m))
	}
	return out
}

// mapping returns the fields of a mapping and refuses keys that are not known. known nil: any key.
func (d *decoder) mapping(n ast.Node, what string, known []string) map[string]field {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.problem(n, what+" must be keys with values, found "+kind(n), "")
		return nil
	}
	out := make(map[string]field, len(m.Values))
	for _, v := range m.Values {
		key, ok := keyText(v.Key)
		switch {
		case !ok:
			d.problem(v.Key, "a key must be plain text, found "+kind(v.Key), "")
		case known != nil && !slices.Contains(known, key):
			remedy := "known keys: " + strings.Join(known, ", ")
			if near := nearest(key, known); near != "" {
				remedy = fmt.Sprintf("did you mean %q?", near)
			}
			d.problem(v.Key, fmt.Sprintf("unknown key %q in %s", key, what), remedy)
		default:
			out[key] = field{v.Key, v.Value}
		}
	}
	return out
}

func keyText(k ast.Node) (string, bool) {
	switch n := k.(type) {
	case *ast.StringNode:
		return n.Value, true
	default:
		return "", false
	}
}

// kind names a node's type in the words of a user.
func kind(n ast.Node) string {
	switch n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or alias (not supported: shared keys stand at the top, entries below include inherit them)"
	case *ast.TagNode:
		return "a YAML tag (not supported)"
	}
	return "something else"
}
