package resolve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/matrix"
)

func entry(t *testing.T, recipe string) matrix.Entry {
	t.Helper()
	python := "python: \"3.11\"\n"
	if strings.Contains(recipe, "python:") {
		python = "#\n"
	}
	r, err := matrix.Load("r.yaml", []byte("name: a\nbase: debian:12\n"+python+recipe))
	if err != nil {
		t.Fatal(err)
	}
	return r.Entries[0]
}

// offlineEnv points uv at a directory of wheels, and at nothing else.
func offlineEnv(dir string, more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PIP_CONFIG_FILE=/dev/null", "UV_FIND_LINKS=" + dir, "UV_NO_INDEX=1"}, more...)
}

func smallResolver(t *testing.T) (*Resolver, string) {
	t.Helper()
	r := testResolver(t, nil)
	dir := smallIndex(t, r.Facts)
	r.Settings, r.Cache = HostSettings(offlineEnv(dir)), t.TempDir()
	return r, dir
}

func files(wheels []matrix.Wheel) string {
	var out []string
	for _, w := range wheels {
		out = append(out, w.File)
	}
	return strings.Join(out, "\n")
}

const quickstart = "tensorflow: \"2.19.1\"\n"

func TestTarget(t *testing.T) {
	r, dir := smallResolver(t)
	e := entry(t, quickstart+"packages: {absl-py: \"2.5.1\"}\nenvironment: {A: \"1\"}\n")
	target, urls, warnings, err := r.Target(t.Context(), e, BaseInfo{Digest: "sha256:" + strings.Repeat("a", 64), ID: "debian", VersionID: "12"})
	if err != nil {
		t.Fatal(err)
	}
	want := matrix.Target{Entry: "a", Platform: "linux/amd64", Base: matrix.Base{Name: "debian:12", Digest: "sha256:" + strings.Repeat("a", 64), Glibc: "2.36"},
		Python: matrix.Python{Version: "3.11", From: "os"}, TensorFlow: "2.19.1", CUDA: "12.5", CuDNN: "9.3.0.75", Supplier: "wheels", Layout: "wheels",
		Requested: []string{"absl-py", "pip", "tensorflow"}, Environment: map[string]string{"A": "1"}, Bytecode: true, Constraints: true,
		Compression: matrix.Compression{Algorithm: "zstd", Level: "default", Encoder: "test-zstd/1"}, Epoch: DefaultEpoch,
		Flavor: "runtime", OSPackages: r.Facts.InterpreterPackages("3.11"), Wheels: target.Wheels, Lines: e.Lines}
	if d := cmp.Diff(want, target); d != "" {
		t.Error(d)
	}
	names := `absl_py-2.5.1-py3-none-any.whl
numpy-2.1.3-cp311-cp311-manylinux_2_34_x86_64.whl
nvidia_cublas_cu12-12.5.3.2-py3-none-manylinux2014_x86_64.whl
nvidia_cuda_cupti_cu12-12.5.82-py3-none-manylinux2014_x86_64.whl
nvidia_cuda_nvcc_cu12-12.5.82-py3-none-manylinux2014_x86_64.whl
nvidia_cuda_nvrtc_cu12-12.5.82-py3-none-manylinux2014_x86_64.whl
nvidia_cuda_runtime_cu12-12.5.82-py3-none-manylinux2014_x86_64.whl
nvidia_cudnn_cu12-9.3.0.75-py3-none-manylinux2014_x86_64.whl
nvidia_cufft_cu12-11.2.3.61-py3-none-manylinux2014_x86_64.whl
nvidia_curand_cu12-10.3.6.82-py3-none-manylinux2014_x86_64.whl
nvidia_cusolver_cu12-11.6.3.83-py3-none-manylinux2014_x86_64.whl
nvidia_cusparse_cu12-12.5.1.3-py3-none-manylinux2014_x86_64.whl
nvidia_nccl_cu12-2.23.4-py3-none-manylinux2014_x86_64.whl
nvidia_nvjitlink_cu12-12.5.82-py3-none-manylinux2014_x86_64.whl
pip-25.0-py3-none-any.whl
tensorflow-2.19.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl`
	if d := cmp.Diff(names, files(target.Wheels)); d != "" {
		t.Error(d)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings %v", warnings)
	}
	store := t.TempDir()
	if err := Fetch(t.Context(), target.Wheels, urls, store, FetchOptions{Offline: true}); err != nil {
		t.Fatal(err)
	}
	for _, w := range target.Wheels {
		if err := checkFile(WheelPath(store, w), w.SHA256); err != nil {
			t.Error(err)
		}
	}
	again, err := r.Locate(t.Context(), e, target)
	if err != nil {
		t.Fatal(err)
	}
	for sha, u := range urls {
		if again[sha] != u {
			t.Errorf("found at %q, before at %q", again[sha], u)
		}
	}
	if err := os.Remove(filepath.Join(dir, "pip-25.0-py3-none-any.whl")); err != nil {
		t.Fatal(err)
	}
	makeWheel(t, dir, "pip", "25.0", "py3-none-any", "Summary: another build of the same version")
	var gone *GoneError
	if _, err := r.Locate(t.Context(), e, target); !errors.As(err, &gone) || len(gone.Wheels) != 1 || gone.Wheels[0].Name != "pip" {
		t.Errorf("got %v", err)
	}
}

