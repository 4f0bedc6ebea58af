// Package matrix holds a version matrix as values: the recipe as its user wrote it, the entries it names, the
// findings of the facts about them, the targets they become and the lock file that keeps these. It is pure:
// it reads bytes that callers give it and knows no network, no registry and no file system. Resolving
// versions to wheels is internal/resolve.
package matrix

import "fmt"

// The values a recipe key may have.
const (
	SupplierAndCUDA = "and-cuda"    // NVIDIA's wheels where pip's extra puts them; can be judged, not built
	FlavorRuntime   = "runtime"     // what a program needs
	FlavorDevel     = "devel"       // with compilers and headers
	FlavorJupyter   = "jupyter"     // with a notebook server and a kernel of the image's own interpreter
	KerasLegacy     = "legacy"      // Keras 2 where the release brings Keras 3
	RefuseCells     = "refuse"      // impossible: a cell that cannot work is an error
	DropCells       = "drop"        // impossible: a cell that cannot work is left out, with its reason
	Auto            = "auto"        // cuda, cudnn: the pair the release was tested with
	SupplierWheels  = "wheels"      // NVIDIA's libraries from their wheels
	SupplierApt     = "apt"         // NVIDIA's libraries from OS packages
	PythonOS        = "os"          // the interpreter comes from the OS packages of the base
	PythonBase      = "base"        // the interpreter is in the base image
	DefaultPlatform = "linux/amd64" // the only platform with GPU wheels
	DefaultLayout   = "wheels"      // name of the image layout of supplier wheels
	DefaultTag      = "{entry}"     // tag template when publish names none
)

// Recipe is a loaded recipe file.
type Recipe struct {
	File       string    // as given to Load, for errors and relative paths
	Name       string    // the recipe's own name
	Checksum   string    // "sha256:<hex>" of the normalised bytes
	Axes       []Axis    // of a recipe with a product, in the order of the keys
	Entries    []Entry   // the cells that were kept, then the items of include; one for a flat recipe
	Dropped    []Dropped // cells that were left out, with the reason
	Impossible string    // refuse | drop: what becomes of a cell that cannot work
	Excludes   []Exclude
	entryName  string // template for the names of cells
}

// Axis is one dimension of the product: a key of an entry and the values it takes.
type Axis struct {
	Key    string
	Values []string // as text
	Line   int
}

// Dropped is a cell that is not an entry.
type Dropped struct {
	Name   string            `json:"name"`
	Cell   map[string]string `json:"cell,omitempty"`
	Rule   string            `json:"rule"` // exclude, or the rule that refuses it
	Reason string            `json:"reason"`
	Source string            `json:"source,omitempty"`
	Line   int               `json:"line"`
}

// Exclude leaves out the cells whose values all match.
type Exclude struct {
	Match        map[string][]string // axis to values, versions or ranges
	Reason       string
	Line, Column int
	Used         int // cells that it left out
}

// Allow is an override: findings of a rule no longer refuse the entry. Reason is the user's own.
type Allow struct {
	Rule         string
	Reason       string
	Line, Column int
}

// Memory holds defaults of TensorFlow's GPU memory use; they become variables of the image.
type Memory struct {
	Growth    bool   // allocate as needed instead of all at once
	Allocator string // default | cuda_malloc_async
}

// Entry is one combination of the matrix as the recipe states it, with defaults filled in. An empty string
// means that the recipe does not constrain that key; such an entry can be linted but not built (Incomplete).
type Entry struct {
	Name        string
	Base        string // image reference, "oci-layout:DIR", or empty
	Platform    string
	Python      Python // Version empty: not constrained
	TensorFlow  TensorFlow
	CUDA        string // version, "auto", or empty when absent (treated as auto)
	CuDNN       string // version, "auto", or empty when absent (treated as auto)
	Supplier    string
	Layout      string // name of an image layout, or a path relative to the recipe
	Packages    map[string]string
	Environment map[string]string
	User        string
	Bytecode    bool
	Constraints bool
	Compression Compression // Encoder empty: filled by resolve
	Fleet       []FleetMember
	Staging     string // repository, empty: the loopback store
	Publish     *Publish
	Flavor      string
	Keras       string   // legacy, or empty
	OSPackages  []string // more packages of the base's own package manager, NAME or NAME=VERSION
	Labels      map[string]string
	Memory      Memory
	Thresholds  map[string]float64 // policy: limits of the judge by name
	Allow       []Allow
	Cell        map[string]string // value per axis, nil outside a product
	File        string            // recipe file
	Lines       map[string]int    // recipe line per key that the recipe states, 1-based
	Columns     map[string]int    // column per key
}

// TensorFlow is a release, or a wheel of one's own.
type TensorFlow struct {
	Version string // "2.19.1", or "2.19" for its newest patch release
	Wheel   string // path relative to the recipe; empty for a release
	SHA256  string // hex, of Wheel
}

// FleetMember is a kind of machine that must be able to run the image.
type FleetMember struct {
	GPU               string // short name, for example "H200"
	ComputeCapability string
	Class             string // datacenter | geforce | workstation | embedded
	Driver            string
	Line, Column      int
}

// Publish says where a proved image goes.
type Publish struct {
	Repository string
	Tags       []string // templates, see ExpandTag
}

// Line returns the recipe line of a key, or that of the entry's name when the recipe does not state the key.
func (e Entry) Line(key string) int {
	if l, ok := e.Lines[key]; ok {
		return l
	}
	return e.Lines["name"]
}

// Column returns the column that belongs to Line.
func (e Entry) Column(key string) int {
	if c, ok := e.Columns[key]; ok {
		return c
	}
	return e.Columns["name"]
}

// IncompleteError says that an entry leaves a key open that a build needs.
type IncompleteError struct {
	Entry string
	File  string
	Line  int
	Keys  []string
}

// Incomplete returns an IncompleteError when the entry can be linted but not built, else nil.
func (e Entry) Incomplete() error {
	var missing []string
	for _, k := range []struct{ key, value string }{
		{"base", e.Base}, {"python", e.Python.Version}, {"tensorflow", e.TensorFlow.Version + e.TensorFlow.Wheel},
	} {
		if k.value == "" {
			missing = append(missing, k.key)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &IncompleteError{Entry: e.Name, File: e.File, Line: e.Line("name"), Keys: missing}
}

// UnsupportedError says that an entry can be judged but that this version cannot build it.
type UnsupportedError struct {
	Entry string
	File  string
	Line  int
	What  string
}

// Error names entry, place and what to write instead.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s:%d: entry %q can be linted but not built: %s is not available in this version; write supplier: wheels", e.File, e.Line, e.Entry, e.What)
}

// Buildable returns an IncompleteError or UnsupportedError when the entry can be linted but not built, else nil.
func (e Entry) Buildable() error {
	if err := e.Incomplete(); err != nil {
		return err
	}
	if e.Supplier != SupplierWheels {
		return &UnsupportedError{Entry: e.Name, File: e.File, Line: e.Line("supplier"), What: "supplier " + e.Supplier}
	}
	return nil
}
