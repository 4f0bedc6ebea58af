package child

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/engine"
	"imgsmith/internal/engine/enginetest"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/registry"
)

// debian is a store with a real base, and an engine with an empty state.
type debian struct {
	t      *testing.T
	dir    string
	state  string
	store  *registry.Loopback
	engine *Engine
	base   llb.BaseImage
	target matrix.Target
}

func newDebian(t *testing.T) *debian {
	t.Helper()
	engines := engineDir(t)
	layout := os.Getenv("IMGSMITH_TEST_BASE")
	if layout == "" {
		t.Skip("needs a Debian 12 base without Python: IMGSMITH_TEST_BASE names an OCI layout made by scripts/make-base")
	}
	d := &debian{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), target: enginetest.Target()}
	var err error
	if d.store, err = registry.NewLoopback(d.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.store.Close(context.Background()) })
	base, err := registry.ImportBase(t.Context(), "oci-layout:"+layout, d.target.Platform, d.dir)
	if err != nil {
		t.Fatal(err)
	}
	d.base = llb.BaseImage{Name: base.Name, Ref: llb.StoreRef("base/debian", base.ManifestDigest), Config: base.Config}
	secrets := map[string][]byte{}
	if ca, err := os.ReadFile(os.Getenv("SSL_CERT_FILE")); err == nil {
		secrets[llb.SecretCA] = ca
	}
	for id, name := range map[string]string{llb.SecretHTTPProxy: "http_proxy", llb.SecretHTTPSProxy: "https_proxy", llb.SecretNoProxy: "no_proxy"} {
		if v := os.Getenv(name); v != "" {
			secrets[id] = []byte(v)
		}
	}
	d.engine, err = Start(t.Context(), Options{EngineDir: engines, Root: d.state, StoreAddr: d.store.Addr(), Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.engine.Close() })
	return d
}

// entry is a path of a step's result without its time.
type entry struct{ mode, link, content string }

func (d *debian) extract(p llb.Program, err error) (map[string]entry, map[string][]byte) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := d.engine.Extract(d.t.Context(), p, &out); err != nil {
		d.t.Fatal(err)
	}
	entries, files := map[string]entry{}, map[string][]byte{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries, files
		}
		if err != nil {
			d.t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			d.t.Fatal(err)
		}
		entries[h.Name] = entry{fmt.Sprintf("%c %o %d:%d", h.Typeflag, h.Mode, h.Uid, h.Gid), h.Linkname, fmt.Sprintf("%x", sha256.Sum256(data))}
		files[h.Name] = data
	}
}

