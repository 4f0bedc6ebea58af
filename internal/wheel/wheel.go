// Package wheel reads Python wheels: their archive, metadata, RECORD and entry points, and says where each file
// goes when the wheel is installed in a layout. Installing means what pip means by it. The package writes
// nothing; callers stream the members into layers.
package wheel

import (
	"archive/zip"
	"bufio"
	"io"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Wheel is one opened wheel file. Its methods may be used by one goroutine at a time.
type Wheel struct {
	File     string // file name, for errors
	Name     string // distribution name as METADATA has it
	Version  string
	DistInfo string // name of the .dist-info directory
	Meta     Metadata
	Members  []Member // files only, in archive order
	Entries  []EntryPoint

	r       io.ReaderAt
	byName  map[string]int
	rows    []Row
	hashes  map[string]Row
	dataDir string // NAME-VERSION.data

	buf      *bufio.Reader // reused by every opened member
	inflater io.ReadCloser
}

// Metadata is what METADATA and WHEEL say.
type Metadata struct {
	RequiresDist   []string // raw requirement lines
	RequiresPython string
	Pythons        []string // major.minor of the classifiers that name a Python version, in file order
	License        string   // License-Expression, else License
	LicenseFiles   []string // License-File lines
	Tags           []string // from WHEEL
	Build          string
	RootIsPurelib  bool
}

// Member is one file of the archive.
type Member struct {
	Name       string
	Size       int64 // uncompressed bytes
	Compressed int64 // bytes in the archive
	Offset     int64 // of the first compressed byte
	CRC32      uint32
	Deflated   bool // else stored
	Executable bool // a regular file with any execute bit, as pip decides it
}

// limitText bounds the metadata files that are read whole.
const limitText = 64 << 20

// Open reads the archive's directory and the metadata of a wheel. file is its file name, which must have the
// form that the standard demands. Errors are *Error.
func Open(file string, r io.ReaderAt, size int64) (*Wheel, error) {
	w := &Wheel{File: file, r: r, byName: map[string]int{}}
	zr, err := zip.NewReader(r, size)
	if err != nil && zr == nil {
		return nil, w.refuse("", ErrFormat, "reading the zip directory: %v", err)
	}
	// zip.ErrInsecurePath comes with a reader; addMember gives the reason for the name in question.
	for _, f := range zr.File {
		if err := w.addMember(f); err != nil {
			return nil, err
		}
	}
	for _, step := range []func() error{w.checkOverlap, w.findDistInfo, w.readMetadata, w.readWheelFile, w.readRecord, w.readEntryPoints} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// File types in the upper half of a zip member's external attributes, as Unix has them.
const (
	typeMask    = 0o170000
	typeRegular = 0o100000
	typeDir     = 0o040000
)

func (w *Wheel) addMember(f *zip.File) error {
	name := f.Name
	if reason := BadName(strings.TrimSuffix(name, "/")); reason != "" {
		return w.refuse(name, ErrName, "%s", reason)
	}
	mode := f.ExternalAttrs >> 16
	if strings.HasSuffix(name, "/") {
		if f.UncompressedSize64 != 0 {
			return w.refuse(name, ErrFormat, "a directory with content")
		}
		return nil
	}
	if t := mode & typeMask; t != 0 && t != typeRegular {
		return w.refuse(name, ErrName, "a link, device or other special file (mode %#o)", mode)
	}
	if f.Flags&1 != 0 {
		return w.refuse(name, ErrFormat, "encrypted")
	}
	if f.Method != zip.Store && f.Method != zip.Deflate {
		return w.refuse(name, ErrFormat, "compression method %d; wheels use stored or deflated members", f.Method)
	}
	if f.Method == zip.Store && f.CompressedSize64 != f.UncompressedSize64 {
		return w.refuse(name, ErrFormat, "a stored member with two sizes")
	}
	if _, dup := w.byName[name]; dup {
		return w.refuse(name, ErrName, "there twice")
	}
	off, err := f.DataOffset()
	if err != nil {
		return w.refuse(name, ErrFormat, "reading its local header: %v", err)
	}
	w.byName[name] = len(w.Members)
	w.Members = append(w.Members, Member{
		Name: name, Size: int64(f.UncompressedSize64), Compressed: int64(f.CompressedSize64), Offset: off,
		CRC32: f.CRC32, Deflated: f.Method == zip.Deflate,
		Executable: mode&typeMask == typeRegular && mode&0o111 != 0,
	})
	return nil
}

// BadName returns why a relative path may not enter a layer, or "". The rules are those of design decision 5a.
func BadName(name string) string {
	switch {
	case name == "":
		return "empty"
	case !utf8.ValidString(name):
		return "not UTF-8"
	case strings.ContainsAny(name, "\x00\\"):
		return "holds a NUL or a backslash"
	case strings.HasPrefix(name, "/"):
		return "an absolute path"
	case len(name) > 4000:
		return "longer than a path may be"
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return "not a clean relative path"
		case strings.HasPrefix(part, ".wh."):
			return "a name that image layers use for deletions"
		case len(part) > 255:
			return "a part longer than 255 bytes"
		}
	}
	return ""
}

// checkOverlap refuses archives in which two members share bytes.
func (w *Wheel) checkOverlap() error {
	sorted := slices.SortedFunc(slices.Values(w.Members), func(a, b Member) int {
		switch {
		case a.Offset < b.Offset:
			return -1
		case a.Offset > b.Offset:
			return 1
		}
		return 0
	})
	var end int64
	for _, m := range sorted {
		if m.Offset < end || m.Compressed < 0 || m.Size < 0 {
			return w.refuse(m.Name, ErrFormat, "overlaps another member")
		}
		end = m.Offset + m.Compressed
	}
	return nil
}

// findDistInfo demands exactly one .dist-info directory, that of the file name.
func (w *Wheel) findDistInfo() error {
	parts := strings.Split(strings.TrimSuffix(w.File, ".whl"), "-")
	if !strings.HasSuffix(w.File, ".whl") || len(parts) != 5 && len(parts) != 6 {
		return w.refuse("", ErrFormat, "the file name is not NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl")
	}
	for _, m := range w.Members {
		top, _, ok := strings.Cut(m.Name, "/")
		if !ok || !strings.HasSuffix(top, ".dist-info") || top == w.DistInfo {
			continue
		}
		name, version, _ := strings.Cut(strings.TrimSuffix(top, ".dist-info"), "-")
		switch {
		case NormalizeName(name) != NormalizeName(parts[0]) || normalizeVersion(version) != normalizeVersion(parts[1]):
			return w.refuse(m.Name, ErrFormat, "a .dist-info directory that does not belong to the file name")
		case w.DistInfo != "":
			return w.refuse(m.Name, ErrFormat, "a second .dist-info directory beside %s", w.DistInfo)
		}
		w.DistInfo = top
	}
	if w.DistInfo == "" {
		return w.refuse("", ErrFormat, "no .dist-info directory")
	}
	w.dataDir = strings.TrimSuffix(w.DistInfo, ".dist-info") + ".data"
	return nil
}

// NormalizeName writes a distribution name as the packaging standard does: lower case, runs of "-", "_" and "."
// as one "-".
func NormalizeName(s string) string {
	parts := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	return strings.Join(parts, "-")
}

// normalizeVersion undoes the escaping of file names; it does not interpret the version.
func normalizeVersion(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, "_", "-"))
}

// Lookup returns the member of that name.
func (w *Wheel) Lookup(name string) (Member, bool) {
	i, ok := w.byName[name]
	if !ok {
		return Member{}, false
	}
	return w.Members[i], true
}

// Text returns the content of a small member of the .dist-info directory; ok is false when it is not there.
func (w *Wheel) Text(name string) (data []byte, ok bool, err error) {
	m, found := w.Lookup(path.Join(w.DistInfo, name))
	if !found {
		return nil, false, nil
	}
	data, err = w.read(m)
	return data, true, err
}

func (w *Wheel) read(m Member) ([]byte, error) {
	if m.Size > limitText {
		return nil, w.refuse(m.Name, ErrFormat, "%d bytes; metadata files are far smaller", m.Size)
	}
	rc, err := w.OpenMember(m, nil)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(rc)
}
