package elf

import (
	"bytes"
	stdelf "debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// full names everything that a shared object can carry.
func full() Facts {
	return Facts{
		Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true,
		Soname:       "libcudnn_graph.so.9",
		Needed:       []string{"libcublas.so.12", "libc.so.6"},
		RPath:        []string{"$ORIGIN/old"},
		RunPath:      []string{"$ORIGIN", "$ORIGIN/../../nvrtc/lib"},
		Interp:       "/lib64/ld-linux-x86-64.so.2",
		VersionNeeds: []VersionNeed{{File: "libc.so.6", Versions: []string{"GLIBC_2.2.5", "GLIBC_2.17"}}, {File: "libm.so.6", Versions: []string{"GLIBC_2.29"}}},
		VersionDefs:  []string{"libcudnn_graph.so.9", "EXTRA_1"},
		OSABINote:    "linux 3.2.0",
	}
}

func stubOf(t testing.TB, f Facts) []byte {
	t.Helper()
	b, err := StubLibrary(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func read(b []byte) (Facts, error) { return Read(bytes.NewReader(b), int64(len(b))) }

func TestStubLibraryReadsBack(t *testing.T) {
	bare := Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true}
	named := bare
	named.Soname = "libx.so.1"
	for name, want := range map[string]Facts{"full": full(), "bare": bare, "named": named} {
		t.Run(name, func(t *testing.T) {
			b := stubOf(t, want)
			got, err := read(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			if !bytes.Equal(b, stubOf(t, want)) {
				t.Error("two stubs of the same facts differ")
			}
			if _, err := stdelf.NewFile(bytes.NewReader(b)); err != nil {
				t.Errorf("debug/elf refuses the stub: %v", err)
			}
		})
	}
}

func TestStubLibraryRefuses(t *testing.T) {
	for name, edit := range map[string]func(*Facts){
		"32 bit":   func(f *Facts) { f.Class = 32 },
		"machine":  func(f *Facts) { f.Machine = "EM_AARCH64" },
		"type":     func(f *Facts) { f.Type = "ET_EXEC" },
		"abi note": func(f *Facts) { f.OSABINote = "linux" },
		"abi name": func(f *Facts) { f.OSABINote = "plan9 1.2.3" },
	} {
		t.Run(name, func(t *testing.T) {
			f := full()
			edit(&f)
			if _, err := StubLibrary(f); !errors.Is(err, ErrNoStub) {
				t.Errorf("error %v, want ErrNoStub", err)
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	good := stubOf(t, full())
	edit := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"empty":             {nil, ErrNotELF},
		"text":              {[]byte("/* GNU ld script */ GROUP ( libm.so.6 )"), ErrNotELF},
		"magic only":        {good[:4], ErrTruncated},
		"half header":       {good[:40], ErrTruncated},
		"header only":       {good[:64], ErrTruncated},
		"cut at half":       {good[:len(good)/2], ErrTruncated},
		"cut by one":        {good[:len(good)-1], ErrTruncated},
		"class":             {edit(func(b []byte) { b[4] = 9 }), ErrNotELF},
		"order":             {edit(func(b []byte) { b[5] = 0 }), ErrNotELF},
		"many segments":     {edit(func(b []byte) { le.PutUint16(b[56:], 0xffff) }), ErrMalformed},
		"small segments":    {edit(func(b []byte) { le.PutUint16(b[54:], 3) }), ErrMalformed},
		"segments far away": {edit(func(b []byte) { le.PutUint64(b[32:], 1<<63) }), ErrTruncated},
		"segment wraps":     {edit(func(b []byte) { le.PutUint64(b[64+8:], 1<<63); le.PutUint64(b[64+32:], 1<<63+1) }), ErrTruncated},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(c.in)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if d := cmp.Diff(Facts{}, got); d != "" {
				t.Errorf("facts beside an error: %s", d)
			}
		})
	}
}

// brokenReader fails as a disk would.
type brokenReader struct{}

func (brokenReader) ReadAt([]byte, int64) (int, error) { return 0, io.ErrClosedPipe }

func TestReadKeepsReaderError(t *testing.T) {
	if _, err := Read(brokenReader{}, 4096); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want the reader's own", err)
	}
}

// TestReadEveryCut reads every prefix and every single-byte change: any error is one of ours.
func TestReadEveryCut(t *testing.T) {
	good := stubOf(t, full())
	typed := func(err error) bool {
		return err == nil || errors.Is(err, ErrNotELF) || errors.Is(err, ErrTruncated) || errors.Is(err, ErrMalformed)
	}
	for n := range good {
		if _, err := read(good[:n]); err == nil || !typed(err) {
			t.Fatalf("prefix of %d bytes: error %v", n, err)
		}
		for _, v := range []byte{0, 1, 0x7f, 0xff} {
			b := bytes.Clone(good)
			b[n] = v
			if _, err := read(b); !typed(err) {
				t.Fatalf("byte %d set to %d: error %v", n, v, err)
			}
		}
	}
}

// TestReadAgainstStandardLibrary compares with debug/elf on libraries of the host.
func TestReadAgainstStandardLibrary(t *testing.T) {
	paths, _ := filepath.Glob("/lib/x86_64-linux-gnu/*.so*")
	more, _ := filepath.Glob("/usr/lib/x86_64-linux-gnu/*.so*")
	compared := 0
	for _, p := range append(paths, more...) {
		std, err := stdelf.Open(p)
		if err != nil {
			continue
		}
		compared++
		compareWithStandardLibrary(t, p, std)
		std.Close()
	}
	if compared == 0 {
		t.Skip("no shared library of a Debian-like x86-64 host is here")
	}
}

func compareWithStandardLibrary(t *testing.T, path string, std *stdelf.File) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(file, st.Size())
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	needed, _ := std.DynString(stdelf.DT_NEEDED)
	soname, _ := std.DynString(stdelf.DT_SONAME)
	if len(soname) == 0 {
		soname = []string{""}
	}
	if d := cmp.Diff(needed, got.Needed); d != "" || soname[0] != got.Soname || std.Type.String() != got.Type || std.Machine.String() != got.Machine {
		t.Errorf("%s: needed %s soname %q want %q", path, d, got.Soname, soname[0])
	}
	needs, _ := std.DynamicVersionNeeds()
	var want []VersionNeed
	for _, n := range needs {
		v := VersionNeed{File: n.Name}
		for _, d := range n.Needs {
			v.Versions = append(v.Versions, d.Dep)
		}
		want = append(want, v)
	}
	if d := cmp.Diff(want, got.VersionNeeds); d != "" {
		t.Errorf("%s: version needs %s", path, d)
	}
}

// TestReadOtherClass reads a 32-bit big-endian file without sections.
func TestReadOtherClass(t *testing.T) {
	var b bytes.Buffer
	h := stdelf.Header32{Type: uint16(stdelf.ET_DYN), Machine: uint16(stdelf.EM_PPC), Version: 1, Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 2}
	copy(h.Ident[:], stdelf.ELFMAG)
	h.Ident[4], h.Ident[5], h.Ident[6] = byte(stdelf.ELFCLASS32), byte(stdelf.ELFDATA2MSB), 1
	const dyn = 52 + 64
	strs := "\x00liba.so\x00"
	tags := []stdelf.Dyn32{{Tag: int32(stdelf.DT_SONAME), Val: 1}, {Tag: int32(stdelf.DT_STRTAB), Val: 0x1000 + dyn + 32}, {Tag: int32(stdelf.DT_STRSZ), Val: uint32(len(strs))}, {}}
	total := uint32(dyn + 32 + len(strs))
	for _, v := range []any{h,
		stdelf.Prog32{Type: uint32(stdelf.PT_LOAD), Vaddr: 0x1000, Filesz: total, Memsz: total},
		stdelf.Prog32{Type: uint32(stdelf.PT_DYNAMIC), Off: dyn, Vaddr: 0x1000 + dyn, Filesz: 32, Memsz: 32},
		tags, []byte(strs)} {
		if err := binary.Write(&b, binary.BigEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	got, err := read(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := Facts{Class: 32, Machine: "EM_PPC", Type: "ET_DYN", Dynamic: true, Soname: "liba.so"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestStubLibraryLoads lets the host's own loader map a stub.
func TestStubLibraryLoads(t *testing.T) {
	ldso := "/lib64/ld-linux-x86-64.so.2"
	if _, err := os.Stat(ldso); err != nil {
		t.Skip("no x86-64 glibc loader on this host")
	}
	f := full()
	f.Interp, f.Needed = "", []string{"libc.so.6"}
	f.VersionNeeds = f.VersionNeeds[:1]
	path := filepath.Join(t.TempDir(), f.Soname)
	if err := os.WriteFile(path, stubOf(t, f), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(ldso, "--list", path).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("libc.so.6 => ")) {
		t.Errorf("loader: %v\n%s", err, out)
	}
}

func FuzzRead(f *testing.F) {
	good := stubOf(f, full())
	f.Add(good)
	f.Add(good[:100])
	f.Add([]byte("\x7fELF"))
	known := full()
	known.Soname = "libcudnn_graph.so.9"
	f.Add(stubOf(f, known))
	f.Fuzz(func(t *testing.T, b []byte) {
		Parts(b, int64(len(b)))
		_, err := read(b)
		if err != nil && !errors.Is(err, ErrNotELF) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) {
			t.Errorf("untyped error %v", err)
		}
	})
}
