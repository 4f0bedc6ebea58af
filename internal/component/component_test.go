package component_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/component"
	"imgsmith/internal/layout"
	"imgsmith/internal/matrix"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/wheel"
	"imgsmith/internal/wheel/wheeltest"
)

// compressions lists everything that this build can write.
func compressions() []matrix.Compression {
	return []matrix.Compression{
		{Algorithm: "gzip", Level: "passthrough", Encoder: component.EncoderGzip}, {Algorithm: "gzip", Level: "default", Encoder: component.EncoderGzip},
		{Algorithm: "zstd", Level: "fastest", Encoder: component.EncoderZstd}, {Algorithm: "zstd", Level: "default", Encoder: component.EncoderZstd},
		{Algorithm: "zstd", Level: "better", Encoder: component.EncoderZstd},
	}
}

func target(locked []matrix.Wheel) matrix.Target {
	return matrix.Target{Entry: "t", Platform: "linux/amd64", CUDA: "12.5", Python: matrix.Python{Version: "3.11"}, Wheels: locked,
		Requested: []string{"imgsmith-hello"}, Compression: compressions()[0], Epoch: 1700000000}
}

func plan(t *testing.T, tg matrix.Target) []component.Spec {
	t.Helper()
	l, err := layout.Shipped("wheels")
	if err != nil {
		t.Fatal(err)
	}
	specs, err := component.Plan(tg, l)
	if err != nil {
		t.Fatal(err)
	}
	return specs
}

func specNamed(t *testing.T, specs []component.Spec, name string) component.Spec {
	t.Helper()
	i := slices.IndexFunc(specs, func(s component.Spec) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no component %s", name)
	}
	return specs[i]
}

