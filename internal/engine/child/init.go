package child

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initName is argument zero of the re-executed init. No user types it, and no other program has it.
const initName = "imgsmith-engine-init"

// Descriptors that the init inherits.
const (
	aliveFD = 3 // read end of a pipe that our process holds open
	lockFD  = 4 // the locked file of the state directory
)

// termDelay is how long a daemon may take to end before its namespace is torn down.
const termDelay = 8 * time.Second

// RunInitIfRequested must be the first call of main (and of TestMain in tests that start an engine). It runs
// the init when this process was started as one; the caller then exits with code.
func RunInitIfRequested() (ran bool, code int) {
	if len(os.Args) != 4 || os.Args[0] != initName || os.Getpid() != 1 {
		return false, 0
	}
	code, err := runInit(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "imgsmith engine init:", err)
	}
	return true, code
}

// runInit is process 1 of the namespaces: it starts the daemon, reaps orphans, and ends when the daemon does,
// when it is told to, or when the process that started it is gone. With it the kernel ends all the rest.
func runInit(buildkitd, runDir, cgroup string) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	unix.CloseOnExec(aliveFD)
	unix.CloseOnExec(lockFD)
	orphaned := make(chan struct{})
	go func() {
		var b [1]byte
		_, _ = os.NewFile(aliveFD, "alive").Read(b[:]) // nobody writes: it returns when the other end is closed
		close(orphaned)
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 1, fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return 1, fmt.Errorf("mounting /proc: %w", err)
	}
	cmd := exec.Command(buildkitd, "--config", filepath.Join(runDir, "buildkitd.toml"), "--addr", "unix://"+filepath.Join(runDir, socketName))
	cmd.Dir = runDir
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{os.NewFile(lockFD, "lock")}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("starting buildkitd: %w", err)
	}
	ended, gone := reap(cmd.Process.Pid)
	var killed <-chan time.Time
	for {
		select {
		case status := <-ended:
			return status, nil
		case <-signals:
			if killed == nil {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				killed = time.After(termDelay)
			}
		case <-killed:
			return 1, nil
		case <-orphaned:
			// Nobody else is left to tidy up.
			cleanUp(runDir, cgroup, gone)
			return 1, nil
		}
	}
}

// cleanUp ends everything in the namespace and removes what outlives it: control groups and the socket.
func cleanUp(runDir, cgroup string, gone <-chan struct{}) {
	_ = unix.Kill(-1, unix.SIGKILL)
	select {
	case <-gone:
	case <-time.After(2 * time.Second): // a process in uninterruptible sleep; the namespace ends it later
	}
	for _, parent := range cgroupParents() {
		removeGroup(filepath.Join(parent, cgroup))
		_ = unix.Rmdir(parent) // fails while another imgsmith has groups there
	}
	_ = os.RemoveAll(runDir)
}

// reap collects every child: ended gets the exit status of the one with this process id, gone is closed when
// no child is left.
func reap(pid int) (ended <-chan int, gone <-chan struct{}) {
	status, none := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(none)
		for {
			var ws unix.WaitStatus
			got, err := unix.Wait4(-1, &ws, 0, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return
			}
			if got == pid {
				code := ws.ExitStatus()
				if ws.Signaled() {
					code = 128 + int(ws.Signal())
				}
				status <- code
			}
		}
	}()
	return status, none
}

// daemonEnv keeps of our environment only what the daemon needs: paths, certificates and proxies for pulling.
// Build steps see none of it.
func daemonEnv(environ []string) []string {
	keep := []string{"PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "GOMAXPROCS", "GOMEMLIMIT"}
	var out []string
	for _, kv := range environ {
		if name, _, ok := strings.Cut(kv, "="); ok && slices.Contains(keep, name) {
			out = append(out, kv)
		}
	}
	return out
}
