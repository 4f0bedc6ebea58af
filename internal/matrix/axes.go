package matrix

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"imgsmith/internal/facts"
)

// maxCells bounds the product of the axes; it is counted before anything is expanded.
const maxCells = 10_000

// axisKeys are the keys that can be an axis.
func axisKeys() []string {
	return []string{"base", "platform", "python", "tensorflow", "cuda", "cudnn", "supplier", "layout", "flavor", "keras", "user", "bytecode", "compression"}
}

// rangeKeys are the axes whose values may be a range of minor versions.
func rangeKeys() []string { return []string{"python", "tensorflow", "cuda", "cudnn"} }

// axis is an axis while it is read: nodes and ranges, counted and not yet expanded.
type axis struct {
	key          string
	line, column int
	items        []axisItem
}

// axisItem is one value, or a range of minors of one major.
type axisItem struct {
	node     ast.Node
	major    int
	from, to int // of a range; from > to: no range
}

func (i axisItem) count() int64 {
	if i.from > i.to {
		return 1
	}
	return int64(i.to) - int64(i.from) + 1
}

func (a axis) count() int64 {
	var n int64
	for _, i := range a.items {
		n += i.count()
	}
	return n
}

// axisValue is one expanded value with a prototype that holds it.
type axisValue struct {
	text         string
	line, column int
	proto        Entry
}

// axes reads the mapping of axes in the order of the file and refuses a product that is too large.
func (d *decoder) axes(n ast.Node) []axis {
	fields := d.mapping(n, "axes", axisKeys())
	if fields == nil {
		return nil
	}
	if len(fields) == 0 {
		d.problem(n, "axes names no axis", `write tensorflow: ["2.18", "2.19"] below it`)
		return nil
	}
	var out []axis
	for _, key := range axisKeys() {
		f, ok := fields[key]
		if !ok {
			continue
		}
		a := axis{key: key}
		a.line, a.column = position(f.key)
		values := []ast.Node{f.value}
		if seq, list := f.value.(*ast.SequenceNode); list {
			values = seq.Values
		}
		if len(values) == 0 {
			d.problem(f.value, fmt.Sprintf("axis %s has no value", key), "give it one, or leave the axis out")
		}
		for _, v := range values {
			if item, ok := d.axisItem(key, v); ok {
				a.items = append(a.items, item)
			}
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b axis) int { return cmp.Or(a.line-b.line, a.column-b.column) })
	if !d.bounded(n, out) {
		return nil
	}
	return out
}

func (d *decoder) axisItem(key string, v ast.Node) (axisItem, bool) {
	s, ok := v.(*ast.StringNode)
	if !ok || !strings.Contains(s.Value, "..") || !slices.Contains(rangeKeys(), key) {
		return axisItem{node: v, from: 1}, true
	}
	major, from, to, ok := parseRange(s.Value)
	if !ok {
		d.problem(v, fmt.Sprintf("%s: %q is no range", key, s.Value), `write MAJOR.MINOR..MAJOR.MINOR of one major, the lower first, for example "2.15..2.21"`)
		return axisItem{}, false
	}
	return axisItem{node: v, major: major, from: from, to: to}, true
}

// parseRange reads "2.15..2.21".
func parseRange(s string) (major, from, to int, ok bool) {
	a, b, found := strings.Cut(s, "..")
	m1, n1, ok1 := majorMinor(strings.TrimSpace(a))
	m2, n2, ok2 := majorMinor(strings.TrimSpace(b))
	if !found || !ok1 || !ok2 || m1 != m2 || n1 > n2 {
		return 0, 0, 0, false
	}
	return m1, n1, n2, true
}

func majorMinor(s string) (major, minor int, ok bool) {
	a, b, found := strings.Cut(s, ".")
	if !found || len(a) > 9 || len(b) > 9 || !facts.Dotted(a) || !facts.Dotted(b) {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil
}

// bounded refuses a product over the limit and names the axis to cut.
func (d *decoder) bounded(n ast.Node, axes []axis) bool {
	product := big.NewInt(1)
	var longest axis
	for _, a := range axes {
		product.Mul(product, big.NewInt(a.count()))
		if a.count() > longest.count() {
			longest = a
		}
	}
	if product.Cmp(big.NewInt(maxCells)) <= 0 {
		return true
	}
	d.at(longest.line, longest.column, fmt.Sprintf("the axes make %s cells, a recipe may have %d", product, maxCells),
		fmt.Sprintf("cut the axis %s, which has %d values, or split the recipe", longest.key, longest.count()))
	return false
}

// values expands one axis; every value is decoded once, however many cells have it.
func (d *decoder) values(a axis) []axisValue {
	var out []axisValue
	seen := map[string]bool{}
	for _, item := range a.items {
		for minor := item.from; ; minor++ {
			v := axisValue{}
			v.line, v.column = position(item.node)
			if item.from <= item.to {
				v.text = fmt.Sprintf("%d.%d", item.major, minor)
				setVersion(&v.proto, a.key, v.text)
			} else {
				v.proto.Python.From = PythonOS
				d.set(&v.proto, a.key, item.node)
				v.text = axisText(v.proto, a.key)
			}
			if seen[v.text] && v.text != "" {
				d.at(v.line, v.column, fmt.Sprintf("axis %s has %s twice", a.key, v.text), "leave one of them out")
			}
			seen[v.text] = true
			out = append(out, v)
			if minor >= item.to {
				break
			}
		}
	}
	return out
}

func setVersion(e *Entry, key, version string) {
	switch key {
	case "python":
		e.Python = Python{Version: version, From: PythonOS}
	case "tensorflow":
		e.TensorFlow = TensorFlow{Version: version}
	case "cuda":
		e.CUDA = version
	case "cudnn":
		e.CuDNN = version
	}
}

// axisText is a value as text, for names, excludes and plans.
func axisText(e Entry, key string) string {
	switch key {
	case "base":
		return e.Base
	case "platform":
		return e.Platform
	case "python":
		return e.Python.Version
	case "tensorflow":
		return e.TensorFlow.Version
	case "cuda":
		return e.CUDA
	case "cudnn":
		return e.CuDNN
	case "supplier":
		return e.Supplier
	case "layout":
		return e.Layout
	case "flavor":
		return e.Flavor
	case "keras":
		if e.Keras == "" {
			return Auto
		}
		return e.Keras
	case "user":
		return e.User
	case "bytecode":
		return map[bool]string{true: "on", false: "off"}[e.Bytecode]
	}
	return e.Compression.Algorithm + "-" + e.Compression.Level
}

// copyKey takes the value of one axis over from its prototype.
func copyKey(e *Entry, proto Entry, key string) {
	switch key {
	case "base":
		e.Base = proto.Base
	case "platform":
		e.Platform = proto.Platform
	case "python":
		e.Python = proto.Python
	case "tensorflow":
		e.TensorFlow = proto.TensorFlow
	case "cuda":
		e.CUDA = proto.CUDA
	case "cudnn":
		e.CuDNN = proto.CuDNN
	case "supplier":
		e.Supplier = proto.Supplier
	case "layout":
		e.Layout = proto.Layout
	case "flavor":
		e.Flavor = proto.Flavor
	case "keras":
		e.Keras = proto.Keras
	case "user":
		e.User = proto.User
	case "bytecode":
		e.Bytecode = proto.Bytecode
	case "compression":
		e.Compression = proto.Compression
	}
}
