package facts

import (
	"slices"
	"strings"
)

// OS is a release of a base operating system.
type OS struct {
	ID       string   `yaml:"id"`       // ID of os-release, and the short name of its image
	Version  string   `yaml:"version"`  // VERSION_ID of os-release; empty: any
	Codename string   `yaml:"codename"` // also a tag of its image
	Libc     string   `yaml:"libc"`     // glibc | musl
	Glibc    string   `yaml:"glibc"`    // major.minor
	Pythons  []string `yaml:"pythons"`  // major.minor that its own packages provide
	Evidence `yaml:",inline"`
}

type osFile struct {
	SchemaVersion int  `yaml:"schema_version"`
	Releases      []OS `yaml:"releases"`
	Interpreter   struct {
		Packages []string `yaml:"packages"`
		Evidence `yaml:",inline"`
	} `yaml:"interpreter_packages"`
}

// OS returns a release by os-release's ID and VERSION_ID, or ErrUnknown.
func (t *Table) OS(id, versionID string) (OS, error) {
	for _, o := range t.os.Releases {
		if o.ID == id && (o.Version == "" || o.Version == versionID) {
			return o, nil
		}
	}
	return OS{}, unknown("operating system %s %s", id, versionID)
}

// InterpreterPackages returns the OS packages that bring a Python (major.minor), its venv module and the CA
// certificates.
func (t *Table) InterpreterPackages(python string) []string {
	var out []string
	for _, p := range t.os.Interpreter.Packages {
		out = append(out, strings.ReplaceAll(p, "{python}", python))
	}
	return out
}

// OSOfReference guesses the release from an image reference: "debian:12", "debian:bookworm-slim",
// "ubuntu:22.04", or a tag of another image that names one ("python:3.11-slim-bookworm", "-ubuntu22.04",
// "-alpine"). ErrUnknown when the reference does not say; the base itself is the authority.
func (t *Table) OSOfReference(ref string) (OS, error) {
	name, _, _ := strings.Cut(ref, "@")
	name = name[strings.LastIndex(name, "/")+1:]
	repo, tag, _ := strings.Cut(name, ":")
	words := strings.Split(tag, "-")
	for _, o := range t.os.Releases {
		if repo == o.ID && (o.Version == "" || matchesVersion(words[0], o)) {
			return o, nil
		}
	}
	for _, o := range t.os.Releases {
		for _, w := range words {
			if (o.Codename != "" && w == o.Codename) || w == o.ID+o.Version ||
				(o.Version == "" && strings.HasPrefix(w, o.ID)) {
				return o, nil
			}
		}
	}
	return OS{}, unknown("operating system of %s", ref)
}

// BasesWith returns short image references of the releases whose packages provide a Python, oldest first.
func (t *Table) BasesWith(python string) []string {
	var out []string
	for _, o := range t.os.Releases {
		if slices.Contains(o.Pythons, python) {
			out = append(out, o.ID+":"+o.Version)
		}
	}
	return out
}

func matchesVersion(tag string, o OS) bool {
	return tag == o.Version || (o.Codename != "" && tag == o.Codename) ||
		strings.HasPrefix(tag, o.Version+".")
}
