package matrix

import (
	"fmt"
	"slices"
	"strings"
)

// lockFile is the form of a lock on disk, version 2: every file stands once, every list of files once, under the
// name of the first entry that has it. In version 1 each target had its own lists.
type lockFile struct {
	SchemaVersion int                 `yaml:"schema_version"`
	Recipe        string              `yaml:"recipe"`
	Tools         map[string]string   `yaml:"tools,omitempty"`
	Targets       []Target            `yaml:"targets"`
	WheelSets     map[string][]string `yaml:"wheel_sets,omitempty"`
	DebSets       map[string][]string `yaml:"deb_sets,omitempty"`
	Wheels        []Wheel             `yaml:"wheels,omitempty"`
	Debs          []Deb               `yaml:"debs,omitempty"`
}

// id names a file in a list: what it is, and enough of its sum to tell two apart.
func (w Wheel) id() string { return w.Name + " " + w.Version + " " + short(w.SHA256) }
func (d Deb) id() string   { return d.Name + " " + d.Version + " " + short(d.SHA256) }

// file returns the form on disk.
func (l *Lock) file() lockFile {
	f := lockFile{SchemaVersion: l.SchemaVersion, Recipe: l.Recipe, Tools: l.Tools, Targets: l.Targets}
	if l.SchemaVersion < 2 {
		return f
	}
	f.Targets = slices.Clone(l.Targets)
	wheels, debs := newFileSets[Wheel](), newFileSets[Deb]()
	for i := range f.Targets {
		t := &f.Targets[i]
		t.WheelSet, t.DebSet = wheels.name(t.Entry, t.Wheels), debs.name(t.Entry, t.Debs)
		t.Wheels, t.Debs = nil, nil
	}
	f.WheelSets, f.Wheels = wheels.sets, wheels.sorted()
	f.DebSets, f.Debs = debs.sets, debs.sorted()
	return f
}

// lock returns the lock that a file holds.
func (f lockFile) lock() (*Lock, error) {
	l := &Lock{SchemaVersion: f.SchemaVersion, Recipe: f.Recipe, Tools: f.Tools, Targets: f.Targets}
	if f.SchemaVersion < 2 {
		for _, t := range f.Targets {
			if t.WheelSet != "" || t.DebSet != "" {
				return nil, fmt.Errorf("target %q names a set, which version %d does not have", t.Entry, f.SchemaVersion)
			}
		}
		return l, nil
	}
	wheels, err := resolveSets(f.WheelSets, f.Wheels)
	if err != nil {
		return nil, err
	}
	debs, err := resolveSets(f.DebSets, f.Debs)
	if err != nil {
		return nil, err
	}
	for i := range l.Targets {
		t := &l.Targets[i]
		if len(t.Wheels) > 0 || len(t.Debs) > 0 {
			return nil, fmt.Errorf("target %q has files of its own, not a set", t.Entry)
		}
		var ok bool
		if t.Wheels, ok = wheels[t.WheelSet]; !ok {
			return nil, fmt.Errorf("target %q names the wheel set %q, which is not there", t.Entry, t.WheelSet)
		}
		if t.Debs, ok = debs[t.DebSet]; !ok && t.DebSet != "" {
			return nil, fmt.Errorf("target %q names the OS package set %q, which is not there", t.Entry, t.DebSet)
		}
		t.WheelSet, t.DebSet = "", ""
	}
	return l, nil
}

// identified is a file that a list names.
type identified interface{ id() string }

// fileSets collects files and lists of them.
type fileSets[F identified] struct {
	files  map[string]F
	sets   map[string][]string
	byList map[string]string // name of a set by its joined list
}

func newFileSets[F identified]() *fileSets[F] {
	return &fileSets[F]{files: map[string]F{}, sets: map[string][]string{}, byList: map[string]string{}}
}

// name returns the set of a list of files; entry names a new one. No files have no set.
func (s *fileSets[F]) name(entry string, files []F) string {
	if len(files) == 0 {
		return ""
	}
	var ids []string
	for _, f := range files {
		ids = append(ids, f.id())
		s.files[f.id()] = f
	}
	list := strings.Join(ids, "\n")
	if _, ok := s.byList[list]; !ok {
		s.byList[list], s.sets[entry] = entry, ids
	}
	return s.byList[list]
}

func (s *fileSets[F]) sorted() []F {
	var out []F
	for _, f := range s.files {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b F) int { return strings.Compare(a.id(), b.id()) })
	return out
}

// resolveSets gives the files of every set. Lists are shared: nobody changes them.
func resolveSets[F identified](sets map[string][]string, files []F) (map[string][]F, error) {
	byID := map[string]F{}
	for _, f := range files {
		if _, dup := byID[f.id()]; dup {
			return nil, fmt.Errorf("file %q is there twice", f.id())
		}
		byID[f.id()] = f
	}
	out := map[string][]F{}
	used := map[string]bool{}
	for name, ids := range sets {
		for _, id := range ids {
			f, ok := byID[id]
			if !ok {
				return nil, fmt.Errorf("set %q names %q, which is not there", name, id)
			}
			used[id] = true
			out[name] = append(out[name], f)
		}
	}
	if len(used) != len(byID) {
		return nil, fmt.Errorf("%d files are in no set", len(byID)-len(used))
	}
	return out, nil
}
