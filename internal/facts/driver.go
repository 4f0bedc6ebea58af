package facts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DriverBranch is a branch of Linux drivers.
type DriverBranch struct {
	Branch     int    `yaml:"branch"`      // 535 of 535.104.05
	NativeCUDA string `yaml:"native_cuda"` // newest CUDA release it supports natively; empty: not sourced
	Evidence   `yaml:",inline"`
}

// Ceiling is the last driver branch that knows a GPU.
type Ceiling struct {
	Branch       int
	Architecture string
	Evidence
}

// FirstDriver is the first driver that knows a GPU.
type FirstDriver struct {
	Driver string // version, or a branch such as "525"
	Board  bool   // sourced for the board; else the driver that came with the first toolkit for its architecture
	Evidence
}

// Verdict is an answer that may be missing: a fact that nobody wrote down is neither yes nor no.
type Verdict string

// The verdicts. Unknown is never a reason to refuse.
const (
	Yes     Verdict = "yes"
	No      Verdict = "no"
	Unknown Verdict = "unknown"
)

// ForwardCompat says whether a CUDA release runs on an older driver by means of its compatibility package.
type ForwardCompat struct {
	Verdict Verdict
	Package string // the OS package that brings the newer libcuda
	Reason  string
	Evidence
}

type driverFile struct {
	SchemaVersion  int            `yaml:"schema_version"`
	Branches       []DriverBranch `yaml:"branches"`
	NewerRunsOlder Evidence       `yaml:"newer_runs_older"`
	PTX            Reason         `yaml:"ptx"`
	ForwardCompat  forwardCompat  `yaml:"forward_compatibility"`
}

// Reason is a rule in words with its evidence.
type Reason struct {
	Reason   string `yaml:"reason"`
	Evidence `yaml:",inline"`
}

type forwardCompat struct {
	Package  string   `yaml:"package"`
	Allowed  []string `yaml:"allowed"` // classes
	Refused  []string `yaml:"refused"` // classes
	Reason   string   `yaml:"reason"`
	Evidence `yaml:",inline"`
	Bases    []struct {
		CUDA    []string `yaml:"cuda"`
		Allowed []struct {
			Branch int    `yaml:"branch"`
			Driver string `yaml:"driver"`
		} `yaml:"allowed"`
		Refused  []int `yaml:"refused"`
		Evidence `yaml:",inline"`
	} `yaml:"bases"`
}

// DriverBranch returns the branch of a driver version, or ErrUnknown for one that is not in the table.
func (t *Table) DriverBranch(driver string) (DriverBranch, error) {
	for _, b := range t.driver.Branches {
		if b.Branch == Major(driver) {
			return b, nil
		}
	}
	return DriverBranch{}, unknown("driver branch R%d", Major(driver))
}

// DriverBranches returns the branches in the table, oldest first.
func (t *Table) DriverBranches() []DriverBranch { return slices.Clone(t.driver.Branches) }

// NewerRunsOlder returns the evidence that a driver has no ceiling by toolkit.
func (t *Table) NewerRunsOlder() Evidence { return t.driver.NewerRunsOlder }

// DriverCeiling returns the last driver branch that knows a compute capability; false when no end is known.
func (t *Table) DriverCeiling(capability string) (Ceiling, bool) {
	a, err := t.Architecture(capability)
	if err != nil || a.LastDriverBranch == 0 {
		return Ceiling{}, false
	}
	return Ceiling{a.LastDriverBranch, a.Name, a.Evidence}, true
}

// FirstDriver returns the first driver that knows a GPU, by board name where the table has it, else by compute
// capability; either may be empty. False when neither is sourced.
func (t *Table) FirstDriver(gpu, capability string) (FirstDriver, bool) {
	if g, err := t.GPU(gpu); err == nil {
		if g.FirstDriver != "" {
			return FirstDriver{g.FirstDriver, true, g.FirstDriverEvidence}, true
		}
		capability = g.ComputeCapability
	}
	a, err := t.Architecture(capability)
	if err != nil || a.FirstCUDA == "" {
		return FirstDriver{}, false
	}
	k, err := t.Toolkit(a.FirstCUDA)
	if err != nil {
		return FirstDriver{}, false
	}
	return FirstDriver{k.BundledDriver, false, Evidence{
		Source:     fmt.Sprintf("derived: CUDA %s is the first toolkit with %s (%s) and bundles %s", k.CUDA, a.Name, a.Source, k.BundledDriver),
		Confidence: "reported",
	}}, true
}

// PTXRule returns the rule by which PTX needs a driver as new as the toolkit that made it.
func (t *Table) PTXRule() Reason { return t.driver.PTX }

// ForwardCompat answers for a CUDA release, a driver and a class of GPU. A driver that supports the release
// natively needs no package: the verdict is Yes and Package is empty.
func (t *Table) ForwardCompat(cuda, driver, class string) ForwardCompat {
	f := t.driver.ForwardCompat
	minor := Minor(cuda)
	if b, err := t.DriverBranch(driver); err == nil && b.NativeCUDA != "" && Compare(b.NativeCUDA, minor) >= 0 {
		return ForwardCompat{Verdict: Yes, Reason: fmt.Sprintf("R%d supports CUDA %s natively", b.Branch, b.NativeCUDA), Evidence: b.Evidence}
	}
	_, small, _ := strings.Cut(minor, ".")
	out := ForwardCompat{
		Verdict: Unknown, Evidence: f.Evidence,
		Package: strings.NewReplacer("{major}", strconv.Itoa(Major(cuda)), "{minor}", small).Replace(f.Package),
	}
	switch {
	case slices.Contains(f.Refused, class):
		out.Verdict, out.Reason = No, f.Reason
		return out
	case !slices.Contains(f.Allowed, class):
		out.Reason = fmt.Sprintf("only some boards of class %q have forward compatibility", class)
		return out
	}
	for _, b := range f.Bases {
		if !slices.Contains(b.CUDA, minor) {
			continue
		}
		out.Evidence = b.Evidence
		for _, a := range b.Allowed {
			if a.Branch != Major(driver) {
				continue
			}
			if Compare(driver, a.Driver) < 0 {
				out.Verdict, out.Reason = No, fmt.Sprintf("R%d is a base for CUDA %s from %s on", a.Branch, minor, a.Driver)
				return out
			}
			out.Verdict, out.Reason = Yes, fmt.Sprintf("R%d is a base for CUDA %s", a.Branch, minor)
			return out
		}
		if slices.Contains(b.Refused, Major(driver)) {
			out.Verdict, out.Reason = No, fmt.Sprintf("R%d is no base for CUDA %s", Major(driver), minor)
			return out
		}
	}
	out.Reason = fmt.Sprintf("whether R%d is a base for CUDA %s is not sourced", Major(driver), minor)
	return out
}
