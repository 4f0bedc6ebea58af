package static

import (
	"archive/zip"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
)

var update = flag.Bool("update", false, "rewrite testdata from the wheels in IMGSMITH_TEST_WHEELS and this host's C library")

// wheelsFixture holds the ELF facts of real wheels and of a Debian 12 base; testdata/README.md says how it is
// made.
const wheelsFixture = "testdata/tensorflow-2.19.1-cp311.json.gz"

// fixture is the content of wheelsFixture. Paths of Site are relative to site-packages in the plain pip layout.
type fixture struct {
	Site []rootfs.Node `json:"site"`
	Base []rootfs.Node `json:"base"`
}

func readFixture(t testing.TB) fixture {
	t.Helper()
	file, err := os.Open(wheelsFixture)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var f fixture
	if err := json.NewDecoder(z).Decode(&f); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWriteFixture opens every wheel; it runs on demand only.
func TestWriteFixture(t *testing.T) {
	dir := os.Getenv("IMGSMITH_TEST_WHEELS")
	if dir == "" || !*update {
		t.Skip("needs -update and IMGSMITH_TEST_WHEELS, a directory with the wheels of one entry")
	}
	var f fixture
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) == 0 {
		t.Fatalf("no wheel in %s: %v", dir, err)
	}
	for _, w := range wheels {
		f.Site = append(f.Site, wheelNodes(t, w)...)
	}
	f.Base = hostNodes(t)
	var sb strings.Builder
	z := gzip.NewWriter(&sb)
	if err := json.NewEncoder(z).Encode(f); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), os.WriteFile(wheelsFixture, []byte(sb.String()), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// wheelNodes returns the ELF files, the compiler's data and the metadata directory of one wheel.
func wheelNodes(t *testing.T, file string) []rootfs.Node {
	t.Helper()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var out []rootfs.Node
	for _, m := range z.File {
		if strings.HasSuffix(m.Name, ".dist-info/RECORD") {
			out = append(out, rootfs.Node{Path: path.Dir(m.Name), Type: rootfs.Dir, Mode: 0o755},
				rootfs.Node{Path: m.Name, Type: rootfs.Regular, Mode: 0o644, Size: int64(m.UncompressedSize64)})
		}
		n := rootfs.Node{Path: m.Name, Type: rootfs.Regular, Mode: 0o644, Size: int64(m.UncompressedSize64)}
		if m.Mode()&0o111 != 0 {
			n.Mode = 0o755
		}
		isELF := memberELF(t, m, &n)
		if isELF || path.Base(m.Name) == "libdevice.10.bc" {
			out = append(out, n)
		}
	}
	return out
}

// memberELF fills the facts of an ELF member through a temporary file.
func memberELF(t *testing.T, m *zip.File, n *rootfs.Node) bool {
	t.Helper()
	r, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil || !elf.IsELF(head) {
		return false
	}
	tmp, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := io.Copy(tmp, io.MultiReader(strings.NewReader(string(head)), r)); err != nil {
		t.Fatal(err)
	}
	if err := rootfs.SetELF(n, tmp); err != nil {
		t.Fatal(err)
	}
	return true
}

// hostNodes returns the C and C++ libraries of this host, which must be a Debian 12.
func hostNodes(t *testing.T) []rootfs.Node {
	t.Helper()
	names := []string{"ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libstdc++.so.6", "libgcc_s.so.1", "libz.so.1"}
	var out []rootfs.Node
	for _, name := range names {
		real, err := filepath.EvalSymlinks("/usr/lib/x86_64-linux-gnu/" + name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(real)
		if err != nil {
			t.Fatal(err)
		}
		st, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		n := rootfs.Node{Path: "usr/lib/x86_64-linux-gnu/" + filepath.Base(real), Type: rootfs.Regular, Mode: uint32(st.Mode().Perm()), Size: st.Size()}
		if err := rootfs.SetELF(&n, file); err != nil {
			t.Fatal(err)
		}
		file.Close()
		out = append(out, n)
		if filepath.Base(real) != name {
			out = append(out, rootfs.Node{Path: "usr/lib/x86_64-linux-gnu/" + name, Type: rootfs.Symlink, Mode: 0o777, Link: filepath.Base(real)})
		}
	}
	out = append(out, dirNode("usr"), dirNode("usr/lib"), rootfs.Node{Path: "lib", Type: rootfs.Symlink, Mode: 0o777, Link: "usr/lib"})
	slices.SortFunc(out, func(a, b rootfs.Node) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func dirNode(p string) rootfs.Node { return rootfs.Node{Path: p, Type: rootfs.Dir, Mode: 0o755} }
