// Package layout says where the files of a wheel go in an image, which wheels share an image layer, and which
// links and loader files complete the tree. It is data read from recipes/layouts; it opens no wheel, writes no
// layer and knows no version.
package layout

// Side tells which half of a wheel a component holds.
type Side string

// The sides. CUDA content lies below the CUDA root and is the same for every Python version.
const (
	SideCUDA   Side = "cuda"
	SidePython Side = "python"
	SideAll    Side = "all"
)

// Layout is one image layout as its file states it, placeholders unexpanded.
type Layout struct {
	Name     string     `yaml:"name"`
	Test     bool       `yaml:"test"`    // a layout that breaks images on purpose; its layers have other keys
	Extends  string     `yaml:"extends"` // shipped layout that a test layout starts from
	CUDA     CUDA       `yaml:"cuda"`
	Python   Python     `yaml:"python"`
	Links    []Link     `yaml:"links"`
	Loader   Loader     `yaml:"loader"`
	Groups   []Group    `yaml:"layers"`
	StepDrop []string   `yaml:"step_drop"`
	Break    []Mutation `yaml:"break"` // test layouts only
}

// CUDA places the content of the CUDA wheels.
type CUDA struct {
	Root        string            `yaml:"root"`
	Namespace   string            `yaml:"namespace"`    // top directory in site-packages that moves below Root
	PackageRoot string            `yaml:"package_root"` // where it moves to
	Directories map[string]string `yaml:"directories"`  // directory of a package -> directory of the CUDA tree
	KeepFile    string            `yaml:"keep_file"`
	KeepText    string            `yaml:"keep_text"`
	Targets     map[string]string `yaml:"targets"` // platform -> NVIDIA's name of the target
}

// Python places everything else. Paths but Venv are relative to the venv.
type Python struct {
	Venv         string   `yaml:"venv"`
	SitePackages string   `yaml:"site_packages"`
	Headers      string   `yaml:"headers"`
	Interpreter  string   `yaml:"interpreter"`
	Reserved     []string `yaml:"reserved"` // globs of names that no wheel may write
	Scripts      []Script `yaml:"scripts"`
}

// Script is the text of an entry-point script; the first whose Before exceeds the Python version is used.
type Script struct {
	Before string `yaml:"before"` // empty: every version
	Text   string `yaml:"text"`   // {module}, {name} and {call} are replaced
}

// Link is one symbolic link.
type Link struct {
	Path   string `yaml:"path"`   // relative to the image's root
	Target string `yaml:"target"` // as stored in the link
}

// Loader is the loader configuration file of the CUDA root.
type Loader struct {
	File        string   `yaml:"file"`
	Directories []string `yaml:"directories"`
}

// Group is one layer of the layer plan.
type Group struct {
	Name      string   `yaml:"name"`
	Side      Side     `yaml:"side"`
	Match     []string `yaml:"match"`     // globs over normalized distribution names
	Requested bool     `yaml:"requested"` // only distributions that the recipe names
	Last      bool     `yaml:"last"`      // comes after every other group in the image
}

// Mutation damages one path in a test layout: it vanishes (Drop) or becomes a link.
type Mutation struct {
	Path string `yaml:"path"` // relative to the image's root
	Drop bool   `yaml:"drop"`
	Link string `yaml:"link"`
}

// Vars are the values of the placeholders.
type Vars struct {
	CUDA     string // major.minor
	Python   string // major.minor
	Platform string // os/arch
}

// Resolved is a layout for one CUDA version, Python version and platform. All paths are relative to the image's
// root, slash-separated, without a leading slash.
type Resolved struct {
	Name        string
	Test        bool
	Vars        Vars
	CUDARoot    string
	Namespace   string
	PackageRoot string
	Directories map[string]string // directory of a package -> absolute path in the CUDA tree
	KeepFiles   []string
	KeepText    string
	Venv        string
	Site        string // site-packages
	Headers     string
	Interpreter string
	Reserved    []string // globs
	Script      string   // text of an entry-point script
	Links       []Link
	LoaderFile  string
	LoaderText  string
	Groups      []Group
	StepDrop    []string
	Break       []Mutation
}
