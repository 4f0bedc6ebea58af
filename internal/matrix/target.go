package matrix

import "time"

// Target is an entry with everything pinned: what the lock holds and what Compile reads. It names no host,
// no registry address and no URL.
type Target struct {
	Entry       string             `yaml:"entry" json:"entry"`       // entry name, unique in the recipe
	Platform    string             `yaml:"platform" json:"platform"` // os/arch
	Base        Base               `yaml:"base" json:"base"`
	Python      Python             `yaml:"python" json:"python"`
	TensorFlow  string             `yaml:"tensorflow" json:"tensorflow"` // version as resolved
	CUDA        string             `yaml:"cuda" json:"cuda"`             // toolkit major.minor of the CUDA root
	CuDNN       string             `yaml:"cudnn" json:"cudnn"`           // cuDNN version of the wheel
	Supplier    string             `yaml:"supplier" json:"supplier"`     // wheels | apt
	Layout      string             `yaml:"layout" json:"layout"`         // name of the image layout
	OSPackages  []string           `yaml:"os_packages,omitempty" json:"os_packages,omitempty"`
	Wheels      []Wheel            `yaml:"wheels,omitempty" json:"wheels"` // sorted by normalized name
	Requested   []string           `yaml:"requested" json:"requested"`     // distributions the recipe names (REQUESTED marker)
	Environment map[string]string  `yaml:"environment,omitempty" json:"environment,omitempty"`
	User        string             `yaml:"user,omitempty" json:"user,omitempty"`
	Compression Compression        `yaml:"compression" json:"compression"`
	Bytecode    bool               `yaml:"bytecode" json:"bytecode"`
	Constraints bool               `yaml:"constraints" json:"constraints"` // pip.conf names constraints.txt
	Epoch       int64              `yaml:"source_date_epoch" json:"source_date_epoch"`
	Flavor      string             `yaml:"flavor,omitempty" json:"flavor,omitempty"`         // empty in old locks: runtime
	Labels      map[string]string  `yaml:"labels,omitempty" json:"labels,omitempty"`         // of the recipe
	Overrides   []Override         `yaml:"overrides,omitempty" json:"overrides,omitempty"`   // rules that the recipe overrides
	Thresholds  map[string]float64 `yaml:"thresholds,omitempty" json:"thresholds,omitempty"` // limits of the judge that the recipe sets
	Debs        []Deb              `yaml:"debs,omitempty" json:"debs,omitempty"`             // every OS package that the OS step installs; empty in old locks
	LayoutSum   string             `yaml:"layout_checksum,omitempty" json:"layout_checksum,omitempty"`
	WheelSet    string             `yaml:"wheel_set,omitempty" json:"-"` // in a lock file: the list of Wheels
	DebSet      string             `yaml:"deb_set,omitempty" json:"-"`
	Lines       map[string]int     `yaml:"-" json:"-"` // recipe line per key, for source maps and errors
}

// Time returns the target's SOURCE_DATE_EPOCH.
func (t Target) Time() time.Time { return time.Unix(t.Epoch, 0).UTC() }

// Base is the base image by digest. Name is the reference as the recipe gave it (short form).
type Base struct {
	Name   string `yaml:"name" json:"name"`
	Digest string `yaml:"digest,omitempty" json:"digest,omitempty"` // of the platform's manifest; empty in a lock made with a local base
	Config string `yaml:"config,omitempty" json:"config,omitempty"` // digest of the image config; empty like Digest
	Glibc  string `yaml:"glibc" json:"glibc"`                       // major.minor that the wheels were chosen for
	Local  bool   `yaml:"local,omitempty" json:"local,omitempty"`   // replaced by --base, or an oci-layout reference
}

// Python says which interpreter the image has and who supplies it.
type Python struct {
	Version string `yaml:"version" json:"version"` // major.minor
	From    string `yaml:"from" json:"from"`       // os | base
}

// Override is a rule that the recipe overrides for an entry, with its reason.
type Override struct {
	Rule   string `yaml:"rule" json:"rule"`
	Reason string `yaml:"reason" json:"reason"`
}

// Deb is one pinned OS package file, as the signed index of the base's package manager lists it.
type Deb struct {
	Name    string `yaml:"name" json:"name"`
	Version string `yaml:"version" json:"version"`
	File    string `yaml:"file" json:"file"`     // name of the .deb file
	SHA256  string `yaml:"sha256" json:"sha256"` // hex, no prefix
	Size    int64  `yaml:"size" json:"size"`     // bytes
}

// Wheel is one pinned wheel file.
type Wheel struct {
	Name    string `yaml:"name" json:"name"` // normalized distribution name
	Version string `yaml:"version" json:"version"`
	File    string `yaml:"file" json:"file"`     // wheel file name
	SHA256  string `yaml:"sha256" json:"sha256"` // hex, no prefix
	Size    int64  `yaml:"size" json:"size"`     // bytes
}

// Compression fixes how layers of ours are encoded; part of every component key.
type Compression struct {
	Algorithm string `yaml:"algorithm" json:"algorithm"` // zstd | gzip
	Level     string `yaml:"level" json:"level"`         // zstd: fastest | default | better; gzip: passthrough | default
	Encoder   string `yaml:"encoder" json:"encoder"`     // name and version of the encoder, for example "klauspost-zstd/1"
}
