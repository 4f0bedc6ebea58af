package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/launch"
)

func TestDeviceRequests(t *testing.T) {
	gpu := [][]string{{"gpu"}}
	for in, want := range map[string][]container.DeviceRequest{
		"":                   nil,
		"all":                {{Count: -1, Capabilities: gpu, Options: map[string]string{}}},
		"2":                  {{Count: 2, Capabilities: gpu, Options: map[string]string{}}},
		"device=GPU-1,3":     {{DeviceIDs: []string{"GPU-1", "3"}, Capabilities: gpu, Options: map[string]string{}}},
		"nvidia.com/gpu=all": {{Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=all"}}},
	} {
		got, err := deviceRequests(in)
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%q: %v\n%s", in, err, cmp.Diff(want, got))
		}
	}
	for _, in := range []string{"0", "-1", "some", "device=", "device=1,", "1.5", "all "} {
		var se *SpecError
		if _, err := deviceRequests(in); !errors.As(err, &se) {
			t.Errorf("%q: got %v, want a refusal", in, err)
		}
	}
}

func full() launch.Spec {
	s := launch.DefaultSpec()
	s.Image = launch.Image{Ref: "127.0.0.1:1/staging/x@sha256:aa", Digest: "sha256:aa"}
	s.Python, s.Script, s.Nonce, s.GPUs, s.Args, s.Memory = "/opt/venv/bin/python", []byte("pass"), "n", "all", []string{`{"a": "it's"}`}, 1<<30
	s.Env = map[string]string{"A": "1", "PYTHONPATH": "kept"}
	return s
}

func TestConfigsCaged(t *testing.T) {
	c, h, err := configs(full(), "sha256:id", map[string]string{"l": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if c.User != nobody || c.WorkingDir != "/" || cmp.Diff([]string(c.Cmd[:2]), []string{"-I", "-c"}) != "" || c.Entrypoint[0] != "/opt/venv/bin/python" {
		t.Errorf("config: %+v", c)
	}
	env := strings.Join(c.Env, " ")
	if !strings.HasPrefix(env, "A=1 PYTHONPATH=kept LD_PRELOAD LD_AUDIT ") || strings.Contains(env, " PYTHONPATH ") {
		t.Errorf("environment: %s", env)
	}
	if h.NetworkMode != "none" || !h.ReadonlyRootfs || cmp.Diff([]string(h.CapDrop), []string{"ALL"}) != "" || *h.PidsLimit != 4096 ||
		h.Memory != 1<<30 || h.MemorySwap != 1<<30 || cmp.Diff(h.SecurityOpt, []string{"no-new-privileges:true"}) != "" || len(h.Binds)+len(h.Mounts) != 0 {
		t.Errorf("host config: %+v", h)
	}
}

func TestConfigsAsShipped(t *testing.T) {
	s := full()
	s.Caged = false
	c, h, err := configs(s, "sha256:id", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.User != "" || c.Entrypoint != nil || c.Cmd[0] != "/opt/venv/bin/python" || h.ReadonlyRootfs || len(h.CapDrop) != 0 || h.NetworkMode != "none" {
		t.Errorf("config %+v, host config %+v", c, h)
	}
	if env := strings.Join(c.Env, " "); env != "A=1 PYTHONPATH=kept" {
		t.Errorf("environment: %s", env)
	}
}

func TestConfigsRefuse(t *testing.T) {
	for name, edit := range map[string]func(*launch.Spec){
		"python": func(s *launch.Spec) { s.Python = "" }, "script": func(s *launch.Spec) { s.Script = nil }, "nonce": func(s *launch.Spec) { s.Nonce = "" },
		"timeout": func(s *launch.Spec) { s.Timeout = 0 }, "grace": func(s *launch.Spec) { s.KillGrace = 0 }, "output": func(s *launch.Spec) { s.MaxOutput = 0 },
		"pids": func(s *launch.Spec) { s.Pids = 64 }, "tmp": func(s *launch.Spec) { s.TmpSize = 0 }, "gpus": func(s *launch.Spec) { s.GPUs = "x" },
	} {
		s := full()
		edit(&s)
		var se *SpecError
		if _, _, err := configs(s, "", nil); !errors.As(err, &se) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	s := full()
	s.ScrubEnv = []string{"LD_PRELOAD"}
	c, h, err := configs(s, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := commandLine(s, c, h)
	want := `docker run --rm -i --gpus all --network none --read-only --tmpfs /tmp:rw,nosuid,nodev,noexec,mode=1777,size=1073741824 ` +
		`--cap-drop ALL --security-opt no-new-privileges --pids-limit 4096 --memory 1073741824 --memory-swap 1073741824 --shm-size 1073741824 ` +
		`--user 65534:65534 --workdir / --env A=1 --env PYTHONPATH=kept --env LD_PRELOAD= --entrypoint /opt/venv/bin/python ` +
		`127.0.0.1:1/staging/x@sha256:aa -I -c ` + quote(boot) + ` 4 '{"a": "it'\''s"}' < probe.py`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestInjection(t *testing.T) {
	for _, tc := range []struct{ gpus, stderr, how, rest string }{
		{"all", launchMark + "void\nx\n", "cdi", "x\n"},
		{"all", "noise\n" + launchMark + "GPU-1,GPU-2\n", "hook", "noise\n"},
		{"all", launchMark + "\n", "unknown", ""},
		{"all", "", "unknown", ""},
		{"all", "x " + launchMark + "void\n", "unknown", "x " + launchMark + "void\n"},
		{"nvidia.com/gpu=0", launchMark + "\n", "cdi", ""},
		{"", launchMark + "void\n", "none", ""},
	} {
		if how, rest := injection(tc.gpus, tc.stderr); how != tc.how || rest != tc.rest {
			t.Errorf("%q %q: got %q %q", tc.gpus, tc.stderr, how, rest)
		}
	}
}

func TestIdentical(t *testing.T) {
	img := launch.Image{Ref: "r", Digest: "sha256:m", ConfigDigest: "sha256:c", DiffIDs: []string{"sha256:1", "sha256:2"}}
	in := func(id, desc string, layers ...string) image.InspectResponse {
		out := image.InspectResponse{ID: id, RootFS: image.RootFS{Layers: layers}}
		if desc != "" {
			out.Descriptor = &ocispec.Descriptor{Digest: digest.Digest(desc)}
		}
		return out
	}
	for name, tc := range map[string]struct {
		store string
		img   launch.Image
		in    image.InspectResponse
		what  string
	}{
		"containerd":                      {storeContainerd, img, in("sha256:m", "sha256:m", "sha256:1", "sha256:2"), ""},
		"containerd without descriptor":   {storeContainerd, img, in("sha256:m", "", "sha256:1", "sha256:2"), ""},
		"containerd, other digest":        {storeContainerd, img, in("sha256:m", "sha256:x", "sha256:1", "sha256:2"), "the manifest digest"},
		"containerd, other layers":        {storeContainerd, img, in("sha256:m", "sha256:m", "sha256:1"), "the list of layers"},
		"graphdriver":                     {storeGraphdriver, img, in("sha256:c", "", "sha256:1", "sha256:2"), ""},
		"graphdriver, other config":       {storeGraphdriver, img, in("sha256:m", "", "sha256:1", "sha256:2"), "the config digest"},
		"graphdriver, layers swapped":     {storeGraphdriver, img, in("sha256:c", "", "sha256:2", "sha256:1"), "the list of layers"},
		"graphdriver, nothing to compare": {storeGraphdriver, launch.Image{Ref: "r", Digest: "sha256:m"}, in("sha256:c", ""), "the config digest"},
	} {
		err := identical(tc.store, tc.img, tc.in)
		var ie *IdentityError
		if tc.what == "" && err != nil || tc.what != "" && (!errors.As(err, &ie) || ie.What != tc.what) {
			t.Errorf("%s: got %v, want %q", name, err, tc.what)
		}
	}
}

func TestReadPull(t *testing.T) {
	for in, want := range map[string]string{
		`{"status":"Pulling"}{"status":"Done"}`:                                 "",
		`{"status":"x"}{"errorDetail":{"message":"no such"},"error":"no such"}`: "no such",
		`{"error":"old style"}`:                                                 "old style",
		`{"status":"x"}{"statu`:                                                 "reading the daemon's progress: unexpected EOF",
	} {
		if err := readPull(strings.NewReader(in)); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}

func TestOwner(t *testing.T) {
	self := owner(os.Getpid())
	if f := strings.Fields(self); len(f) != 4 {
		t.Skip("this kernel does not tell process start times")
	}
	f := strings.Fields(self)
	for label, want := range map[string]bool{
		self: false, "": false, "a b c d": false,
		strings.Join([]string{f[0], f[1], f[2], "1"}, " "):           true,  // the number was given to another process
		strings.Join([]string{f[0], f[1], "4999999", "1"}, " "):      true,  // no such process
		strings.Join([]string{"other", f[1], "4999999", "1"}, " "):   false, // another boot or host
		strings.Join([]string{f[0], "pid:[1]", "4999999", "1"}, " "): false, // another pid namespace
	} {
		if got := dead(label); got != want {
			t.Errorf("%q: dead is %t", label, got)
		}
	}
}

// daemon is a Docker API of a few answers, for what a real engine cannot be made to do.
type daemon struct {
	mux     *http.ServeMux
	removed atomic.Int32
	killed  atomic.Int32
}

func fakeDaemon(t *testing.T) (*daemon, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "imgd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sock := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{mux: http.NewServeMux()}
	answer := func(pattern string, code int, body any) {
		d.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.51")
			w.WriteHeader(code)
			if body != nil {
				_ = json.NewEncoder(w).Encode(body)
			}
		})
	}
	answer("/_ping", 200, nil)
	answer("GET /v1.51/info", 200, map[string]any{"ServerVersion": "29.0.0", "DriverStatus": [][2]string{{"driver-type", "io.containerd.snapshotter.v1"}},
		"DiscoveredDevices": []map[string]string{{"Source": "cdi", "ID": "nvidia.com/gpu=all"}, {"Source": "other", "ID": "x"}}})
	answer("GET /v1.51/containers/json", 200, []any{})
	answer("GET /v1.51/images/{ref...}", 200, map[string]any{"Id": "sha256:aa", "RootFS": map[string]any{}})
	answer("POST /v1.51/containers/create", 201, map[string]any{"Id": "c1"})
	answer("POST /v1.51/containers/c1/start", 204, nil)
	d.mux.HandleFunc("POST /v1.51/containers/c1/attach", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	})
	d.mux.HandleFunc("POST /v1.51/containers/c1/kill", func(w http.ResponseWriter, _ *http.Request) { d.killed.Add(1); w.WriteHeader(204) })
	d.mux.HandleFunc("DELETE /v1.51/containers/c1", func(w http.ResponseWriter, _ *http.Request) { d.removed.Add(1); w.WriteHeader(204) })
	s := &http.Server{Handler: d.mux}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return d, "unix://" + sock
}

// A process stuck in the driver cannot be killed: the host is at fault, and the run still ends.
func TestHostStuck(t *testing.T) {
	d, host := fakeDaemon(t)
	d.mux.HandleFunc("POST /v1.51/containers/c1/wait", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	l := launcher(t, host)
	info, err := l.Info(t.Context())
	want := launch.Info{Kind: "docker", Version: "29.0.0", API: "1.51", Store: storeContainerd, CDIDevices: []string{"nvidia.com/gpu=all"}}
	if err != nil || cmp.Diff(want, info) != "" {
		t.Fatalf("info: %v\n%s", err, cmp.Diff(want, info))
	}
	s := full()
	s.Timeout, s.KillGrace = 50*time.Millisecond, 50*time.Millisecond
	tr, err := l.Run(t.Context(), s)
	if err != nil || !tr.TimedOut || !tr.HostStuck || tr.ExitCode != -1 || d.killed.Load() != 1 || d.removed.Load() != 1 {
		t.Fatalf("got %+v, %v; %d kills, %d removals", tr, err, d.killed.Load(), d.removed.Load())
	}
}

// A daemon that goes away in the middle is an error, never a transcript.
func TestDaemonLost(t *testing.T) {
	d, host := fakeDaemon(t)
	d.mux.HandleFunc("POST /v1.51/containers/c1/wait", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.Close()
		}
	})
	l := launcher(t, host)
	if tr, err := l.Run(t.Context(), full()); err == nil || !strings.Contains(err.Error(), "waiting for the container") || d.removed.Load() != 1 {
		t.Fatalf("got %+v, %v; %d removals", tr, err, d.removed.Load())
	}
}

func TestBadAddress(t *testing.T) {
	var nd *NoDaemonError
	if _, err := New(t.Context(), Options{Host: "nonsense", RunID: "r"}); !errors.As(err, &nd) || nd.Host != "nonsense" {
		t.Fatalf("got %v", err)
	}
	if _, err := New(t.Context(), Options{}); err == nil {
		t.Fatal("a launcher without a run id was made")
	}
}
