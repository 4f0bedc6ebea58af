package matrix

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

var (
	osPackagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]*(=[A-Za-z0-9.+:~-]+)?$`)
	labelPattern     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
)

// ownLabels is the prefix of the labels that imgsmith sets itself.
const ownLabels = "imgsmith."

func (d *decoder) osPackages(n ast.Node) []string {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(n, "os_packages must be a list, found "+kind(n), "write [libgomp1]")
		return nil
	}
	var out []string
	for _, v := range seq.Values {
		p := d.match(v, "os_packages", osPackagePattern, "write NAME or NAME=VERSION as the package manager of the base knows them")
		if p == "" {
			continue
		}
		if slices.Contains(out, p) {
			d.problem(v, fmt.Sprintf("os_packages names %s twice", p), "leave it out")
		}
		out = append(out, p)
	}
	return out
}

func (d *decoder) memory(n ast.Node) Memory {
	m := Memory{}
	f := d.mapping(n, "memory", []string{"growth", "allocator"})
	if v, ok := f["growth"]; ok {
		m.Growth = d.onOff(v.value, "memory.growth")
	}
	if v, ok := f["allocator"]; ok {
		m.Allocator = d.oneOf(v.value, "memory.allocator", "default", "cuda_malloc_async")
	}
	return m
}

func (d *decoder) labels(n ast.Node) map[string]string {
	out := map[string]string{}
	for key, f := range d.mapping(n, "labels", nil) {
		if !labelPattern.MatchString(key) {
			d.problem(f.key, fmt.Sprintf("labels: %q is no label name", key), "use letters, digits and single . - / _ between them")
			continue
		}
		if strings.HasPrefix(key, ownLabels) {
			d.problem(f.key, fmt.Sprintf("labels: %q is set by imgsmith itself", key), "choose a name without the prefix "+ownLabels)
			continue
		}
		out[key] = d.text(f.value, "labels."+key)
	}
	return out
}

// ThresholdNames are the limits that a recipe may set, as the judge names them.
func ThresholdNames() []string {
	return []string{"memory_ratio_max", "memory_ratio_min", "memory_used_min"}
}

func (d *decoder) policy(n ast.Node) map[string]float64 {
	f := d.mapping(n, "policy", []string{"thresholds"})
	v, ok := f["thresholds"]
	if !ok {
		if f != nil {
			d.problem(n, "policy has no thresholds", "write {thresholds: {memory_ratio_min: 0.9}}")
		}
		return nil
	}
	out := map[string]float64{}
	for key, t := range d.mapping(v.value, "policy.thresholds", ThresholdNames()) {
		switch t.value.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
		default:
			d.problem(t.value, fmt.Sprintf("policy.thresholds.%s must be a number, found %s", key, kind(t.value)), "write a number without quotes")
			continue
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(t.value.GetToken().Value), 64)
		if err != nil || x < 0 || x > 1e15 {
			d.problem(t.value, fmt.Sprintf("policy.thresholds.%s: %s is out of range", key, t.value.GetToken().Value), "write a number that is not negative")
			continue
		}
		out[key] = x
	}
	return out
}

// allow reads overrides. A rule that is not known, or that protects more than one's own judgement, cannot be
// overridden; a reason is always wanted.
func (d *decoder) allow(n ast.Node) []Allow {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(n, "allow must be a list, found "+kind(n), "write [{rule: cuda-minor, reason: …}]")
		return nil
	}
	var out []Allow
	for _, v := range seq.Values {
		f := d.mapping(v, "an item of allow", []string{"rule", "reason"})
		if f == nil {
			continue
		}
		a := Allow{}
		a.Line, a.Column = position(v)
		if r, ok := f["rule"]; ok {
			a.Rule = d.allowRule(r.value)
		} else {
			d.problem(v, "an item of allow has no rule", "write {rule: ID, reason: …}")
		}
		if r, ok := f["reason"]; ok {
			a.Reason = d.text(r.value, "allow.reason")
		} else {
			d.problem(v, "an item of allow has no reason", "write why this entry may break the rule: lock, labels and documents keep it")
		}
		out = append(out, a)
	}
	return out
}

func (d *decoder) allowRule(n ast.Node) string {
	id := d.text(n, "allow.rule")
	if id == "" {
		return ""
	}
	rule, ok := RuleByID(id)
	switch {
	case !ok:
		remedy := "the rules are listed in docs/recipe.md"
		if near := nearest(id, ruleIDs()); near != "" {
			remedy = fmt.Sprintf("did you mean %q?", near)
		}
		d.problem(n, fmt.Sprintf("allow: there is no rule %q", id), remedy)
		return ""
	case !rule.Override:
		d.problem(n, fmt.Sprintf("allow: rule %q cannot be overridden", id), rule.Remedy)
		return ""
	}
	return id
}

// Variables returns what the image's environment gets from the recipe: its memory defaults and Keras choice, then
// the variables that it states, which win.
func (e Entry) Variables() map[string]string {
	out := map[string]string{}
	if e.Memory.Growth {
		out["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
	}
	if e.Memory.Allocator != "" && e.Memory.Allocator != "default" {
		out["TF_GPU_ALLOCATOR"] = e.Memory.Allocator
	}
	if e.Keras == KerasLegacy {
		out["TF_USE_LEGACY_KERAS"] = "1"
	}
	maps.Copy(out, e.Environment)
	if len(out) == 0 {
		return nil
	}
	return out
}
