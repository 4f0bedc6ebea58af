package matrix

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"imgsmith/internal/facts"
)

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)
	pythonPattern  = regexp.MustCompile(`^[0-9]\.[0-9]{1,2}$`)
	releasePattern = regexp.MustCompile(`^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3}((\.post|rc|a|b)[0-9]{1,3})?)?$`)
	hexPattern     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// entryKeys are the keys an entry may have, in the order in which they are documented.
func entryKeys() []string {
	return []string{"name", "base", "platform", "python", "tensorflow", "cuda", "cudnn", "supplier", "layout",
		"flavor", "keras", "packages", "os_packages", "environment", "memory", "user", "labels", "bytecode", "constraints",
		"compression", "fleet", "staging", "publish", "policy", "allow"}
}

// topKeys are the keys that only the whole recipe may have.
func topKeys() []string {
	return []string{"schema_version", "defaults", "axes", "entry_name", "impossible", "exclude", "include"}
}

// entry decodes one entry from the shared keys and its own, which replace the shared ones whole.
func (d *decoder) entry(shared, own map[string]field, at ast.Node) Entry {
	e := Entry{File: d.file, Platform: DefaultPlatform, Supplier: SupplierWheels, Layout: DefaultLayout,
		Flavor: FlavorRuntime, Bytecode: true, Constraints: true, Compression: Compression{Algorithm: "zstd", Level: "default"},
		Lines: map[string]int{}, Columns: map[string]int{}}
	e.Lines["name"], e.Columns["name"] = position(at)
	for _, key := range entryKeys() {
		f, ok := own[key]
		if !ok {
			f, ok = shared[key]
		}
		if !ok {
			continue
		}
		e.Lines[key], e.Columns[key] = position(f.key)
		if _, null := f.value.(*ast.NullNode); null && key == "base" {
			continue // base: null says in words that the base is not constrained
		}
		d.set(&e, key, f.value)
	}
	return e
}

func (d *decoder) set(e *Entry, key string, n ast.Node) {
	switch key {
	case "name":
		e.Name = d.name(n)
	case "base":
		e.Base = d.text(n, key)
	case "platform":
		e.Platform = d.text(n, key)
	case "python":
		e.Python = d.python(n)
	case "tensorflow":
		e.TensorFlow = d.tensorflow(n)
	case "cuda":
		e.CUDA = d.version(n, key, Auto)
	case "cudnn":
		e.CuDNN = d.version(n, key, Auto)
	case "supplier":
		e.Supplier = d.text(n, key)
	case "layout":
		e.Layout = d.text(n, key)
	case "packages":
		e.Packages = d.packages(n)
	case "environment":
		e.Environment = d.environment(n)
	case "user":
		e.User = d.text(n, key)
	case "bytecode":
		e.Bytecode = d.onOff(n, key)
	case "constraints":
		e.Constraints = d.onOff(n, key)
	case "compression":
		e.Compression = d.compression(n)
	case "fleet":
		e.Fleet = d.fleet(n)
	case "staging":
		e.Staging = d.text(n, key)
	case "publish":
		e.Publish = d.publish(n)
	default:
		d.setMore(e, key, n)
	}
}

// setMore decodes the keys that came with schema version 1.
func (d *decoder) setMore(e *Entry, key string, n ast.Node) {
	switch key {
	case "flavor":
		e.Flavor = d.oneOf(n, key, FlavorRuntime, FlavorDevel, FlavorJupyter)
	case "keras":
		if e.Keras = d.oneOf(n, key, KerasLegacy, Auto); e.Keras == Auto {
			e.Keras = ""
		}
	case "os_packages":
		e.OSPackages = d.osPackages(n)
	case "memory":
		e.Memory = d.memory(n)
	case "labels":
		e.Labels = d.labels(n)
	case "policy":
		e.Thresholds = d.policy(n)
	case "allow":
		e.Allow = d.allow(n)
	}
}

// text returns a plain string. Numbers are refused: YAML reads 3.10 as 3.1.
func (d *decoder) text(n ast.Node, key string) string {
	s, _ := d.plain(n, key)
	return s
}

