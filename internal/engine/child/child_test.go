package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"

	"imgsmith/internal/engine"
	"imgsmith/internal/engine/enginetest"
)

// hostVariable makes the test binary an imgsmith of its own that runs a long step, to be killed.
const hostVariable = "IMGSMITH_TEST_HOST_STATE"

func TestMain(m *testing.M) {
	if ran, code := RunInitIfRequested(); ran {
		os.Exit(code)
	}
	if ran, code := enginetest.RunToolIfRequested(); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// engineDir skips a test that cannot run here.
func engineDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the child engine needs root")
	}
	dir := os.Getenv("IMGSMITH_ENGINE_DIR")
	for _, name := range []string{"buildkitd", "runc"} {
		if _, err := engine.Lookup(name, dir); err != nil {
			t.Skip("no engine: " + err.Error() + " (IMGSMITH_ENGINE_DIR names their directory)")
		}
	}
	return dir
}

func factory(t *testing.T, c enginetest.Config) engine.Engine {
	t.Helper()
	e, err := Start(t.Context(), Options{EngineDir: engineDir(t), Root: filepath.Join(t.TempDir(), "state"),
		StoreAddr: c.StoreAddr, Secrets: c.Secrets, Progress: c.Progress})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Log())
		}
	})
	return e
}

func TestConformance(t *testing.T) {
	engineDir(t)
	enginetest.Run(t, factory)
}

// TestHost is not a test: it is the process that TestNothingIsLeft kills.
func TestHost(t *testing.T) {
	state := os.Getenv(hostVariable)
	if state == "" {
		t.Skip("runs only as a helper of TestNothingIsLeft")
	}
	s := enginetest.New(t, func(t *testing.T, c enginetest.Config) engine.Engine {
		e, err := Start(t.Context(), Options{EngineDir: engineDir(t), Root: state, StoreAddr: c.StoreAddr,
			Progress: func(ev engine.Event) {
				if ev.State == engine.Output {
					fmt.Println("step says", ev.Line)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		return e
	})
	err := s.Engine.Extract(t.Context(), s.Step(t, "long", "print running", "sleep 600"), io.Discard)
	fmt.Printf("step ended: %q\n", err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// parts are the processes of a running engine, outermost first.
type parts struct{ host, init, daemon, step int }

// startHost runs TestHost until its step runs.
func startHost(t *testing.T, state string) (*exec.Cmd, *bufio.Reader, parts) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestHost$", "-test.v")
	cmd.Env = append(os.Environ(), hostVariable+"="+state, "TMPDIR="+t.TempDir())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Kill() // it may be gone, which is fine
		_ = cmd.Wait()
	})
	r := bufio.NewReader(out)
	waitLine(t, r, "step says running")
	p := parts{host: cmd.Process.Pid}
	p.init = child(t, p.host, initName)
	p.daemon = child(t, p.init, "buildkitd")
	runc := child(t, p.daemon, "runc")
	p.step = child(t, runc, "enginetest-tool")
	return cmd, r, p
}

func waitLine(t *testing.T, r *bufio.Reader, want string) string {
	t.Helper()
	var all strings.Builder
	for {
		line, err := r.ReadString('\n')
		all.WriteString(line)
		if strings.Contains(line, want) {
			return line
		}
		if err != nil || strings.Contains(line, "step ended") {
			t.Fatalf("%v before %q was said:\n%s", err, want, all.String())
		}
	}
}

// child finds the child of a process whose command line contains a word.
func child(t *testing.T, parent int, word string) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if strings.Contains(string(line), word) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	t.Fatalf("process %d has no child %q", parent, word)
	return 0
}

// leftovers lists what an engine with this state directory still has on the host.
func leftovers(t *testing.T, state string, p parts) []string {
	t.Helper()
	var out []string
	for name, pid := range map[string]int{"init": p.init, "daemon": p.daemon, "step": p.step} {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
			out = append(out, fmt.Sprintf("%s: process %d", name, pid))
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(state))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		out = append(out, "mount "+m.Mountpoint)
	}
	for _, parent := range cgroupParents() {
		if group := filepath.Join(parent, strconv.Itoa(p.host)); exists(group) {
			out = append(out, group)
		}
	}
	if run := filepath.Join(state, "run"); exists(run) {
		out = append(out, run)
	}
	return out
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestNothingIsLeft kills one part at a time with SIGKILL while a step runs.
func TestNothingIsLeft(t *testing.T) {
	engineDir(t)
	for _, c := range []struct {
		name     string
		pid      func(parts) int
		hostDies bool
		says     string // what the surviving host says of the step
	}{
		{"imgsmith", func(p parts) int { return p.host }, true, ""},
		{"init", func(p parts) int { return p.init }, false, "the daemon ended while it ran"},
		{"daemon", func(p parts) int { return p.daemon }, false, "the daemon ended while it ran"},
		{"step", func(p parts) int { return p.step }, false, `long: exit code: 137`},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			cmd, out, p := startHost(t, state)
			if len(leftovers(t, state, p)) < 3 {
				t.Fatal("the check for leftovers does not see a running engine")
			}
			if err := syscall.Kill(c.pid(p), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if !c.hostDies {
				if line := waitLine(t, out, "step ended"); !strings.Contains(line, c.says) {
					t.Errorf("it says %s", line)
				}
				if err := cmd.Process.Signal(syscall.SIGKILL); err != nil && c.name == "step" {
					t.Fatal(err)
				}
			}
			var left []string
			for range 100 {
				if left = leftovers(t, state, p); len(left) == 0 {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			t.Errorf("left:\n%s", strings.Join(left, "\n"))
		})
	}
}

func TestOneDaemonPerState(t *testing.T) {
	dir, state := engineDir(t), filepath.Join(t.TempDir(), "state")
	first, err := Start(t.Context(), Options{EngineDir: dir, Root: state})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no patience")
	var notices []string
	_, err = Start(ctx, Options{EngineDir: dir, Root: state, Notice: func(s string) {
		notices = append(notices, s)
		cancel(cause)
	}})
	var unavailable *engine.UnavailableError
	if !errors.As(err, &unavailable) || !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"waiting for another imgsmith process that uses " + state}, notices); diff != "" {
		t.Error(diff)
	}
	// The second waits until the first is closed.
	started := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		second, err := Start(t.Context(), Options{EngineDir: dir, Root: state, Notice: func(string) { close(waiting) }})
		if err == nil {
			err = second.Close()
		}
		started <- err
	}()
	<-waiting
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := <-started; err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
}

