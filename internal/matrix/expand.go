package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"imgsmith/internal/facts"
)

// product expands the axes into cells: the first axis varies slowest. Cells that an exclude matches are dropped
// with its reason.
func (d *decoder) product(r *Recipe, shared map[string]field, axes []axis, at ast.Node) {
	expanded := make([][]axisValue, len(axes))
	for i, a := range axes {
		expanded[i] = d.values(a)
		r.Axes = append(r.Axes, Axis{Key: a.key, Line: a.line})
		for _, v := range expanded[i] {
			r.Axes[i].Values = append(r.Axes[i].Values, v.text)
		}
	}
	if len(d.problems) > 0 {
		return // a value that is not valid would be reported once per cell
	}
	model := d.entry(shared, nil, at)
	if r.entryName == "" {
		r.entryName = defaultName(r.Axes)
	}
	cell := make([]axisValue, len(axes))
	var walk func(i int)
	walk = func(i int) {
		if i == len(axes) {
			r.keep(model, axes, cell)
			return
		}
		for _, v := range expanded[i] {
			cell[i] = v
			walk(i + 1)
		}
	}
	walk(0)
}

// keep adds one cell to the entries, or to what was dropped.
func (r *Recipe) keep(model Entry, axes []axis, cell []axisValue) {
	e := model
	e.Lines, e.Columns = maps.Clone(model.Lines), maps.Clone(model.Columns)
	e.Cell = make(map[string]string, len(axes))
	for i, a := range axes {
		copyKey(&e, cell[i].proto, a.key)
		e.Lines[a.key], e.Columns[a.key] = cell[i].line, cell[i].column
		e.Cell[a.key] = cell[i].text
	}
	e.Lines["name"], e.Columns["name"] = axes[0].line, axes[0].column
	e.Name = cellName(r.entryName, r.Name, e)
	for i := range r.Excludes {
		if x := &r.Excludes[i]; x.matches(e.Cell) {
			x.Used++
			r.Dropped = append(r.Dropped, Dropped{Name: e.Name, Cell: e.Cell, Rule: "exclude", Reason: x.Reason, Line: x.Line})
			return
		}
	}
	r.Entries = append(r.Entries, e)
}

// defaultName names the recipe and every axis that has a choice.
func defaultName(axes []Axis) string {
	parts := []string{"{name}"}
	for _, a := range axes {
		if len(a.Values) > 1 {
			parts = append(parts, "{"+a.Key+"}")
		}
	}
	return strings.Join(parts, "-")
}

// cellName fills in a template with the values of an entry.
func cellName(template, recipe string, e Entry) string {
	out := strings.ReplaceAll(template, "{name}", recipe)
	for _, key := range axisKeys() {
		if strings.Contains(out, "{"+key+"}") {
			out = strings.ReplaceAll(out, "{"+key+"}", word(axisText(e, key)))
		}
	}
	return word(out)
}

func (d *decoder) entryName(n ast.Node) string {
	s, ok := d.plain(n, "entry_name")
	if !ok {
		return ""
	}
	rest := strings.ReplaceAll(s, "{name}", "")
	for _, key := range axisKeys() {
		rest = strings.ReplaceAll(rest, "{"+key+"}", "")
	}
	if strings.ContainsAny(rest, "{}") {
		d.problem(n, fmt.Sprintf("entry_name: %q has a name that is not known", s), "known are {name}, {"+strings.Join(axisKeys(), "}, {")+"}")
		return ""
	}
	return s
}

func (d *decoder) excludes(n ast.Node, axes []axis) []Exclude {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(n, "exclude must be a list, found "+kind(n), `write - {tensorflow: "2.15", python: "3.12", reason: …}`)
		return nil
	}
	var keys []string
	for _, a := range axes {
		keys = append(keys, a.key)
	}
	var out []Exclude
	for _, v := range seq.Values {
		f := d.mapping(v, "an item of exclude", append(slices.Clone(keys), "reason"))
		if f == nil {
			continue
		}
		x := Exclude{Match: map[string][]string{}}
		x.Line, x.Column = position(v)
		if reason, ok := f["reason"]; ok {
			x.Reason = d.text(reason.value, "exclude.reason")
			delete(f, "reason")
		} else {
			d.problem(v, "an item of exclude has no reason", "write why these cells are left out: plans keep it")
		}
		if len(f) == 0 {
			d.problem(v, "an item of exclude names no axis", "name at least one of "+strings.Join(keys, ", "))
		}
		for key, value := range f {
			list := []ast.Node{value.value}
			if s, many := value.value.(*ast.SequenceNode); many {
				list = s.Values
			}
			for _, item := range list {
				x.Match[key] = append(x.Match[key], d.text(item, "exclude."+key))
			}
		}
		out = append(out, x)
	}
	return out
}

// matches tells whether every axis that the exclude names has one of its values: the same text, a version of
// the named minor, or one inside a range.
func (x Exclude) matches(cell map[string]string) bool {
	for key, values := range x.Match {
		got := cell[key]
		if !slices.ContainsFunc(values, func(want string) bool {
			if want == got {
				return true
			}
			if !slices.Contains(rangeKeys(), key) {
				return false
			}
			if major, from, to, ok := parseRange(want); ok {
				m, n, known := majorMinor(facts.Minor(got))
				return known && m == major && n >= from && n <= to
			}
			return facts.Dotted(want) && strings.HasPrefix(got, want+".")
		}) {
			return false
		}
	}
	return true
}

// Settle replaces python: auto by the interpreter that the packages of the entry's base provide. Where the facts
// do not know it, auto stays, and Lint says so.
func (r *Recipe) Settle(table *facts.Table) {
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.Python.Version != Auto || e.Base == "" {
			continue
		}
		o, err := table.OSOfReference(e.Base)
		if err != nil || len(o.Pythons) == 0 {
			continue
		}
		e.Python.Version = o.Pythons[0]
		if _, axis := e.Cell["python"]; axis || strings.Contains(r.entryName, "{python}") {
			if axis {
				e.Cell["python"] = e.Python.Version
			}
			if e.Cell != nil {
				e.Name = cellName(r.entryName, r.Name, *e)
			}
		}
	}
}
