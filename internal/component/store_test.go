package component_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/component"
	"imgsmith/internal/matrix"
	"imgsmith/internal/wheel/wheeltest"
)

func openStore(t *testing.T, dir string) *component.Store {
	t.Helper()
	s, err := component.OpenStore(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func options() component.Options {
	return component.Options{Compression: compressions()[3], Epoch: 1700000000, Platform: "linux/amd64"}
}

func TestStoreKeepsComponents(t *testing.T) {
	dir, locked := writeWheels(t, testWheels())
	s := openStore(t, t.TempDir())
	spec := specNamed(t, plan(t, target(locked)), "cudnn")
	if _, ok, err := s.Lookup(context.Background(), spec.Key()); ok || err != nil {
		t.Fatalf("an empty store has the component: %v %v", ok, err)
	}
	rec, made, err := s.Ensure(context.Background(), spec, openIn(dir))
	if err != nil || !made {
		t.Fatalf("made %v, %v", made, err)
	}
	spec.Name = "renamed"
	again, made, err := s.Ensure(context.Background(), spec, func(w matrix.Wheel) (component.Archive, error) { return nil, errors.New("not needed") })
	if err != nil || made || again.Name != "renamed" {
		t.Fatalf("second time: made %v, name %s, %v", made, again.Name, err)
	}
	again.Name = rec.Name
	if d := cmp.Diff(rec, again); d != "" {
		t.Error(d)
	}
	table, err := s.Table(rec)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := os.ReadFile(s.BlobPath(rec.Digest))
	if err != nil {
		t.Fatal(err)
	}
	digest, diffID, decoded, err := component.VerifyLayer(context.Background(), bytes.NewReader(blob), rec.MediaType, t.TempDir())
	if err != nil || digest != rec.Digest || diffID != rec.DiffID {
		t.Fatalf("the blob gives %s %s, %v", digest, diffID, err)
	}
	if d := cmp.Diff(table, decoded); d != "" {
		t.Error(d)
	}
	checkImage(t, s, rec)
	if recs, err := s.Records(context.Background()); err != nil || len(recs) != 1 || recs[0].Key != rec.Key {
		t.Errorf("records %v, %v", recs, err)
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(left) != 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
}

// checkImage follows the OCI layout from index.json to the layer.
func checkImage(t *testing.T, s *component.Store, rec component.Record) {
	t.Helper()
	read := func(path string, v any) {
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var index ocispec.Index
	read(filepath.Join(s.Dir(), "index.json"), &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Digest.String() != rec.ManifestDigest || index.Manifests[0].Size != rec.ManifestSize {
		t.Fatalf("index %+v", index.Manifests)
	}
	var m ocispec.Manifest
	read(s.BlobPath(rec.ManifestDigest), &m)
	if m.MediaType != ocispec.MediaTypeImageManifest || m.SchemaVersion != 2 || m.Config.Digest.String() != rec.ConfigDigest || len(m.Layers) != 1 ||
		m.Layers[0].Digest.String() != rec.Digest || m.Layers[0].Size != rec.Size || m.Layers[0].MediaType != rec.MediaType {
		t.Errorf("manifest %+v", m)
	}
	var c ocispec.Image
	read(s.BlobPath(rec.ConfigDigest), &c)
	if c.OS != "linux" || c.Architecture != "amd64" || len(c.RootFS.DiffIDs) != 1 || c.RootFS.DiffIDs[0].String() != rec.DiffID || len(c.History) != 1 || c.Created.Unix() != 1700000000 {
		t.Errorf("config %+v", c)
	}
}

func TestStoreMakesAgainWhatIsDamaged(t *testing.T) {
	s := openStore(t, t.TempDir())
	key := component.HashKey("x")
	ensure := func() (component.Record, bool) {
		rec, made, err := s.EnsureLayer(context.Background(), key, "x", []component.Entry{component.File("a", 0o644, []byte("a"))}, options())
		if err != nil {
			t.Fatal(err)
		}
		return rec, made
	}
	rec, _ := ensure()
	damages := map[string]func() error{
		"blob gone":     func() error { return os.Remove(s.BlobPath(rec.Digest)) },
		"blob short":    func() error { return os.Truncate(s.BlobPath(rec.Digest), 3) },
		"manifest gone": func() error { return os.Remove(s.BlobPath(rec.ManifestDigest)) },
		"table gone": func() error {
			return os.RemoveAll(filepath.Join(s.Dir(), "tables", strings.TrimPrefix(rec.TableDigest, "sha256:")+".json.zst"))
		},
		"record cut": func() error { return os.Truncate(filepath.Join(s.Dir(), "components", key+".json"), 10) },
		"other record": func() error {
			return os.WriteFile(filepath.Join(s.Dir(), "components", key+".json"), []byte(`{"key":"1"}`), 0o644)
		},
	}
	for name, damage := range damages {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		again, made := ensure()
		if !made || again != rec {
			t.Errorf("%s: made %v, record %+v, before %+v", name, made, again, rec)
		}
		if _, made := ensure(); made {
			t.Errorf("%s: made a third time", name)
		}
	}
	if err := os.WriteFile(filepath.Join(s.Dir(), "tables", strings.TrimPrefix(rec.TableDigest, "sha256:")+".json.zst"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	var se *component.StoreError
	if _, err := s.Table(rec); !errors.As(err, &se) {
		t.Errorf("damaged table: got %v", err)
	}
	if _, _, err := s.Lookup(context.Background(), "../../etc/passwd"); err == nil {
		t.Error("a key that is a path is accepted")
	}
	if p := s.BlobPath("sha256:../../x"); p != "" {
		t.Errorf("a digest that is a path gives %s", p)
	}
}

func TestStoreKeepsNothingOfAFailure(t *testing.T) {
	s := openStore(t, t.TempDir())
	key := component.HashKey("step")
	_, _, err := s.EnsureRewrite(context.Background(), key, "step", func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(tarOf(t, reg("a", "1"))[:1024]), strings.NewReader("not a tar header"))), nil
	}, component.RewriteOptions{Options: options()})
	if err == nil {
		t.Fatal("a broken tar makes a layer")
	}
	n := 0
	err = filepath.WalkDir(s.Dir(), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(p, filepath.Join(s.Dir(), "locks")) && d.Name() != "index.json" && d.Name() != "oci-layout" {
			t.Errorf("left behind: %s", p)
		}
		n++
		return err
	})
	if err != nil || n < 6 {
		t.Errorf("walked %d paths, %v", n, err)
	}
	rec, made, err := s.EnsureRewrite(context.Background(), key, "step", func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tarOf(t, reg("a", "1")))), nil
	}, component.RewriteOptions{Options: options()})
	if err != nil || !made || rec.Name != "step" {
		t.Errorf("after the failure: %v %v", made, err)
	}
}

