// Package child runs a BuildKit daemon of our own for the time of one imgsmith process. The daemon lives under
// an init in PID and mount namespaces of its own: when any part is killed, the kernel removes every process
// and every mount of the rest. It needs root.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/buildkit/client"
	"golang.org/x/sys/unix"

	"imgsmith/internal/engine"
	"imgsmith/internal/llb"
)

// Kind is what Info and errors call this engine.
const Kind = "child"

// Deadlines. The daemon answers in well under a second; a slow disk may need long to open its databases.
const (
	readyDeadline = 60 * time.Second
	stopDeadline  = 10 * time.Second
	logBytes      = 64 << 10
)

// Sockets lie below the state directory; the kernel limits their path to 107 bytes.
const (
	socketName = "buildkitd.sock"
	maxRoot    = 107 - len("/run/"+socketName)
)

// Options configure Start.
type Options struct {
	EngineDir string            // --engine-dir, may be empty
	Root      string            // state directory; one daemon at a time uses it
	StoreAddr string            // address of the loopback store, 127.0.0.1:PORT; empty means none
	Secrets   map[string][]byte // by id, see internal/llb
	Progress  engine.Progress   // may be nil
	Notice    func(string)      // told when Start waits for another process; may be nil
	Limits    Limits            // cache limits; the zero value means defaults
}

// Limits bound what the daemon keeps in its state directory.
type Limits struct {
	MaxUsed int64 // bytes; 0 means 20 GB or a tenth of the file system, whichever is less
	MinFree int64 // bytes that the daemon leaves free; 0 means a twentieth of the file system
}

// Engine is a running daemon.
type Engine struct {
	engine.Solver
	root              string
	version           string
	cmd               *exec.Cmd
	alive             io.Closer // write end of the pipe that the init watches
	log               *tail
	exited            chan struct{}
	exitErr, cleanErr error // valid after exited is closed
	runDir            *os.File
	lock              *os.File
	close             sync.Once
	closed            error
}

var _ engine.Engine = (*Engine)(nil)

// Start starts the daemon and waits until it answers. The error is an *engine.NotFoundError when a program is
// missing and an *engine.UnavailableError when the daemon cannot run here.
func Start(ctx context.Context, opt Options) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, &engine.UnavailableError{Kind: Kind, Reason: "it needs root to make namespaces and mounts",
			Remedy: "run imgsmith as root, or use a Docker engine with the containerd image store"}
	}
	buildkitd, err := engine.Lookup("buildkitd", opt.EngineDir)
	if err != nil {
		return nil, err
	}
	runc, err := engine.Lookup("runc", opt.EngineDir)
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(opt.Root)
	if err == nil && len(root) > maxRoot {
		err = fmt.Errorf("%s has %d bytes, a socket below it allows %d", root, len(root), maxRoot)
	}
	if err == nil {
		err = os.MkdirAll(root, 0o700)
	}
	if err != nil {
		return nil, unavailable("its state directory cannot be made", "name a writable state directory with a short path", err)
	}
	lock, err := lockRoot(ctx, root, opt.Notice)
	if err != nil {
		return nil, err
	}
	e := &Engine{root: root, lock: lock, log: &tail{limit: logBytes}, exited: make(chan struct{})}
	e.Secrets, e.Progress = opt.Secrets, opt.Progress
	if err := e.launch(buildkitd, runc, opt); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := e.ready(ctx); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

func unavailable(reason, remedy string, err error) error {
	return &engine.UnavailableError{Kind: Kind, Reason: reason, Remedy: remedy, Err: err}
}

// lockRoot takes the state directory. The lock is on an open file that init and daemon inherit, so it lasts
// until the last of them is gone, also after this process was killed.
func lockRoot(ctx context.Context, root string, notice func(string)) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(root, "imgsmith.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unavailable("its state directory is not writable", "name another state directory", err)
	}
	for told := false; ; {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		if !told && notice != nil {
			notice("waiting for another imgsmith process that uses " + root)
		}
		told = true
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
			continue
		}
		break
	}
	return nil, errors.Join(unavailable("its state directory is in use: "+root,
		"wait for the other imgsmith process, or name another state directory", err), lock.Close())
}

