package static

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	pep440 "github.com/aquasecurity/go-pep440-version"
)

// errRequirement tells that a requirement does not follow PEP 508.
var errRequirement = errors.New("not a requirement")

// requirement is one line of Requires-Dist.
type requirement struct {
	name      string // normalized
	specifier string // PEP 440, empty: any version
	url       bool   // direct reference: nothing to compare
	marker    string
}

// parseRequirement reads "name[extra] (>=1,<2) ; marker" and its variants.
func parseRequirement(s string) (requirement, error) {
	var r requirement
	s, r.marker, _ = strings.Cut(s, ";")
	r.marker = strings.TrimSpace(r.marker)
	s = strings.TrimSpace(s)
	end := strings.IndexFunc(s, func(c rune) bool { return strings.ContainsRune(" \t[(<>=!~@", c) })
	if end < 0 {
		end = len(s)
	}
	name := s[:end]
	rest := strings.TrimSpace(s[end:])
	if name == "" {
		return r, fmt.Errorf("%w: %.100q", errRequirement, s)
	}
	r.name = normalize(name)
	if strings.HasPrefix(rest, "[") {
		_, after, ok := strings.Cut(rest, "]")
		if !ok {
			return r, fmt.Errorf("%w: %.100q", errRequirement, s)
		}
		rest = strings.TrimSpace(after)
	}
	if strings.HasPrefix(rest, "@") {
		r.url = true
		return r, nil
	}
	if strings.HasPrefix(rest, "(") {
		rest = strings.TrimSuffix(strings.TrimPrefix(rest, "("), ")")
	}
	r.specifier = strings.TrimSpace(rest)
	return r, nil
}

// allows tells whether a version satisfies a PEP 440 specifier; pre-releases that are installed count.
func allows(specifier, version string) (bool, error) {
	if specifier == "" {
		return true, nil
	}
	v, err := pep440.Parse(version)
	if err != nil {
		return false, fmt.Errorf("version %.60q: %w", version, err)
	}
	set, err := pep440.NewSpecifiers(specifier, pep440.WithPreRelease(true))
	if err != nil {
		return false, fmt.Errorf("specifier %.100q: %w", specifier, err)
	}
	return set.Check(v), nil
}

// markerEnv is what markers ask about: a CPython of the image, on Linux, without extras.
func markerEnv(python string) map[string]string {
	return map[string]string{"python_version": python, "python_full_version": python + ".0", "os_name": "posix", "sys_platform": "linux",
		"platform_system": "Linux", "platform_machine": "x86_64", "platform_python_implementation": "CPython", "implementation_name": "cpython",
		"implementation_version": python + ".0", "platform_release": "", "platform_version": "", "extra": ""}
}

// evaluate tells whether a marker holds. The error says what cannot be understood.
func evaluate(marker string, env map[string]string) (bool, error) {
	if marker == "" {
		return true, nil
	}
	tokens, err := markerTokens(marker)
	if err != nil {
		return false, err
	}
	m := markers{rest: tokens, env: env}
	ok, err := m.or(0)
	if err == nil && len(m.rest) > 0 {
		err = fmt.Errorf("%w: marker %.100q", errRequirement, marker)
	}
	return ok, err
}

// markerTokens splits a marker into words, operators, parentheses and quoted values; quotes stay in front.
func markerTokens(s string) ([]string, error) {
	var out []string
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimLeft(s, " \t") {
		switch c := s[0]; {
		case c == '(' || c == ')':
			out, s = append(out, s[:1]), s[1:]
		case c == '\'' || c == '"':
			end := strings.IndexByte(s[1:], c)
			if end < 0 {
				return nil, fmt.Errorf("%w: marker with an open quote", errRequirement)
			}
			out, s = append(out, "'"+s[1:1+end]), s[end+2:]
		case strings.IndexByte("<>=!~", c) >= 0:
			end := 1
			for end < len(s) && strings.IndexByte("<>=!~", s[end]) >= 0 {
				end++
			}
			out, s = append(out, s[:end]), s[end:]
		default:
			end := strings.IndexAny(s, " \t()'\"<>=!~")
			if end < 0 {
				end = len(s)
			}
			out, s = append(out, s[:end]), s[end:]
		}
	}
	return out, nil
}

// markers parses by descent: or, and, one comparison or parentheses.
type markers struct {
	rest []string
	env  map[string]string
}

// maxNesting bounds the parentheses of a marker.
const maxNesting = 50

func (m *markers) next() string {
	if len(m.rest) == 0 {
		return ""
	}
	t := m.rest[0]
	m.rest = m.rest[1:]
	return t
}

func (m *markers) peek() string {
	if len(m.rest) == 0 {
		return ""
	}
	return m.rest[0]
}

func (m *markers) or(depth int) (bool, error) {
	ok, err := m.and(depth)
	for err == nil && m.peek() == "or" {
		m.next()
		var b bool
		b, err = m.and(depth)
		ok = ok || b
	}
	return ok, err
}

func (m *markers) and(depth int) (bool, error) {
	ok, err := m.one(depth)
	for err == nil && m.peek() == "and" {
		m.next()
		var b bool
		b, err = m.one(depth)
		ok = ok && b
	}
	return ok, err
}

func (m *markers) one(depth int) (bool, error) {
	if m.peek() == "(" {
		m.next()
		if depth > maxNesting {
			return false, fmt.Errorf("%w: marker nested too deeply", errRequirement)
		}
		ok, err := m.or(depth + 1)
		if err == nil && m.next() != ")" {
			err = fmt.Errorf("%w: marker with an open parenthesis", errRequirement)
		}
		return ok, err
	}
	left, okL := m.value()
	op := m.next()
	if op == "not" {
		op += " " + m.next()
	}
	right, okR := m.value()
	if !okL || !okR {
		return false, fmt.Errorf("%w: marker with an unknown name", errRequirement)
	}
	return compare(left, op, right)
}

// value reads a quoted text or the value of a name.
func (m *markers) value() (string, bool) {
	t := m.next()
	if v, quoted := strings.CutPrefix(t, "'"); quoted {
		return v, true
	}
	v, ok := m.env[t]
	return v, ok
}

func compare(left, op, right string) (bool, error) {
	switch op {
	case "in":
		return strings.Contains(right, left), nil
	case "not in":
		return !strings.Contains(right, left), nil
	}
	if _, err := pep440.Parse(left); err == nil {
		if ok, err := allows(op+right, left); err == nil {
			return ok, nil
		}
	}
	switch op {
	case "==", "===":
		return left == right, nil
	case "!=":
		return left != right, nil
	case "<", "<=", ">", ">=":
		c := strings.Compare(left, right)
		return slices.Contains(map[string][]int{"<": {-1}, "<=": {-1, 0}, ">": {1}, ">=": {0, 1}}[op], c), nil
	}
	return false, fmt.Errorf("%w: marker operator %.20q", errRequirement, op)
}
