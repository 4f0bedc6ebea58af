package facts

import (
	"maps"
	"slices"
	"strings"
)

// TensorFlow is what is known about one release of the TensorFlow wheel for linux/amd64.
type TensorFlow struct {
	Release  string // as asked for
	Minor    string // major.minor, the row that answered
	Latest   string // newest patch release of that minor in the table
	Inferred bool   // Release is not in the table: the facts are those of its minor

	PythonMin, PythonMax string // major.minor, both included

	CUDATested           string // major.minor
	CUDAMajor            int
	CUDAOnly             bool   // no other minor of the major works
	CuDNNTested          string // major.minor
	CuDNNMajor           int
	CuDNNCompiled        string // version the wheel was compiled against, empty when not known
	SASS, PTX            []string
	MinComputeCapability string
	Modules              []Modules         // how the device code is spread; empty: not read from the wheel
	MinGlibc             string            // of the wheel itself; its dependencies may need more
	WheelTag             string            // platform tag without the architecture: "manylinux_2_17"
	NumPy, Protobuf      string            // PEP 440 ranges that work
	Keras                string            // PEP 440 range of the keras package that the wheel asks for
	NCCL                 string            // version of the header that the release was compiled with; empty: not known
	Search               Search            // how the wheel finds pip-installed CUDA libraries
	Limits               map[string]string // further packages that must be held back: PEP 440 ranges by name

	DlopenID        string    // of the set below
	DlopenCaller    string    // soname of the library that calls dlopen: its RUNPATH counts
	DlopenSet       []string  // sonames that must all load for a GPU to be registered, without HostLibraries
	HostLibraries   []string  // sonames that come from the host's driver and never from the image
	OptionalSet     []Library // opened later, for one purpose
	TransitiveSet   []string  // needed at load time by members of DlopenSet
	XLA             XLA
	Extra           Extra // what the and-cuda extra asks for; zero before the extra existed
	Evidence              // of every field that Provenance does not name
	DlopenEvidence  Evidence
	GPUCodeEvidence Evidence
	CuDNNEvidence   Evidence // of CuDNNCompiled
}

// Modules is a number of device code modules that hold the same set of code.
type Modules struct {
	SASS   []string `yaml:"sass" json:"sass"`
	PTX    []string `yaml:"ptx" json:"ptx"`
	PTXISA string   `yaml:"ptx_isa" json:"ptx_isa,omitempty"` // version of the PTX language: needs a driver that knows it
	Count  int      `yaml:"count" json:"count"`
}

// Search is how the library that opens CUDA looks into the directories of NVIDIA's wheels.
type Search struct {
	Kind     string   `yaml:"kind"`  // rpath | runpath | none; LD_LIBRARY_PATH wins over runpath only
	Lacks    []string `yaml:"lacks"` // packages of the dlopen set whose directory it does not name
	Evidence `yaml:"-"`
}

// Library is a soname with the purpose it is opened for.
type Library struct {
	Soname  string `yaml:"soname" json:"soname"`
	Purpose string `yaml:"purpose" json:"purpose"`
}

// XLA says which files the compiler needs in the image and where this release looks for them, in order.
type XLA struct {
	Files    []string // relative to a search directory, all needed
	Search   []string // absolute, "wheel:" + path below site-packages, or "env:" + variable
	Override string   // prefix of the setting that replaces the search
	Evidence
}

// Extra is the and-cuda extra of a release.
type Extra struct {
	Style    string            `yaml:"style"`  // exact | range; empty when the release has no such extra
	Suffix   string            `yaml:"suffix"` // cu11 | cu12
	Packages map[string]string `yaml:"packages"`
}

// DlopenSet is a set of libraries that releases open together.
type DlopenSet struct {
	ID         string    `yaml:"id"`
	Required   []string  `yaml:"required,flow"`
	Host       []string  `yaml:"host,flow"`
	Caller     string    `yaml:"caller"`
	Optional   []Library `yaml:"optional,omitempty"`
	Transitive []string  `yaml:"transitive,flow,omitempty"`
	Evidence   `yaml:",inline"`
}

// BrokenExtra is a reason why the extra of a release cannot be resolved for a Python version.
type BrokenExtra struct {
	Reason  string
	Nearest string
	Evidence
}