// Variants of the entry and what they resolve to.
func TestTargetVariants(t *testing.T) {
	r, _ := smallResolver(t)
	for _, tc := range []struct {
		recipe, glibc string
		has           []string
	}{
		{quickstart, "2.31", []string{"numpy-2.1.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"}},
		{"tensorflow: \"2.19\"\n", "2.36", []string{"tensorflow-2.19.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "nvidia_cudnn_cu12-9.3.0.75-py3-none-manylinux2014_x86_64.whl"}},
		{quickstart + "cuda: \"12.8\"\ncudnn: \"9.8\"\n", "2.36", []string{"nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux_2_27_x86_64.whl", "nvidia_cudnn_cu12-9.8.0.87-py3-none-manylinux_2_27_x86_64.whl", "nvidia_nccl_cu12-2.23.4-py3-none-manylinux2014_x86_64.whl"}},
	} {
		target, _, _, err := r.Target(t.Context(), entry(t, tc.recipe), BaseInfo{Glibc: tc.glibc})
		if err != nil {
			t.Errorf("%q: %v", tc.recipe, err)
			continue
		}
		for _, f := range tc.has {
			if !slices.ContainsFunc(target.Wheels, func(w matrix.Wheel) bool { return w.File == f }) {
				t.Errorf("%q: no %s in\n%s", tc.recipe, f, files(target.Wheels))
			}
		}
	}
	env := HostSettings(offlineEnv("/nowhere", "SOURCE_DATE_EPOCH=1700000000"))
	if n, err := env.epoch(); err != nil || n != 1700000000 {
		t.Errorf("%d %v", n, err)
	}
	for _, bad := range []string{"x", "-5", "0", "1.5"} {
		if n, err := HostSettings([]string{"SOURCE_DATE_EPOCH=" + bad}).epoch(); err == nil {
			t.Errorf("%q became %d", bad, n)
		}
	}
}

func TestTargetOwnWheel(t *testing.T) {
	r, dir := smallResolver(t)
	r.Dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(r.Dir, "my wheels"), 0o755); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "tensorflow-2.19.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"))
	if err != nil {
		t.Fatal(err)
	}
	name := "my wheels/tensorflow-2.19.1-cp311-cp311-linux_x86_64.whl"
	if err := os.WriteFile(filepath.Join(r.Dir, name), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	sum, err := hashFile(filepath.Join(r.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	e := entry(t, "tensorflow: {wheel: \""+name+"\", sha256: "+sum+"}\n")
	target, urls, _, err := r.Target(t.Context(), e, BaseInfo{Glibc: "2.36"})
	if err != nil {
		t.Fatal(err)
	}
	own := target.Wheels[len(target.Wheels)-1]
	if own.File != filepath.Base(name) || own.SHA256 != sum || own.Size != int64(len(raw)) || target.TensorFlow != "2.19.1" {
		t.Errorf("got %+v", own)
	}
	again, err := r.Locate(t.Context(), e, target)
	if err != nil || again[sum] != urls[sum] || !strings.Contains(urls[sum], "my%20wheels") {
		t.Errorf("%v %q %q", err, again[sum], urls[sum])
	}
	e.TensorFlow.SHA256 = strings.Repeat("0", 64)
	_, _, _, err = r.Target(t.Context(), e, BaseInfo{Glibc: "2.36"})
	checkClass(t, err, HashMismatch)
}

func TestTargetWithoutPython(t *testing.T) {
	r, dir := smallResolver(t)
	r.Settings = HostSettings(append(offlineEnv(dir), "PATH=/nonexistent"))
	target, _, _, err := r.Target(t.Context(), entry(t, quickstart), BaseInfo{Glibc: "2.36"})
	if err != nil {
		t.Fatal(err)
	}
	if len(target.Wheels) != 16 {
		t.Errorf("%d wheels", len(target.Wheels))
	}
}

func TestTargetRefused(t *testing.T) {
	r, dir := smallResolver(t)
	for name, tc := range map[string]struct {
		recipe string
		base   BaseInfo
		want   []string
	}{
		"unknown package":    {quickstart + "packages: {no-such-thing: \"1.0\"}\n", BaseInfo{Glibc: "2.36"}, []string{"r.yaml:4: entry \"a\": resolving packages: a package is in none of the indexes; check its name", "no-such-thing"}},
		"source only":        {quickstart + "packages: {onlysource: \"1.0\"}\n", BaseInfo{Glibc: "2.36"}, []string{"onlysource"}},
		"conflict":           {quickstart + "packages: {numpy: \"2.3.0\"}\n", BaseInfo{Glibc: "2.36"}, []string{"no set of packages satisfies this entry", "numpy"}},
		"wheel too new":      {quickstart + "packages: {too-new: \"1.0\"}\n", BaseInfo{Glibc: "2.36"}, []string{"too-new"}},
		"no CUDA set":        {quickstart + "cuda: \"12.7\"\n", BaseInfo{Glibc: "2.36"}, []string{"wheels of CUDA 12.7: not in the facts table; known are CUDA 11.8, 12.2"}},
		"unknown release":    {"tensorflow: \"2.99.0\"\n", BaseInfo{Glibc: "2.36"}, []string{"cuda and cudnn cannot be chosen", "write their versions into the recipe"}},
		"musl":               {quickstart, BaseInfo{ID: "alpine", VersionID: "3.20"}, []string{"has musl"}},
		"unknown base":       {quickstart, BaseInfo{ID: "plan9", VersionID: "4"}, []string{"the glibc of base debian:12 is not known"}},
		"glibc too old":      {quickstart, BaseInfo{Glibc: "2.12"}, []string{"glibc 2.12 is older than 2.17"}},
		"python of the OS":   {quickstart, BaseInfo{ID: "debian", VersionID: "11"}, []string{"the base (debian 11) provides Python 3.9, not 3.11; bases that provide it: debian:12, with from: os"}},
		"python of the base": {strings.Replace(quickstart, "t", "python: {version: \"3.11\", from: base}\nt", 1), BaseInfo{ID: "busybox", Glibc: "2.36"}, []string{"has Python none, not 3.11"}},
		"encoder not there":  {quickstart + "compression: gzip\n", BaseInfo{Glibc: "2.36"}, []string{"this build has no encoder for compression \"gzip\""}},
	} {
		q := *r
		if name == "encoder not there" {
			q.Encoders = map[string]string{"zstd": "x"}
		}
		_, _, _, err := q.Target(t.Context(), entry(t, tc.recipe), tc.base)
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v\nexpected %s", name, err, want)
			}
		}
	}
	offline := *r
	offline.Offline, offline.Settings, offline.Cache = true, HostSettings([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PIP_CONFIG_FILE=/dev/null"}), t.TempDir()
	locked := matrix.Target{Entry: "a", Python: matrix.Python{Version: "3.11"}, Base: matrix.Base{Glibc: "2.36"}, Wheels: []matrix.Wheel{payloadWheel()}}
	var missing *MissingError
	if _, err := offline.Locate(t.Context(), entry(t, quickstart), locked); !errors.As(err, &missing) || len(missing.Wheels) != 1 {
		t.Errorf("offline: got %v", err)
	}
	var inc *matrix.IncompleteError
	if _, _, _, err := r.Target(t.Context(), matrix.Entry{Name: "x"}, BaseInfo{}); !errors.As(err, &inc) {
		t.Errorf("got %v", err)
	}
}

func TestUVFaults(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // so that only our own files are seen below
	r, dir := smallResolver(t)
	e, b := entry(t, quickstart), BaseInfo{Glibc: "2.36"}
	for _, path := range []string{"", "/nonexistent/uv", dir} {
		q := *r
		q.UV = path
		var missing *MissingUVError
		if _, _, _, err := q.Target(t.Context(), e, b); !errors.As(err, &missing) || !strings.Contains(err.Error(), "--engine-dir") {
			t.Errorf("%q: got %v", path, err)
		}
	}
	closed := serve(t)
	closed.Close()
	refusing := serve(t, status(401), status(401), status(401), status(401), status(401), status(401))
	for address, want := range map[string]Class{closed.URL + "/simple": Network, refusing.URL + "/simple": Auth} {
		q := *r
		q.Settings = HostSettings([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "UV_HTTP_RETRIES=0",
			"UV_DEFAULT_INDEX=" + strings.Replace(address, "http://", "http://user:secret@", 1)})
		_, _, _, err := q.Target(t.Context(), e, b)
		checkClass(t, err, want)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("credentials in %v", err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	cancel(why)
	if _, _, _, err := r.Target(ctx, e, b); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "imgsmith-resolve-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}
