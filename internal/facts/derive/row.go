package derive

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

// Document is an overlay file for --facts DIR: what was seen, and the row that follows from it.
type Document struct {
	SchemaVersion int               `yaml:"schema_version" json:"schema_version"`
	Derived       []*Observed       `yaml:"derived" json:"derived"`
	TensorFlow    []Row             `yaml:"tensorflow" json:"tensorflow"`
	DlopenSets    []facts.DlopenSet `yaml:"dlopen_sets,omitempty" json:"dlopen_sets,omitempty"`
}

// Row is a row of the facts about TensorFlow, in the form of the embedded data.
type Row struct {
	Minor          string   `yaml:"minor" json:"minor"`
	Releases       []string `yaml:"releases,flow" json:"releases"`
	Exact          bool     `yaml:"exact,omitempty" json:"exact,omitempty"`
	Python         Range    `yaml:"python,flow" json:"python"`
	CUDA           CUDA     `yaml:"cuda,flow" json:"cuda"`
	CuDNN          CuDNN    `yaml:"cudnn,flow" json:"cudnn"`
	GPUCode        Code     `yaml:"gpu_code" json:"gpu_code"`
	MinGlibc       string   `yaml:"min_glibc" json:"min_glibc"`
	WheelTag       string   `yaml:"wheel_tag,omitempty" json:"wheel_tag,omitempty"`
	NumPy          string   `yaml:"numpy,omitempty" json:"numpy,omitempty"`
	Protobuf       string   `yaml:"protobuf,omitempty" json:"protobuf,omitempty"`
	Keras          string   `yaml:"keras,omitempty" json:"keras,omitempty"`
	NCCL           string   `yaml:"nccl_header,omitempty" json:"nccl_header,omitempty"`
	Search         Search   `yaml:"search,flow" json:"search"`
	DlopenSet      string   `yaml:"dlopen_set" json:"dlopen_set"`
	Extra          *Extra   `yaml:"extra,omitempty" json:"extra,omitempty"`
	facts.Evidence `yaml:",inline"`
	Provenance     map[string]facts.Evidence `yaml:"provenance,omitempty" json:"provenance,omitempty"`
}

// Range is a range of Python versions, both included.
type Range struct {
	Min string `yaml:"min" json:"min"`
	Max string `yaml:"max" json:"max"`
}

// CUDA is the release that a wheel was built with.
type CUDA struct {
	Tested string `yaml:"tested" json:"tested"`
	Major  int    `yaml:"major" json:"major"`
	Only   bool   `yaml:"only,omitempty" json:"only,omitempty"`
}

// CuDNN is the release that a wheel was tested and compiled with.
type CuDNN struct {
	Tested   string `yaml:"tested" json:"tested"`
	Major    int    `yaml:"major" json:"major"`
	Compiled string `yaml:"compiled,omitempty" json:"compiled,omitempty"`
}

// Code is the GPU code of a wheel.
type Code struct {
	SASS    []string  `yaml:"sass,flow" json:"sass"`
	PTX     []string  `yaml:"ptx,flow" json:"ptx"`
	Min     string    `yaml:"min_compute_capability" json:"min_compute_capability"`
	Modules []Modules `yaml:"modules,omitempty" json:"modules,omitempty"`
}

// Search is how the library that opens CUDA finds pip-installed libraries.
type Search struct {
	Kind  string   `yaml:"kind" json:"kind"`
	Lacks []string `yaml:"lacks,flow,omitempty" json:"lacks,omitempty"`
}

// Extra is what the and-cuda extra asks for: exact versions, or the floors of ranges.
type Extra struct {
	Style    string            `yaml:"style" json:"style"`
	Suffix   string            `yaml:"suffix" json:"suffix"`
	Packages map[string]string `yaml:"packages" json:"packages"`
}

// IncompleteError says that neither the wheel nor the facts of its minor tell something that a row must have.
type IncompleteError struct {
	File   string
	Fields []string
}

// Error names what is missing.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%s does not show %s, and the facts have no row of that minor to take it from", e.File, strings.Join(e.Fields, ", "))
}

// Remedy says what to do.
func (e *IncompleteError) Remedy() string {
	return "write the row by hand from the build's own settings (docs/facts.md), with their source"
}

// NoGPUError says that a wheel was built without CUDA.
type NoGPUError struct{ File string }

// Error says so.
func (e *NoGPUError) Error() string {
	return e.File + " was built without CUDA: its build_info says so, and no library in it holds GPU code"
}

