package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/component"
	"imgsmith/internal/facts"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
	"imgsmith/internal/resolve"
	"imgsmith/internal/wheel/wheeltest"
)

// runCommand runs a command as a user does and returns its exit code and both outputs.
func runCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, env: os.Getenv}
	cmd := a.root()
	cmd.SetArgs(args)
	code = a.finish(cmd.ExecuteContext(t.Context()))
	return code, out.String(), errs.String()
}

func needUV(t *testing.T) string {
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

// smallIndex writes a wheel for everything that an entry of TensorFlow 2.19.1 needs, and points uv at it.
func smallIndex(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	nvidia, err := table.CUDAWheels("12.5", "9.3")
	if err != nil {
		t.Fatal(err)
	}
	nvidia = append(nvidia, facts.Wheel{Distribution: "nvidia-nccl-cu12", Version: "2.23.4"})
	meta := "Provides-Extra: and-cuda\nRequires-Dist: small (>=1)"
	for _, w := range nvidia {
		add(t, dir, wheeltest.Wheel{Name: w.Distribution, Version: w.Version, Files: []wheeltest.File{{Name: "nvidia/" + w.Distribution + "/lib/x.so.12", Data: []byte(w.Version)}}})
		meta += fmt.Sprintf("\nRequires-Dist: %s (==%s) ; extra == 'and-cuda'", w.Distribution, w.Version)
	}
	add(t, dir, wheeltest.Wheel{Name: "tensorflow", Version: "2.19.1", Metadata: meta, Files: []wheeltest.File{{Name: "tensorflow/__init__.py", Data: []byte("pass\n")}}})
	for _, v := range []string{"1.0", "1.1"} {
		add(t, dir, wheeltest.Wheel{Name: "small", Version: v})
	}
	add(t, dir, wheeltest.Wheel{Name: "pip", Version: "25.0"})
	t.Setenv("UV_FIND_LINKS", dir)
	t.Setenv("UV_NO_INDEX", "1")
	t.Setenv("UV_CACHE_DIR", t.TempDir())
	t.Setenv("PIP_CONFIG_FILE", "/dev/null")
	t.Setenv("SOURCE_DATE_EPOCH", "")
	t.Setenv("IMGSMITH_UV", needUV(t))
	return dir
}

func add(t *testing.T, dir string, w wheeltest.Wheel) {
	t.Helper()
	data, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, w.FileName()), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// smallBase is an OCI layout of an image that looks like Debian 12 with a Python 3.11 of its own.
func smallBase(t *testing.T, variant string) string {
	t.Helper()
	dir := t.TempDir()
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, f := range [][2]string{{"etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n"}, {"usr/bin/python3.11", variant}} {
		if err := tw.WriteHeader(&tar.Header{Name: f[0], Mode: 0o755, Size: int64(len(f[1])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	put := func(data []byte) (digest string, size int) {
		sum := sha256.Sum256(data)
		name := hex.EncodeToString(sum[:])
		if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", name), data, 0o644); err != nil {
			t.Fatal(err)
		}
		return "sha256:" + name, len(data)
	}
	diff, size := put(layer.Bytes())
	config, configSize := put(fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/bin"]},"rootfs":{"type":"layers","diff_ids":[%q]}}`, diff))
	manifest, manifestSize := put(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`,
		config, configSize, diff, size))
	for name, text := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`,
		"index.json": fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d}]}`, manifest, manifestSize)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const lockRecipe = `name: small
base: debian:12
python: {version: "3.11", from: base}
tensorflow: "2.19.1"
labels: {org.example.team: a}
memory: {growth: on}
`

func writeRecipe(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "small.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func lockBytes(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(matrix.LockPath(file))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// graph is the program of an image with the layers that a lock leads to; a layer's digest stands for its key.
func graph(t *testing.T, lock []byte) string {
	t.Helper()
	l, err := matrix.LoadLock("small.lock.yaml", lock)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, target := range l.Targets {
		out.WriteString(compiled(t, target, []byte(`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`)))
	}
	return out.String()
}

func compiled(t *testing.T, target matrix.Target, config []byte) string {
	t.Helper()
	lay, err := findLayout(target.Layout, ".")
	if err != nil {
		t.Fatal(err)
	}
	specs, err := component.Plan(target, lay)
	if err != nil {
		t.Fatal(err)
	}
	var layers []llb.LayerRef
	for _, s := range specs {
		d := "sha256:" + s.Key()
		layers = append(layers, llb.LayerRef{Name: s.Name, Ref: llb.StoreRef("component/"+s.Name, d), Digest: d, DiffID: d, Size: 1})
	}
	prog, err := llb.Compile(target, llb.BaseImage{Name: target.Base.Name, Ref: llb.StoreRef("base/image", "sha256:"+strings.Repeat("b", 64)), Config: config}, layers, llb.Options{Labels: labels(target)})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, op := range prog.Def.Def {
		fmt.Fprintf(&b, "%x\n", op)
	}
	return b.String() + string(prog.Config)
}

// TestLockTwice: in two directories with the same base the lock has the same bytes, and leads to the same graph.
func TestLockTwice(t *testing.T) {
	smallIndex(t)
	base := smallBase(t, "x")
	var locks [2][]byte
	for i := range locks {
		file := writeRecipe(t, lockRecipe)
		code, out, errs := runCommand(t, "lock", file, "--store", t.TempDir(), "--base", "debian:12=oci-layout:"+base)
		if code != 0 {
			t.Fatalf("exit %d\n%s\n%s", code, out, errs)
		}
		locks[i] = lockBytes(t, file)
	}
	if !bytes.Equal(locks[0], locks[1]) {
		t.Errorf("two locks:\n%s\n%s", locks[0], locks[1])
	}
	if graph(t, locks[0]) != graph(t, locks[1]) {
		t.Error("two graphs")
	}
	for _, want := range []string{"local: true", "layout_checksum: sha256:", "uv: ", "encoder: klauspost-zstd/1", "TF_FORCE_GPU_ALLOW_GROWTH: ", "org.example.team: a"} {
		if !strings.Contains(string(locks[0]), want) {
			t.Errorf("the lock lacks %q:\n%s", want, locks[0])
		}
	}
	if s := string(locks[0]); strings.Contains(s, "://") || strings.Contains(s, base) {
		t.Errorf("the lock names an address or a path:\n%s", s)
	}
}

// TestLockUpgrade: an older lock is kept where the recipe allows it; --upgrade lets one package move; the changes
// are told in lines.
func TestLockUpgrade(t *testing.T) {
	dir := smallIndex(t)
	newest := filepath.Join(dir, "small-1.1-py3-none-any.whl")
	away := filepath.Join(t.TempDir(), "small-1.1-py3-none-any.whl")
	if err := os.Rename(newest, away); err != nil {
		t.Fatal(err)
	}
	file, store, base := writeRecipe(t, lockRecipe), t.TempDir(), "debian:12=oci-layout:"+smallBase(t, "x")
	step := func(more ...string) (report.Document, string) {
		t.Helper()
		code, out, errs := runCommand(t, append([]string{"lock", file, "--json", "--store", store, "--base", base}, more...)...)
		var d report.Document
		if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 {
			t.Fatalf("exit %d, %v\n%s\n%s", code, err, out, errs)
		}
		return d, string(lockBytes(t, file))
	}
	if d, _ := step(); len(d.Changes) != 1 || d.Changes[0] != "+ small: 15 wheels, 0 OS packages" {
		t.Errorf("first lock: %q", d.Changes)
	}
	if err := os.Rename(away, newest); err != nil {
		t.Fatal(err)
	}
	if d, lock := step(); len(d.Changes) != 0 || !strings.Contains(lock, "small-1.0-py3") {
		t.Errorf("a lock without a reason moved: %q", d.Changes)
	}
	if d, lock := step("--upgrade", "Small"); !slices.Equal(d.Changes, []string{"~ small: small 1.0 -> 1.1"}) || !strings.Contains(lock, "small-1.1-py3") {
		t.Errorf("upgrade: %q", d.Changes)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(lockRecipe, "team: a", "team: b")), 0o644); err != nil {
		t.Fatal(err)
	}
	if d, _ := step(); !slices.Equal(d.Changes, []string{"~ small: labels org.example.team=a -> org.example.team=b"}) {
		t.Errorf("changed recipe: %q", d.Changes)
	}
}

// TestLockedDrift: what is no longer as it was locked is reported as what it is, and nothing is built.
func TestLockedDrift(t *testing.T) {
	dir := smallIndex(t)
	file, store, base := writeRecipe(t, lockRecipe), t.TempDir(), "debian:12=oci-layout:"+smallBase(t, "x")
	if code, out, errs := runCommand(t, "lock", file, "--store", store, "--base", base); code != 0 {
		t.Fatalf("%s\n%s", out, errs)
	}
	build := func(base string) (int, string) {
		code, out, errs := runCommand(t, "build", "--matrix", file, "--locked", "--stage-only", "--store", store, "--base", base)
		return code, out + errs
	}
	t.Run("wheel gone", func(t *testing.T) {
		gone := filepath.Join(dir, "small-1.1-py3-none-any.whl")
		if err := os.Rename(gone, gone+".away"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Rename(gone+".away", gone) }()
		s := sessionFor(t, store)
		l, err := matrix.LoadLock("x", lockBytes(t, file))
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := loadRecipe(file, s.facts)
		if err != nil {
			t.Fatal(err)
		}
		tg := &targets{s: s, recipe: r, lock: l, urls: map[string]resolve.URLs{}}
		err = tg.wheels(r.Entries[0], l.Targets[0]).need(t.Context(), l.Targets[0].Wheels)
		var g *resolve.GoneError
		if !errors.As(err, &g) || len(g.Wheels) != 1 || g.Wheels[0].Name != "small" || !strings.Contains(err.Error(), "name the store that keeps them with --store") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("wheel kept", func(t *testing.T) {
		kept := t.TempDir()
		if code, out, errs := runCommand(t, "lock", file, "--fetch", "--store", kept, "--base", base); code != 0 {
			t.Fatalf("%s\n%s", out, errs)
		}
		for _, f := range []string{"small-1.1-py3-none-any.whl", "small-1.0-py3-none-any.whl"} {
			if err := os.Rename(filepath.Join(dir, f), filepath.Join(dir, f+".away")); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Rename(filepath.Join(dir, f+".away"), filepath.Join(dir, f)) }()
		}
		s := sessionFor(t, kept)
		l, err := matrix.LoadLock("x", lockBytes(t, file))
		if err != nil {
			t.Fatal(err)
		}
		tg := &targets{s: s, recipe: &matrix.Recipe{File: file}, lock: l, urls: map[string]resolve.URLs{}}
		w := tg.wheels(matrix.Entry{Name: "small"}, l.Targets[0])
		if err := w.need(t.Context(), l.Targets[0].Wheels); err != nil {
			t.Errorf("the store has every wheel, and yet: %v", err)
		}
		for _, x := range l.Targets[0].Wheels {
			f, err := w.open(x)
			if err != nil {
				t.Error(err)
				continue
			}
			_ = f.Close()
		}
	})
	t.Run("base moved", func(t *testing.T) {
		l, err := matrix.LoadLock("x", lockBytes(t, file))
		if err != nil {
			t.Fatal(err)
		}
		have := l.Targets[0]
		have.Base.Local, have.Base.Digest = false, "sha256:"+strings.Repeat("a", 64)
		s := sessionFor(t, store)
		b, err := s.base(t.Context(), "oci-layout:"+strings.TrimPrefix(base, "debian:12=oci-layout:"), "linux/amd64", nil)
		if err != nil {
			t.Fatal(err)
		}
		b.Local = false
		tg := &targets{s: s, recipe: &matrix.Recipe{File: file}}
		_, err = tg.onBase(have, matrix.Entry{Base: "debian:12"}, b)
		if err == nil || !strings.Contains(err.Error(), "the lock has sha256:aaaa") || !strings.Contains(err.Error(), "the tag moved") {
			t.Errorf("got %v", err)
		}
		have.Base.Local, have.Base.Digest = true, ""
		if _, err = tg.onBase(have, matrix.Entry{Base: "debian:12"}, b); err == nil || !strings.Contains(err.Error(), "local base") {
			t.Errorf("got %v", err)
		}
		have.Base.Local, have.LayoutSum = false, "sha256:"+strings.Repeat("c", 64)
		if _, err = tg.onBase(have, matrix.Entry{Base: "debian:12"}, b); err == nil || !strings.Contains(err.Error(), "layout wheels changed") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("recipe changed", func(t *testing.T) {
		if err := os.WriteFile(file, []byte(lockRecipe+"user: \"1000\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, text := build(base); code != exitUsage || !strings.Contains(text, "the recipe was changed after the lock was made; run imgsmith lock") {
			t.Errorf("exit %d: %s", code, text)
		}
	})
	t.Run("no lock", func(t *testing.T) {
		if err := os.Remove(matrix.LockPath(file)); err != nil {
			t.Fatal(err)
		}
		if code, text := build(base); code != exitUsage || !strings.Contains(text, "--locked: there is no lock") {
			t.Errorf("exit %d: %s", code, text)
		}
	})
}

func sessionFor(t *testing.T, store string) *session {
	t.Helper()
	a := &app{stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, env: os.Getenv, flags: globalFlags{store: store}}
	s, err := a.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestConflict: what cannot be resolved is told in two lines, the resolver's own words only when asked for.
func TestConflict(t *testing.T) {
	smallIndex(t)
	file, base := writeRecipe(t, lockRecipe+"packages: {small: \"0.5\"}\n"), "debian:12=oci-layout:"+smallBase(t, "x")
	for _, verbose := range []bool{false, true} {
		args := []string{"lock", file, "--store", t.TempDir(), "--base", base}
		if verbose {
			args = append(args, "--verbose")
		}
		code, out, errs := runCommand(t, args...)
		if code != exitError || !strings.Contains(out, "the recipe asks for small==0.5") || !strings.Contains(out, "tensorflow needs small>=1") {
			t.Errorf("exit %d\n%s", code, out)
		}
		if got := strings.Contains(errs, "we can conclude"); got != verbose || strings.Contains(out, "we can conclude") {
			t.Errorf("verbose %v: %s\n%s", verbose, out, errs)
		}
	}
}

// TestPlan: layers that two entries share are counted once.
func TestPlan(t *testing.T) {
	smallIndex(t)
	file := writeRecipe(t, "name: two\nbase: debian:12\npython: {version: \"3.11\", from: base}\ntensorflow: \"2.19.1\"\naxes: {user: [\"1000\", \"1001\"]}\n")
	store := t.TempDir()
	code, out, errs := runCommand(t, "plan", file, "--json", "--store", store)
	var d report.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 || d.Plan == nil || d.Plan.Locked || !strings.Contains(d.Plan.WhyNot, "there is no lock") || d.Plan.Cells != 2 {
		t.Fatalf("exit %d, %v: %s %s", code, err, out, errs)
	}
	if code, out, errs := runCommand(t, "lock", file, "--store", store, "--base", "debian:12=oci-layout:"+smallBase(t, "x")); code != 0 {
		t.Fatalf("%s\n%s", out, errs)
	}
	_, out, _ = runCommand(t, "plan", file, "--json", "--store", store)
	d = report.Document{}
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatal(err)
	}
	p := d.Plan
	if !p.Locked || p.LayerCount != 2*len(p.Layers) || len(p.Layers) < 3 || p.Bytes != 2*p.Unique || p.Missing != p.Unique || p.Unique == 0 {
		t.Errorf("plan %+v", p)
	}
	for _, l := range p.Layers {
		if len(l.Entries) != 2 || l.Made {
			t.Errorf("layer %+v", l)
		}
	}
}

// TestShippedRecipes: every recipe is linted, planned and compiled because it exists. Its entries compile with the
// wheels that the facts name; bases that cannot be made here stand as recorded configs in testdata.
func TestShippedRecipes(t *testing.T) {
	files, err := filepath.Glob("../../recipes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	entries := 0
	for _, file := range files {
		if strings.HasSuffix(file, ".lock.yaml") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			for _, command := range []string{"lint", "plan"} {
				if code, out, errs := runCommand(t, command, file, "--store", t.TempDir()); code != 0 {
					t.Errorf("%s: exit %d\n%s\n%s", command, code, out, errs)
				}
			}
			table, err := facts.Embedded()
			if err != nil {
				t.Fatal(err)
			}
			r, findings, err := loadRecipe(file, table)
			if err != nil || matrix.Refused(findings) {
				t.Fatal(err, findings)
			}
			seen := map[string]string{}
			for _, e := range r.Entries {
				if err := e.Buildable(); err != nil {
					t.Error(err)
					continue
				}
				entries++
				g := compiled(t, targetOf(t, e, table), recordedConfig(t, e.Base))
				if other, ok := seen[g]; ok {
					t.Errorf("%s and %s are the same image", e.Name, other)
				}
				seen[g] = e.Name
			}
		})
	}
	if entries < 30 {
		t.Errorf("only %d entries", entries)
	}
}

// targetOf is a target as the facts foresee it: NVIDIA's wheels at their versions, TensorFlow, and pip.
func targetOf(t *testing.T, e matrix.Entry, table *facts.Table) matrix.Target {
	t.Helper()
	cuda, cudnn := e.Pair(table)
	set, err := table.CUDAWheels(cuda, cudnn)
	if err != nil {
		t.Fatal(err)
	}
	tf, err := table.TensorFlow(e.TensorFlow.Version)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{"tensorflow": tf.Latest, "pip": "25.0", "numpy": "1.26.4"}
	for _, w := range set {
		versions[w.Distribution] = strings.TrimSuffix(w.Version, ".*")
	}
	target := matrix.Target{Entry: e.Name, Platform: e.Platform, Base: matrix.Base{Name: e.Base}, Python: e.Python, TensorFlow: tf.Latest, CUDA: facts.Minor(cuda), CuDNN: cudnn,
		Supplier: e.Supplier, Layout: e.Layout, Flavor: e.Flavor, Environment: e.Variables(), Labels: e.Labels, User: e.User, Bytecode: e.Bytecode, Requested: []string{"pip", "tensorflow"},
		OSPackages: table.InterpreterPackages(e.Python.Version), Compression: e.Compression, Epoch: 1704067200}
	target.Compression.Encoder = component.DefaultEncoder(e.Compression.Algorithm)
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		sum := sha256.Sum256([]byte(name + versions[name]))
		target.Wheels = append(target.Wheels, matrix.Wheel{Name: name, Version: versions[name], File: strings.ReplaceAll(name, "-", "_") + "-" + versions[name] + "-py3-none-any.whl",
			SHA256: hex.EncodeToString(sum[:]), Size: 1})
	}
	return target
}

// recordedConfig is the config of a base as testdata/bases has it; see README there.
func recordedConfig(t *testing.T, base string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/bases/" + strings.ReplaceAll(base, ":", "-") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return data
}