// helper runs this test binary as another process that makes one component of a store.
func helper(t *testing.T, store, wheels string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestHelperProcess$", "-test.v")
	cmd.Env = append(os.Environ(), append(env, "COMPONENT_TEST_STORE="+store, "COMPONENT_TEST_WHEELS="+wheels)...)
	return cmd
}

// TestHelperProcess is no test of its own: other tests run it as a process beside them.
func TestHelperProcess(t *testing.T) {
	store, wheels := os.Getenv("COMPONENT_TEST_STORE"), os.Getenv("COMPONENT_TEST_WHEELS")
	if store == "" {
		t.Skip("only run by other tests")
	}
	files, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	var locked []matrix.Wheel
	for _, f := range files {
		locked = append(locked, lockFile(t, f))
	}
	tg := target(locked)
	if os.Getenv("COMPONENT_TEST_ZSTD") != "" {
		tg.Compression = compressions()[3]
	}
	s := openStore(t, store)
	for _, spec := range plan(t, tg) {
		rec, made, err := s.Ensure(context.Background(), spec, openIn(wheels))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("RESULT %s %v %s\n", rec.Name, made, rec.Digest)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err == nil {
		fmt.Printf("%s\n", status)
	}
}

func TestStoreManyMakers(t *testing.T) {
	dir, locked := writeWheels(t, testWheels())
	store := t.TempDir()
	s := openStore(t, store)
	specs := plan(t, target(locked))
	var mu sync.Mutex
	makers, digests := map[string]int{}, map[string]map[string]bool{}
	note := func(name string, made bool, digest string) {
		mu.Lock()
		defer mu.Unlock()
		if made {
			makers[name]++
		}
		if digests[name] == nil {
			digests[name] = map[string]bool{}
		}
		digests[name][digest] = true
	}
	var wg sync.WaitGroup
	for range 3 {
		for _, spec := range specs {
			wg.Go(func() {
				rec, made, err := s.Ensure(context.Background(), spec, openIn(dir))
				if err != nil {
					t.Error(err)
				}
				note(spec.Name, made, rec.Digest)
			})
		}
		wg.Go(func() {
			out, err := helper(t, store, dir).CombinedOutput()
			if err != nil {
				t.Errorf("helper: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if f := strings.Fields(line); len(f) == 4 && f[0] == "RESULT" {
					note(f[1], f[2] == "true", f[3])
				}
			}
		})
	}
	wg.Wait()
	for _, spec := range specs {
		if makers[spec.Name] != 1 || len(digests[spec.Name]) != 1 {
			t.Errorf("%s: made %d times, digests %v", spec.Name, makers[spec.Name], digests[spec.Name])
		}
	}
	var index ocispec.Index
	data, err := os.ReadFile(filepath.Join(store, "index.json"))
	if err == nil {
		err = json.Unmarshal(data, &index)
	}
	if err != nil || len(index.Manifests) != len(specs) {
		t.Errorf("index.json lists %d of %d, %v", len(index.Manifests), len(specs), err)
	}
}

// bigWheel is a CUDA wheel with one large library that starts like ELF.
func bigWheel(size int) wheeltest.Wheel {
	lib := make([]byte, size)
	copy(lib, "\x7fELF")
	for i := 4096; i < size; i += 4096 {
		copy(lib[i:], strconv.Itoa(i*i))
	}
	return wheeltest.Wheel{Name: "nvidia-cudnn-cu12", Version: "9.3.0.75", Files: []wheeltest.File{{Name: "nvidia/cudnn/lib/libcudnn.so.9", Data: lib}}}
}

func TestStoreSurvivesKill(t *testing.T) {
	dir, locked := writeWheels(t, []wheeltest.Wheel{bigWheel(64 << 20)})
	store := t.TempDir()
	cmd := helper(t, store, dir, "COMPONENT_TEST_ZSTD=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := false
	for range 2000 {
		if part, err := filepath.Glob(filepath.Join(store, "tmp", "*", "layer")); err == nil && len(part) > 0 {
			seen = true
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if !seen {
		t.Fatal("the maker never began")
	}
	s := openStore(t, store)
	if left, err := os.ReadDir(filepath.Join(store, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
	tg := target(locked)
	tg.Compression = compressions()[3]
	spec := specNamed(t, plan(t, tg), "cudnn")
	rec, _, err := s.Ensure(context.Background(), spec, openIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Table(rec); err != nil || len(got) < 5 {
		t.Errorf("table of %d nodes, %v", len(got), err)
	}
}

func TestStoreFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("cannot mount a small tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	s := openStore(t, filepath.Join(small, "store"))
	big := append([]byte("\x7fELF"), make([]byte, 16<<20)...) // compresses to nothing, but is set aside as a whole
	opts := options()
	_, _, err := s.EnsureLayer(context.Background(), component.HashKey("big"), "big", []component.Entry{component.File("a", 0o644, big)}, opts)
	var se *component.StoreError
	if !errors.As(err, &se) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(small, "store", "tmp")); err != nil || len(left) != 0 {
		t.Errorf("left in tmp: %v, %v", left, err)
	}
	if _, _, err := s.EnsureLayer(context.Background(), component.HashKey("little"), "little", []component.Entry{component.File("a", 0o644, []byte("a"))}, opts); err != nil {
		t.Errorf("a small layer after the failure: %v", err)
	}
}

// TestMemory makes components with a library of 512 MiB in both encodings in a process of its own.
func TestMemory(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc: peak memory cannot be read")
	}
	dir, _ := writeWheels(t, []wheeltest.Wheel{bigWheel(512 << 20)})
	for _, env := range []string{"COMPONENT_TEST_ZSTD=", "COMPONENT_TEST_ZSTD=1"} {
		out, err := helper(t, t.TempDir(), dir, env).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, rest, _ := strings.Cut(string(out), "VmHWM:")
		kib, err := strconv.Atoi(strings.Fields(rest + " ?")[0])
		if err != nil || kib > 250<<10 {
			t.Errorf("%s: peak of %d KiB, want at most 250 MiB (%v)", env, kib, err)
		}
		t.Logf("%s: peak %d MiB", env, kib>>10)
	}
}