// Make turns what a wheel shows into an overlay. What the wheel cannot show is taken from the row of the same
// minor, with that row's source. The row is exact when the table knows the minor already.
func Make(o *Observed, table *facts.Table) (*Document, error) {
	if len(o.Libraries.GPUModules) == 0 && !o.BuildInfo.IsCUDA {
		return nil, &NoGPUError{o.File}
	}
	m := maker{o: o, table: table, own: facts.Evidence{Source: fmt.Sprintf("derived from wheel %s, sha256 %s", o.File, o.SHA256), Confidence: "verified"}}
	known, err := table.TensorFlow(facts.Minor(o.Version))
	m.known, m.have = known, err == nil
	m.row = Row{Minor: facts.Minor(o.Version), Releases: []string{o.Version}, Exact: m.have, Evidence: m.own, Provenance: map[string]facts.Evidence{}}
	m.python()
	m.cuda()
	m.cudnn()
	m.code()
	m.platform()
	m.requirements()
	m.dlopen()
	m.search()
	if len(m.missing) > 0 {
		return nil, &IncompleteError{o.File, m.missing}
	}
	d := &Document{SchemaVersion: facts.SchemaVersion, Derived: []*Observed{o}, TensorFlow: []Row{m.row}}
	if m.set != nil {
		d.DlopenSets = []facts.DlopenSet{*m.set}
	}
	return d, nil
}

type maker struct {
	o       *Observed
	table   *facts.Table
	known   facts.TensorFlow
	have    bool
	own     facts.Evidence
	row     Row
	set     *facts.DlopenSet
	missing []string
}

// inherit takes a field from the row of the same minor, or notes that it is missing.
func (m *maker) inherit(field string, e facts.Evidence, take func()) {
	if !m.have {
		m.missing = append(m.missing, field)
		return
	}
	take()
	e.Source = fmt.Sprintf("facts of TensorFlow %s: %s", m.known.Minor, e.Source)
	m.row.Provenance[field] = e
}

// python: one wheel is for one interpreter. Of a release that the table does not know yet there are others, and
// the classifiers name them.
func (m *maker) python() {
	var tag string
	for _, t := range m.o.Tags {
		if v, ok := strings.CutPrefix(strings.SplitN(t, "-", 2)[0], "cp3"); ok {
			tag = "3." + v
		}
	}
	versions := slices.Clone(m.o.Classified)
	slices.SortFunc(versions, facts.Compare)
	switch {
	case m.have && tag != "", len(versions) == 0 && tag != "":
		m.row.Python = Range{tag, tag}
	case len(versions) > 0:
		m.row.Python = Range{versions[0], versions[len(versions)-1]}
	default:
		m.inherit("python", m.known.Evidence, func() { m.row.Python = Range{m.known.PythonMin, m.known.PythonMax} })
	}
}

func (m *maker) cuda() {
	for _, v := range []string{m.o.Headers.Config.CUDA, m.o.BuildInfo.CUDA, m.o.Headers.CUDA} {
		if facts.Dotted(v) && strings.Contains(v, ".") {
			m.row.CUDA = CUDA{Tested: facts.Minor(v), Major: facts.Major(v)}
			return
		}
	}
	m.inherit("cuda", m.known.Evidence, func() {
		m.row.CUDA = CUDA{m.known.CUDATested, m.known.CUDAMajor, m.known.CUDAOnly}
	})
}

// cudnn: the header is the compiled version. Without it only the major is in the wheel.
func (m *maker) cudnn() {
	if v := m.o.Headers.CUDNN; v != "" {
		m.row.CuDNN = CuDNN{facts.Minor(v), facts.Major(v), v}
		return
	}
	major := facts.Major(m.o.Headers.Config.Sonames["cudnn"])
	if major == 0 {
		major = facts.Major(m.o.BuildInfo.CuDNN)
	}
	if m.have && (major == 0 || major == m.known.CuDNNMajor) {
		m.inherit("cudnn", m.known.Evidence, func() { m.row.CuDNN = CuDNN{m.known.CuDNNTested, m.known.CuDNNMajor, m.known.CuDNNCompiled} })
		m.row.Provenance["cudnn_compiled"] = m.known.CuDNNEvidence
		return
	}
	m.missing = append(m.missing, "the cuDNN that it was compiled with")
}

// code takes the names of the code from the modules and compares nothing: build_info says what was asked of the
// compiler, the modules what came out.
func (m *maker) code() {
	c := Code{Modules: m.o.Libraries.GPUModules, SASS: []string{}, PTX: []string{}}
	for _, g := range c.Modules {
		c.SASS = append(c.SASS, g.SASS...)
		for _, p := range g.PTX {
			if facts.Dotted(p) { // PTX for one architecture only helps no other
				c.PTX = append(c.PTX, p)
			}
		}
	}
	for _, l := range []*[]string{&c.SASS, &c.PTX} {
		slices.SortFunc(*l, facts.Compare)
		*l = slices.Compact(*l)
	}
	asked := append(slices.Clone(m.o.Headers.Capabilities), capabilities(m.o.BuildInfo.Capabilities)...)
	if len(asked) == 0 {
		asked = slices.Concat(c.SASS, c.PTX)
	}
	if len(c.SASS)+len(c.PTX) == 0 || len(asked) == 0 {
		m.inherit("gpu_code", m.known.GPUCodeEvidence, func() {
			m.row.GPUCode = Code{SASS: m.known.SASS, PTX: m.known.PTX, Min: m.known.MinComputeCapability}
		})
		return
	}
	c.Min = slices.MinFunc(asked, facts.Compare)
	m.row.GPUCode = c
}

