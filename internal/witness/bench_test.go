package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/client"
	bkllb "github.com/moby/buildkit/client/llb"
	"github.com/tonistiigi/fsutil"

	"imgsmith/internal/component"
	"imgsmith/internal/engine/child"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/registry"
	"imgsmith/internal/resolve"
)

// TestBench measures the way from wheels on disk to a finished image in the store, for imgsmith and for pip in a
// build step with a zstd export by the same engine. Both start with base, Python and virtual environment made,
// and with the wheels read before. It asserts no time.
func TestBench(t *testing.T) {
	e := asked(t, "IMGSMITH_BENCH", "make bench")
	runs, err := strconv.Atoi(os.Getenv("IMGSMITH_BENCH_RUNS"))
	if err != nil {
		runs = 1
	}
	ours := map[string][]float64{}
	var pip []float64
	for _, algorithm := range []string{"gzip", "zstd"} {
		file, target := variant(t, algorithm)
		b := e.emptyStore(t)
		_, cold := b.build(t, file) // fetches what is missing, makes base, Python and environment
		say("%s, level %s: from an empty store, OS packages from the network included: %.1f s (not compared)", algorithm, target.Compression.Level, cold.Seconds())
		for range runs {
			b.forget(t, "os-packages", "venv")
			img, took := b.build(t, file)
			ours[algorithm] = append(ours[algorithm], took.Seconds())
			say("imgsmith, %s: %.1f s for %.0f MB in %d layers", algorithm, took.Seconds(), float64(img.Size)/1e6, len(img.Layers))
		}
		if algorithm != "zstd" {
			continue
		}
		for range runs {
			pip = append(pip, pipBuild(t, b, target))
		}
	}
	for _, algorithm := range []string{"gzip", "zstd"} {
		goal := ""
		if algorithm == "gzip" {
			goal = " (passed-through streams; goal 0.6)"
		}
		say("imgsmith %s %.1f s : pip + zstd export %.1f s = %.2f%s", algorithm, best(ours[algorithm]), best(pip), best(ours[algorithm])/best(pip), goal)
	}
	say("raw seconds: imgsmith gzip %.1f, imgsmith zstd %.1f, pip + zstd export %.1f", ours["gzip"], ours["zstd"], pip)
}

func best(s []float64) float64 {
	out := s[0]
	for _, x := range s {
		out = min(out, x)
	}
	return out
}

