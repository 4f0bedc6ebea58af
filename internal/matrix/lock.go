package matrix

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// LockSchema is the version of the lock file that this build writes; it reads version 1 too.
const LockSchema = 2

const maxLockBytes = 16 << 20

// Lock is every target of a recipe with everything pinned. It holds no URL and no host.
type Lock struct {
	SchemaVersion int    `yaml:"schema_version"`
	Recipe        string `yaml:"recipe"` // Checksum of the recipe it was made from
	// Tools are the programs that made the lock, by name. Another version may resolve differently; what is locked
	// it builds the same.
	Tools   map[string]string `yaml:"tools,omitempty"`
	Targets []Target          `yaml:"targets"` // in recipe order
}

// StaleLockError says that a lock does not belong to the recipe as it is now.
type StaleLockError struct{ Reason string }

// Error gives reason and remedy.
func (e *StaleLockError) Error() string {
	return "the lock does not match the recipe: " + e.Reason + "; run imgsmith lock"
}

// LockPath returns where the lock of a recipe is kept: "x.yaml" becomes "x.lock.yaml".
func LockPath(recipe string) string {
	for _, ext := range []string{".yaml", ".yml"} {
		if rest, ok := strings.CutSuffix(recipe, ext); ok {
			return rest + ".lock" + ext
		}
	}
	return recipe + ".lock.yaml"
}

// NewLock makes the lock of a recipe from its targets, as made by tools. Wheels are sorted by name. A base that is local has no
// digest in a lock, and is pinned as local: its digest holds on one machine only.
func NewLock(r *Recipe, targets []Target, tools map[string]string) *Lock {
	l := &Lock{SchemaVersion: LockSchema, Recipe: r.Checksum, Tools: tools}
	for _, t := range targets {
		t.Wheels = slices.Clone(t.Wheels)
		slices.SortFunc(t.Wheels, func(a, b Wheel) int { return cmp.Compare(a.Name, b.Name) })
		t.Requested = slices.Sorted(slices.Values(t.Requested))
		if t.Base.Local {
			t.Base.Digest, t.Base.Config = "", ""
		}
		t.Debs = slices.Clone(t.Debs)
		slices.SortFunc(t.Debs, func(a, b Deb) int { return cmp.Compare(a.Name, b.Name) })
		t.Lines = nil
		l.Targets = append(l.Targets, t)
	}
	return l
}

// Marshal writes a lock; equal locks give equal bytes.
func (l *Lock) Marshal() ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("writing lock: %w", err)
	}
	body, err := yaml.MarshalWithOptions(l.file(), yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("writing lock: %w", err)
	}
	return append([]byte("# Made by imgsmith lock. Everything a build installs, by name, version and hash.\n"), body...), nil
}

// LoadLock reads a lock strictly: unknown keys, another schema version and incomplete rows are refused. file
// is used in errors.
func LoadLock(file string, data []byte) (*Lock, error) {
	if len(data) > maxLockBytes {
		return nil, &Problem{File: file, Message: "the lock is larger than 16 MiB", Remedy: "make it again with imgsmith lock"}
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return nil, &Problem{File: file, Message: "the lock has a NUL byte", Remedy: "make it again with imgsmith lock"}
	}
	d := &decoder{file: file, lines: strings.Split(string(data), "\n")}
	if !d.plausible(data) {
		return nil, d.err()
	}
	var f lockFile
	if err := yaml.UnmarshalWithOptions(data, &f, yaml.Strict()); err != nil {
		p := &Problem{File: file, Message: "reading lock: " + err.Error(), Remedy: "make it again with imgsmith lock"}
		var y yaml.Error
		if errors.As(err, &y) && y.GetToken() != nil && y.GetToken().Position != nil {
			pos := y.GetToken().Position
			p.Line, p.Column, p.Message = pos.Line, pos.Column, "reading lock: "+y.GetMessage()
			p.Excerpt = excerpt(d.lines, pos.Line, pos.Column)
		}
		return nil, p
	}
	l, err := f.lock()
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, &Problem{File: file, Message: err.Error(), Remedy: "make it again with imgsmith lock"}
	}
	return l, nil
}

// Matches tells whether the lock was made from the recipe as it is now. The error is a *StaleLockError.
func (l *Lock) Matches(r *Recipe) error {
	if l.Recipe != r.Checksum {
		return &StaleLockError{Reason: "the recipe was changed after the lock was made"}
	}
	for i, e := range r.Entries {
		if i >= len(l.Targets) || l.Targets[i].Entry != e.Name {
			return &StaleLockError{Reason: fmt.Sprintf("it has no target for entry %q", e.Name)}
		}
	}
	if len(l.Targets) > len(r.Entries) {
		return &StaleLockError{Reason: "it has more targets than the recipe has entries"}
	}
	return nil
}

// Target returns the target of an entry.
func (l *Lock) Target(entry string) (Target, bool) {
	for _, t := range l.Targets {
		if t.Entry == entry {
			return t, true
		}
	}
	return Target{}, false
}

func (l *Lock) check() error {
	if l.SchemaVersion < 1 || l.SchemaVersion > LockSchema {
		return fmt.Errorf("schema version %d is not 1 to %d, which this build knows", l.SchemaVersion, LockSchema)
	}
	if !digestPattern.MatchString(l.Recipe) {
		return fmt.Errorf("recipe checksum %q is not valid", l.Recipe)
	}
	seen := map[string]bool{}
	for _, t := range l.Targets {
		if seen[t.Entry] || t.Entry == "" {
			return fmt.Errorf("target %q has no name of its own", t.Entry)
		}
		seen[t.Entry] = true
		if err := t.check(); err != nil {
			return fmt.Errorf("target %q: %w", t.Entry, err)
		}
	}
	return nil
}

var (
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	wheelFile     = regexp.MustCompile(`^[A-Za-z0-9_.!+-]+\.whl$`)
	debFile       = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9_.+~%-]+\.deb$`)
	debVersion    = regexp.MustCompile(`^[A-Za-z0-9.+:~-]+$`)
)

func (t Target) checkDebs() error {
	names := map[string]bool{}
	for _, d := range t.Debs {
		if !hexPattern.MatchString(d.SHA256) || !debFile.MatchString(d.File) || d.Size <= 0 || !debVersion.MatchString(d.Version) || !osPackagePattern.MatchString(d.Name) {
			return fmt.Errorf("OS package %q is not complete", d.Name)
		}
		if names[d.Name] {
			return fmt.Errorf("OS package %q is there twice", d.Name)
		}
		names[d.Name] = true
	}
	return nil
}

func (t Target) check() error {
	if t.Base.Digest != "" && !digestPattern.MatchString(t.Base.Digest) {
		return fmt.Errorf("base digest %q is not valid", t.Base.Digest)
	}
	if len(t.Wheels) == 0 || t.TensorFlow == "" || t.Python.Version == "" || t.Epoch <= 0 {
		return errors.New("it has no wheels, tensorflow, python or source_date_epoch")
	}
	if t.Base.Config != "" && !digestPattern.MatchString(t.Base.Config) {
		return fmt.Errorf("base config %q is not valid", t.Base.Config)
	}
	if err := t.checkDebs(); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, w := range t.Wheels {
		if !hexPattern.MatchString(w.SHA256) || !wheelFile.MatchString(w.File) || w.Size <= 0 || w.Version == "" || w.Name != NormalizeName(w.Name) {
			return fmt.Errorf("wheel %q is not complete", w.Name)
		}
		if names[w.Name] {
			return fmt.Errorf("wheel %q is there twice", w.Name)
		}
		names[w.Name] = true
	}
	return nil
}
