package derive

import (
	"regexp"
	"slices"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/wheel"
)

// Requirement is one line of a wheel's requirements.
type Requirement struct {
	Name   string // normalized
	Spec   string // clauses in a fixed order, "<2.2,>=1.26" as ">=1.26,<2.2"; empty: any
	Marker string // raw
}

// Environment is what markers ask about. The platform is always Linux on x86_64.
type Environment struct {
	Python string // major.minor
	Extra  string // empty: none
}

var (
	requirement = regexp.MustCompile(`^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;\s*(.*))?$`)
	clauseForm  = regexp.MustCompile(`^(===|~=|==|!=|<=|>=|<|>)\s*(\S+)$`)
	markerForm  = regexp.MustCompile(`^\(*\s*(\w+)\s*(==|!=|<=|>=|<|>)\s*['"]([^'"]*)['"]\s*\)*$`)
)

// ParseRequirement reads a line; what it cannot read gives a requirement without a name.
func ParseRequirement(line string) Requirement {
	m := requirement.FindStringSubmatch(line)
	if m == nil {
		return Requirement{}
	}
	return Requirement{Name: wheel.NormalizeName(m[1]), Spec: strings.Join(clauses(m[2]), ","), Marker: strings.TrimSpace(m[3])}
}

// clauses normalizes a specifier: floors first, then caps, then exceptions, each in the order of versions, without
// trailing zeros and without the dev0 that setuptools puts behind a cap.
func clauses(spec string) []string {
	var out []string
	for _, c := range strings.Split(spec, ",") {
		m := clauseForm.FindStringSubmatch(strings.TrimSpace(c))
		if m == nil {
			continue
		}
		v := regexp.MustCompile(`\.?dev0?$`).ReplaceAllString(m[2], "")
		for strings.HasSuffix(v, ".0") && strings.Count(v, ".") >= 1 && m[1] != "~=" && m[1] != "==" {
			v = strings.TrimSuffix(v, ".0")
		}
		out = append(out, m[1]+v)
	}
	rank := func(c string) int {
		return strings.Index("=~> <  !", c[:1])
	}
	slices.SortFunc(out, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return facts.Compare(strings.TrimLeft(a, "<>=!~"), strings.TrimLeft(b, "<>=!~"))
	})
	return slices.Compact(out)
}

// Missing returns the clauses of b that a does not have.
func Missing(a, b string) []string {
	have := clauses(a)
	return slices.DeleteFunc(clauses(b), func(c string) bool { return slices.Contains(have, c) })
}

// Floor returns the lowest version of a requirement, and whether it allows no other.
func (r Requirement) Floor() (version string, exact bool) {
	for _, c := range strings.Split(r.Spec, ",") {
		switch {
		case strings.HasPrefix(c, "=="):
			return strings.TrimLeft(c, "="), true
		case strings.HasPrefix(c, ">"), strings.HasPrefix(c, "~="):
			version = strings.TrimLeft(c, "><=~")
		}
	}
	return version, false
}

// Holds evaluates the marker: clauses joined by and, alternatives by or. A clause about something else than
// Python, platform and extra counts as true.
func (r Requirement) Holds(env Environment) bool {
	if r.Marker == "" {
		return true
	}
	for _, alternative := range strings.Split(r.Marker, " or ") {
		all := true
		for _, c := range strings.Split(alternative, " and ") {
			all = all && clauseHolds(strings.TrimSpace(c), env)
		}
		if all {
			return true
		}
	}
	return false
}

func clauseHolds(clause string, env Environment) bool {
	m := markerForm.FindStringSubmatch(clause)
	if m == nil {
		return true
	}
	equal := func(have string) bool {
		if m[2] == "!=" {
			return have != m[3]
		}
		return have == m[3]
	}
	switch m[1] {
	case "extra":
		return equal(env.Extra)
	case "platform_system":
		return equal("Linux")
	case "sys_platform":
		return equal("linux")
	case "platform_machine":
		return equal("x86_64")
	case "python_version", "python_full_version":
		d := facts.Compare(env.Python, m[3])
		switch m[2] {
		case "==":
			return d == 0
		case "!=":
			return d != 0
		case "<":
			return d < 0
		case "<=":
			return d <= 0
		case ">":
			return d > 0
		}
		return d >= 0
	}
	return true
}
