package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// SchemaVersion is that of the data files, embedded or overlaid.
const SchemaVersion = 1

// OverlayError says what is wrong with a file of an overlay directory.
type OverlayError struct {
	File string
	Err  error
}

// Error names the file and the fault.
func (e *OverlayError) Error() string { return fmt.Sprintf("facts overlay %s: %v", e.File, e.Err) }

// Unwrap returns the fault.
func (e *OverlayError) Unwrap() error { return e.Err }

// Remedy says what to do.
func (e *OverlayError) Remedy() string {
	return "write the file with imgsmith facts derive, or correct the row; every row needs source and confidence"
}

// Load returns the embedded table with the files of a directory laid over it, or the embedded table alone when
// dir is empty. Every *.yaml file of the directory is read, in the order of names. It has the form of an
// embedded data file: TensorFlow rows (a row replaces the one of its minor, an exact one speaks for its own
// releases), dlopen sets by id, GPUs by name, toolkits and wheel sets by CUDA release, driver branches, cuDNN
// releases, broken extras. Errors are *OverlayError.
func Load(dir string) (*Table, error) {
	t, err := Embedded()
	if err != nil || dir == "" {
		return t, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, &OverlayError{dir, err}
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".yaml") {
			continue
		}
		found = true
		file := filepath.Join(dir, e.Name())
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, &OverlayError{file, err}
		}
		if err := t.overlay(raw); err != nil {
			return nil, &OverlayError{file, err}
		}
	}
	if !found {
		return nil, &OverlayError{dir, fmt.Errorf("no *.yaml file: %w", fs.ErrNotExist)}
	}
	return t, nil
}

// layer is the form of an overlay file.
type layer struct {
	SchemaVersion int             `yaml:"schema_version"`
	Derived       any             `yaml:"derived"`
	TensorFlow    []tensorflowRow `yaml:"tensorflow"`
	DlopenSets    []DlopenSet     `yaml:"dlopen_sets"`
	GPUs          []GPU           `yaml:"gpus"`
	Architectures []Architecture  `yaml:"architectures"`
	Toolkits      []Toolkit       `yaml:"toolkits"`
	WheelSets     []wheelSet      `yaml:"wheel_sets"`
	CuDNNWheels   []cudnnWheel    `yaml:"cudnn_wheels"`
	CuDNNReleases []CuDNNRelease  `yaml:"cudnn_releases"`
	Branches      []DriverBranch  `yaml:"branches"`
}

// maxOverlay bounds one file; a derived row is some kilobytes.
const maxOverlay = 4 << 20

func (t *Table) overlay(raw []byte) error {
	if len(raw) > maxOverlay {
		return fmt.Errorf("%d bytes; an overlay file is far smaller", len(raw))
	}
	var l layer
	if err := yaml.UnmarshalWithOptions(raw, &l, yaml.Strict()); err != nil {
		return fmt.Errorf("parsing: %w", err)
	}
	if l.SchemaVersion != SchemaVersion {
		return fmt.Errorf("schema_version %d; this program reads %d", l.SchemaVersion, SchemaVersion)
	}
	merge(&t.tensorflow.DlopenSets, l.DlopenSets, func(a, b DlopenSet) bool { return a.ID == b.ID })
	for _, r := range l.TensorFlow {
		if err := t.complete(r); err != nil {
			return err
		}
	}
	merge(&t.tensorflow.TensorFlow, l.TensorFlow, func(a, b tensorflowRow) bool {
		return a.Exact == b.Exact && a.Minor == b.Minor && (!a.Exact || slices.Equal(a.Releases, b.Releases))
	})
	slices.SortStableFunc(t.tensorflow.TensorFlow, func(a, b tensorflowRow) int { return Compare(a.Minor, b.Minor) })
	merge(&t.gpu.GPUs, l.GPUs, func(a, b GPU) bool { return shortGPU(a.Name) == shortGPU(b.Name) })
	merge(&t.gpu.Architectures, l.Architectures, func(a, b Architecture) bool { return a.Min == b.Min })
	merge(&t.cuda.Toolkits, l.Toolkits, func(a, b Toolkit) bool { return a.CUDA == b.CUDA })
	merge(&t.cuda.WheelSets, l.WheelSets, func(a, b wheelSet) bool { return a.CUDA == b.CUDA })
	merge(&t.cuda.CuDNNWheels, l.CuDNNWheels, func(a, b cudnnWheel) bool { return a.CUDA == b.CUDA && a.CuDNN == b.CuDNN })
	merge(&t.cuda.CuDNNReleases, l.CuDNNReleases, func(a, b CuDNNRelease) bool { return a.Version == b.Version })
	merge(&t.driver.Branches, l.Branches, func(a, b DriverBranch) bool { return a.Branch == b.Branch })
	slices.SortStableFunc(t.driver.Branches, func(a, b DriverBranch) int { return a.Branch - b.Branch })
	return t.evidenced(l)
}

