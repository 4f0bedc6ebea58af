package docker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"imgsmith/internal/launch"
	"imgsmith/internal/launch/launchtest"
	"imgsmith/internal/validate/probe"
)

func spec(img launch.Image, python, script string) launch.Spec {
	s := launch.DefaultSpec()
	s.Image, s.Python, s.Script, s.Nonce, s.Timeout = img, python, []byte(script), "n", time.Minute
	return s
}

// left counts containers of ours on the daemon.
func left(t *testing.T, l *Launcher) int {
	t.Helper()
	list, err := l.api.ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", LabelRun))})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func launcher(t *testing.T, host string) *Launcher {
	t.Helper()
	l, err := New(t.Context(), Options{Host: host, RunID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestRealEngine(t *testing.T) {
	for _, store := range []string{storeContainerd, storeGraphdriver} {
		t.Run(store, func(t *testing.T) {
			d := launchtest.ForTest(t, launchtest.Config{Store: store})
			reg := launchtest.NewRegistry(t)
			layer, python := launchtest.HostPython(t)
			img := reg.Add("plain", map[string]any{
				"Env":        []string{"PATH=/usr/bin", "LD_PRELOAD=/nowhere.so", "KEEP=1", "NVIDIA_VISIBLE_DEVICES=baked"},
				"Entrypoint": []string{python, "-I", "-c", "import os, sys; print('banner', flush=True); os.execv(sys.argv[1], sys.argv[1:])"},
			}, layer)
			l := launcher(t, d.Host)
			info, err := l.Info(t.Context())
			if err != nil || info.Store != store || info.Kind != "docker" || info.Version == "" || info.Remote {
				t.Fatalf("info: %+v, %v", info, err)
			}
			t.Run("cage", func(t *testing.T) { testCage(t, l, spec(img, python, "")) })
			t.Run("as shipped", func(t *testing.T) { testShipped(t, l, spec(img, python, "")) })
			t.Run("bounds", func(t *testing.T) { testBounds(t, l, spec(img, python, "")) })
			t.Run("refusals", func(t *testing.T) { testRefusals(t, l, reg, spec(img, python, "pass"), layer) })
			t.Run("sweep", func(t *testing.T) { testSweep(t, l, d.Host, spec(img, python, "")) })
			t.Run("pulled images", func(t *testing.T) { testPulled(t, l, reg, d.Host, python, layer) })
			t.Run("probe", func(t *testing.T) { testProbe(t, l, spec(img, python, "")) })
			if n := left(t, l); n != 0 {
				t.Fatalf("%d containers are left", n)
			}
		})
	}
}

func testCage(t *testing.T, l *Launcher, s launch.Spec) {
	s.Args = []string{"it's \"quoted\" $HOME", ""}
	s.Env = map[string]string{"GIVEN": "yes"}
	s.Script = []byte(`
import os, sys
st = open("/proc/self/status").read()
f = lambda k: [l.split()[1] for l in st.splitlines() if l.startswith(k + ":")][0]
def ro(p):
    try:
        open(p, "w"); return False
    except OSError:
        return True
print(os.getuid(), f("CapEff"), f("NoNewPrivs"), f("Seccomp"), ro("/x"), ro("/tmp/x"), os.listdir("/sys/class/net"))
print(os.environ.get("LD_PRELOAD"), os.environ.get("KEEP"), os.environ.get("GIVEN"), sys.flags.isolated, sys.argv[1:])
print("err", file=sys.stderr)
sys.exit(7)
`)
	tr, err := l.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	want := "65534 0000000000000000 1 2 True False ['lo']\nNone 1 yes 1 ['it\\'s \"quoted\" $HOME', '']\n"
	if tr.Stdout != want || tr.Stderr != "err\n" || tr.ExitCode != 7 || tr.StartError != "" || tr.Injection != "none" {
		t.Fatalf("got %+v\nwant stdout %q", tr, want)
	}
}

func testShipped(t *testing.T, l *Launcher, s launch.Spec) {
	s.Caged = false
	s.Script = []byte("import os\nprint(os.getuid(), os.environ['KEEP'], os.listdir('/sys/class/net'))")
	s.GPUs = ""
	tr, err := l.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	// LD_PRELOAD of the image is in force: the loader complains on every start
	if tr.Stdout != "banner\n0 1 ['lo']\n" || !strings.Contains(tr.Stderr, "/nowhere.so") || strings.Contains(tr.Stderr, launchMark) {
		t.Fatalf("got %+v", tr)
	}
}

func testBounds(t *testing.T, l *Launcher, s launch.Spec) {
	t.Run("deadline", func(t *testing.T) {
		s := s
		s.Timeout, s.Script = 2*time.Second, []byte("import time\nprint('here', flush=True)\ntime.sleep(600)")
		tr, err := l.Run(t.Context(), s)
		if err != nil || !tr.TimedOut || tr.HostStuck || tr.ExitCode != 137 || tr.Stdout != "here\n" {
			t.Fatalf("got %+v, %v", tr, err)
		}
	})
	t.Run("output", func(t *testing.T) {
		s := s
		s.MaxOutput, s.Script = 1000, []byte("while True: print('x' * 99, flush=True)")
		tr, err := l.Run(t.Context(), s)
		if err != nil || !tr.Truncated || len(tr.Stdout) != 1000 || tr.TimedOut {
			t.Fatalf("got %d bytes, %+v, %v", len(tr.Stdout), tr.ExitCode, err)
		}
	})
	t.Run("signal", func(t *testing.T) {
		s := s
		s.Script = []byte("import os\nos.abort()")
		tr, err := l.Run(t.Context(), s)
		if err != nil || tr.ExitCode != 134 && tr.ExitCode != 139 {
			t.Fatalf("got %+v, %v", tr, err)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		s := s
		s.Script = []byte("import time\ntime.sleep(600)")
		why := errors.New("interrupted by the user")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for left(t, l) == 0 {
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond)
			cancel(why)
		}()
		if _, err := l.Run(ctx, s); !errors.Is(err, why) {
			t.Fatalf("got %v", err)
		}
		if n := left(t, l); n != 0 {
			t.Fatalf("%d containers are left", n)
		}
	})
	t.Run("memory", func(t *testing.T) {
		s := s
		s.Memory, s.Script = 64<<20, []byte("x = bytearray(1 << 30)")
		tr, err := l.Run(t.Context(), s)
		if err != nil || tr.ExitCode != 137 || !tr.OOMKilled {
			t.Fatalf("got exit %d, OOM %t, %v", tr.ExitCode, tr.OOMKilled, err)
		}
	})
}

func testRefusals(t *testing.T, l *Launcher, reg *launchtest.Registry, s launch.Spec, layer []byte) {
	t.Run("no GPU driver", func(t *testing.T) {
		s := s
		s.GPUs = "all"
		tr, err := l.Run(t.Context(), s)
		if err != nil || tr.StartError == "" || tr.ExitCode != -1 || tr.Injection != "unknown" {
			t.Fatalf("got %+v, %v", tr, err)
		}
	})
	t.Run("unknown CDI device", func(t *testing.T) {
		s := s
		s.GPUs = "nvidia.com/gpu=7"
		tr, err := l.Run(t.Context(), s)
		if err != nil || !strings.Contains(tr.StartError, "unresolvable CDI devices nvidia.com/gpu=7") {
			t.Fatalf("got %+v, %v", tr, err)
		}
	})
	t.Run("no interpreter", func(t *testing.T) {
		s := s
		s.Python = "/opt/venv/bin/python"
		tr, err := l.Run(t.Context(), s)
		if err != nil || !strings.Contains(tr.StartError, "/opt/venv/bin/python") {
			t.Fatalf("got %+v, %v", tr, err)
		}
	})
	t.Run("image not there", func(t *testing.T) {
		s := s
		s.Image.Digest = "sha256:" + strings.Repeat("0", 64)
		s.Image.Ref = reg.Host + "/staging/plain@" + s.Image.Digest
		s.Image.ConfigDigest = "sha256:" + strings.Repeat("1", 64)
		_, err := l.Run(t.Context(), s)
		var pe *PullError
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), "staging registry that both can reach") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("another config", func(t *testing.T) {
		if l.info.Store != storeGraphdriver {
			t.Skip("the containerd store keeps the manifest digest, which pins the config")
		}
		s := s
		s.Image = reg.Add("other", map[string]any{"Env": []string{"A=2"}}, layer)
		s.Image.ConfigDigest = "sha256:" + strings.Repeat("1", 64)
		_, err := l.Run(t.Context(), s)
		var ie *IdentityError
		if !errors.As(err, &ie) || ie.What != "the config digest" {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("other layers", func(t *testing.T) {
		s := s
		s.Image.DiffIDs = []string{"sha256:" + strings.Repeat("2", 64)}
		_, err := l.Run(t.Context(), s)
		var ie *IdentityError
		if !errors.As(err, &ie) || ie.What != "the list of layers" {
			t.Fatalf("got %v", err)
		}
	})
}

func testSweep(t *testing.T, l *Launcher, host string, s launch.Spec) {
	id, err := l.acquire(t.Context(), s.Image)
	if err != nil {
		t.Fatal(err)
	}
	self := owner(1)
	gone := strings.Fields(self)
	gone[3] = "1" // pid 1 did not start then: another process of that number
	for label, stays := range map[string]bool{self: true, strings.Join(gone, " "): false, "other-host ns 1 1": true, "": true} {
		c, err := l.api.ContainerCreate(t.Context(), &container.Config{Image: id, Cmd: []string{"x"},
			Labels: map[string]string{LabelRun: "r", LabelOwner: label}}, &container.HostConfig{NetworkMode: "none"}, nil, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		launcher(t, host)
		_, err = l.api.ContainerInspect(t.Context(), c.ID)
		if (err == nil) != stays {
			t.Errorf("owner %q: stays %t, want %t", label, err == nil, stays)
		}
		if err := l.remove(c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// A launcher removes on request what it pulled, and nothing that was there before.
func testPulled(t *testing.T, l *Launcher, reg *launchtest.Registry, host, python string, layer []byte) {
	there, fresh := reg.Add("there", map[string]any{"User": "1"}, layer), reg.Add("fresh", map[string]any{"User": "2"}, layer)
	if _, err := l.acquire(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	l2, err := New(t.Context(), Options{Host: host, RunID: "test", RemovePulled: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range []launch.Image{there, fresh} {
		s := spec(img, python, "print('ran')")
		if tr, err := l2.Run(t.Context(), s); err != nil || tr.Stdout != "ran\n" {
			t.Fatalf("got %+v, %v", tr, err)
		}
	}
	if err := l2.Close(); err != nil {
		t.Fatal(err)
	}
	if id, err := l.present(t.Context(), there); err != nil || id == "" {
		t.Errorf("an image that was there before is gone: %v", err)
	}
	if id, err := l.present(t.Context(), fresh); err != nil || id != "" {
		t.Errorf("the pulled image is still there: %q, %v", id, err)
	}
}

func testProbe(t *testing.T, l *Launcher, s launch.Spec) {
	cfg := probe.Config{Nonce: "abc", Dlopen: []string{"libnothing.so.1"}, Deadlines: map[string]float64{"default": 30}}
	args, err := cfg.Args()
	if err != nil {
		t.Fatal(err)
	}
	s.Script, s.Args, s.Nonce = probe.Source(), args, "abc"
	tr, err := l.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	o, err := probe.Decode([]byte(tr.Stdout), "abc")
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, tr.Stdout, tr.Stderr)
	}
	if o.System == nil || o.System.UID != 65534 || o.System.CapEff != "0000000000000000" || o.System.RootWritable {
		t.Errorf("system: %+v", o.System)
	}
	if s := o.Step(probe.StepTensorFlow); s.Clean() || !strings.Contains(s.Exception, "No module named 'tensorflow'") {
		t.Errorf("tensorflow step: %+v", s)
	}
	if s := o.Step(probe.StepLibraries); !s.Clean() || len(o.Libraries.Opened) != 1 || o.Libraries.Opened[0].Opened {
		t.Errorf("libraries: %+v", o.Libraries)
	}
}

func TestNoDaemon(t *testing.T) {
	_, err := New(t.Context(), Options{Host: "unix:///nonexistent/docker.sock", RunID: "r"})
	var nd *NoDaemonError
	if !errors.As(err, &nd) || !strings.Contains(err.Error(), "DOCKER_HOST") || nd.Host != "unix:///nonexistent/docker.sock" {
		t.Fatalf("got %v", err)
	}
}