type tensorflowFile struct {
	SchemaVersion int             `yaml:"schema_version"`
	Derived       any             `yaml:"derived"` // what facts derive saw: for the reader, not for the table
	TensorFlow    []tensorflowRow `yaml:"tensorflow"`
	Older         []struct {
		Below    string `yaml:"below"`
		Reason   string `yaml:"reason"`
		Evidence `yaml:",inline"`
	} `yaml:"older"`
	DlopenSets []DlopenSet `yaml:"dlopen_sets"`
	XLA        struct {
		Files    []string `yaml:"files"`
		Override string   `yaml:"override"`
		Search   []struct {
			From string `yaml:"from"`
			Dir  string `yaml:"dir"`
		} `yaml:"search"`
		Evidence `yaml:",inline"`
	} `yaml:"xla"`
	BrokenExtras []struct {
		Releases []string `yaml:"releases"`
		Python   []string `yaml:"python"` // empty: every version
		Reason   string   `yaml:"reason"`
		Nearest  string   `yaml:"nearest"`
		Evidence `yaml:",inline"`
	} `yaml:"broken_extras"`
}

type tensorflowRow struct {
	Exact    bool     `yaml:"exact"` // speaks for its releases only, not for other patches of the minor
	Minor    string   `yaml:"minor"`
	Releases []string `yaml:"releases"`
	Python   struct {
		Min string `yaml:"min"`
		Max string `yaml:"max"`
	} `yaml:"python"`
	CUDA struct {
		Tested string `yaml:"tested"`
		Major  int    `yaml:"major"`
		Only   bool   `yaml:"only"`
	} `yaml:"cuda"`
	CuDNN struct {
		Tested   string `yaml:"tested"`
		Major    int    `yaml:"major"`
		Compiled string `yaml:"compiled"`
	} `yaml:"cudnn"`
	GPUCode struct {
		SASS    []string  `yaml:"sass"`
		PTX     []string  `yaml:"ptx"`
		Min     string    `yaml:"min_compute_capability"`
		Modules []Modules `yaml:"modules"`
	} `yaml:"gpu_code"`
	MinGlibc   string              `yaml:"min_glibc"`
	WheelTag   string              `yaml:"wheel_tag"`
	Keras      string              `yaml:"keras"`
	NCCL       string              `yaml:"nccl_header"`
	Search     Search              `yaml:"search"`
	Limits     map[string]string   `yaml:"limits"`
	Patches    []patchRow          `yaml:"patches"`
	NumPy      string              `yaml:"numpy"`
	Protobuf   string              `yaml:"protobuf"`
	DlopenSet  string              `yaml:"dlopen_set"`
	Extra      Extra               `yaml:"extra"`
	Provenance map[string]Evidence `yaml:"provenance"`
	Evidence   `yaml:",inline"`
}

// patchRow names what a patch release has otherwise than its minor.
type patchRow struct {
	Release  string  `yaml:"release"`
	NumPy    string  `yaml:"numpy"`
	Search   *Search `yaml:"search"`
	Evidence `yaml:",inline"`
}

// TensorFlow returns the facts of a release, "2.19.1" or the minor "2.19". A patch release that is not in the
// table inherits its minor and is marked Inferred; ErrUnknown when the minor is not in the table.
func (t *Table) TensorFlow(version string) (TensorFlow, error) {
	minor := Minor(version)
	for _, r := range t.tensorflow.TensorFlow {
		if r.Exact && slices.Contains(r.Releases, version) {
			return t.release(version, r), nil
		}
	}
	for _, r := range t.tensorflow.TensorFlow {
		if !r.Exact && r.Minor == minor && strings.HasPrefix(version, minor) {
			return t.release(version, r), nil
		}
	}
	return TensorFlow{}, unknown("TensorFlow %s", version)
}

// DlopenSets returns the sets in the table.
func (t *Table) DlopenSets() []DlopenSet {
	out := slices.Clone(t.tensorflow.DlopenSets)
	for i, d := range out {
		out[i].Required, out[i].Host, out[i].Transitive = slices.Clone(d.Required), slices.Clone(d.Host), slices.Clone(d.Transitive)
		out[i].Optional = slices.Clone(d.Optional)
	}
	return out
}

// DlopenSetOf returns the id of the set that a release opens, or ErrUnknown.
func (t *Table) DlopenSetOf(version string) (string, error) {
	tf, err := t.TensorFlow(version)
	return tf.DlopenID, err
}

// Releases returns every release in the table, oldest first.
func (t *Table) Releases() []string {
	var out []string
	for _, r := range t.tensorflow.TensorFlow {
		out = append(out, r.Releases...)
	}
	return out
}

