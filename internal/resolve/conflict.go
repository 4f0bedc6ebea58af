package resolve

import (
	"fmt"
	"regexp"
	"strings"

	"imgsmith/internal/matrix"
)

// Conflict is an unsatisfiable resolution in two lines: what one side asks for, and what the other needs.
type Conflict struct {
	Package     string // the distribution both speak of
	Asks, Needs string // one line each
}

var (
	marker         = regexp.MustCompile(`\{[^}]*\}`)
	dependsPattern = regexp.MustCompile(`([A-Za-z0-9_.-]+(?:\[[^\]]*\])?(?:==[^ ,]+)?) depends? on ([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?((?:[<>=!~]=?[^ ,]+)(?:,[<>=!~]=?[^ ,]+)*)`)
	requirePattern = regexp.MustCompile(`(?:you require|your requirements? (?:is|are)|and) ([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?((?:[<>=!~]=?[^ ,]+)(?:,[<>=!~]=?[^ ,]+)*)`)
)

// conflictIn finds the two sides in uv's text; nil when it tells of something else.
func conflictIn(text string) *Conflict {
	text = marker.ReplaceAllString(strings.Join(strings.Fields(text), " "), "")
	type need struct{ who, spec string }
	needs := map[string][]need{}
	var order []string
	for _, m := range dependsPattern.FindAllStringSubmatch(text, -1) {
		if len(needs[m[2]]) == 0 {
			order = append(order, m[2])
		}
		needs[m[2]] = append(needs[m[2]], need{m[1], m[3]})
	}
	asked := map[string]string{}
	for _, m := range requirePattern.FindAllStringSubmatch(text, -1) {
		asked[m[1]] = strings.TrimSuffix(m[2], ".")
	}
	for _, p := range order {
		n := needs[p]
		spec, ok := asked[p]
		if ok && spec != n[0].spec {
			return &Conflict{p, fmt.Sprintf("the recipe asks for %s%s", p, spec), fmt.Sprintf("%s needs %s%s", n[0].who, p, n[0].spec)}
		}
		if len(n) > 1 && n[0].spec != n[1].spec {
			return &Conflict{p, fmt.Sprintf("%s needs %s%s", n[0].who, p, n[0].spec), fmt.Sprintf("%s needs %s%s", n[1].who, p, n[1].spec)}
		}
	}
	return nil
}

var missingPattern = regexp.MustCompile(`(?:there is no version of|there are no versions of) ([A-Za-z0-9_.-]+)|([A-Za-z0-9_.-]+) was not found in`)

// missingIn gives the packages of which uv says that the index lacks them, or the version that was asked for.
func missingIn(text string) []string {
	var out []string
	for _, m := range missingPattern.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
		out = append(out, matrix.NormalizeName(strings.SplitN(m[1]+m[2], "==", 2)[0]))
	}
	return out
}
