package matrix

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"

	"imgsmith/internal/facts"
)

//go:embed data/pip.yaml
var pipData []byte

// pipFacts is what pip and its packages add to the version facts.
type pipFacts struct {
	SchemaVersion int `yaml:"schema_version"`
	LayoutFaults  []struct {
		Releases       []string `yaml:"releases"`
		Reason         string   `yaml:"reason"`
		Nearest        string   `yaml:"nearest"`
		facts.Evidence `yaml:",inline"`
	} `yaml:"layout_faults"`
	Tags []struct {
		Glibc          string `yaml:"glibc"`
		Pip            string `yaml:"pip"`
		Tag            string `yaml:"tag"`
		facts.Evidence `yaml:",inline"`
	} `yaml:"tags"`
	Limits []struct {
		From           string `yaml:"from"`
		To             string `yaml:"to"`
		Package        string `yaml:"package"`
		Range          string `yaml:"range"`
		facts.Evidence `yaml:",inline"`
	} `yaml:"limits"`
	Keras struct {
		From           string `yaml:"from"`
		Package        string `yaml:"package"`
		Variable       string `yaml:"variable"`
		facts.Evidence `yaml:",inline"`
	} `yaml:"keras"`
	CuDNNPins []struct {
		Package        string `yaml:"package"`
		Version        string `yaml:"version"`
		CuDNN          string `yaml:"cudnn"`
		facts.Evidence `yaml:",inline"`
	} `yaml:"cudnn_pins"`
}

// pips parses the embedded file once; an error means that the program itself is broken, and a test would say so.
var pips = sync.OnceValue(func() pipFacts {
	var p pipFacts
	if err := yaml.UnmarshalWithOptions(pipData, &p, yaml.Strict()); err != nil {
		return pipFacts{}
	}
	return p
})

// extra judges supplier and-cuda: pip's own layout of NVIDIA's wheels.
func extra(c *check) {
	if c.e.Supplier != SupplierAndCUDA || !c.stated() || c.known != nil {
		return
	}
	version := c.e.TensorFlow.Version
	if c.tf.Extra.Style == "" {
		c.add("supplier", "extra-broken", Refuse, c.tf.Evidence, "supplier: wheels", "TensorFlow %s has no and-cuda extra: pip warns and installs none of NVIDIA's wheels", version)
		return
	}
	python := c.e.Python.Version
	if b, ok := c.facts.BrokenExtra(version, python); ok {
		c.add("supplier", "extra-broken", Refuse, b.Evidence, b.Nearest, "TensorFlow %s: %s", version, b.Reason)
		return
	}
	if lacks := c.tf.Search.Lacks; len(lacks) > 0 {
		c.add("supplier", "extra-broken", Refuse, c.tf.Search.Evidence, "supplier: wheels", "TensorFlow %s does not look for %s where pip puts it, so pip's own layout finds no GPU",
			version, strings.Join(lacks, ", "))
		return
	}
	for _, f := range pips().LayoutFaults {
		if slices.Contains(f.Releases, version) {
			c.add("supplier", "extra-broken", Refuse, f.Evidence, f.Nearest, "TensorFlow %s: %s, so pip's own layout finds no GPU", version, f.Reason)
		}
	}
}

// extraRange says that an open range was narrowed to the tested set.
func extraRange(c *check) {
	if !c.stated() || c.known != nil || c.tf.Extra.Style != "range" || c.e.Supplier != SupplierWheels || !auto(c.e.CUDA) {
		return
	}
	c.add("cuda", "extra-range", Note, c.tf.Evidence, "", "the and-cuda extra of TensorFlow %s is an open range; cuda: auto takes the tested set of CUDA %s and cuDNN %s at its floor, which is smaller",
		c.e.TensorFlow.Version, c.cuda, c.cudnn)
}

func auto(version string) bool { return version == "" || version == Auto }

// limits judges packages for which the release's own row has no range.
func limits(c *check) {
	for _, name := range slices.Sorted(maps.Keys(c.tf.Limits)) {
		if version, ok := c.e.Packages[name]; ok {
			c.packageRange(name, version, c.tf.Limits[name], c.tf.Evidence)
		}
	}
	if version, ok := c.e.Packages["keras"]; ok && c.tf.Keras != "" {
		c.packageRange("keras", version, c.tf.Keras, c.tf.Evidence)
	}
	for _, l := range pips().Limits {
		if _, known := c.tf.Limits[l.Package]; known {
			continue
		}
		if version, ok := c.e.Packages[l.Package]; ok && facts.Compare(c.tf.Minor, l.From) >= 0 && facts.Compare(c.tf.Minor, l.To) <= 0 {
			c.packageRange(l.Package, version, l.Range, l.Evidence)
		}
	}
	for _, p := range pips().CuDNNPins {
		version, ok := c.e.Packages[p.Package]
		if !ok || facts.Minor(version) != p.Version || c.tf.CuDNNMajor == 0 {
			continue
		}
		floor := facts.Minor(c.tf.CuDNNCompiled)
		if facts.Major(p.CuDNN) != c.tf.CuDNNMajor || facts.Compare(facts.Minor(p.CuDNN), floor) < 0 {
			c.add("packages", "package-range", Refuse, p.Evidence, "leave "+p.Package+" out of packages", "%s %s pins cuDNN %s, TensorFlow %s needs %s",
				p.Package, version, p.CuDNN, c.e.TensorFlow.Version, c.tf.CuDNNCompiled)
		}
	}
}

// pipTags warns of a pip that cannot read the tags of the wheels in the image.
func pipTags(c *check) {
	version, ok := c.e.Packages["pip"]
	if !ok || c.tf.MinGlibc == "" {
		return
	}
	for _, t := range slices.Backward(pips().Tags) {
		if facts.Compare(c.tf.MinGlibc, t.Glibc) < 0 {
			continue
		}
		if facts.Compare(version, t.Pip) < 0 {
			c.add("packages", "pip-too-old", Warn, t.Evidence, fmt.Sprintf("pip: %q in packages, or leave it out", t.Pip),
				"pip %s predates the tag %s of TensorFlow's wheel: it says that no such version exists", version, t.Tag)
		}
		return
	}
}

// keras asks for the package of Keras 2 where the release brings Keras 3.
func keras(c *check) {
	k := pips().Keras
	legacy := c.e.Keras == KerasLegacy || c.e.Environment[k.Variable] == "1"
	if !legacy || !c.stated() || c.known != nil || facts.Compare(c.tf.Minor, k.From) < 0 {
		return
	}
	near := fmt.Sprintf("packages: {%s: %q}", k.Package, c.tf.Minor+".0")
	key := "keras"
	if c.e.Keras == "" {
		key = "environment"
	}
	version, ok := c.e.Packages[k.Package]
	switch {
	case !ok:
		c.add(key, "legacy-keras", Refuse, k.Evidence, near, "TensorFlow %s brings Keras 3; Keras 2 is asked for, and packages does not name %s: the import fails", c.e.TensorFlow.Version, k.Package)
	case facts.Minor(version) != c.tf.Minor:
		c.add("packages", "legacy-keras", Warn, k.Evidence, near, "%s %s belongs to another minor than TensorFlow %s", k.Package, version, strings.TrimSpace(c.e.TensorFlow.Version))
	}
}