// launch writes the configuration and starts the init.
func (e *Engine) launch(buildkitd, runc string, opt Options) error {
	runPath := filepath.Join(e.root, "run")
	if err := errors.Join(os.RemoveAll(runPath), os.Mkdir(runPath, 0o700)); err != nil {
		return unavailable("its run directory cannot be made new", "remove "+runPath, err)
	}
	removeStaleCgroups()
	config, err := daemonConfig(e.root, runc, opt)
	if err == nil {
		err = os.WriteFile(filepath.Join(runPath, "buildkitd.toml"), config, 0o600)
	}
	if err != nil {
		return unavailable("its configuration cannot be written", "free disk space or name another state directory", err)
	}
	alive, hold, err := os.Pipe()
	if err != nil {
		return unavailable("no pipe could be made", "raise the limit of open files", err)
	}
	defer alive.Close()
	self, err := os.Executable()
	if err != nil {
		hold.Close()
		return unavailable("the path of imgsmith is not known", "start imgsmith by its path", err)
	}
	cmd := exec.Command(self)
	cmd.Args = []string{initName, buildkitd, runPath, cgroupName()}
	cmd.Env = daemonEnv(os.Environ())
	cmd.Dir = runPath
	cmd.Stdout, cmd.Stderr = e.log, e.log
	cmd.ExtraFiles = []*os.File{alive, e.lock} // descriptors 3 and 4
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		Setpgid:    true, // a Ctrl-C at the terminal is ours to handle, in order
	}
	if err := cmd.Start(); err != nil {
		hold.Close()
		return unavailable("its init cannot be started", "run as root with the right to make PID and mount namespaces", err)
	}
	e.cmd, e.alive = cmd, hold
	go func() {
		e.exitErr = cmd.Wait()
		removeStaleCgroups()
		e.cleanErr = os.RemoveAll(runPath)
		close(e.exited)
	}()
	return nil
}

// ready waits until the daemon answers.
func (e *Engine) ready(ctx context.Context) error {
	socket := filepath.Join(e.root, "run", socketName)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyDeadline, fmt.Errorf("no answer within %s", readyDeadline))
	defer cancel()
	for {
		err := e.connect(ctx, dial)
		if err == nil {
			return nil
		}
		select {
		case <-e.exited:
			err = e.exitErr
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
			continue
		}
		return &engine.UnavailableError{Kind: Kind, Reason: "the daemon did not become ready", Err: err, Log: e.log.String(),
			Remedy: "see the end of its log; 'imgsmith doctor' checks the host"}
	}
}

// connect makes the client once something listens: a client whose first try fails pauses for a second.
func (e *Engine) connect(ctx context.Context, dial func(context.Context, string) (net.Conn, error)) error {
	if e.Client == nil {
		conn, err := dial(ctx, "")
		if err != nil {
			return err
		}
		conn.Close()
		if e.Client, err = client.New(ctx, "unix://"+e.root+"/run/"+socketName, client.WithContextDialer(dial)); err != nil {
			return err
		}
	}
	info, err := e.Client.Info(ctx)
	if err != nil {
		return err
	}
	e.version = info.BuildkitVersion.Version
	return nil
}

// Extract implements engine.Engine.
func (e *Engine) Extract(ctx context.Context, p llb.Program, w io.Writer) error {
	return e.explain(ctx, e.Solver.Extract(ctx, p, w))
}

// Push implements engine.Engine.
func (e *Engine) Push(ctx context.Context, p llb.Program, ref string, opt engine.PushOptions) (string, error) {
	digest, err := e.Solver.Push(ctx, p, ref, opt)
	return digest, e.explain(ctx, err)
}

// explain tells a program that failed from a daemon that ended below it.
func (e *Engine) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	wait := time.Duration(0)
	for _, broken := range []string{"Unavailable", "EOF", "transport", "connection"} {
		if strings.Contains(err.Error(), broken) {
			wait = time.Second // a connection breaks a little before the end of the daemon is known
		}
	}
	select {
	case <-e.exited:
		return &engine.UnavailableError{Kind: Kind, Reason: "the daemon ended while it ran " + firstLine(err), Err: e.exitErr,
			Log: e.log.String(), Remedy: "see the end of its log; a host that is out of memory kills it"}
	case <-time.After(wait):
		return err
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Info implements engine.Engine.
func (e *Engine) Info(context.Context) (engine.Info, error) {
	return engine.Info{Kind: Kind, Version: e.version, State: e.root}, nil
}

// Log returns the end of the daemon's log.
func (e *Engine) Log() string { return e.log.String() }

// Close stops the daemon and everything it started, and waits until the kernel has removed it.
func (e *Engine) Close() error {
	e.close.Do(func() { e.closed = e.shutdown() })
	return e.closed
}

func (e *Engine) shutdown() error {
	var errs []error
	if e.Client != nil {
		errs = append(errs, e.Client.Close())
	}
	_ = e.cmd.Process.Signal(syscall.SIGTERM) // fails only when the init is gone, which is what we want
	select {
	case <-e.exited:
	case <-time.After(stopDeadline):
		_ = e.cmd.Process.Kill()
		<-e.exited
	}
	return errors.Join(append(errs, e.cleanErr, e.alive.Close(), e.lock.Close())...)
}