func TestPlan(t *testing.T) {
	tg := matrix.Target{Platform: "linux/amd64", CUDA: "12.5", Python: matrix.Python{Version: "3.11"}, Compression: compressions()[0], Requested: []string{"tensorflow", "Pillow"}}
	for _, n := range []string{"tensorflow", "numpy", "pip", "six", "wrapt", "pillow", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cufft-cu12",
		"nvidia-curand-cu12", "nvidia-cusolver-cu12", "nvidia-cusparse-cu12", "nvidia-nccl-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-nvjitlink-cu12"} {
		tg.Wheels = append(tg.Wheels, matrix.Wheel{Name: n, File: n})
	}
	var got []string
	for _, s := range plan(t, tg) {
		var names []string
		for _, w := range s.Wheels {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(w.Name, "nvidia-"), "-cu12"))
		}
		got = append(got, fmt.Sprintf("%s %s: %s %v", s.Name, s.Side, strings.Join(names, " "), s.Requested))
	}
	want := []string{
		"cuda-blas cuda: cublas []", "cuda-fft-rand cuda: cufft curand []", "cuda-solver-sparse cuda: cusolver cusparse []", "cudnn cuda: cudnn []", "nccl cuda: nccl []",
		"cuda-compiler cuda: cuda-nvcc []", "cuda-runtime cuda: cuda-runtime nvjitlink []", "tensorflow all: tensorflow [tensorflow]", "python-tools all: pip []",
		"python-native all: numpy []", "python-packages all: six wrapt []",
		"cuda-python python: cublas cuda-nvcc cuda-runtime cudnn cufft curand cusolver cusparse nccl nvjitlink []", "extras all: pillow [pillow]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestKey(t *testing.T) {
	_, locked := writeWheels(t, testWheels())
	keys := func(edit func(*matrix.Target)) map[string]string {
		tg := target(slices.Clone(locked))
		edit(&tg)
		out := map[string]string{}
		for _, s := range plan(t, tg) {
			out[s.Name] = s.Key()
		}
		return out
	}
	base := keys(func(*matrix.Target) {})
	changed := func(edit func(*matrix.Target)) []string {
		var out []string
		for name, key := range keys(edit) {
			if base[name] != key {
				out = append(out, name)
			}
		}
		slices.Sort(out)
		return out
	}
	all := []string{"cuda-blas", "cuda-compiler", "cuda-python", "cudnn", "extras", "python-packages"}
	python := []string{"cuda-python", "extras", "python-packages"}
	tests := []struct {
		name string
		edit func(*matrix.Target)
		want []string
	}{
		{"nothing", func(*matrix.Target) {}, nil},
		{"entry name and base", func(t *matrix.Target) { t.Entry = "other"; t.Base.Digest = "sha256:00" }, nil},
		{"python", func(t *matrix.Target) { t.Python.Version = "3.12" }, python},
		{"cuda", func(t *matrix.Target) { t.CUDA = "12.6" }, []string{"cuda-blas", "cuda-compiler", "cudnn", "extras", "python-packages"}},
		{"epoch", func(t *matrix.Target) { t.Epoch++ }, all},
		{"compression", func(t *matrix.Target) { t.Compression = compressions()[3] }, all},
		{"one wheel", func(t *matrix.Target) { t.Wheels[4].SHA256 = strings.Repeat("0", 64) }, []string{"cuda-python", "cudnn"}},
		{"requested", func(t *matrix.Target) { t.Requested = append(t.Requested, "nvidia-cudnn-cu12") }, []string{"cuda-python"}},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, changed(tt.edit)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

func TestUnknownEncoder(t *testing.T) {
	for _, c := range []matrix.Compression{{}, {Algorithm: "zstd", Level: "default", Encoder: "klauspost-zstd/0"}, {Algorithm: "zstd", Level: "passthrough", Encoder: component.EncoderZstd},
		{Algorithm: "xz", Level: "default"}, {Algorithm: "gzip", Level: "", Encoder: component.EncoderGzip}} {
		var ue *component.UnknownEncoderError
		if err := component.CheckCompression(c); !errors.As(err, &ue) || ue.Compression != c {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

func makeSpec(t *testing.T, s component.Spec, dir string) (component.Record, rootfs.Layer, []byte) {
	t.Helper()
	s.Options.TempDir = t.TempDir()
	var buf bytes.Buffer
	rec, table, err := component.Make(context.Background(), &buf, s, openIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	return rec, table, buf.Bytes()
}

// TestLayers makes every component in every compression: twice the same bytes whatever the parallelism, the
// digests are true, strict decoding gives the same table.
func TestLayers(t *testing.T) {
	dir, locked := writeWheels(t, testWheels())
	for _, c := range compressions() {
		tg := target(locked)
		tg.Compression = c
		for _, s := range plan(t, tg) {
			rec, table, blob := makeSpec(t, s, dir)
			procs := runtime.GOMAXPROCS(1)
			_, _, again := makeSpec(t, s, dir)
			runtime.GOMAXPROCS(procs)
			if !bytes.Equal(blob, again) {
				t.Errorf("%s %s %s: other bytes the second time", s.Name, c.Algorithm, c.Level)
			}
			if got := fmt.Sprintf("sha256:%x", sha256.Sum256(blob)); got != rec.Digest || rec.Size != int64(len(blob)) {
				t.Errorf("%s %s: digest %s, size %d; the bytes have %s, %d", s.Name, c.Algorithm, rec.Digest, rec.Size, got, len(blob))
			}
			digest, diffID, decoded, err := component.VerifyLayer(context.Background(), bytes.NewReader(blob), rec.MediaType, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if digest != rec.Digest || diffID != rec.DiffID {
				t.Errorf("%s %s: decoding gives %s %s, the record has %s %s", s.Name, c.Algorithm, digest, diffID, rec.Digest, rec.DiffID)
			}
			if d := cmp.Diff(table, decoded); d != "" {
				t.Errorf("%s %s: table: %s", s.Name, c.Algorithm, d)
			}
		}
	}
}

// TestPassthroughKeepsTheStream looks for the wheel's own bytes in the layer and reads it with the standard library.
func TestPassthroughKeepsTheStream(t *testing.T) {
	dir, locked := writeWheels(t, testWheels())
	s := specNamed(t, plan(t, target(locked)), "cudnn")
	_, _, blob := makeSpec(t, s, dir)
	data, err := os.ReadFile(dir + "/" + s.Wheels[0].File)
	if err != nil {
		t.Fatal(err)
	}
	w, err := wheel.Open(s.Wheels[0].File, bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	m, ok := w.Lookup("nvidia/cudnn/lib/libcudnn.so.12")
	if !ok || m.Size <= 128<<10 {
		t.Fatalf("the test needs a member over 128 KiB, has %+v", m)
	}
	if !bytes.Contains(blob, data[m.Offset:m.Offset+m.Compressed]) {
		t.Error("the layer does not hold the member's own deflate stream")
	}
	z, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(z)
	sizes := map[string]int64{}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s: owner %d:%d %q, time %s", h.Name, h.Uid, h.Gid, h.Uname, h.ModTime)
		}
		sizes[h.Name] = n
	}
	if sizes["usr/local/cuda-12.5/lib64/libcudnn.so.12"] != m.Size {
		t.Errorf("the library has %d bytes", sizes["usr/local/cuda-12.5/lib64/libcudnn.so.12"])
	}
}

// TestEncodedBytes pins what each encoder writes. When it fails after an update of a compression library, raise
// the number in the encoder's name and pin anew: old locks must not get other bytes under the same name.
func TestEncodedBytes(t *testing.T) {
	var data bytes.Buffer
	for i := range 60000 {
		fmt.Fprintf(&data, "line %d of %x\n", i, i*i*2654435761)
	}
	want := map[string]string{
		"gzip passthrough": "sha256:5c164e5cfc6df80ec09566732f83c1e6d7b57a0495aa7e465cc665b7136c8031",
		"gzip default":     "sha256:5c164e5cfc6df80ec09566732f83c1e6d7b57a0495aa7e465cc665b7136c8031",
		"zstd fastest":     "sha256:71a38ea912a2b6d09e5d66f560fa683203f1119bf973c8ca7e94cd3a280d6d70",
		"zstd default":     "sha256:51648f0d89665ad0cf37edbfecbf947f88fc4f4b4ebb68c58bca2bea4bcabcda",
		"zstd better":      "sha256:656d6f0423b3091d02dac3f49871e5f01a3a5dee0ccd4e653a9b3670dd956bd0",
	}
	for _, c := range compressions() {
		opts := component.Options{Compression: c, Epoch: 1700000000, TempDir: t.TempDir()}
		rec, _, err := component.WriteLayer(context.Background(), io.Discard, []component.Entry{component.File("a/data.txt", 0o644, data.Bytes())}, opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.Digest; got != want[c.Algorithm+" "+c.Level] {
			t.Errorf("%s %s (%s): %s", c.Algorithm, c.Level, c.Encoder, got)
		}
	}
}

func TestCollision(t *testing.T) {
	a := wheeltest.Wheel{Name: "aaa", Version: "1", Files: []wheeltest.File{{Name: "tests/__init__.py", Data: []byte("a")}, {Name: "same.py", Data: []byte("s")}}}
	b := wheeltest.Wheel{Name: "bbb", Version: "1", Files: []wheeltest.File{{Name: "tests/__init__.py", Data: []byte("b")}, {Name: "same.py", Data: []byte("s")}}}
	dir, locked := writeWheels(t, []wheeltest.Wheel{a, b})
	_, _, err := component.Make(context.Background(), io.Discard, plan(t, target(locked))[0], openIn(dir))
	var ce *component.CollisionError
	if !errors.As(err, &ce) || ce.Path != "opt/venv/lib/python3.11/site-packages/tests/__init__.py" || ce.Wheels != [2]string{"aaa-1-py3-none-any.whl", "bbb-1-py3-none-any.whl"} {
		t.Errorf("other content: got %v", err)
	}
	b.Files[0] = wheeltest.File{Name: "tests/__init__.py", Data: []byte("a"), Mode: 0o100755}
	dir, locked = writeWheels(t, []wheeltest.Wheel{a, b})
	if _, _, err = component.Make(context.Background(), io.Discard, plan(t, target(locked))[0], openIn(dir)); !errors.As(err, &ce) {
		t.Errorf("other mode: got %v", err)
	}
	b.Files[0].Mode = 0
	dir, locked = writeWheels(t, []wheeltest.Wheel{a, b})
	_, table, _ := makeSpec(t, plan(t, target(locked))[0], dir)
	records := 0
	for _, n := range table {
		if strings.HasSuffix(n.Path, "/RECORD") && bytes.Contains(n.Data, []byte("tests/__init__.py,sha256=")) {
			records++
		}
	}
	if records != 2 {
		t.Errorf("the shared file stands in %d RECORDs, want both", records)
	}
}

func TestWrongWheelFile(t *testing.T) {
	dir, locked := writeWheels(t, testWheels())
	for name, edit := range map[string]func(*matrix.Wheel){
		"hash": func(w *matrix.Wheel) { w.SHA256 = strings.Repeat("0", 64) },
	} {
		tg := target(slices.Clone(locked))
		edit(&tg.Wheels[1])
		_, _, err := component.Make(context.Background(), io.Discard, specNamed(t, plan(t, tg), "python-packages"), openIn(dir))
		var me *component.MismatchError
		if !errors.As(err, &me) || me.File != locked[1].File {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// A file that grew after it was locked.
	file := dir + "/" + locked[1].File
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(data, 0), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _, err = component.Make(context.Background(), io.Discard, specNamed(t, plan(t, target(locked)), "python-packages"), openIn(dir))
	var me *component.MismatchError
	if !errors.As(err, &me) {
		t.Errorf("grown file: got %v", err)
	}
}

func TestTestLayoutBreaksTheImage(t *testing.T) {
	dir, locked := writeWheels(t, testWheels())
	l, err := layout.Parse("broken.yaml", []byte("extends: wheels\nname: broken\ntest: true\nbreak:\n  - {path: \"{root}/lib64/libcudnn.so.12\", link: gone.so}\n  - {path: \"{root}/include/cudnn.h\", drop: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	specs, err := component.Plan(target(locked), l)
	if err != nil {
		t.Fatal(err)
	}
	s := specNamed(t, specs, "cudnn")
	if s.Key() == specNamed(t, plan(t, target(locked)), "cudnn").Key() {
		t.Error("the broken layer has the key of the good one")
	}
	_, table, _ := makeSpec(t, s, dir)
	for _, n := range table {
		switch n.Path {
		case "usr/local/cuda-12.5/lib64/libcudnn.so.12":
			if n.Type != rootfs.Symlink || n.Link != "gone.so" {
				t.Errorf("%+v is no dangling link", n)
			}
		case "usr/local/cuda-12.5/include/cudnn.h":
			t.Error("the dropped header is there")
		}
	}
}
