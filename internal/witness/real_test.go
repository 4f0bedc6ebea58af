package witness

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/engine"
	"imgsmith/internal/engine/child"
	"imgsmith/internal/facts"
	"imgsmith/internal/launch/launchtest"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/registry"
	"imgsmith/internal/wheel/wheeltest"
)

// TestReal stages the real image and shows what can be shown of it without a GPU.
func TestReal(t *testing.T) {
	e := asked(t, "IMGSMITH_TEST_REAL", "make test-real")
	file, target := variant(t, "zstd")
	img, first := e.build(t, file)
	state := size(t, filepath.Join(e.store, "engine"))
	again, second := e.build(t, file)
	say("staged in %.1f s, then with everything made in %.2f s (goal 3 s); engine state %.1f MB, then %.1f MB", first.Seconds(), second.Seconds(),
		float64(state)/1e6, float64(size(t, filepath.Join(e.store, "engine")))/1e6)
	if again.Digest != img.Digest || !again.Reused {
		t.Errorf("the second build gave %s (everything reused: %v), the first %s", again.Digest, again.Reused, img.Digest)
	}
	s := e.open(t, img)
	t.Run("digests", func(t *testing.T) { testDigests(t, e, s) })
	t.Run("image", func(t *testing.T) { testImage(t, e, s, target) })
}

