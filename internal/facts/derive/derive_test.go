package derive_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/facts"
	"imgsmith/internal/facts/derive"
	"imgsmith/internal/wheel/wheeltest"
)

func embedded(t *testing.T) *facts.Table {
	t.Helper()
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func made(t *testing.T, path string, table *facts.Table) (*derive.Observed, *derive.Document) {
	t.Helper()
	o, err := derive.Wheel(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := derive.Make(o, table)
	if err != nil {
		t.Fatal(err)
	}
	return o, doc
}

func TestWheel(t *testing.T) {
	o, doc := made(t, selfBuilt(t, nil), embedded(t))
	modules := []derive.Modules{
		{SASS: []string{"8.0", "9.0"}, PTX: []string{"9.0"}, PTXISA: "8.3", Count: 2},
		{SASS: []string{"8.0"}, PTX: []string{"9.0a"}, PTXISA: "8.5", Count: 1},
	}
	if d := cmp.Diff(modules, o.Libraries.GPUModules); d != "" {
		t.Error(d)
	}
	if o.Libraries.Glibc != "2.28" || o.Libraries.Caller != "libtensorflow_framework.so.2" || o.Headers.NCCL != "2.23.4" || o.Headers.CUDA != "12.5" || len(o.SHA256) != 64 {
		t.Errorf("%+v", o)
	}
	row := doc.TensorFlow[0]
	source := row.Source
	row.Evidence, row.Provenance = facts.Evidence{}, nil
	want := derive.Row{
		Minor: "2.23", Releases: []string{"2.23.0+site7"}, Python: derive.Range{Min: "3.11", Max: "3.11"}, CUDA: derive.CUDA{Tested: "12.5", Major: 12},
		CuDNN: derive.CuDNN{Tested: "9.3", Major: 9, Compiled: "9.3.0"}, MinGlibc: "2.28", NumPy: ">=1.26,<2.3", Protobuf: ">=6.31,<8,!=5", Keras: ">=3.12", NCCL: "2.23.4",
		GPUCode: derive.Code{SASS: []string{"8.0", "9.0"}, PTX: []string{"9.0"}, Min: "8.0", Modules: modules},
		Search:  derive.Search{Kind: "runpath", Lacks: []string{"cufft", "cusolver", "cusparse"}}, DlopenSet: "cuda12-cudnn9",
		Extra: &derive.Extra{Style: "exact", Suffix: "cu12", Packages: map[string]string{"nvidia-cublas-cu12": "12.5.3.2", "nvidia-cudnn-cu12": "9.3.0.75", "nvidia-nccl-cu12": "2.23.4"}},
	}
	if d := cmp.Diff(want, row); d != "" {
		t.Error(d)
	}
	if !strings.Contains(source, o.SHA256) || !strings.Contains(source, o.File) {
		t.Errorf("source %q names no wheel", source)
	}
}

// A wheel of a minor that the table has gives a row for that wheel's version only; what it does not show is taken
// from the minor and says so.
func TestKnownMinor(t *testing.T) {
	table := embedded(t)
	_, doc := made(t, selfBuilt(t, func(w *wheeltest.Wheel) {
		w.Version = "2.19.1+site7"
		w.Metadata = strings.Replace(w.Metadata, "numpy <2.3,>=1.26.0", "numpy >=1.26.0", 1)
		for i := range w.Files {
			if strings.HasSuffix(w.Files[i].Name, "cudnn_version.h") {
				w.Files[i].Data = []byte("/* nothing */\n")
			}
		}
	}), table)
	row := doc.TensorFlow[0]
	if !row.Exact || row.CuDNN.Compiled != "9.3.0" || !strings.Contains(row.Provenance["cudnn"].Source, "facts of TensorFlow 2.19") || row.NumPy != ">=1.26,<2.2" ||
		!strings.Contains(row.Provenance["numpy"].Source, "cap") {
		t.Errorf("%+v", row)
	}
	overlaid := load(t, doc)
	mine, err := overlaid.TensorFlow("2.19.1+site7")
	if err != nil || mine.Inferred || mine.PythonMax != "3.11" || mine.MinComputeCapability != "8.0" {
		t.Errorf("%v %+v", err, mine)
	}
	official, err := overlaid.TensorFlow("2.19.1")
	if err != nil || official.PythonMax != "3.12" || official.MinComputeCapability != "6.0" {
		t.Errorf("the overlay changed the official release: %v %+v", err, official)
	}
}

// load writes a document into a directory and lays it over the table.
func load(t *testing.T, doc *derive.Document) *facts.Table {
	t.Helper()
	text, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	table, err := facts.Load(dir)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return table
}

func TestAnotherCUDA(t *testing.T) {
	_, doc := made(t, selfBuilt(t, func(w *wheeltest.Wheel) {
		for i := range w.Files {
			if strings.HasSuffix(w.Files[i].Name, "cuda_config.h") {
				text := strings.NewReplacer(`"12.5.1"`, `"13.0.1"`, `CUDART_VERSION "12"`, `CUDART_VERSION "13"`, `CUBLAS_VERSION "12"`, `CUBLAS_VERSION "13"`, `CUFFT_VERSION "11"`, `CUFFT_VERSION "12"`).Replace(cudaConfig)
				w.Files[i].Data = []byte(text)
			}
		}
	}), embedded(t))
	if len(doc.DlopenSets) != 1 || doc.TensorFlow[0].DlopenSet != doc.DlopenSets[0].ID || doc.TensorFlow[0].CUDA.Major != 13 {
		t.Fatalf("%+v", doc.DlopenSets)
	}
	tf, err := load(t, doc).TensorFlow("2.23.0+site7")
	want := []string{"libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12", "libcusolver.so.11", "libcusparse.so.12", "libcudnn.so.9"}
	if err != nil || cmp.Diff(want, tf.DlopenSet) != "" {
		t.Errorf("%v %v", err, tf.DlopenSet)
	}
}

func TestRefused(t *testing.T) {
	table := embedded(t)
	for name, edit := range map[string]func(*wheeltest.Wheel){
		"no framework library": func(w *wheeltest.Wheel) { w.Files = w.Files[:1] },
		"framework is no ELF":  func(w *wheeltest.Wheel) { w.Files[1].Data = []byte("text") },
		"broken code section": func(w *wheeltest.Wheel) {
			d := append([]byte(nil), w.Files[1].Data...)
			for i := 0; i+4 < len(d); i++ {
				if string(d[i:i+4]) == "\x50\xed\x55\xba" {
					d[i+10] = 0xff // size of the first module
					break
				}
			}
			w.Files[1].Data = d
		},
	} {
		if _, err := derive.Wheel(t.Context(), selfBuilt(t, edit)); err == nil || !strings.Contains(err.Error(), "tensorflow-2.23.0+site7") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var incomplete *derive.IncompleteError
	o, err := derive.Wheel(t.Context(), selfBuilt(t, func(w *wheeltest.Wheel) { w.Files = []wheeltest.File{w.Files[0], w.Files[1], w.Files[6]} }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := derive.Make(o, table); !errors.As(err, &incomplete) || len(incomplete.Fields) != 2 || incomplete.Remedy() == "" {
		t.Errorf("no headers and an unknown minor: %v", err)
	}
	var cpu *derive.NoGPUError
	o.Libraries.GPUModules, o.BuildInfo.IsCUDA = nil, false
	if _, err := derive.Make(o, table); !errors.As(err, &cpu) {
		t.Errorf("a CPU build: %v", err)
	}
	if _, err := derive.Wheel(t.Context(), filepath.Join(t.TempDir(), "gone.whl")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Whatever byte of the library is changed, reading ends with facts or an error, never with a panic or a hang.
func TestMutatedLibrary(t *testing.T) {
	lib := func() []byte {
		var out []byte
		selfBuilt(t, func(w *wheeltest.Wheel) { out = w.Files[1].Data })
		return out
	}()
	for i := range lib {
		for _, b := range []byte{0x00, 0xff} {
			data := append([]byte(nil), lib...)
			data[i] = b
			g := derive.GPUCode{}
			if err := g.AddGPUCode(t.Context(), strings.NewReader(string(data))); err == nil {
				for _, m := range g.List() {
					if m.Count < 1 {
						t.Fatalf("byte %d: %+v", i, m)
					}
				}
			}
		}
	}
}

func TestRequirement(t *testing.T) {
	for line, want := range map[string]derive.Requirement{
		"numpy <2.2.0,>=1.26.0":                                {Name: "numpy", Spec: ">=1.26,<2.2"},
		"protobuf !=4.21.0,!=4.21.1,<6.0.0dev,>=3.20.3":        {Name: "protobuf", Spec: ">=3.20.3,<6,!=4.21,!=4.21.1"},
		"nvidia_cudnn-cu12 (==9.3.0.75) ; extra == 'and-cuda'": {Name: "nvidia-cudnn-cu12", Spec: "==9.3.0.75", Marker: "extra == 'and-cuda'"},
		"numpy[x] >=1.26.0 ; python_version >= \"3.12\"":       {Name: "numpy", Spec: ">=1.26", Marker: "python_version >= \"3.12\""},
		"tensorboard ~=2.19.0":                                 {Name: "tensorboard", Spec: "~=2.19.0"},
		"packaging":                                            {Name: "packaging"},
		"":                                                     {},
	} {
		if got := derive.ParseRequirement(line); got != want {
			t.Errorf("%q: %+v", line, got)
		}
	}
	for marker, want := range map[string]bool{
		`python_version >= "3.12"`: false, `python_version < "3.12"`: true, `extra == 'and-cuda'`: false, `platform_system == "Windows"`: false,
		`platform_system != "Darwin" or platform_machine != "arm64"`: true, `python_version <= "3.11" and platform_machine == "x86_64"`: true, `unknown_thing == "x"`: true,
	} {
		if got := (derive.Requirement{Marker: marker}).Holds(derive.Environment{Python: "3.11"}); got != want {
			t.Errorf("%s: %v", marker, got)
		}
	}
}

// Check finds nothing between a wheel and the facts derived from it, and every field that is changed afterwards.
func TestCheck(t *testing.T) {
	o, doc := made(t, selfBuilt(t, nil), embedded(t))
	if diffs, err := derive.Check(load(t, doc), o); err != nil || len(diffs) != 0 {
		t.Fatalf("%v %v", err, diffs)
	}
	for field, edit := range map[string]func(*derive.Row){
		"cuda.tested":            func(r *derive.Row) { r.CUDA.Tested = "12.3" },
		"cudnn.compiled":         func(r *derive.Row) { r.CuDNN.Compiled = "9.1.0" },
		"gpu_code.sass":          func(r *derive.Row) { r.GPUCode.SASS = []string{"8.0"} },
		"gpu_code.ptx":           func(r *derive.Row) { r.GPUCode.PTX = []string{"8.0"} },
		"gpu_code.modules":       func(r *derive.Row) { r.GPUCode.Modules = r.GPUCode.Modules[:1] },
		"min_glibc":              func(r *derive.Row) { r.MinGlibc = "2.17" },
		"keras":                  func(r *derive.Row) { r.Keras = ">=3" },
		"nccl_header":            func(r *derive.Row) { r.NCCL = "2.20.5" },
		"search.lacks":           func(r *derive.Row) { r.Search.Lacks = nil },
		"dlopen_set":             func(r *derive.Row) { r.DlopenSet = "cuda12-cudnn8" },
		"numpy":                  func(r *derive.Row) { r.NumPy = ">=1.20" },
		"python.max":             func(r *derive.Row) { r.Python.Max = "3.12" },
		"extra.nvidia-nccl-cu12": func(r *derive.Row) { r.Extra.Packages["nvidia-nccl-cu12"] = "2.24.0" },
	} {
		_, changed := made(t, selfBuilt(t, nil), embedded(t))
		edit(&changed.TensorFlow[0])
		diffs, err := derive.Check(load(t, changed), o)
		if err != nil || len(diffs) != 1 || diffs[0].Field != field {
			t.Errorf("%s: %v %v", field, err, diffs)
		}
	}
}
