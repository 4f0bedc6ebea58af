package facts

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Image is what a tag of NVIDIA's CUDA images holds.
type Image struct {
	Reference string
	CUDA      string
	Flavor    string   // base | runtime | devel
	Ubuntu    string   // release of the operating system
	CuDNN     string   // four-part version; empty: the tag holds none
	NCCL      string   // version; empty: none in a runtime image of this tag
	EndOfLife bool     // in the folder of images whose life has ended
	Exists    bool     // false: the tag form is right, but this combination was never made
	Missing   string   // why it does not exist
	Lacks     []string // files below the CUDA root that it does not hold
	Gate      Gate
	Evidence
}

// Gate is the condition under which the container runtime starts an image at all.
type Gate struct {
	CUDA       string          `yaml:"cuda"` // the driver must support this natively …
	Exceptions []GateException `yaml:"exceptions"`
}

// GateException is a branch that may start it nevertheless. Class: all | tesla | no-geforce-titan.
type GateException struct {
	Branch int    `yaml:"branch"`
	Class  string `yaml:"class"`
}

// StartGate is the answer for one driver and class of GPU.
type StartGate struct {
	Verdict Verdict // Yes: it starts; No: refused before the first process; Unknown
	Native  bool    // the driver supports the release natively
	// Fails says that the gate opens by an exception for a driver that supports only an older CUDA major, on a
	// class of GPU without forward compatibility: the container starts, and CUDA does not work.
	Fails  bool
	Reason string
	Bypass string // environment variable that switches the gate off when set to 1
	Evidence
}

type imageFile struct {
	SchemaVersion int `yaml:"schema_version"`
	NvidiaCUDA    struct {
		Repository   string   `yaml:"repository"`
		GateVariable string   `yaml:"gate_variable"`
		Bypass       string   `yaml:"bypass_variable"`
		GateEvidence Evidence `yaml:"gate_evidence"`
		Mutable      Reason   `yaml:"mutable"`
		RuntimeLacks struct {
			Files    []string `yaml:"files"`
			Evidence `yaml:",inline"`
		} `yaml:"runtime_lacks"`
		Images []imageRow `yaml:"images"`
	} `yaml:"nvidia_cuda"`
	TensorFlowImages []struct {
		Repository string `yaml:"repository"`
		Suffix     string `yaml:"suffix"`
		From       string `yaml:"from"`
		Reason     `yaml:",inline"`
	} `yaml:"tensorflow_images"`
}

type imageRow struct {
	CUDA         string            `yaml:"cuda"`
	CuDNNPart    string            `yaml:"cudnn_part"`
	CuDNN        string            `yaml:"cudnn"`
	Ubuntu       []string          `yaml:"ubuntu"`
	WithoutCuDNN []string          `yaml:"without_cudnn"`
	NCCL         map[string]string `yaml:"nccl"`
	Gate         Gate              `yaml:"gate"`
	EndOfLife    bool              `yaml:"end_of_life"`
	Evidence     `yaml:",inline"`
}

