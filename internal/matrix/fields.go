package matrix

import (
	"fmt"
	"regexp"
	"strings"

	pep440 "github.com/aquasecurity/go-pep440-version"
	"github.com/goccy/go-yaml/ast"
)

var (
	packagePattern    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	variablePattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	capabilityPattern = regexp.MustCompile(`^[0-9]{1,2}\.[0-9]$`)
	separatorPattern  = regexp.MustCompile(`[-_.]+`)
)

func (d *decoder) packages(n ast.Node) map[string]string {
	out := map[string]string{}
	for key, f := range d.mapping(n, "packages", nil) {
		if !packagePattern.MatchString(key) {
			d.problem(f.key, fmt.Sprintf("packages: %q is no package name", key), "")
			continue
		}
		name := NormalizeName(key)
		if _, dup := out[name]; dup {
			d.problem(f.key, fmt.Sprintf("packages: %q names the same package as another key", key), "keep one of them")
		}
		version := d.text(f.value, "packages."+key)
		if _, err := pep440.Parse(version); err != nil && version != "" {
			d.problem(f.value, fmt.Sprintf("packages.%s: %q is no version", key, version), `write one exact version, for example "1.26.4"`)
		}
		if name == "tensorflow" {
			d.problem(f.key, "packages names tensorflow itself", "use the key tensorflow")
		}
		out[name] = version
	}
	return out
}

// NormalizeName returns a distribution name in its normalized form: lower case, single dashes.
func NormalizeName(name string) string {
	return strings.ToLower(separatorPattern.ReplaceAllString(name, "-"))
}

func (d *decoder) environment(n ast.Node) map[string]string {
	out := map[string]string{}
	for key, f := range d.mapping(n, "environment", nil) {
		if !variablePattern.MatchString(key) {
			d.problem(f.key, fmt.Sprintf("environment: %q is no variable name", key), "")
			continue
		}
		if s, ok := f.value.(*ast.StringNode); ok && s.Value == "" {
			out[key] = "" // an empty value is a value here
			continue
		}
		out[key] = d.text(f.value, "environment."+key)
	}
	return out
}

func (d *decoder) compression(n ast.Node) Compression {
	c := Compression{}
	if _, ok := n.(*ast.MappingNode); !ok {
		c.Algorithm = d.oneOf(n, "compression", "zstd", "gzip")
	} else {
		f := d.mapping(n, "compression", []string{"algorithm", "level"})
		if v, ok := f["algorithm"]; ok {
			c.Algorithm = d.oneOf(v.value, "compression.algorithm", "zstd", "gzip")
		} else {
			d.problem(n, "compression has no algorithm", "write {algorithm: zstd, level: default}")
		}
		if v, ok := f["level"]; ok && c.Algorithm != "" {
			c.Level = d.oneOf(v.value, "compression.level", levels(c.Algorithm)...)
		}
	}
	if c.Level == "" {
		c.Level = levels(c.Algorithm)[0]
	}
	return c
}

// levels are the levels of an algorithm, the default first.
func levels(algorithm string) []string {
	if algorithm == "gzip" {
		return []string{"passthrough", "default"}
	}
	return []string{"default", "fastest", "better"}
}

func (d *decoder) fleet(n ast.Node) []FleetMember {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(n, "fleet must be a list, found "+kind(n), `write [{gpu: H200, driver: "580.159.04"}]`)
		return nil
	}
	var out []FleetMember
	for _, v := range seq.Values {
		f := d.mapping(v, "a machine of the fleet", []string{"gpu", "compute_capability", "class", "driver"})
		if f == nil {
			continue
		}
		m := FleetMember{}
		m.Line, m.Column = position(v)
		if g, ok := f["gpu"]; ok {
			m.GPU = d.text(g.value, "gpu")
		}
		if c, ok := f["compute_capability"]; ok {
			m.ComputeCapability = d.match(c.value, "compute_capability", capabilityPattern, `write major.minor, for example "9.0"`)
		}
		if c, ok := f["class"]; ok {
			m.Class = d.oneOf(c.value, "class", "datacenter", "geforce", "workstation", "embedded")
		}
		if c, ok := f["driver"]; ok {
			m.Driver = d.version(c.value, "driver")
		}
		if len(f) == 0 {
			d.problem(v, "a machine of the fleet says nothing", "name a gpu, a compute_capability or a driver")
		}
		out = append(out, m)
	}
	return out
}

func (d *decoder) publish(n ast.Node) *Publish {
	p := &Publish{}
	if _, ok := n.(*ast.StringNode); ok {
		p.Repository, p.Tags = d.text(n, "publish"), []string{DefaultTag}
		return p
	}
	f := d.mapping(n, "publish", []string{"repository", "tags"})
	if v, ok := f["repository"]; ok {
		p.Repository = d.text(v.value, "publish.repository")
	} else {
		d.problem(n, "publish has no repository", "write {repository: team/tensorflow, tags: [\"{entry}\"]}")
	}
	if v, ok := f["tags"]; ok {
		p.Tags = d.tags(v.value)
	} else {
		p.Tags = []string{DefaultTag}
	}
	return p
}

func (d *decoder) tags(n ast.Node) []string {
	seq, ok := n.(*ast.SequenceNode)
	if !ok || len(seq.Values) == 0 {
		d.problem(n, "publish.tags must be a list with at least one tag, found "+kind(n), `write ["{entry}"]`)
		return nil
	}
	var out []string
	for _, v := range seq.Values {
		s, ok := d.plain(v, "a tag")
		if !ok {
			continue
		}
		if _, err := ExpandTag(s, sampleTagValues()); err != nil {
			d.problem(v, err.Error(), "")
			continue
		}
		out = append(out, s)
	}
	return out
}