// merge replaces the rows that are the same and appends the others.
func merge[T any](into *[]T, rows []T, same func(a, b T) bool) {
	for _, r := range rows {
		if i := slices.IndexFunc(*into, func(have T) bool { return same(have, r) }); i >= 0 {
			(*into)[i] = r
			continue
		}
		*into = append(*into, r)
	}
}

// complete refuses a TensorFlow row with which questions could not be answered.
func (t *Table) complete(r tensorflowRow) error {
	fault := func(format string, args ...any) error {
		return fmt.Errorf("tensorflow row %q: %s", r.Minor, fmt.Sprintf(format, args...))
	}
	switch {
	case r.Minor == "" || Minor(r.Minor) != r.Minor || !Dotted(r.Minor):
		return fault("minor is no major.minor")
	case len(r.Releases) == 0:
		return fault("no releases")
	case r.Python.Min == "" || r.Python.Max == "":
		return fault("no python range")
	case r.CUDA.Tested == "" || r.CUDA.Major != Major(r.CUDA.Tested):
		return fault("cuda tested %q, major %d", r.CUDA.Tested, r.CUDA.Major)
	case r.CuDNN.Tested == "" || r.CuDNN.Major != Major(r.CuDNN.Tested):
		return fault("cudnn tested %q, major %d", r.CuDNN.Tested, r.CuDNN.Major)
	case len(r.GPUCode.SASS)+len(r.GPUCode.PTX) == 0 || r.GPUCode.Min == "":
		return fault("no gpu_code")
	case r.MinGlibc == "":
		return fault("no min_glibc")
	case !slices.ContainsFunc(t.tensorflow.DlopenSets, func(d DlopenSet) bool { return d.ID == r.DlopenSet }):
		return fault("dlopen_set %q is not in the facts", r.DlopenSet)
	}
	for _, v := range r.Releases {
		if Minor(v) != r.Minor && !strings.HasPrefix(v, r.Minor+".") {
			return fault("release %q is not of it", v)
		}
	}
	return nil
}

// evidenced demands source and confidence of every row of an overlay.
func (t *Table) evidenced(l layer) error {
	var faults []error
	check := func(what string, e Evidence) {
		if e.Source == "" || !slices.Contains([]string{"verified", "reported", "unknown"}, e.Confidence) {
			faults = append(faults, fmt.Errorf("%s: source %q, confidence %q", what, e.Source, e.Confidence))
		}
	}
	for _, r := range l.TensorFlow {
		check("tensorflow "+r.Minor, r.Evidence)
	}
	for _, r := range l.DlopenSets {
		check("dlopen set "+r.ID, r.Evidence)
	}
	for _, r := range l.GPUs {
		check("gpu "+r.Name, r.Evidence)
	}
	for _, r := range l.Architectures {
		check("architecture "+r.Name, r.Evidence)
	}
	for _, r := range l.Toolkits {
		check("toolkit "+r.CUDA, r.Evidence)
	}
	for _, r := range l.WheelSets {
		check("wheel set "+r.CUDA, r.Evidence)
	}
	for _, r := range l.CuDNNWheels {
		check("cudnn wheel "+r.Version, r.Evidence)
	}
	for _, r := range l.CuDNNReleases {
		check("cudnn "+r.Version, r.Evidence)
	}
	for _, r := range l.Branches {
		check(fmt.Sprintf("driver branch %d", r.Branch), r.Evidence)
	}
	return errors.Join(faults...)
}
