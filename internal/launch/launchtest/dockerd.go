// Package launchtest is for tests: it starts a real Docker engine of its own, makes small images, and holds
// the suite that every launcher must pass. Nothing of it is in a release.
package launchtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// EngineDirEnv names the folder with dockerd, containerd, its shim, runc and nvidia-cdi-hook.
const EngineDirEnv = "IMGSMITH_ENGINE_DIR"

// Config says which engine to start.
type Config struct {
	Engines string   // folder with the programs
	Dir     string   // state, made when absent; keep it short, sockets live in it
	Store   string   // containerd | graphdriver
	CDIDir  string   // CDI spec folder, empty: an empty one
	Env     []string // added to the engine's environment
}

// Dockerd is a running engine.
type Dockerd struct {
	Host string // for DOCKER_HOST
	Log  string // path of the engine's log
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

// Missing says why no engine can be started here, in words for a skip; empty when one can.
func Missing(engines string) string {
	if os.Geteuid() != 0 {
		return "starting a Docker engine needs root"
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		return "starting a Docker engine needs util-linux's unshare"
	}
	for _, p := range []string{"dockerd", "containerd", "containerd-shim-runc-v2", "runc", "nvidia-cdi-hook"} {
		if _, err := os.Stat(filepath.Join(engines, p)); err != nil {
			return fmt.Sprintf("no %s in %q (build the engines, or name their folder in %s)", p, engines, EngineDirEnv)
		}
	}
	return ""
}

// Engines finds the folder of engines: the environment, then the newest in the user's cache that has dockerd.
func Engines() string {
	if d := os.Getenv(EngineDirEnv); d != "" {
		return d
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	found, _ := filepath.Glob(filepath.Join(cache, "imgsmith", "engines", "*", "dockerd"))
	best, when := "", time.Time{}
	for _, f := range found {
		if st, err := os.Stat(f); err == nil && st.ModTime().After(when) {
			best, when = filepath.Dir(f), st.ModTime()
		}
	}
	return best
}

// ForTest starts an engine for one test and stops it afterwards; it skips, saying what is missing.
func ForTest(t testing.TB, c Config) *Dockerd {
	t.Helper()
	if c.Engines == "" {
		c.Engines = Engines()
	}
	if why := Missing(c.Engines); why != "" {
		t.Skip(why)
	}
	dir, err := os.MkdirTemp("", "imgd")
	if err != nil {
		t.Fatal(err)
	}
	c.Dir = dir
	d, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(d.Log)
			t.Logf("end of the engine's log:\n%s", b[max(0, len(b)-6000):])
		}
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Start starts an engine in a PID and mount namespace of its own: when it goes, by whatever signal, its
// containers, helpers and mounts go with it. It returns when the engine answers on its socket.
func Start(ctx context.Context, c Config) (*Dockerd, error) {
	cdi := c.CDIDir
	if cdi == "" {
		cdi = filepath.Join(c.Dir, "cdi")
	}
	for _, d := range []string{c.Dir, cdi} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("making the engine's folder: %w", err)
		}
	}
	sock := filepath.Join(c.Dir, "docker.sock")
	logPath := filepath.Join(c.Dir, "dockerd.log")
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("making the engine's log: %w", err)
	}
	defer log.Close()
	args := []string{"--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL",
		filepath.Join(c.Engines, "dockerd"),
		"--data-root", filepath.Join(c.Dir, "data"), "--exec-root", filepath.Join(c.Dir, "exec"),
		"--pidfile", filepath.Join(c.Dir, "pid"), "--host", "unix://" + sock, "--group", "root",
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--userland-proxy=false",
		"--cdi-spec-dir", cdi, "--feature", fmt.Sprintf("containerd-snapshotter=%t", c.Store != "graphdriver")}
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), append([]string{"PATH=" + c.Engines + ":" + os.Getenv("PATH"), "TMPDIR=" + c.Dir}, c.Env...)...)
	cmd.Stdout, cmd.Stderr = log, log
	d := &Dockerd{Host: "unix://" + sock, Log: logPath, dir: c.Dir, cmd: cmd, done: make(chan struct{})}
	if err := d.launch(); err != nil {
		return nil, fmt.Errorf("starting the Docker engine: %w", err)
	}
	if err := d.ready(ctx, sock); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// launch starts the process from a thread that lives as long as it does: the death signal, which ends the
// engine when a test is killed, is tied to the thread that forked.
func (d *Dockerd) launch() error {
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait()
		}
		close(d.done)
	}()
	return <-started
}

// ready waits until the socket answers HTTP.
func (d *Dockerd) ready(ctx context.Context, sock string) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		if ping(sock) {
			return nil
		}
		select {
		case <-d.done:
			b, _ := os.ReadFile(d.Log)
			return fmt.Errorf("starting the Docker engine: it ended\n%s", b[max(0, len(b)-4000):])
		case <-ctx.Done():
			b, _ := os.ReadFile(d.Log)
			return fmt.Errorf("starting the Docker engine: %w\n%s", ctx.Err(), b[max(0, len(b)-4000):])
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func ping(sock string) bool {
	c, err := net.DialTimeout("unix", sock, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write([]byte("GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")); err != nil {
		return false
	}
	buf := make([]byte, 64)
	n, _ := c.Read(buf)
	return bytes.Contains(buf[:n], []byte(" 200 "))
}

// Stop ends the engine in good order, by force after 30 seconds, and checks that no mount is left.
func (d *Dockerd) Stop() error {
	for _, pid := range children(d.cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	return unmountBelow(d.dir)
}

// Kill ends the engine as a crash would.
func (d *Dockerd) Kill() {
	_ = d.cmd.Process.Kill()
	<-d.done
}

// Wait blocks until the engine is gone.
func (d *Dockerd) Wait() { <-d.done }

func children(pid int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var out []int
	for _, f := range strings.Fields(string(b)) {
		if n, err := strconv.Atoi(f); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// unmountBelow detaches what is still mounted below dir in our own namespace.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the mount table: %w", err)
	}
	lines := strings.Split(string(b), "\n")
	var errs []error
	for i := len(lines) - 1; i >= 0; i-- {
		f := strings.Fields(lines[i])
		if len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			if err := syscall.Unmount(f[4], syscall.MNT_DETACH); err != nil {
				errs = append(errs, fmt.Errorf("unmounting %s: %w", f[4], err))
			}
		}
	}
	return errors.Join(errs...)
}