// testDigests has an engine with an empty state put the image together again: the digest must be the same, and
// nothing but manifests and configs may have gone to the engine.
func testDigests(t *testing.T, e env, s staged) {
	loop, err := registry.NewLoopback(e.store)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close(t.Context()) //nolint:errcheck // nothing is in flight
	state := filepath.Join(scratch(t), "engine")
	eng, err := child.Start(t.Context(), child.Options{EngineDir: e.engines, Root: state, StoreAddr: loop.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	}()
	prog := e.program(t, s)
	before := size(t, state)
	start := time.Now()
	digest, err := eng.Push(t.Context(), prog, loop.Addr()+"/staging/again", engine.PushOptions{Compression: "zstd", Epoch: s.target(t).Epoch})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	if digest != s.Digest {
		t.Errorf("an empty engine makes %s of the same layers, staged was %s", digest, s.Digest)
	}
	var bytes, uploaded int64
	for _, a := range loop.AccessLog() {
		bytes, uploaded = bytes+a.Bytes, uploaded+a.Read
		d, ok := a.BlobDownload()
		if ok && slices.ContainsFunc(s.manifest.Layers, func(l v1.Descriptor) bool { return l.Digest.String() == d }) {
			t.Errorf("the engine downloaded layer %s: %+v", d, a)
		}
	}
	after := size(t, state)
	say("merged and staged by an empty engine in %.2f s: %d layers of %.0f MB, same digest; it got %.2f MB, sent %.2f MB, its state grew by %.2f MB",
		took.Seconds(), len(s.Layers), float64(s.Size)/1e6, float64(bytes)/1e6, float64(uploaded)/1e6, float64(after-before)/1e6)
	if grown := after - before; grown > 4<<20 {
		t.Errorf("the engine's state grew by %d bytes: it extracted something", grown)
	}
}

// target reads what the image says it was built for.
func (s staged) target(t *testing.T) matrix.Target {
	t.Helper()
	data, err := s.tree.ReadFile("opt/imgsmith/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Target matrix.Target `json:"target"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m.Target
}

// program compiles the image again from the store's records.
func (e env) program(t *testing.T, s staged) llb.Program {
	t.Helper()
	base, err := registry.ImportBase(t.Context(), "oci-layout:"+e.base, "linux/amd64", e.store)
	if err != nil {
		t.Fatal(err)
	}
	recs, err := s.store.Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var refs []llb.LayerRef
	for _, l := range s.Layers {
		for _, r := range recs {
			if r.Digest == l.Digest {
				refs = append(refs, llb.LayerRef{Name: l.Name, Ref: llb.StoreRef("component/"+l.Name, r.ManifestDigest), Digest: r.Digest, DiffID: r.DiffID, Size: r.Size})
				break
			}
		}
	}
	if len(refs) != len(s.Layers)-len(base.Layers) {
		t.Fatalf("the store has records of %d of %d layers", len(refs), len(s.Layers)-len(base.Layers))
	}
	target := s.target(t)
	prog, err := llb.Compile(target, llb.BaseImage{Name: target.Base.Name, Ref: llb.StoreRef("base/image", base.ManifestDigest), Config: base.Config}, refs, llb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// box runs the image on one engine.
type box struct {
	t   *testing.T
	api *client.Client
	ref string
}

func testImage(t *testing.T, e env, s staged, target matrix.Target) {
	d := launchtest.ForTest(t, launchtest.Config{Engines: e.engines})
	start := time.Now()
	api, ref := pulled(t, d, e, s.Digest)
	say("pulled and unpacked by the Docker engine in %.0f s", time.Since(start).Seconds())
	b := box{t, api, ref}
	t.Run("tensorflow", func(t *testing.T) { b.with(t).tensorflow(target) })
	t.Run("pip", func(t *testing.T) { b.with(t).pip(target) })
	t.Run("pip keeps the proved core", func(t *testing.T) { b.with(t).keeps(target) })
	t.Run("child image", func(t *testing.T) { b.with(t).child(target) })
}

func (b box) with(t *testing.T) box { b.t = t; return b }

// call is one container.
type call struct {
	user     string
	readOnly bool
	files    map[string][]byte // below /carried, which only they are in
	cmd      []string
}

// run runs a container without a network and returns its exit code, output and id. The container stays until the
// engine goes.
func (b box) run(c call) (code int64, stdout, stderr, id string) {
	b.t.Helper()
	ctx := b.t.Context()
	var tmp map[string]string
	if c.readOnly {
		tmp = map[string]string{"/tmp": ""} // absl, which TensorFlow imports, wants a temporary directory
	}
	made, err := b.api.ContainerCreate(ctx, &container.Config{Image: b.ref, User: c.user, Cmd: c.cmd, Entrypoint: []string{}},
		&container.HostConfig{NetworkMode: "none", ReadonlyRootfs: c.readOnly, Tmpfs: tmp}, nil, nil, "")
	if err != nil {
		b.t.Fatal(err)
	}
	if len(c.files) > 0 {
		if err := b.api.CopyToContainer(ctx, made.ID, "/", carried(b.t, c.files), container.CopyToContainerOptions{}); err != nil {
			b.t.Fatal(err)
		}
	}
	wait, failed := b.api.ContainerWait(ctx, made.ID, container.WaitConditionNextExit)
	if err := b.api.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		b.t.Fatal(err)
	}
	select {
	case err := <-failed:
		b.t.Fatal(err)
	case w := <-wait:
		code = w.StatusCode
	}
	logs, err := b.api.ContainerLogs(ctx, made.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		b.t.Fatal(err)
	}
	defer logs.Close()
	var out, errs bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &errs, logs); err != nil {
		b.t.Fatal(err)
	}
	return code, out.String(), errs.String(), made.ID
}

// must is run for what has to work.
func (b box) must(c call) (stdout, id string) {
	b.t.Helper()
	code, out, errs, id := b.run(c)
	if code != 0 {
		b.t.Fatalf("%s: exit %d\n%s\n%s", strings.Join(c.cmd, " "), code, out, tail([]byte(errs)))
	}
	return out, id
}

func carried(t *testing.T, files map[string][]byte) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "carried/", Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: "carried/" + name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// inside asks TensorFlow about itself and opens what it would open, without importing it for that.
const inside = `
import ctypes, json, os, sys
opened, failed = {}, {}
for name in sys.argv[1].split(","):
    try:
        ctypes.CDLL(name)
    except OSError as e:
        failed[name] = str(e)
for line in open("/proc/self/maps"):
    path = line.split(maxsplit=5)[-1].strip()
    for name in sys.argv[1].split(","):
        if os.path.basename(path).startswith(name):
            opened[name] = path
import tensorflow as tf
info = tf.sysconfig.get_build_info()
print(json.dumps({"opened": opened, "failed": failed, "version": tf.__version__, "cuda": tf.test.is_built_with_cuda(), "uid": os.getuid(),
    "info": {k: str(v) for k, v in info.items()}, "sum": float(tf.reduce_sum(tf.matmul(tf.ones((8, 8)), tf.ones((8, 8)))))}))
`

func (b box) tensorflow(target matrix.Target) {
	table, err := facts.Embedded()
	if err != nil {
		b.t.Fatal(err)
	}
	tf, err := table.TensorFlow(target.TensorFlow)
	if err != nil {
		b.t.Fatal(err)
	}
	out, _ := b.must(call{user: "65534:65534", readOnly: true, cmd: []string{"python", "-c", inside, strings.Join(tf.DlopenSet, ",")}})
	var got struct {
		Opened, Failed, Info map[string]string
		Version              string
		CUDA                 bool
		UID                  int
		Sum                  float64
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
	if got.Version != target.TensorFlow || !got.CUDA || got.UID != 65534 || got.Sum != 512 {
		b.t.Errorf("got %+v", got)
	}
	cuda, cudnn := got.Info["cuda_version"], got.Info["cudnn_version"]
	if facts.Minor(cuda) != facts.Minor(target.CUDA) || cudnn != fmt.Sprint(facts.Major(target.CuDNN)) {
		b.t.Errorf("built for CUDA %s and cuDNN %s, the entry has %s and %s", cuda, cudnn, target.CUDA, target.CuDNN)
	}
	want := "/usr/local/cuda-" + target.CUDA + "/lib64/"
	for _, name := range tf.DlopenSet {
		if !strings.HasPrefix(got.Opened[name], want) {
			b.t.Errorf("%s: opened %q, error %q; want it in %s", name, got.Opened[name], got.Failed[name], want)
		}
	}
	if len(tf.DlopenSet) < 5 {
		b.t.Errorf("the dlopen set of %s has %d libraries: this test sees nothing", target.TensorFlow, len(tf.DlopenSet))
	}
	say("as uid %d on a read-only root with a /tmp: TensorFlow %s imports, built with CUDA %s and cuDNN %s; %d libraries of its dlopen set open from %s",
		got.UID, got.Version, cuda, cudnn, len(got.Opened), want)
}

// installed lists name and version of every package that pip sees.
func (b box) installed() map[string]string {
	out, _ := b.must(call{cmd: []string{"pip", "list", "--format", "json", "--disable-pip-version-check"}})
	return b.decode(out)
}

func (b box) decode(list string) map[string]string {
	b.t.Helper()
	var rows []struct{ Name, Version string }
	if err := json.Unmarshal([]byte(list), &rows); err != nil {
		b.t.Fatalf("%v\n%s", err, list)
	}
	got := map[string]string{}
	for _, r := range rows {
		got[strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(r.Name))] = r.Version
	}
	return got
}

func (b box) pip(target matrix.Target) {
	out, _ := b.must(call{user: "65534:65534", readOnly: true, cmd: []string{"pip", "check", "--disable-pip-version-check"}})
	if strings.TrimSpace(out) != "No broken requirements found." {
		b.t.Errorf("pip check says %q", out)
	}
	got, nvidia := b.installed(), 0
	for _, w := range target.Wheels {
		if got[w.Name] != w.Version {
			b.t.Errorf("pip lists %s %q, locked is %s", w.Name, got[w.Name], w.Version)
		}
		if strings.HasPrefix(w.Name, "nvidia-") {
			nvidia++
		}
	}
	if len(got) != len(target.Wheels) || nvidia < 8 {
		b.t.Errorf("pip lists %d packages, %d are locked, %d of NVIDIA", len(got), len(target.Wheels), nvidia)
	}
	say("pip check is clean; pip lists all %d packages, %d of NVIDIA", len(got), nvidia)
}

func built(t *testing.T, w wheeltest.Wheel) (string, []byte) {
	t.Helper()
	data, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	return w.FileName(), data
}

// keeps offers pip other versions of what was proved.
func (b box) keeps(target matrix.Target) {
	files := map[string][]byte{}
	const other = "99.0"
	names := []string{"tensorflow", "nvidia-cudnn-cu12"}
	for _, n := range names {
		name, data := built(b.t, wheeltest.Wheel{Name: n, Version: other, Files: []wheeltest.File{{Name: strings.ReplaceAll(n, "-", "_") + "_other/__init__.py"}}})
		files[name] = data
	}
	install := []string{"pip", "install", "--no-index", "--find-links", "/carried", "--no-deps", "--disable-pip-version-check"}
	for _, n := range names {
		code, out, errs, _ := b.run(call{files: files, cmd: append(slices.Clone(install), n+"=="+other)})
		if code == 0 || !strings.Contains(out+errs, "constraint") {
			b.t.Errorf("pip install %s==%s: exit %d, want a refusal that names the constraint\n%s%s", n, other, code, out, errs)
		}
		list := `pip install --no-index --find-links /carried --no-deps --upgrade ` + n + ` >/dev/null 2>&1; pip list --format json --disable-pip-version-check`
		after, _ := b.must(call{files: files, cmd: []string{"sh", "-c", list}})
		for _, w := range target.Wheels {
			if got := b.decode(after)[w.Name]; w.Name == n && got != w.Version {
				b.t.Errorf("after pip install --upgrade %s it is %q, proved was %s", n, got, w.Version)
			}
		}
		// Without the constraint pip would take it: the test sees something.
		code, _, errs, _ = b.run(call{files: files, cmd: []string{"sh", "-c", `PIP_CONFIG_FILE=/dev/null "$@"`, "sh", "pip", "install", "--dry-run", "--no-index", "--find-links", "/carried", "--no-deps", n + "==" + other}})
		if code != 0 {
			b.t.Errorf("without the constraint pip refuses %s==%s too: %s", n, other, errs)
		}
	}
	say("pip refuses to replace %s by another version, and --upgrade leaves them", strings.Join(names, " and "))
}

// child adds a package with pip, commits, and runs the result.
func (b box) child(target matrix.Target) {
	name, data := built(b.t, wheeltest.Wheel{Name: "imgsmith-added", Version: "1.0", Metadata: "Requires-Dist: numpy\nRequires-Dist: tensorflow\n",
		Files: []wheeltest.File{{Name: "imgsmith_added.py", Data: []byte("import numpy\nVALUE = int(numpy.arange(7).sum())\n")}}})
	_, id := b.must(call{files: map[string][]byte{name: data}, cmd: []string{"pip", "install", "--no-index", "--disable-pip-version-check", "/carried/" + name}})
	made, err := b.api.ContainerCommit(b.t.Context(), id, container.CommitOptions{Reference: "child:added"})
	if err != nil {
		b.t.Fatal(err)
	}
	kid := b
	kid.ref = made.ID
	out, _ := kid.must(call{user: "65534:65534", readOnly: true, cmd: []string{"sh", "-c",
		`pip check --disable-pip-version-check && python -c "import imgsmith_added, tensorflow; print(imgsmith_added.VALUE, tensorflow.__version__)"`}})
	if want := fmt.Sprintf("No broken requirements found.\n21 %s\n", target.TensorFlow); out != want {
		b.t.Errorf("the child image says %q, want %q", out, want)
	}
	say("a child image with a package added by pip works; pip check is clean there")
}