// TooOld returns the known reason why a release before the table cannot work.
func (t *Table) TooOld(version string) (string, Evidence, bool) {
	for _, o := range t.tensorflow.Older {
		if Compare(version, o.Below) < 0 {
			return o.Reason, o.Evidence, true
		}
	}
	return "", Evidence{}, false
}

// BrokenExtra returns the reason why the and-cuda extra of a release cannot be resolved, if there is one.
func (t *Table) BrokenExtra(version, python string) (BrokenExtra, bool) {
	for _, b := range t.tensorflow.BrokenExtras {
		if slices.Contains(b.Releases, version) && (len(b.Python) == 0 || slices.Contains(b.Python, python)) {
			return BrokenExtra{Reason: b.Reason, Nearest: b.Nearest, Evidence: b.Evidence}, true
		}
	}
	return BrokenExtra{}, false
}

// ReleasesFor returns the minors whose Python range holds the given version, oldest first.
func (t *Table) ReleasesFor(python string) []string {
	var out []string
	for _, r := range t.tensorflow.TensorFlow {
		if !r.Exact && Compare(python, r.Python.Min) >= 0 && Compare(python, r.Python.Max) <= 0 {
			out = append(out, r.Minor)
		}
	}
	return out
}

func (t *Table) release(version string, r tensorflowRow) TensorFlow {
	out := TensorFlow{
		Release: version, Minor: r.Minor, Latest: r.Releases[len(r.Releases)-1],
		Inferred:  version != r.Minor && !slices.Contains(r.Releases, version),
		PythonMin: r.Python.Min, PythonMax: r.Python.Max,
		CUDATested: r.CUDA.Tested, CUDAMajor: r.CUDA.Major, CUDAOnly: r.CUDA.Only,
		CuDNNTested: r.CuDNN.Tested, CuDNNMajor: r.CuDNN.Major, CuDNNCompiled: r.CuDNN.Compiled,
		SASS: slices.Clone(r.GPUCode.SASS), PTX: slices.Clone(r.GPUCode.PTX), MinComputeCapability: r.GPUCode.Min,
		MinGlibc: r.MinGlibc, WheelTag: r.WheelTag, NumPy: r.NumPy, Protobuf: r.Protobuf, Keras: r.Keras, NCCL: r.NCCL,
		Modules: cloneModules(r.GPUCode.Modules), Search: r.Search.clone(r.evidence("search")), Limits: maps.Clone(r.Limits), DlopenID: r.DlopenSet,
		Extra: r.Extra.clone(), Evidence: r.Evidence,
		GPUCodeEvidence: r.evidence("gpu_code"), CuDNNEvidence: r.evidence("cudnn_compiled"),
		DlopenEvidence: r.evidence("dlopen_set"),
	}
	for _, d := range t.tensorflow.DlopenSets {
		if d.ID == r.DlopenSet {
			out.DlopenCaller = d.Caller
			out.DlopenSet, out.HostLibraries = slices.Clone(d.Required), slices.Clone(d.Host)
			out.OptionalSet, out.TransitiveSet = slices.Clone(d.Optional), slices.Clone(d.Transitive)
		}
	}
	for _, p := range r.Patches {
		if p.Release != version {
			continue
		}
		if p.NumPy != "" {
			out.NumPy = p.NumPy
		}
		if p.Search != nil {
			out.Search = p.Search.clone(p.Evidence)
		}
	}
	x := t.tensorflow.XLA
	out.XLA = XLA{Files: slices.Clone(x.Files), Override: x.Override, Evidence: x.Evidence}
	for _, s := range x.Search {
		if Compare(r.Minor, s.From) >= 0 {
			out.XLA.Search = append(out.XLA.Search, s.Dir)
		}
	}
	return out
}

func (r tensorflowRow) evidence(field string) Evidence {
	if e, ok := r.Provenance[field]; ok {
		return e
	}
	return r.Evidence
}

func (s Search) clone(e Evidence) Search { return Search{s.Kind, slices.Clone(s.Lacks), e} }

func cloneModules(in []Modules) []Modules {
	out := slices.Clone(in)
	for i, m := range out {
		out[i].SASS, out[i].PTX = slices.Clone(m.SASS), slices.Clone(m.PTX)
	}
	return out
}

func (e Extra) clone() Extra {
	pkgs := make(map[string]string, len(e.Packages))
	for k, v := range e.Packages {
		pkgs[k] = v
	}
	return Extra{Style: e.Style, Suffix: e.Suffix, Packages: pkgs}
}
