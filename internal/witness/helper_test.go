package witness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/component"
	"imgsmith/internal/engine/child"
	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
	"imgsmith/internal/rootfs"
)

const recipe = "../../recipes/quickstart.yaml"

// TestMain lets the test binary be the init of an engine.
func TestMain(m *testing.M) {
	if ran, code := child.RunInitIfRequested(); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// env is what the make targets give these tests.
type env struct{ bin, base, store, engines string }

// asked skips a test that nobody asked for. One that was asked for never skips: what it misses is a failure.
func asked(t *testing.T, gate, target string) env {
	t.Helper()
	if os.Getenv(gate) == "" {
		t.Skipf("takes minutes and gigabytes; %s runs it", target)
	}
	if os.Geteuid() != 0 {
		t.Fatal("this needs root")
	}
	e := env{}
	for name, v := range map[string]*string{"IMGSMITH_BIN": &e.bin, "IMGSMITH_BASE": &e.base, "IMGSMITH_STORE": &e.store, "IMGSMITH_ENGINE_DIR": &e.engines} {
		if *v = os.Getenv(name); *v == "" {
			t.Fatalf("%s is not set; run %s", name, target)
		}
	}
	if err := os.MkdirAll(filepath.Join(e.store, "wheels"), 0o755); err != nil {
		t.Fatal(err)
	}
	return e
}

// scratch is a directory with a short path, since sockets live in some; it is removed at the end.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unmountBelow(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// unmountBelow unmounts, last first, what a daemon that has ended left mounted: it shares our mount namespace.
func unmountBelow(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(table), "\n")
	slices.Reverse(lines)
	for _, l := range lines {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			err = errors.Join(err, syscall.Unmount(f[4], 0))
		}
	}
	return err
}

// emptyStore is a store without any layer that shares the wheels of the usual one.
func (e env) emptyStore(t *testing.T) env {
	t.Helper()
	dir := scratch(t)
	if err := os.Symlink(filepath.Join(e.store, "wheels"), filepath.Join(dir, "wheels")); err != nil {
		t.Fatal(err)
	}
	e.store = dir
	return e
}

// variant writes the quickstart recipe and its lock with another compression; the wheels stay the locked ones.
func variant(t *testing.T, algorithm string) (file string, target matrix.Target) {
	t.Helper()
	data := read(t, recipe)
	lock, err := matrix.LoadLock(matrix.LockPath(recipe), read(t, matrix.LockPath(recipe)))
	if err != nil {
		t.Fatal(err)
	}
	if algorithm != "zstd" {
		data = append(data, "compression: "+algorithm+"\n"...)
	}
	file = filepath.Join(scratch(t), "quickstart.yaml")
	r, err := matrix.Load(file, data)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Entries) != 1 || len(lock.Targets) != 1 {
		t.Fatalf("%d entries, %d targets; this test is for one", len(r.Entries), len(lock.Targets))
	}
	target = lock.Targets[0]
	target.Compression = r.Entries[0].Compression
	target.Compression.Encoder = component.DefaultEncoder(algorithm)
	out, err := matrix.NewLock(r, []matrix.Target{target}, nil).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{file: data, matrix.LockPath(file): out} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return file, target
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// build runs imgsmith as a user does and returns its document's image and how long it took.
func (e env) build(t *testing.T, recipe string) (report.Image, time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.bin, "build", "--json", "--matrix", recipe, "--base", "debian:12=oci-layout:"+e.base, "--store", e.store, "--stage-only")
	var out, notes bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &notes
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		t.Fatalf("imgsmith build: %v\n%s\n%s", err, notes.String(), tail(out.Bytes()))
	}
	d, err := report.ReadJSON(&out)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Entries) != 1 || d.Entries[0].Result != report.ResultStaged || d.Entries[0].Image == nil {
		t.Fatalf("imgsmith build ended with %+v\n%s", d.Entries, notes.String())
	}
	return *d.Entries[0].Image, took
}

func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// staged is an image in a store with what the component tables say of it.
type staged struct {
	report.Image
	store    *component.Store
	manifest v1.Manifest
	config   v1.Image
	rawBase  []byte // config of the base
	tree     *rootfs.Tree
}

// open reads a staged image: manifest, config, and the tree that base and component tables give.
func (e env) open(t *testing.T, img report.Image) staged {
	t.Helper()
	s := staged{Image: img}
	var err error
	if s.store, err = component.OpenStore(t.Context(), e.store); err != nil {
		t.Fatal(err)
	}
	s.json(t, img.Digest, &s.manifest)
	s.json(t, s.manifest.Config.Digest.String(), &s.config)
	if len(s.manifest.Layers) != len(img.Layers) || len(s.config.RootFS.DiffIDs) != len(img.Layers) {
		t.Fatalf("manifest %d, config %d, document %d layers", len(s.manifest.Layers), len(s.config.RootFS.DiffIDs), len(img.Layers))
	}
	var base rootfs.Layer
	var parts []rootfs.Part
	for i, l := range img.Layers {
		if got := s.manifest.Layers[i]; got.Digest.String() != l.Digest {
			t.Errorf("layer %s is %s in the manifest, %s was checked", l.Name, got.Digest, l.Digest)
		}
		table, err := s.store.LayerTable(t.Context(), l.Digest, s.config.RootFS.DiffIDs[i].String(), s.manifest.Layers[i].MediaType)
		if err != nil {
			t.Fatal(err)
		}
		if l.Name == "base" {
			base = append(base, table...)
			continue
		}
		parts = append(parts, rootfs.Part{Name: l.Name, Layer: table, Component: len(l.Name) < 3 || l.Name[:3] != "os-" && l.Name != "loader-cache"})
	}
	tree, broken, err := rootfs.Compose(base, parts)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range broken {
		t.Errorf("layer order: %v", v)
	}
	s.tree = tree
	return s
}

func (s staged) json(t *testing.T, digest string, v any) []byte {
	t.Helper()
	data := read(t, s.store.BlobPath(digest))
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
	return data
}

// size adds up the regular files below a directory.
func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil // files come and go while a daemon runs
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// say prints a measurement at once: these tests run for minutes.
func say(format string, v ...any) { fmt.Printf("      "+format+"\n", v...) }

// later is a context for cleaning up, which must also work when the test's own is done.
func later() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}
