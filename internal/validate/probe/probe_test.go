package probe

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// on runs the probe with this host's interpreter, as a launcher does.
func on(t *testing.T, python string, c Config, env ...string) Observation {
	t.Helper()
	const boot = "import sys; s = sys.stdin.buffer.read(); exec(compile(s, 'probe.py', 'exec'), {'__name__': '__main__', 'PROBE_SOURCE': s})"
	args, err := c.Args()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{"-I", "-c", boot}, args...)...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
	cmd.Stdin = bytes.NewReader(Source())
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("running the probe: %v\n%s", err, errOut.String())
	}
	o, err := Decode(out.Bytes(), c.Nonce)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return o
}

func python(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python3", "-I", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("running the probe needs python3 on this host")
	}
	return strings.TrimSpace(string(out))
}

// module makes a folder with a package called tensorflow that does something to the process.
func module(t *testing.T, code string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tensorflow.py"), []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	return "PYTHONPATH=" + dir
}

func TestProbeSystem(t *testing.T) {
	o := on(t, python(t), Config{Nonce: "x1", Steps: []string{StepSystem, StepLibraries}, Dlopen: []string{"libc.so.6", "libnothing-here.so.1"}},
		"SECRET_TOKEN=hunter2", "LD_LIBRARY_PATH=/nowhere", "NVIDIA_VISIBLE_DEVICES=void", "IMGSMITH_FAKE_GPU=1")
	s := o.System
	if s == nil || !o.Step(StepSystem).Clean() {
		t.Fatalf("system step: %+v", o.Step(StepSystem))
	}
	if !slices.Contains(s.EnvNames, "SECRET_TOKEN") || s.Env["SECRET_TOKEN"] != "" {
		t.Errorf("environment: names %v, values %v", s.EnvNames, s.Env)
	}
	if s.Env["LD_LIBRARY_PATH"] != "/nowhere" || s.Env["NVIDIA_VISIBLE_DEVICES"] != "void" || s.FakeWatermark != "1" {
		t.Errorf("environment: %v", s.Env)
	}
	if s.UID != os.Getuid() || s.CPUs < 1 || s.CapEff == "" || s.Limits["nofile"] == "" || s.Kernel == "" || s.TmpBytes <= 0 {
		t.Errorf("system: %+v", s)
	}
	libs := o.Libraries.Opened
	if len(libs) != 2 || !libs[0].Opened || filepath.Base(libs[0].Path) != "libc.so.6" || libs[0].Size == 0 {
		t.Errorf("libc: %+v", libs)
	}
	if libs[1].Opened || !strings.Contains(libs[1].Error, "libnothing-here.so.1") || libs[1].Path != "" {
		t.Errorf("a library that is not there: %+v", libs[1])
	}
	if n := o.Step(StepNVML).NotRun; n != "not asked for" {
		t.Errorf("a step that was not asked for: %q", n)
	}
}

// A step may do anything to its own process; the document comes all the same.
func TestProbeSurvivesSteps(t *testing.T) {
	py := python(t)
	for name, tc := range map[string]struct {
		code  string
		check func(Step) bool
	}{
		"abort": {"import os, sys\nprint('to stdout')\nprint('Check failed: handle', file=sys.stderr, flush=True)\nos.abort()", func(s Step) bool {
			return s.SignalName == "SIGABRT" && s.ExitCode == nil && slices.Contains(s.Evidence, "Check failed: handle")
		}},
		"hang":      {"import time\ntime.sleep(600)", func(s Step) bool { return s.TimedOut && s.SignalName == "SIGKILL" }},
		"exit":      {"import os\nos._exit(3)", func(s Step) bool { return !s.Finished && *s.ExitCode == 3 }},
		"sys.exit":  {"import sys\nsys.exit(0)", func(s Step) bool { return s.Exception == "SystemExit: 0" && *s.ExitCode == 0 }},
		"exception": {"raise ImportError('numpy is too old')", func(s Step) bool { return s.Exception == "ImportError: numpy is too old" && *s.ExitCode == 1 }},
		"flood": {"import sys\nfor i in range(300000): sys.stderr.write('error %d ' % i + 'x' * 40 + '\\n')\nraise ValueError('y' * 9000)", func(s Step) bool {
			return s.StderrBytes > 10<<20 && len(s.StderrTail) <= 16<<10 && len(s.Evidence) <= 60 && len(s.Exception) < 5000
		}},
		"forked child holds the pipes": {"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(30)\nraise ValueError('gone')", func(s Step) bool { return s.Exception == "ValueError: gone" }},
		"closes every file":            {"import os\nos.closerange(0, 100)\nos._exit(0)", func(s Step) bool { return !s.Clean() && *s.ExitCode == 0 }},
		"garbage in the report":        {"import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'{\"set\": 5}\\nnot json\\n{\"add\": [1]}\\n')\n    except OSError: pass\nos._exit(0)", func(s Step) bool { return s.Garbage >= 1 && !s.Clean() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := on(t, py, Config{Nonce: "x2", AsShipped: true, Steps: []string{StepTensorFlow, StepLibraries}, Deadlines: map[string]float64{StepTensorFlow: 4}}, module(t, tc.code))
			if s := o.Step(StepTensorFlow); s.Clean() || !tc.check(s) {
				t.Errorf("got %+v", s)
			}
			if s := o.Step(StepLibraries); !s.Clean() {
				t.Errorf("another step suffered: %+v", s)
			}
		})
	}
}

func TestProbeTotalTime(t *testing.T) {
	o := on(t, python(t), Config{Nonce: "x3", Total: 1, AsShipped: true, Steps: []string{StepTensorFlow, StepMatmul}}, module(t, "import time\ntime.sleep(600)"))
	if s := o.Step(StepTensorFlow); !s.TimedOut {
		t.Errorf("the first: %+v", s)
	}
	if s := o.Step(StepMatmul); s.NotRun != "the time for all steps was used up" || s.Clean() {
		t.Errorf("the second: %+v", s)
	}
}

// The isolated run does not see what the image put on the module path.
func TestProbeIsolated(t *testing.T) {
	o := on(t, python(t), Config{Nonce: "x4", Steps: []string{StepTensorFlow}}, module(t, "raise ValueError('seen')"))
	if s := o.Step(StepTensorFlow); strings.Contains(s.Exception, "seen") {
		t.Errorf("PYTHONPATH was honoured: %+v", s)
	}
}
