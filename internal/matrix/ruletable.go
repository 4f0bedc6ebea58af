package matrix

// Rule is what is known about one rule of lint before it judges anything.
type Rule struct {
	ID         string
	Number     int // of the list in docs/rules: 1 to 23; 0 for what follows from this program alone
	Title      string
	Remedy     string
	Severities []Severity // that its findings can have
	Override   bool       // a recipe may override it with a reason
}

// Rules lists every rule, in the order of the numbered list.
func Rules() []Rule {
	refuse, warn := []Severity{Refuse}, []Severity{Warn}
	return []Rule{
		{"cuda-major", 1, "The wheel opens the libraries of one CUDA major", "write cuda: auto, or a version of that major", refuse, false},
		{"cuda-minor", 2, "CUDA of the same major and not older than what the release was built with", "write cuda: auto, or a minor that is not older", refuse, true},
		{"cuda-pair", 2, "CUDA newer than what the release was tested with", "write cuda: auto for the tested pair", warn, true},
		{"cudnn-major", 3, "The wheel opens one cuDNN major", "write cudnn: auto, or a version of that major", refuse, false},
		{"cudnn-minor", 3, "cuDNN of the same major and not older than what the release was compiled with", "write cudnn: auto, or a minor that is not older", []Severity{Refuse, Unproved}, true},
		{"cudnn-fault", 3, "A reported fault of a cuDNN release", "take another cuDNN minor", warn, true},
		{"cudnn-variant", 4, "The cuDNN build belongs to the CUDA major and knows the GPU", "take a cuDNN that has a build for this CUDA major", []Severity{Refuse, Unproved}, true},
		{"library-set", 5, "Every library that the release opens is in the image", "take a base that has them, or supplier: wheels on a plain base", refuse, true},
		{"image-fault", 5, "A base image that is known to find no GPU", "use a plain base with supplier: wheels", refuse, true},
		{"curand", 6, "cuRAND belongs to the set of older releases", "take a base that holds cuRAND", refuse, true},
		{"compute-capability", 7, "The release has code for the GPU", "take a release that has it, or another GPU", refuse, true},
		{"gpu-unproved", 7, "No release was shown to work on this kind of GPU", "it is built and staged; it is published only with proof on such a GPU", []Severity{Unproved}, false},
		{"ptx-only", 7, "The driver compiles the GPU's code at the first run", "take a release with machine code for this GPU", warn, true},
		{"fleet-gpu", 7, "The GPU is known by name", "write its compute_capability", refuse, false},
		{"driver-floor", 8, "The driver runs this CUDA major and knows the GPU", "update the driver of these machines, or take an older CUDA major", refuse, true},
		{"driver-ceiling", 9, "The driver still knows the GPU", "keep these machines on the last driver branch that does", refuse, true},
		{"ptx-driver", 10, "A driver compiles no PTX of a newer toolkit", "update the driver, or take a release with machine code for this GPU", refuse, true},
		{"ptx-modules", 10, "A driver compiles the modules that a release holds as PTX only", "update the driver", []Severity{Unproved}, true},
		{"forward-compatibility", 11, "A newer CUDA on an older driver works on some GPUs and branches only", "update the driver of these machines", []Severity{Refuse, Unproved, Warn}, true},
		{"start-gate", 12, "The base image's own condition lets the container start", "use a plain base with supplier: wheels, which has no such condition, or update the driver", []Severity{RefuseStart}, true},
		{"python-range", 13, "The release has wheels for this Python", "take a Python in its range", refuse, false},
		{"base-python", 13, "The base provides this Python", "take a base that provides it, or python: {version, from: base}", refuse, true},
		{"glibc", 14, "The glibc of the base is not older than the wheels need", "take a newer base", refuse, false},
		{"libc", 14, "The C library of the base is glibc", "use a Debian or Ubuntu base", refuse, false},
		{"platform", 15, "There are GPU wheels for the platform", "write platform: linux/amd64", refuse, false},
		{"package-range", 16, "Python packages that the release works with", "leave the package out: a version that fits is chosen", refuse, true},
		{"package-refused", 16, "A Python package that cannot be what was meant", "leave it out", refuse, true},
		{"legacy-keras", 16, "Keras 2 needs a package of its own beside newer releases", "add tf-keras of the same minor to packages", []Severity{Refuse, Warn}, true},
		{"pip-too-old", 16, "The image's pip can read the tags of the wheels", "leave pip out of packages: a version that can is chosen", warn, true},
		{"extra-range", 17, "The extra of the release is an open range", "write cuda and cudnn to choose others", []Severity{Note}, false},
		{"extra-broken", 17, "The and-cuda extra of the release resolves and finds its libraries", "write supplier: wheels, which puts every library into one directory", refuse, true},
		{"cuda-provider", 18, "One provider of CUDA libraries per image", "take a plain base with supplier: wheels, or write supplier: apt", refuse, true},
		{"environment", 19, "No stub library and no code of others on the loader's path", "leave the variable out", refuse, true},
		{"xla-tools", 20, "XLA finds ptxas and libdevice", "add the compiler package, or use supplier: wheels", []Severity{Note}, false},
		{"base-tag", 21, "The tag of the base is alive", "mirror the base and name it by digest, or take a tag that is alive", warn, true},
		{"base-gone", 21, "The registry has the base", "take a tag that exists, or name your mirror of it by digest", refuse, false},
		{"tag-exists", 21, "A tag that is published is new", "write another tag, or expect it to move", []Severity{Note}, false},
		{"proof", 22, "An image is published only after it ran", "verify it on a machine with such a GPU", []Severity{Unproved}, false},
		{"tensorflow-release", 23, "The release is known", "take a release that is in the facts, or overlay facts derived from its wheel", []Severity{Refuse, Unproved}, true},
		{"tensorflow-inferred", 23, "A patch release inherits the facts of its minor", "nothing to do: the proof decides", warn, true},
		{"recipe", 0, "The recipe file is well formed", "correct the line", refuse, false},
		{"supplier", 0, "The supplier is known", "write wheels, apt or and-cuda", refuse, false},
		{"layout", 0, "The image layout exists", "name a layout that exists", refuse, false},
		{"flavor", 0, "The flavor can be made with this supplier", "write flavor: runtime", refuse, false},
		{"wheel-set", 0, "NVIDIA's wheels of this CUDA minor are known", "take one of the minors that are", refuse, false},
		{"python-auto", 0, "The Python of the base is known", "write the version", refuse, false},
		{"entry-name", 0, "Entries have names of their own", "give it another name, or name more axes in entry_name", refuse, false},
		{"entry-tag", 0, "A published tag names one image", `put {entry} into the tag`, refuse, false},
		{"no-entry", 0, "At least one entry is left", "widen the axes", refuse, false},
		{"exclude-unused", 0, "An exclude matches a cell", "leave it out", []Severity{Note}, false},
		{"allow-unused", 0, "An override has something to override", "leave it out", []Severity{Note}, false},
	}
}

// RuleByID returns a rule.
func RuleByID(id string) (Rule, bool) {
	for _, r := range Rules() {
		if r.ID == id {
			return r, true
		}
	}
	return Rule{}, false
}

func ruleIDs() []string {
	var out []string
	for _, r := range Rules() {
		out = append(out, r.ID)
	}
	return out
}
