package static

import (
	_ "embed"
	"fmt"
	"path"
	"slices"

	"github.com/goccy/go-yaml"
)

//go:embed rules.yaml
var rulesYAML []byte

// rules is the embedded knowledge of this package; see rules.yaml for what each part means.
type rules struct {
	SchemaVersion int          `yaml:"schema_version"`
	Loaders       []loaderRule `yaml:"loaders"`
	Driver        struct {
		Libraries       []string `yaml:"libraries"`
		Programs        []string `yaml:"programs"`
		CompatDirectory string   `yaml:"compat_directory"`
		Source          string   `yaml:"source"`
	} `yaml:"driver"`
	StubDirectory       string `yaml:"stub_directory"`
	ScrubbedEnvironment []struct {
		Name string `yaml:"name"`
		Why  string `yaml:"why"`
	} `yaml:"scrubbed_environment"`
	DriverCapabilities   []string `yaml:"driver_capabilities"`
	OptionalDependencies []struct {
		Library string `yaml:"library"`
		Why     string `yaml:"why"`
	} `yaml:"optional_dependencies"`
	OpensLater []struct {
		Caller string `yaml:"caller"`
		Opens  string `yaml:"opens"`
		Source string `yaml:"source"`
	} `yaml:"opens_later"`
	NVIDIADistributions []string `yaml:"nvidia_distributions"`
	BinaryVersions      []struct {
		Library      string `yaml:"library"`
		Distribution string `yaml:"distribution"`
	} `yaml:"binary_versions"`
	DriverPackages []string `yaml:"driver_packages"`
	Caches         []struct {
		Pattern string `yaml:"pattern"`
		What    string `yaml:"what"`
	} `yaml:"caches"`
	Limits []struct {
		Place  string `yaml:"place"`
		Layers int    `yaml:"layers"`
		Bytes  int64  `yaml:"bytes"`
		Source string `yaml:"source"`
	} `yaml:"limits"`
}

// loaderRule is what one family of distributions compiles into its loader.
type loaderRule struct {
	IDs         []string `yaml:"ids"`
	Directories []string `yaml:"directories"`
	Lib         string   `yaml:"lib"`
	Source      string   `yaml:"source"`
}

func loadRules() (rules, error) {
	var r rules
	if err := yaml.UnmarshalWithOptions(rulesYAML, &r, yaml.Strict()); err != nil {
		return rules{}, fmt.Errorf("reading the embedded rules of the static stage: %w", err)
	}
	return r, nil
}

// loader returns the row for the first known id, or the one for unknown systems.
func (r rules) loader(ids []string) loaderRule {
	for _, id := range append(slices.Clone(ids), "*") {
		for _, l := range r.Loaders {
			if slices.Contains(l.IDs, id) {
				return l
			}
		}
	}
	return loaderRule{}
}

// matchAny tells whether a name matches one of the patterns.
func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}

func (r rules) driverLibrary(name string) bool { return matchAny(r.Driver.Libraries, name) }

func (r rules) optional(name string) bool {
	for _, o := range r.OptionalDependencies {
		if matchAny([]string{o.Library}, name) {
			return true
		}
	}
	return false
}