// forget removes all layers but the named ones and the engine's state.
func (e env) forget(t *testing.T, keep ...string) {
	t.Helper()
	store, err := component.OpenStore(t.Context(), e.store)
	if err != nil {
		t.Fatal(err)
	}
	recs, err := store.Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	err = os.RemoveAll(filepath.Join(e.store, "engine"))
	for _, r := range recs {
		if slices.Contains(keep, r.Name) {
			kept++
			continue
		}
		err = errors.Join(err, os.Remove(filepath.Join(e.store, "components", r.Key+".json")))
		if rerr := os.Remove(store.BlobPath(r.Digest)); !errors.Is(rerr, fs.ErrNotExist) { // two keys may share one
			err = errors.Join(err, rerr)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if kept != len(keep) {
		t.Fatalf("the store has %d of %v", kept, keep)
	}
}

// pipScript installs with the locked pip, run from its wheel, into the environment that our image has too.
const pipScript = `set -eu
pip=$(echo /wheels/pip-*.whl) # a pattern does not match inside an archive
exec /opt/venv/bin/python3 "$pip/pip" --no-cache-dir --disable-pip-version-check install --no-index --find-links /wheels -q "$@"`

// pipBuild installs the locked wheels in a build step of our engine and exports the result with zstd.
func pipBuild(t *testing.T, e env, target matrix.Target) float64 {
	t.Helper()
	store := scratch(t)
	e.lend(t, store, "os-packages", "venv")
	base, err := registry.ImportBase(t.Context(), "oci-layout:"+e.base, target.Platform, store)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := registry.NewLoopback(store)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close(context.Background()) //nolint:errcheck // nothing is in flight
	eng, err := child.Start(t.Context(), child.Options{EngineDir: e.engines, Root: filepath.Join(scratch(t), "e"), StoreAddr: loop.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	}()
	wheels, names := e.flat(t, target)
	states := []bkllb.State{bkllb.Image(llb.StoreRef("base/image", base.ManifestDigest))}
	for _, m := range e.manifests(t, "os-packages", "venv") {
		states = append(states, bkllb.Image(llb.StoreRef("component/below", m)))
	}
	lower := bkllb.Merge(states)
	local := bkllb.AddMount("/wheels", bkllb.Local("wheels", bkllb.SharedKeyHint("wheels")), bkllb.Readonly)
	shell := func(script string, args ...string) bkllb.State {
		return lower.Run(bkllb.Args(append([]string{"/bin/sh", "-c", script, "sh"}, args...)), bkllb.Network(bkllb.NetModeNone), local,
			bkllb.AddEnv("PATH", "/usr/bin:/bin")).Root()
	}
	solve := func(s bkllb.State, exports ...client.ExportEntry) float64 {
		def, err := s.Marshal(t.Context(), bkllb.LinuxAmd64)
		if err != nil {
			t.Fatal(err)
		}
		mount, err := fsutil.NewFS(wheels)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := eng.Client.Solve(t.Context(), def, client.SolveOpt{LocalMounts: map[string]fsutil.FS{"wheels": mount}, Exports: exports}, nil); err != nil {
			t.Fatalf("%v\n%s", err, eng.Log())
		}
		return time.Since(start).Seconds()
	}
	ready := solve(shell("cat /wheels/*.whl >/dev/null"))
	install := solve(shell(pipScript, names...))
	export := solve(shell(pipScript, names...), client.ExportEntry{Type: client.ExporterImage, Attrs: map[string]string{
		"name": loop.Addr() + "/bench/pip:done", "push": "true", "oci-mediatypes": "true", "compression": "zstd"}})
	say("pip + zstd export: %.1f s + %.1f s = %.1f s for %.0f MB (getting %d wheels into the engine, %.1f s, is not counted)",
		install, export, install+export, float64(size(t, filepath.Join(store, "blobs")))/1e6, len(names), ready)
	return install + export
}

// flat links the locked wheels into one directory, as pip wants them.
func (e env) flat(t *testing.T, target matrix.Target) (dir string, requirements []string) {
	t.Helper()
	dir = scratch(t)
	for _, w := range target.Wheels {
		if err := link(resolve.WheelPath(filepath.Join(e.store, "wheels"), w), filepath.Join(dir, w.File)); err != nil {
			t.Fatal(err)
		}
		requirements = append(requirements, fmt.Sprintf("%s==%s", w.Name, w.Version))
	}
	return dir, requirements
}

// link makes a second name of a file, or a copy where the file systems differ.
func link(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// records are those of some layers, in the order of the names.
func (e env) records(t *testing.T, names ...string) []component.Record {
	t.Helper()
	store, err := component.OpenStore(t.Context(), e.store)
	if err != nil {
		t.Fatal(err)
	}
	recs, err := store.Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []component.Record
	for _, n := range names {
		for _, r := range recs {
			if r.Name == n {
				out = append(out, r)
			}
		}
	}
	if len(out) != len(names) {
		t.Fatalf("the store has %d layers named %v", len(out), names)
	}
	return out
}

func (e env) manifests(t *testing.T, names ...string) (out []string) {
	for _, r := range e.records(t, names...) {
		out = append(out, r.ManifestDigest)
	}
	return out
}

// lend links the blobs of some layers into another store, outside of what is measured.
func (e env) lend(t *testing.T, store string, names ...string) {
	t.Helper()
	blobs := filepath.Join(store, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, r := range e.records(t, names...) {
		for _, d := range []string{r.Digest, r.ConfigDigest, r.ManifestDigest} {
			hex := strings.TrimPrefix(d, "sha256:")
			if err := link(filepath.Join(e.store, "blobs", "sha256", hex), filepath.Join(blobs, hex)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