// layer writes entries with the target's epoch as a one-layer image: a stand-in for the component writer.
func (d *debian) layer(name string, entries map[string]entry, files map[string][]byte) llb.LayerRef {
	d.t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, path := range slices.Sorted(mapKeys(entries)) {
		h := &tar.Header{Name: path, Linkname: entries[path].link, Size: int64(len(files[path])), ModTime: d.target.Time(), Format: tar.FormatPAX}
		if _, err := fmt.Sscanf(entries[path].mode, "%c %o %d:%d", &h.Typeflag, &h.Mode, &h.Uid, &h.Gid); err != nil {
			d.t.Fatal(err)
		}
		if err := w.WriteHeader(h); err != nil {
			d.t.Fatal(err)
		}
		if _, err := w.Write(files[path]); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		d.t.Fatal(err)
	}
	return enginetest.PutLayer(d.t, d.dir, name, out.Bytes())
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (d *debian) files(name string, content map[string]string) llb.LayerRef {
	entries, files := map[string]entry{}, map[string][]byte{}
	for path, data := range content {
		entries[path] = entry{mode: fmt.Sprintf("%c 644 0:0", tar.TypeReg)}
		files[path] = []byte(data)
	}
	return d.layer(name, entries, files)
}

// TestDebian goes the whole way of an image on a real base: OS packages, environment, bytecode, loader cache,
// and a merge with a component that no step touched.
func TestDebian(t *testing.T) {
	d := newDebian(t)
	packages := []string{"python3.11", "ca-certificates"}
	p, err := llb.OSStep(d.target, d.base, packages)
	osEntries, osFiles := d.extract(p, err)
	d.checkOS(osEntries, osFiles)
	osLayer := d.layer("os", osEntries, osFiles)

	p, err = llb.VenvStep(d.target, d.base, []llb.LayerRef{osLayer})
	venvEntries, venvFiles := d.extract(p, err)
	if got := venvEntries["opt/venv/bin/python3.11"].link; got != "/usr/bin/python3.11" {
		t.Errorf("the environment's interpreter is a link to %q", got)
	}
	for path := range venvEntries {
		if path != "opt/" && !strings.HasPrefix(path, "opt/venv/") || strings.Contains(path, "__pycache__") || strings.Contains(path, "/pip") {
			t.Errorf("the environment step changed %s", path)
		}
	}
	venv := d.layer("venv", venvEntries, venvFiles)

	sources := map[string]string{"opt/venv/lib/python3.11/site-packages/pkg/__init__.py": "x = {'b', 'a', 'c'}\n",
		"opt/venv/lib/python3.11/site-packages/pkg/template.py": "def (:\n"}
	twin := d.files("python", sources)
	p, err = llb.BytecodeStep(d.target, d.base, []llb.LayerRef{osLayer, venv}, twin, nil)
	entries, files := d.extract(p, err)
	const pyc = "opt/venv/lib/python3.11/site-packages/pkg/__pycache__/__init__.cpython-311.pyc"
	d.checkBytecode(pyc, files[pyc], sources["opt/venv/lib/python3.11/site-packages/pkg/__init__.py"])
	for path, e := range entries {
		if !strings.HasPrefix(e.mode, "5") && path != pyc {
			t.Errorf("the bytecode step made %s", path)
		}
	}
	bytecode := d.layer("bytecode", entries, files)

	p, err = llb.LdconfigStep(d.target, d.base, []llb.LayerRef{osLayer}, d.files("twin", map[string]string{"etc/ld.so.conf.d/cuda.conf": "/usr/local/cuda/lib64\n"}))
	entries, files = d.extract(p, err)
	if diff := cmp.Diff([]string{"etc/", "etc/ld.so.cache"}, slices.Sorted(mapKeys(entries))); diff != "" {
		t.Errorf("loader cache step (-want +got):\n%s", diff)
	}
	if !bytes.Equal(files["etc/ld.so.cache"], osFiles["etc/ld.so.cache"]) {
		t.Error("without further libraries the loader cache differs from that of the OS layer")
	}
	d.checkMerge([]llb.LayerRef{osLayer, venv, twin, bytecode, d.layer("cache", entries, files)})
}

// TestOSStepIsReproducible runs the step on two engines that share nothing.
func TestOSStepIsReproducible(t *testing.T) {
	var results []map[string]entry
	for range 2 {
		d := newDebian(t)
		p, err := llb.OSStep(d.target, d.base, []string{"python3.11"})
		entries, _ := d.extract(p, err)
		results = append(results, entries)
	}
	if diff := cmp.Diff(results[0], results[1], cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("two runs (-first +second):\n%s", diff)
	}
}

func (d *debian) checkOS(entries map[string]entry, files map[string][]byte) {
	d.t.Helper()
	for path, e := range entries {
		for _, bad := range []string{"run/", "tmp/", "proc/", "var/lib/apt/lists/", "var/cache/apt/", "var/cache/ldconfig/", "etc/resolv.conf", "etc/hosts"} {
			if strings.HasPrefix(path, bad) && !strings.HasPrefix(e.mode, "5") {
				d.t.Errorf("the OS layer has %s", path)
			}
		}
		if strings.Contains(path, ".wh.") || strings.HasSuffix(path, ".log") || strings.HasSuffix(path, "-old") {
			d.t.Errorf("the OS layer has %s", path)
		}
	}
	for path, data := range files {
		for _, secret := range d.engine.Secrets {
			if len(secret) > 0 && len(secret) < 1<<10 && bytes.Contains(data, secret) {
				d.t.Errorf("%s holds a secret", path)
			}
		}
	}
	d.checkBytecode("os.py", files["usr/lib/python3.11/__pycache__/os.cpython-311.pyc"], string(files["usr/lib/python3.11/os.py"]))
}

// checkBytecode compares the header with the time and length of the source.
func (d *debian) checkBytecode(name string, pyc []byte, source string) {
	d.t.Helper()
	if len(pyc) < 16 {
		d.t.Fatalf("%s has no bytecode", name)
	}
	got := [3]uint32{binary.LittleEndian.Uint32(pyc[4:]), binary.LittleEndian.Uint32(pyc[8:]), binary.LittleEndian.Uint32(pyc[12:])}
	if want := [3]uint32{0, enginetest.Epoch, uint32(len(source))}; got != want {
		d.t.Errorf("%s: flags, time and size %v, want %v", name, got, want)
	}
}

// checkMerge pushes an image that has a big component besides, which must stay where it is.
func (d *debian) checkMerge(layers []llb.LayerRef) {
	d.t.Helper()
	big := d.files("big", map[string]string{"usr/local/cuda/lib64/libbig.so": strings.Repeat("big ", 8<<20)})
	layers = append(layers, big)
	p, err := llb.Compile(d.target, d.base, layers, llb.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	before, size := len(d.store.AccessLog()), d.stateSize()
	digest, err := d.engine.Push(d.t.Context(), p, d.store.Addr()+"/staging/debian", engine.PushOptions{Compression: "zstd", Epoch: enginetest.Epoch})
	if err != nil {
		d.t.Fatal(err)
	}
	if grown := d.stateSize() - size; grown > 4<<20 {
		d.t.Errorf("the engine's state grew by %d bytes", grown)
	}
	for _, a := range d.store.AccessLog()[before:] {
		if got, ok := a.BlobDownload(); ok && a.Bytes > 64<<10 {
			d.t.Errorf("the engine downloaded %s: %+v", got, a)
		}
	}
	again, err := registry.ImportBase(d.t.Context(), d.store.Addr()+"/staging/debian@"+digest, d.target.Platform, d.t.TempDir())
	if err != nil {
		d.t.Fatal(err)
	}
	var got, want []string
	for _, l := range again.Layers[1:] {
		got = append(got, l.Digest)
	}
	for _, l := range layers {
		want = append(want, l.Digest)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		d.t.Errorf("layers after the base (-want +got):\n%s", diff)
	}
}

func (d *debian) stateSize() (n int64) {
	d.t.Helper()
	err := filepath.WalkDir(d.state, func(_ string, e fs.DirEntry, err error) error {
		if info, infoErr := e.Info(); err == nil && infoErr == nil && e.Type().IsRegular() {
			n += info.Size()
		}
		return nil // files come and go while the daemon runs
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}