// TestDaemonThatEnds shows the log of a daemon that cannot run.
func TestDaemonThatEnds(t *testing.T) {
	engineDir(t)
	dir := t.TempDir()
	for _, name := range []string{"buildkitd", "runc"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho cannot run here >&2\nexit 7\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(t.TempDir(), "state")
	_, err := Start(t.Context(), Options{EngineDir: dir, Root: state})
	var unavailable *engine.UnavailableError
	if !errors.As(err, &unavailable) || unavailable.Log != "cannot run here" || unavailable.Remedy == "" {
		t.Errorf("error %#v", err)
	}
	if exists(filepath.Join(state, "run")) {
		t.Error("its run directory is left")
	}
}

func TestLongStateDirectory(t *testing.T) {
	dir := engineDir(t)
	_, err := Start(t.Context(), Options{EngineDir: dir, Root: "/tmp/" + strings.Repeat("x", maxRoot)})
	var unavailable *engine.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(unavailable.Remedy, "short path") {
		t.Errorf("error %v", err)
	}
}

func TestMissingProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the check for root comes first")
	}
	t.Setenv("PATH", t.TempDir())
	_, err := Start(t.Context(), Options{EngineDir: t.TempDir(), Root: filepath.Join(t.TempDir(), "state")})
	var missing *engine.NotFoundError
	if !errors.As(err, &missing) || missing.Name != "buildkitd" || missing.Remedy == "" {
		t.Errorf("error %v", err)
	}
}
