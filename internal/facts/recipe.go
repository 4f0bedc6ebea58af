package facts

import (
	"slices"
	"strings"
)

// Refused is something a recipe must not ask for, and what to write instead.
type Refused struct {
	Name     string   `yaml:"name"`
	Element  string   `yaml:"element"` // environment: a path element of the value
	Values   []string `yaml:"values"`  // environment: whole values
	Reason   string   `yaml:"reason"`
	Nearest  string   `yaml:"nearest"`
	Evidence `yaml:",inline"`
}

type recipeFile struct {
	SchemaVersion int       `yaml:"schema_version"`
	Packages      []Refused `yaml:"packages"`
	Environment   []Refused `yaml:"environment"`
}

// RefusedPackage tells whether a package (normalized name) cannot be what was meant.
func (t *Table) RefusedPackage(name string) (Refused, bool) {
	for _, r := range t.recipe.Packages {
		if r.Name == name {
			return r, true
		}
	}
	return Refused{}, false
}

// RefusedVariable tells whether an image must not set an environment variable to a value.
func (t *Table) RefusedVariable(name, value string) (Refused, bool) {
	for _, r := range t.recipe.Environment {
		if r.Name != name {
			continue
		}
		always := r.Element == "" && len(r.Values) == 0
		if always || slices.Contains(r.Values, value) || (r.Element != "" && hasElement(value, r.Element)) {
			return r, true
		}
	}
	return Refused{}, false
}

func hasElement(paths, element string) bool {
	for p := range strings.SplitSeq(paths, ":") {
		if slices.Contains(strings.Split(p, "/"), element) {
			return true
		}
	}
	return false
}