// capabilities writes sm_70 and compute_90 as major.minor.
func capabilities(words []string) []string {
	var out []string
	for _, w := range words {
		if f := architecture.FindStringSubmatch(w); f != nil && len(f[1]) >= 2 {
			out = append(out, f[1][:len(f[1])-1]+"."+f[1][len(f[1])-1:])
		}
	}
	return out
}

// platform: the tag is a promise, the symbol versions are what the loader checks. The higher one counts.
func (m *maker) platform() {
	for _, t := range m.o.Tags {
		plat := t[strings.LastIndex(t, "-")+1:]
		if v, tag := manylinux(plat); v != "" && facts.Compare(v, m.row.MinGlibc) > 0 {
			m.row.MinGlibc, m.row.WheelTag = v, tag
		}
	}
	if v := m.o.Libraries.Glibc; facts.Compare(v, m.row.MinGlibc) > 0 {
		m.row.MinGlibc = v
	}
	if m.row.MinGlibc == "" {
		m.inherit("min_glibc", m.known.Evidence, func() { m.row.MinGlibc = m.known.MinGlibc })
	}
}

// manylinux returns glibc version and tag of a platform tag, without the architecture.
func manylinux(platform string) (glibc, tag string) {
	for legacy, v := range map[string]string{"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"} {
		if strings.HasPrefix(platform, legacy+"_") {
			return v, legacy
		}
	}
	rest, ok := strings.CutPrefix(platform, "manylinux_")
	p := strings.SplitN(rest, "_", 3)
	if !ok || len(p) < 3 || !facts.Dotted(p[0]+"."+p[1]) {
		return "", ""
	}
	return p[0] + "." + p[1], "manylinux_" + p[0] + "_" + p[1]
}

func (m *maker) requirements() {
	env := Environment{Python: m.row.Python.Min, Extra: ""}
	m.row.NCCL = m.o.Headers.NCCL
	for _, line := range m.o.Requires {
		r := ParseRequirement(line)
		if !r.Holds(env) {
			continue
		}
		switch r.Name {
		case "numpy":
			m.row.NumPy = r.Spec
		case "protobuf":
			m.row.Protobuf = r.Spec
		case "keras", "keras-nightly":
			m.row.Keras = r.Spec
		}
	}
	env.Extra = "and-cuda"
	e := Extra{Style: "exact", Packages: map[string]string{}}
	for _, line := range m.o.Requires {
		r := ParseRequirement(line)
		if !strings.Contains(r.Marker, "extra") || !r.Holds(env) || !strings.HasPrefix(r.Name, "nvidia-") {
			continue
		}
		floor, exact := r.Floor()
		if !exact {
			e.Style = "range"
		}
		e.Packages[r.Name] = floor
		if i := strings.LastIndex(r.Name, "-cu"); i >= 0 {
			e.Suffix = r.Name[i+1:]
		}
	}
	if len(e.Packages) > 0 {
		m.row.Extra = &e
	}
	if m.have && m.known.Minor == m.row.Minor { // a cap that the metadata forgot still holds
		m.keepCaps("numpy", &m.row.NumPy, m.known.NumPy)
		m.keepCaps("protobuf", &m.row.Protobuf, m.known.Protobuf)
	}
}

// keepCaps adds the clauses of the known range that the metadata lacks, when they only narrow it.
func (m *maker) keepCaps(name string, have *string, known string) {
	if *have == "" || known == "" {
		return
	}
	extra := Missing(*have, known)
	extra = slices.DeleteFunc(extra, func(c string) bool { return !strings.HasPrefix(c, "<") || hasCap(*have) })
	if len(extra) == 0 {
		return
	}
	*have += "," + strings.Join(extra, ",")
	m.row.Provenance[name] = facts.Evidence{Source: m.own.Source + "; cap: facts of TensorFlow " + m.known.Minor + ": " + m.known.Source, Confidence: m.known.Confidence}
}

func hasCap(spec string) bool {
	return slices.ContainsFunc(strings.Split(spec, ","), func(c string) bool {
		return strings.HasPrefix(c, "<") || strings.HasPrefix(c, "==") || strings.HasPrefix(c, "~=")
	})
}

// Names returns the distributions of the extra, sorted.
func (e *Extra) Names() []string { return slices.Sorted(maps.Keys(e.Packages)) }
