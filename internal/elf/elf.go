// Package elf reads the facts of ELF files that decide whether a library loads, and writes stub
// libraries that carry the same names. It opens nothing itself and knows no image: callers hand it bytes.
package elf

// Facts are what the dynamic loader asks of one ELF file.
type Facts struct {
	Class        int           `json:"class"`                   // 32 or 64
	Machine      string        `json:"machine"`                 // as debug/elf prints it, for example "EM_X86_64"
	Type         string        `json:"type"`                    // "ET_DYN", "ET_EXEC", "ET_REL", …
	Soname       string        `json:"soname,omitempty"`        // DT_SONAME
	Needed       []string      `json:"needed,omitempty"`        // DT_NEEDED, in file order
	RPath        []string      `json:"rpath,omitempty"`         // DT_RPATH, split at colons, $ORIGIN kept
	RunPath      []string      `json:"runpath,omitempty"`       // DT_RUNPATH, split at colons, $ORIGIN kept
	Interp       string        `json:"interp,omitempty"`        // PT_INTERP
	VersionNeeds []VersionNeed `json:"version_needs,omitempty"` // .gnu.version_r
	VersionDefs  []string      `json:"version_defs,omitempty"`  // .gnu.version_d
	Dynamic      bool          `json:"dynamic"`                 // has a dynamic section
	OSABINote    string        `json:"os_abi_note,omitempty"`   // NT_GNU_ABI_TAG as "linux 3.2.0"; ldconfig stores it
	Version      string        `json:"version,omitempty"`       // of a library of NVIDIA's, read from its own code
	VersionFrom  string        `json:"version_from,omitempty"`  // where Version was read
}

// VersionNeed lists the symbol versions that one needed library must define.
type VersionNeed struct {
	File     string   `json:"file"`
	Versions []string `json:"versions"`
}