// plain is text with a word on whether it was one.
func (d *decoder) plain(n ast.Node, key string) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		if s := strings.TrimSpace(v.Value); s != "" && !strings.ContainsAny(s, "\n\r") {
			return v.Value, true
		}
		d.problem(n, key+" must be one line of text that is not empty", "")
	case *ast.IntegerNode, *ast.FloatNode:
		raw := strings.TrimSpace(n.GetToken().Origin)
		d.problem(n, fmt.Sprintf("%s: %s is a number for YAML, which would change 3.10 to 3.1", key, raw), fmt.Sprintf("write %q", raw))
	default:
		d.problem(n, fmt.Sprintf("%s must be text, found %s", key, kind(n)), "")
	}
	return "", false
}

// version returns a dotted version, or one of the words allowed for the key.
func (d *decoder) version(n ast.Node, key string, words ...string) string {
	s, ok := d.plain(n, key)
	if !ok || slices.Contains(words, s) || facts.Dotted(s) {
		return s
	}
	remedy := `write a version such as "12.5"`
	if len(words) > 0 {
		remedy += " or " + strings.Join(words, " or ")
	}
	d.problem(n, fmt.Sprintf("%s: %q is no version", key, s), remedy)
	return ""
}

func (d *decoder) match(n ast.Node, key string, re *regexp.Regexp, want string) string {
	s, ok := d.plain(n, key)
	if ok && !re.MatchString(s) {
		d.problem(n, fmt.Sprintf("%s: %q is not valid", key, s), want)
		return ""
	}
	return s
}

func (d *decoder) name(n ast.Node) string {
	return d.match(n, "name", namePattern,
		"a name has lower-case letters and digits, with single . _ or - between them")
}

func (d *decoder) oneOf(n ast.Node, key string, words ...string) string {
	s, ok := d.plain(n, key)
	if ok && !slices.Contains(words, s) {
		d.problem(n, fmt.Sprintf("%s: %q is not known", key, s), "it is one of "+strings.Join(words, ", "))
		return ""
	}
	return s
}

// onOff also takes YAML's own booleans, which is what on and off are in older readers.
func (d *decoder) onOff(n ast.Node, key string) bool {
	if b, ok := n.(*ast.BoolNode); ok {
		return b.Value
	}
	return d.oneOf(n, key, "on", "off") == "on"
}

func (d *decoder) python(n ast.Node) Python {
	p := Python{From: PythonOS}
	if _, ok := n.(*ast.MappingNode); !ok {
		p.Version = d.pythonVersion(n)
		return p
	}
	f := d.mapping(n, "python", []string{"version", "from"})
	if v, ok := f["version"]; ok {
		p.Version = d.pythonVersion(v.value)
	} else {
		d.problem(n, "python has no version", `write {version: "3.11"}`)
	}
	if v, ok := f["from"]; ok {
		p.From = d.oneOf(v.value, "python.from", PythonOS, PythonBase)
	}
	return p
}

func (d *decoder) pythonVersion(n ast.Node) string {
	if s, ok := n.(*ast.StringNode); ok && s.Value == Auto {
		return Auto
	}
	return d.match(n, "python", pythonPattern, `write major.minor, for example "3.11", or auto for that of the base`)
}

func (d *decoder) tensorflow(n ast.Node) TensorFlow {
	if _, ok := n.(*ast.MappingNode); !ok {
		return TensorFlow{Version: d.match(n, "tensorflow", releasePattern, `write a release, for example "2.19.1"`)}
	}
	f := d.mapping(n, "tensorflow", []string{"wheel", "sha256"})
	var t TensorFlow
	if v, ok := f["wheel"]; ok {
		t.Wheel = d.text(v.value, "tensorflow.wheel")
		t.Version = wheelVersion(t.Wheel)
		if t.Wheel != "" && t.Version == "" {
			d.problem(v.value, fmt.Sprintf("tensorflow.wheel: %q is no wheel file name", t.Wheel), "keep the name that the wheel was built with: tensorflow-VERSION-….whl")
		}
	} else {
		d.problem(n, "tensorflow has no wheel", "write {wheel: PATH, sha256: HEX}")
	}
	if v, ok := f["sha256"]; ok {
		t.SHA256 = d.match(v.value, "tensorflow.sha256", hexPattern, "write the 64 lower-case hex digits that sha256sum prints")
	} else if f != nil {
		d.problem(n, "tensorflow has no sha256", "a wheel of one's own is named by path and sha256")
	}
	return t
}

// wheelVersion reads the version from a wheel's file name, or returns "".
func wheelVersion(path string) string {
	parts := strings.Split(path[strings.LastIndex(path, "/")+1:], "-")
	if len(parts) < 5 || !strings.HasSuffix(path, ".whl") {
		return ""
	}
	return parts[1]
}
