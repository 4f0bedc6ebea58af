package derive

import (
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

// dlopen names the set that the release opens: the one of its minor when the names fit, else another that fits,
// else a new one. Which of the libraries are looked for at registration is not visible in a wheel.
func (m *maker) dlopen() {
	names := m.sonames()
	if len(names) == 0 {
		m.inherit("dlopen_set", m.known.DlopenEvidence, func() { m.row.DlopenSet = m.known.DlopenID })
		return
	}
	sets := m.table.DlopenSets()
	fits := func(s facts.DlopenSet) bool {
		return !slices.ContainsFunc(s.Required, func(r string) bool { return names[short(r)] != r })
	}
	if i := slices.IndexFunc(sets, func(s facts.DlopenSet) bool { return m.have && s.ID == m.known.DlopenID && fits(s) }); i >= 0 {
		m.row.DlopenSet = sets[i].ID
		return
	}
	for i := len(sets) - 1; i >= 0; i-- {
		if fits(sets[i]) {
			m.row.DlopenSet = sets[i].ID
			m.row.Provenance["dlopen_set"] = facts.Evidence{Source: m.own.Source + "; which of the libraries are required: facts, set " + sets[i].ID, Confidence: "reported"}
			return
		}
	}
	last := sets[len(sets)-1]
	set := facts.DlopenSet{ID: "derived-" + m.o.Version, Host: last.Host, Caller: m.o.Libraries.Caller, Optional: nil,
		Evidence: facts.Evidence{Source: m.own.Source + "; which of the libraries are required: facts, set " + last.ID, Confidence: "reported"}}
	for _, r := range last.Required {
		if n := names[short(r)]; n != "" {
			set.Required = append(set.Required, n)
		}
	}
	m.set, m.row.DlopenSet = &set, set.ID
}

// sonames returns the names of NVIDIA's libraries that the wheel opens, by short name. Those written out in the
// caller or linked count; the others follow from the version suffixes in cuda_config.h, from which the loader
// makes them.
func (m *maker) sonames() map[string]string {
	out := map[string]string{}
	for lib, v := range m.o.Headers.Config.Sonames {
		out[lib] = "lib" + lib + ".so." + v
	}
	for _, n := range slices.Concat(m.o.Libraries.Named, m.o.Libraries.Needed) {
		if lib := short(n); lib != "cuda" && out[lib] == "" {
			out[lib] = n
		}
	}
	return out
}

// short is the name of a library without lib, .so and version.
func short(soname string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(soname, "lib"), ".so")
	return name
}

// packageOf is the directory below nvidia/ in which NVIDIA's wheels have a library.
func packageOf(lib string) string {
	switch lib {
	case "cudart":
		return "cuda_runtime"
	case "cublasLt":
		return "cublas"
	}
	return lib
}

func (m *maker) search() {
	l := m.o.Libraries
	paths := l.RunPath
	switch {
	case len(l.RunPath) > 0:
		m.row.Search.Kind = "runpath"
	case len(l.RPath) > 0:
		m.row.Search.Kind, paths = "rpath", l.RPath
	default:
		m.row.Search.Kind = "none"
	}
	set := m.set
	for _, s := range m.table.DlopenSets() {
		if set == nil && s.ID == m.row.DlopenSet {
			set = &s
		}
	}
	if set == nil {
		return
	}
	for _, r := range set.Required {
		pkg := packageOf(short(r))
		named := slices.ContainsFunc(paths, func(p string) bool { return strings.HasSuffix(strings.TrimRight(p, "/"), "nvidia/"+pkg+"/lib") })
		if !named && !slices.Contains(m.row.Search.Lacks, pkg) {
			m.row.Search.Lacks = append(m.row.Search.Lacks, pkg)
		}
	}
	slices.Sort(m.row.Search.Lacks)
}
