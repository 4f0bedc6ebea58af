package wheel_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/layout"
	"imgsmith/internal/wheel"
	"imgsmith/internal/wheel/wheeltest"
)

func resolved(t *testing.T) layout.Resolved {
	t.Helper()
	l, err := layout.Shipped("wheels")
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.At(layout.Vars{CUDA: "12.5", Python: "3.11", Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func build(t *testing.T, w wheeltest.Wheel) []byte {
	t.Helper()
	data, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func open(file string, data []byte) (*wheel.Wheel, error) {
	return wheel.Open(file, bytes.NewReader(data), int64(len(data)))
}

// install opens, plans and reads everything; it returns path -> content.
func install(r layout.Resolved, file string, data []byte) (map[string]string, error) {
	w, err := open(file, data)
	if err != nil {
		return nil, err
	}
	items, err := w.Plan(r, false)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, it := range items {
		content := it.Data
		if it.Member != nil {
			rd, err := w.OpenMember(*it.Member, nil)
			if err != nil {
				return nil, err
			}
			if content, err = io.ReadAll(rd); err != nil {
				return nil, err
			}
		}
		out[it.Path] = string(content) + it.Link
	}
	return out, nil
}

func sample() wheeltest.Wheel {
	return wheeltest.Wheel{Name: "sample", Version: "1.0", Files: []wheeltest.File{
		{Name: "sample/__init__.py", Data: []byte("X = 1\n")},
		{Name: "sample/big.bin", Data: bytes.Repeat([]byte("abcdefgh"), 1000)},
	}}
}

func TestMetadata(t *testing.T) {
	w := sample()
	w.Metadata = "Requires-Dist: numpy<2,>=1.0\nRequires-Dist: six; extra == 'x'\nRequires-Python: >=3.9\nLicense: MIT\n  and more\nLicense-File: LICENSE\n"
	w.WheelFile = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\nBuild: 3\n"
	w.EntryPoints = "# comment\n[console_scripts]\na = m.n:f.g [x,y]\n[gui_scripts]\nb=m:h\n[other]\nc = nonsense\n"
	got, err := open(w.FileName(), build(t, w))
	if err != nil {
		t.Fatal(err)
	}
	want := wheel.Metadata{RequiresDist: []string{"numpy<2,>=1.0", "six; extra == 'x'"}, RequiresPython: ">=3.9", License: "MIT\nand more",
		LicenseFiles: []string{"LICENSE"}, Tags: []string{"cp311-cp311-linux_x86_64"}, Build: "3"}
	if d := cmp.Diff(want, got.Meta); d != "" {
		t.Error(d)
	}
	entries := []wheel.EntryPoint{{Name: "a", Module: "m.n", Attr: "f.g"}, {Name: "b", Module: "m", Attr: "h", GUI: true}}
	if d := cmp.Diff(entries, got.Entries); d != "" {
		t.Error(d)
	}
	if got.Name != "sample" || got.Version != "1.0" || got.DistInfo != "sample-1.0.dist-info" {
		t.Errorf("identity %s %s %s", got.Name, got.Version, got.DistInfo)
	}
}

func TestPlanPlaces(t *testing.T) {
	w := wheeltest.Wheel{Name: "nvidia-cudnn-cu12", Version: "9.3.0.75", EntryPoints: "[console_scripts]\ntool = m:f\n", Files: []wheeltest.File{
		{Name: "nvidia/__init__.py"},
		{Name: "nvidia/cudnn/lib/libcudnn.so.9", Data: []byte("x"), Mode: 0o100744},
		{Name: "nvidia/cudnn/LICENSE", Data: []byte("l")},
		{Name: "top.py", Data: []byte("t"), Mode: 0o777},
		{Name: "nvidia_cudnn_cu12-9.3.0.75.data/platlib/nvidia/cudnn/include/cudnn.h", Data: []byte("h")},
		{Name: "nvidia_cudnn_cu12-9.3.0.75.data/data/share/a", Data: []byte("a")},
		{Name: "nvidia_cudnn_cu12-9.3.0.75.data/headers/a.h", Data: []byte("a")},
	}}
	opened, err := open(w.FileName(), build(t, w))
	if err != nil {
		t.Fatal(err)
	}
	items, err := opened.Plan(resolved(t), true)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, it := range items {
		got = append(got, fmt.Sprintf("%s %o %s %s", it.Side, it.Mode, it.Path, it.Link))
	}
	info := "python 644 opt/venv/lib/python3.11/site-packages/nvidia_cudnn_cu12-9.3.0.75.dist-info/"
	want := []string{
		"python 755 opt/venv/bin/tool ",
		"python 644 opt/venv/include/site/python3.11/nvidia-cudnn-cu12/a.h ",
		info + "INSTALLER ", info + "METADATA ", info + "RECORD ", info + "REQUESTED ", info + "WHEEL ", info + "entry_points.txt ",
		"python 644 opt/venv/lib/python3.11/site-packages/top.py ",
		"python 644 opt/venv/share/a ",
		"cuda 644 usr/local/cuda-12.5/include/cudnn.h ",
		"cuda 755 usr/local/cuda-12.5/lib64/libcudnn.so.9 ",
		"cuda 644 usr/local/cuda-12.5/python/nvidia/__init__.py ",
		"cuda 644 usr/local/cuda-12.5/python/nvidia/cudnn/LICENSE ",
		"cuda 777 usr/local/cuda-12.5/python/nvidia/cudnn/include ../../../include",
		"cuda 777 usr/local/cuda-12.5/python/nvidia/cudnn/lib ../../../lib64",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, it := range items {
		switch it.Path {
		case "opt/venv/bin/tool":
			wantText := "#!/opt/venv/bin/python3.11\nimport sys\nfrom m import f\nif __name__ == '__main__':\n    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(f())\n"
			if d := cmp.Diff(wantText, string(it.Data)); d != "" {
				t.Error(d)
			}
		case strings.TrimPrefix(info, "python 644 ") + "RECORD":
			if !strings.HasPrefix(string(it.Data), "../../../bin/tool,sha256=") || !strings.Contains(string(it.Data), "\r\nnvidia/cudnn/lib/libcudnn.so.9,sha256=") {
				t.Errorf("RECORD is %q", it.Data)
			}
		}
	}
}

func TestPipGetsItsVersionedNames(t *testing.T) {
	w := wheeltest.Wheel{Name: "pip", Version: "26.3", EntryPoints: "[console_scripts]\npip = p:main\npip3 = p:main\npip3.9 = p:main\nother = p:x\n"}
	got, err := install(resolved(t), w.FileName(), build(t, w))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"pip": true, "pip3": true, "pip3.11": true, "pip3.9": false, "other": true} {
		if _, ok := got["opt/venv/bin/"+name]; ok != want {
			t.Errorf("%s: there %v, want %v", name, ok, want)
		}
	}
}

// dropLine removes the RECORD rows that contain s.
func dropLine(s string) func(string) string {
	return func(r string) string {
		var out strings.Builder
		for line := range strings.Lines(r) {
			if !strings.Contains(line, s) {
				out.WriteString(line)
			}
		}
		return out.String()
	}
}

func replace(from, to string) func(string) string {
	return func(r string) string { return strings.Replace(r, from, to, 1) }
}

func TestRefusals(t *testing.T) {
	with := func(fs ...wheeltest.File) wheeltest.Wheel {
		w := sample()
		w.Files = append(w.Files, fs...)
		return w
	}
	file := func(name string) wheeltest.Wheel { return with(wheeltest.File{Name: name, Data: []byte("x")}) }
	record := func(edit func(string) string) wheeltest.Wheel { w := sample(); w.EditRecord = edit; return w }
	points := func(s string) wheeltest.Wheel {
		w := sample()
		w.EntryPoints = "[console_scripts]\n" + s + "\n"
		return w
	}
	tests := []struct {
		name   string
		wheel  wheeltest.Wheel
		kind   error
		member string
	}{
		{"absolute", file("/etc/passwd"), wheel.ErrName, "/etc/passwd"},
		{"parent", file("sample/../../x"), wheel.ErrName, "sample/../../x"},
		{"dot", file("./x"), wheel.ErrName, "./x"},
		{"double slash", file("a//x"), wheel.ErrName, "a//x"},
		{"backslash", file(`a\x`), wheel.ErrName, `a\x`},
		{"NUL", file("a\x00x"), wheel.ErrName, "a\x00x"},
		{"not UTF-8", file("a\xffx"), wheel.ErrName, "a\xffx"},
		{"whiteout", file("a/.wh.b"), wheel.ErrName, "a/.wh.b"},
		{"opaque", file(".wh..wh..opq"), wheel.ErrName, ".wh..wh..opq"},
		{"long part", file(strings.Repeat("a", 256)), wheel.ErrName, strings.Repeat("a", 256)},
		{"twice", file("sample/__init__.py"), wheel.ErrName, "sample/__init__.py"},
		{"symlink", with(wheeltest.File{Name: "l", Data: []byte("/etc"), Mode: 0o120777}), wheel.ErrName, "l"},
		{"device", with(wheeltest.File{Name: "d", Mode: 0o060644}), wheel.ErrName, "d"},
		{"fifo", with(wheeltest.File{Name: "f", Mode: 0o010644}), wheel.ErrName, "f"},
		{"row without file", record(func(r string) string { return r + "gone.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n" }), wheel.ErrRecord, "gone.py"},
		{"file without row", record(dropLine("big.bin")), wheel.ErrRecord, "sample/big.bin"},
		{"no hash", record(replace("sample/__init__.py,sha256=", "sample/__init__.py,,6\n#")), wheel.ErrRecord, "sample-1.0.dist-info/RECORD"},
		{"weak hash", record(replace("sample/__init__.py,sha256=", "sample/__init__.py,md5=")), wheel.ErrRecord, "sample/__init__.py"},
		{"short hash", record(replace("sample/__init__.py,sha256=", "sample/__init__.py,sha256=AA")), wheel.ErrRecord, "sample/__init__.py"},
		{"wrong size", record(replace(",6\n", ",7\n")), wheel.ErrRecord, "sample/__init__.py"},
		{"two rows", record(func(r string) string { return r + "sample-1.0.dist-info/RECORD,,\n" }), wheel.ErrRecord, "sample-1.0.dist-info/RECORD"},
		{"second dist-info", file("other-1.0.dist-info/METADATA"), wheel.ErrFormat, "other-1.0.dist-info/METADATA"},
		{"foreign .data", file("other-1.0.data/purelib/x.py"), wheel.ErrScheme, "other-1.0.data/purelib/x.py"},
		{"unknown scheme", file("sample-1.0.data/libs/x.py"), wheel.ErrScheme, "sample-1.0.data/libs/x.py"},
		{"file in .data", file("sample-1.0.data/x.py"), wheel.ErrScheme, "sample-1.0.data/x.py"},
		{"interpreter", file("sample-1.0.data/scripts/python3.11"), wheel.ErrName, "sample-1.0.data/scripts/python3.11"},
		{"venv link", file("sample-1.0.data/data/lib64/x"), wheel.ErrName, "sample-1.0.data/data/lib64/x"},
		{"same place", file("sample-1.0.data/purelib/sample/__init__.py"), wheel.ErrConflict, "sample-1.0.data/purelib/sample/__init__.py"},
		{"file and directory", file("sample/__init__.py/x"), wheel.ErrConflict, ""},
		{"Wheel-Version", wheeltest.Wheel{Name: "sample", Version: "1.0", WheelFile: "Wheel-Version: 2.0\n"}, wheel.ErrVersion, "sample-1.0.dist-info/WHEEL"},
		{"no callable", points("a = module"), wheel.ErrScript, "sample-1.0.dist-info/entry_points.txt"},
		{"script path", points("../a = m:f"), wheel.ErrScript, "sample-1.0.dist-info/entry_points.txt"},
		{"script over python", points("python = m:f"), wheel.ErrName, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := install(resolved(t), tt.wheel.FileName(), build(t, tt.wheel))
			var we *wheel.Error
			if !errors.As(err, &we) || !errors.Is(err, tt.kind) || we.Member != tt.member || we.Wheel != tt.wheel.FileName() {
				t.Errorf("got %v, want kind %q at member %q", err, tt.kind, tt.member)
			}
		})
	}
}

func TestFileName(t *testing.T) {
	data := build(t, sample())
	for _, name := range []string{"sample-1.0.whl", "other-1.0-py3-none-any.whl", "sample-1.1-py3-none-any.whl", "sample-1.0-py3-none-any.zip"} {
		if _, err := open(name, data); !errors.Is(err, wheel.ErrFormat) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := open("Sample-1.0-1-py3-none-any.whl", data); err != nil {
		t.Errorf("with build tag: %v", err)
	}
}

// rezip copies an archive and lets edit change one member's header and compressed bytes.
func rezip(t *testing.T, data []byte, name string, edit func(*zip.FileHeader, []byte) []byte) []byte {
	t.Helper()
	zr, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, f := range zr.File {
		r, err := f.OpenRaw()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		h := f.FileHeader
		if f.Name == name {
			raw = edit(&h, raw)
		}
		w, err := zw.CreateRaw(&h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(raw); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestContentIsChecked(t *testing.T) {
	w := sample()
	data := build(t, w)
	edits := map[string]func(*zip.FileHeader, []byte) []byte{
		"wrong CRC":       func(h *zip.FileHeader, raw []byte) []byte { h.CRC32++; return raw },
		"trailing bytes":  func(h *zip.FileHeader, raw []byte) []byte { h.CompressedSize64 += 3; return append(raw, 0, 0, 0) },
		"stream too long": func(h *zip.FileHeader, raw []byte) []byte { h.CompressedSize64 -= 2; return raw[:len(raw)-2] },
		"not deflate":     func(_ *zip.FileHeader, raw []byte) []byte { return bytes.Repeat([]byte{0xff}, len(raw)) },
	}
	for name, edit := range edits {
		_, err := install(resolved(t), w.FileName(), rezip(t, data, "sample/big.bin", edit))
		var we *wheel.Error
		if !errors.As(err, &we) || !errors.Is(err, wheel.ErrContent) || we.Member != "sample/big.bin" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	w.EditRecord = func(r string) string {
		i := strings.Index(r, "sample/big.bin,sha256=") + len("sample/big.bin,sha256=")
		return r[:i] + strings.Repeat("A", 43) + r[i+43:]
	}
	if _, err := install(resolved(t), w.FileName(), build(t, w)); !errors.Is(err, wheel.ErrContent) {
		t.Errorf("wrong hash: got %v", err)
	}
}

func TestZip64(t *testing.T) {
	w := wheeltest.Wheel{Name: "many", Version: "1.0"}
	for i := range 66000 {
		w.Files = append(w.Files, wheeltest.File{Name: fmt.Sprintf("many/f%d", i), Stored: true})
	}
	opened, err := open(w.FileName(), build(t, w))
	if err != nil || len(opened.Members) != 66003 {
		t.Fatalf("65,536 members and more: %v", err)
	}
	const huge = 5 << 30
	w = sample()
	w.EditRecord = replace(",8000\n", fmt.Sprintf(",%d\n", int64(huge)))
	data := rezip(t, build(t, w), "sample/big.bin", func(h *zip.FileHeader, raw []byte) []byte { h.UncompressedSize64 = huge; return raw })
	opened, err = open(w.FileName(), data)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := opened.Lookup("sample/big.bin")
	if !ok || m.Size != huge {
		t.Errorf("member of 5 GiB: %+v", m)
	}
}

// TestMutations flips one byte at a time: the wheel is refused or installs exactly what it did before.
func TestMutations(t *testing.T) {
	w := sample()
	w.EntryPoints = "[console_scripts]\nrun = sample:X\n"
	data, r := build(t, w), resolved(t)
	want, err := install(r, w.FileName(), data)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= byte(1 + rng.IntN(255))
		got, err := install(r, w.FileName(), bad)
		if err != nil {
			var we *wheel.Error
			if !errors.As(err, &we) {
				t.Fatalf("byte %d: error of type %T: %v", i, err, err)
			}
			refused++
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("byte %d: installs something else:\n%s", i, d)
		}
	}
	if refused < len(data)/2 {
		t.Errorf("only %d of %d mutations refused", refused, len(data))
	}
}