// cudaTag is CUDA[-CUDNN]-FLAVOR-OS, as NVIDIA forms its tags.
var cudaTag = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-(cudnn\d*))?-(base|runtime|devel)-ubuntu(\d+\.\d+)$`)

// Image returns what a reference to one of NVIDIA's CUDA images holds; the registry host and a digest in the
// reference are ignored. ErrUnknown for every other image, and for CUDA releases that are not in the table.
func (t *Table) Image(reference string) (Image, error) {
	repo, tag := splitReference(reference)
	n := t.image.NvidiaCUDA
	m := cudaTag.FindStringSubmatch(tag)
	if m == nil || repo != n.Repository && !strings.HasSuffix(repo, "/"+n.Repository) {
		return Image{}, unknown("contents of image %s", reference)
	}
	for _, r := range n.Images {
		if r.CUDA == m[1] {
			return t.imageOf(reference, r, m[2], m[3], m[4]), nil
		}
	}
	return Image{}, unknown("contents of image %s", reference)
}

func (t *Table) imageOf(reference string, r imageRow, part, flavor, ubuntu string) Image {
	out := Image{
		Reference: reference, CUDA: r.CUDA, Flavor: flavor, Ubuntu: ubuntu, EndOfLife: r.EndOfLife, Exists: true,
		Gate: Gate{r.Gate.CUDA, slices.Clone(r.Gate.Exceptions)}, Evidence: r.Evidence,
	}
	if flavor != "base" {
		out.NCCL = r.NCCL[ubuntu]
	}
	if flavor != "devel" {
		out.Lacks = slices.Clone(t.image.NvidiaCUDA.RuntimeLacks.Files)
	}
	if part != "" {
		out.CuDNN = r.CuDNN
	}
	switch {
	case !slices.Contains(r.Ubuntu, ubuntu):
		out.Missing = fmt.Sprintf("CUDA %s is there for ubuntu%s", r.CUDA, strings.Join(r.Ubuntu, ", ubuntu"))
	case part != "" && flavor == "base":
		out.Missing = "a base image has no cuDNN variant"
	case part != "" && part != r.CuDNNPart:
		out.Missing = fmt.Sprintf("the tags of CUDA %s name cuDNN %q, not %q", r.CUDA, r.CuDNNPart, part)
	case part != "" && slices.Contains(r.WithoutCuDNN, ubuntu):
		out.Missing = fmt.Sprintf("CUDA %s on ubuntu%s has no cuDNN variant", r.CUDA, ubuntu)
	}
	if out.Missing != "" {
		out.Exists, out.CuDNN = false, ""
	}
	return out
}

// Images returns a reference for every CUDA release and Ubuntu release with cuDNN in a runtime image, in the
// order of the table.
func (t *Table) Images() []string {
	var out []string
	for _, r := range t.image.NvidiaCUDA.Images {
		for _, u := range r.Ubuntu {
			if !slices.Contains(r.WithoutCuDNN, u) {
				out = append(out, fmt.Sprintf("%s:%s-%s-runtime-ubuntu%s", t.image.NvidiaCUDA.Repository, r.CUDA, r.CuDNNPart, u))
			}
		}
	}
	return out
}

// ImageTagsMove returns why an image is pinned by digest.
func (t *Table) ImageTagsMove() Reason { return t.image.NvidiaCUDA.Mutable }

// StartGate tells whether the container runtime starts an image for a driver and a class of GPU. An empty class
// is one that is not known: an exception that depends on it gives Unknown.
func (t *Table) StartGate(i Image, driver, class string) StartGate {
	n := t.image.NvidiaCUDA
	out := StartGate{Verdict: No, Bypass: n.Bypass, Evidence: i.Evidence}
	b, err := t.DriverBranch(driver)
	if err == nil && b.NativeCUDA != "" && Compare(b.NativeCUDA, i.Gate.CUDA) >= 0 {
		out.Verdict, out.Native, out.Reason = Yes, true, fmt.Sprintf("driver %s supports CUDA %s natively", driver, b.NativeCUDA)
		return out
	}
	for _, e := range i.Gate.Exceptions {
		if e.Branch != Major(driver) {
			continue
		}
		switch verdict := e.admits(class); verdict {
		case Yes:
			out.Verdict, out.Reason = Yes, fmt.Sprintf("the gate excepts R%d", e.Branch)
			f, err := t.DriverFloor(Major(i.CUDA))
			out.Fails = err == nil && Compare(driver, f.Driver) < 0 && slices.Contains(t.driver.ForwardCompat.Refused, class)
			return out
		case Unknown:
			out.Verdict, out.Reason = Unknown, fmt.Sprintf("the gate excepts R%d for some classes of GPU, and the class is not given", e.Branch)
			return out
		}
	}
	if err != nil || b.NativeCUDA == "" {
		if f, ok := t.branchAbove(driver); !ok || Compare(f.NativeCUDA, i.Gate.CUDA) >= 0 {
			out.Verdict, out.Reason = Unknown, fmt.Sprintf("which CUDA R%d supports natively is not sourced", Major(driver))
			return out
		}
	}
	out.Reason = fmt.Sprintf("%s of the image asks for a driver that supports CUDA %s natively, and R%d is no exception", n.GateVariable, i.Gate.CUDA, Major(driver))
	if b.NativeCUDA != "" {
		out.Reason += fmt.Sprintf(": it supports %s", b.NativeCUDA)
	}
	return out
}

// branchAbove returns the oldest branch above the driver's, which bounds what the driver can support.
func (t *Table) branchAbove(driver string) (DriverBranch, bool) {
	for _, b := range t.driver.Branches {
		if b.Branch > Major(driver) && b.NativeCUDA != "" {
			return b, true
		}
	}
	return DriverBranch{}, false
}

func (e GateException) admits(class string) Verdict {
	switch {
	case e.Class == "all":
		return Yes
	case class == "":
		return Unknown
	case e.Class == "tesla" && class == "datacenter", e.Class == "no-geforce-titan" && class != "geforce":
		return Yes
	}
	return No
}

// FaultyImage returns a known reason why an image of TensorFlow's own finds no GPU.
func (t *Table) FaultyImage(reference string) (Reason, bool) {
	repo, tag := splitReference(reference)
	for _, i := range t.image.TensorFlowImages {
		if (repo == i.Repository || strings.HasSuffix(repo, "/"+i.Repository)) && strings.Contains(tag, i.Suffix) && Dotted(Minor(tag)) && Compare(tag, i.From) >= 0 {
			return i.Reason, true
		}
	}
	return Reason{}, false
}

// splitReference takes digest and tag off a reference.
func splitReference(reference string) (repo, tag string) {
	repo, _, _ = strings.Cut(reference, "@")
	if i := strings.LastIndex(repo, ":"); i > strings.LastIndex(repo, "/") {
		return repo[:i], repo[i+1:]
	}
	return repo, ""
}

// Sonames is the set of names that a CUDA release gives its libraries, by short name ("cudart", "cublasLt").
type Sonames struct {
	Libraries map[string]string
	Evidence
}

// Sonames returns the sonames of a CUDA release, or ErrUnknown.
func (t *Table) Sonames(cuda string) (Sonames, error) {
	for _, s := range t.cuda.Sonames {
		if Compare(Minor(cuda), s.Min) >= 0 && Compare(Minor(cuda), s.Max) <= 0 {
			return Sonames{maps.Clone(s.Libraries), s.Evidence}, nil
		}
	}
	return Sonames{}, unknown("sonames of CUDA %s", cuda)
}

// Soname returns the soname of one library of a CUDA release, or ErrUnknown.
func (t *Table) Soname(cuda, library string) (string, Evidence, error) {
	s, err := t.Sonames(cuda)
	if err != nil {
		return "", Evidence{}, err
	}
	if name := s.Libraries[library]; name != "" {
		return name, s.Evidence, nil
	}
	return "", s.Evidence, unknown("soname of %s in CUDA %s", library, cuda)
}
