package derive_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/facts"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/resolve"
	"imgsmith/internal/wheel/wheeltest"
)

func findUV(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("IMGSMITH_UV"); p != "" {
		return p
	}
	p, err := exec.LookPath("uv")
	if err != nil {
		t.Skip("no uv: neither IMGSMITH_UV nor PATH names one")
	}
	return p
}

// index is a directory with stand-ins of everything that the wheel asks for.
func index(t *testing.T, table *facts.Table) string {
	t.Helper()
	dir := t.TempDir()
	add := func(name, version, tag string) {
		data, err := wheeltest.Wheel{Name: name, Version: version, Tag: tag}.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, wheeltest.Wheel{Name: name, Version: version, Tag: tag}.FileName()), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set, err := table.CUDAWheels("12.5", "9.3")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range set {
		add(w.Distribution, w.Version, "py3-none-manylinux2014_x86_64")
	}
	add("nvidia-nccl-cu12", "2.23.4", "py3-none-manylinux2014_x86_64")
	for name, version := range map[string]string{"pip": "25.0", "numpy": "2.2.0", "protobuf": "6.32.0", "keras": "3.12.0"} {
		add(name, version, "py3-none-any")
	}
	return dir
}

func hexSum(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// TestSelfBuilt takes a wheel of one's own through derive, overlay, lint, lock and compile.
func TestSelfBuilt(t *testing.T) {
	uv := findUV(t)
	path := selfBuilt(t, func(w *wheeltest.Wheel) { // the whole extra, as real wheels have it
		set, err := embedded(t).CUDAWheels("12.5", "9.3")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range set {
			if !strings.Contains(w.Metadata, p.Distribution+" ") {
				w.Metadata += fmt.Sprintf("Requires-Dist: %s ==%s ; extra == 'and-cuda'\n", p.Distribution, p.Version)
			}
		}
	})
	recipe := fmt.Sprintf("name: mine\nbase: debian:12\npython: \"3.11\"\ntensorflow: {wheel: %q, sha256: %s}\nfleet:\n  - gpu: A100\n    driver: \"535.104.05\"\n", filepath.Base(path), hexSum(t, path))
	r, err := matrix.Load(filepath.Join(filepath.Dir(path), "mine.yaml"), []byte(recipe))
	if err != nil {
		t.Fatal(err)
	}
	table := embedded(t)
	dir := index(t, table)
	resolver := func(table *facts.Table) *resolve.Resolver {
		return &resolve.Resolver{UV: uv, Facts: table, Dir: filepath.Dir(path), Cache: t.TempDir(), Encoders: map[string]string{"zstd": "test-zstd/1"},
			Settings: resolve.HostSettings([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PIP_CONFIG_FILE=/dev/null", "UV_FIND_LINKS=" + dir, "UV_NO_INDEX=1"})}
	}
	base := resolve.BaseInfo{Digest: "sha256:" + strings.Repeat("b", 64), ID: "debian", VersionID: "12"}
	if _, _, _, err := resolver(table).Target(t.Context(), r.Entries[0], base); !errors.Is(err, facts.ErrUnknown) {
		t.Errorf("without the overlay: %v", err)
	}

	_, doc := made(t, path, table)
	table = load(t, doc)
	if findings := matrix.Lint(r.Entries, table, nil); matrix.Refused(findings) {
		t.Fatalf("refused: %v", findings)
	}
	target, _, _, err := resolver(table).Target(t.Context(), r.Entries[0], base)
	if err != nil {
		t.Fatal(err)
	}
	if target.TensorFlow != "2.23.0+site7" || target.CUDA != "12.5" || target.CuDNN != "9.3.0.75" ||
		!slices.ContainsFunc(target.Wheels, func(w matrix.Wheel) bool { return w.Name == "tensorflow" && w.SHA256 == hexSum(t, path) }) {
		t.Errorf("%+v", target)
	}
	text, err := matrix.NewLock(r, []matrix.Target{target}, nil).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := matrix.LoadLock("mine.lock.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	locked, ok := lock.Target("mine")
	if !ok || lock.Matches(r) != nil {
		t.Fatalf("the lock does not belong to the recipe:\n%s", text)
	}
	compile := func() llb.Program {
		sum := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
		p, err := llb.Compile(locked, llb.BaseImage{Name: "debian:12", Ref: llb.StoreRef("base/debian", base.Digest),
			Config: []byte(`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["` + sum("9") + `"]},"history":[{"created_by":"base"}]}`)},
			[]llb.LayerRef{{Name: "tensorflow", Ref: llb.StoreRef("component/tensorflow", sum("1")), Digest: sum("1"), DiffID: sum("1"), Size: 7, Comment: "layer"}}, llb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := compile(), compile()
	if len(a.Def.Def) == 0 || !bytes.Equal(a.Config, b.Config) || !bytes.Contains(a.Config, []byte("2.23.0+site7")) {
		t.Errorf("compiled: %d operations, config %s", len(a.Def.Def), a.Config)
	}
}
