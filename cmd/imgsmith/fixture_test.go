package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"imgsmith/internal/fakegpu"
	"imgsmith/internal/launch/docker"
	"imgsmith/internal/launch/launchtest"
	"imgsmith/internal/registry"
	"imgsmith/internal/report"
)

// fixture is what the tests with a real engine share: the fake kit, a store in which every layer of its good
// image is made, and a Docker engine that offers the fake GPU. Tests work on copies of the store.
type fixture struct {
	once   sync.Once
	err    error
	dir    string
	kit    fakegpu.Kit
	base   string // OCI layout
	docker *launchtest.Dockerd
}

var shared fixture

// need returns the fixture or skips, naming what is missing.
func need(t *testing.T) *fixture {
	t.Helper()
	base := os.Getenv("IMGSMITH_BASE")
	for _, why := range []string{
		launchtest.Missing(os.Getenv(launchtest.EngineDirEnv)),
		missing("buildkitd", os.Getenv(launchtest.EngineDirEnv)), missing("imgsmith-nvml", os.Getenv(launchtest.EngineDirEnv)),
		missing("index.json", base),
	} {
		if why != "" {
			t.Skip(why)
		}
	}
	shared.once.Do(func() { shared.err = shared.make(t, base) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &shared
}

func missing(name, dir string) string {
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		return fmt.Sprintf("needs %s in %q: IMGSMITH_ENGINE_DIR and IMGSMITH_BASE name what make setup made", name, dir)
	}
	return ""
}

func (f *fixture) make(t *testing.T, base string) (err error) {
	if f.dir, err = os.MkdirTemp("", "imgsmith"); err != nil {
		return err
	}
	f.base = base
	opt := fakegpu.Options{CDIHook: filepath.Join(os.Getenv(launchtest.EngineDirEnv), "nvidia-cdi-hook")}
	if f.kit, err = fakegpu.Build(context.Background(), filepath.Join(f.dir, "kit"), opt); err != nil {
		return err
	}
	if f.docker, err = launchtest.Start(context.Background(), launchtest.Config{Engines: os.Getenv(launchtest.EngineDirEnv),
		Dir: filepath.Join(f.dir, "d"), Store: "containerd", CDIDir: f.kit.CDIDir}); err != nil {
		return err
	}
	r := f.rigAt(t, f.dir)
	p := r.imgsmith("build", "--stage-only", "--matrix", r.recipe("good", fakegpu.Good, ""))
	if code := p.wait(); code != 0 {
		return fmt.Errorf("building the good image of the fake kit: exit code %d\n%s%s", code, p.out.String(), p.err.String())
	}
	return os.RemoveAll(filepath.Join(r.store, "engine"))
}

func (f *fixture) close() error {
	var err error
	if f.docker != nil {
		err = f.docker.Stop()
	}
	if f.dir != "" {
		err = errors.Join(err, os.RemoveAll(f.dir))
	}
	return err
}

// rig is the world of one test: a store, a home and a directory for temporary files of its own.
type rig struct {
	t     *testing.T
	f     *fixture
	dir   string
	store string
	env   []string
}

// rig gives a world with an empty store.
func (f *fixture) rig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "imgsmith") // short: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f.rigAt(t, dir)
}

// filled gives a world whose store has every layer of the good image.
func (f *fixture) filled(t *testing.T) *rig {
	t.Helper()
	r := f.rig(t)
	if err := os.CopyFS(r.store, os.DirFS(filepath.Join(f.dir, "store"))); err != nil {
		t.Fatal(err)
	}
	return r
}

func (f *fixture) rigAt(t *testing.T, dir string) *rig {
	r := &rig{t: t, f: f, dir: dir, store: filepath.Join(dir, "store")}
	for _, kv := range os.Environ() {
		if k, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(k, "UV_") && !strings.HasPrefix(k, "PIP_") && k != "HOME" && k != "TMPDIR" && k != "DOCKER_HOST" && !strings.HasPrefix(k, "XDG_") {
			r.env = append(r.env, kv)
		}
	}
	for _, d := range []string{"home", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.set("HOME", filepath.Join(dir, "home"))
	r.set("TMPDIR", filepath.Join(dir, "tmp"))
	r.set("UV_FIND_LINKS", f.kit.FindLinks)
	r.set("UV_NO_INDEX", "1")
	r.set("DOCKER_HOST", f.docker.Host)
	return r
}

// set sets a variable of the processes that follow.
func (r *rig) set(key, value string) {
	r.env = append(slices.DeleteFunc(r.env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") }), key+"="+value)
}

// recipe writes a recipe for a stub tensorflow and returns its path; repository may be empty.
func (r *rig) recipe(name string, b fakegpu.Behaviour, repository string, more ...string) string {
	r.t.Helper()
	wheel, err := filepath.Rel(r.dir, r.f.kit.TensorFlow[b])
	if err != nil {
		r.t.Fatal(err)
	}
	content, err := os.ReadFile(r.f.kit.TensorFlow[b])
	if err != nil {
		r.t.Fatal(err)
	}
	text := fmt.Sprintf("name: %s\nbase: debian:12\npython: \"3.11\"\ncuda: \"12.5\"\ncudnn: \"9.3\"\ntensorflow: {wheel: %s, sha256: %s}\n", name, wheel, fmt.Sprintf("%x", sha256.Sum256(content)))
	if repository != "" {
		text += "publish: " + repository + "\n"
	}
	return r.file(name+".yaml", text+strings.Join(append(more, ""), "\n"))
}

func (r *rig) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// registry serves an empty registry on the loopback interface and returns its address.
func (r *rig) registry() string {
	s := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	r.t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// tags lists the tags of a repository; none when it does not exist.
func (r *rig) tags(repository string) []string {
	r.t.Helper()
	tags, err := registry.Tags(r.t.Context(), repository)
	if err != nil && registry.KindOf(err) != registry.NotFound {
		r.t.Fatal(err)
	}
	return tags
}

// process is a running imgsmith.
type process struct {
	r        *rig
	cmd      *exec.Cmd
	out, err output
	done     chan struct{}
}

// output can be read while it is written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// imgsmith starts a command on the rig's store; build and lock get the base.
func (r *rig) imgsmith(args ...string) *process {
	r.t.Helper()
	args = append(args, "--store", r.store)
	if args[0] == "build" || args[0] == "lock" {
		args = append(args, "--base", "debian:12=oci-layout:"+r.f.base)
	}
	p := &process{r: r, cmd: exec.Command("imgsmith", args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = r.env, &p.out, &p.err, 10*time.Second
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// wait returns the exit code, -1 after a signal that was not handled.
func (p *process) wait() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// until waits for a condition while the process runs.
func (p *process) until(what string, ok func() bool) {
	p.r.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		select {
		case <-p.done:
			p.r.t.Fatalf("imgsmith ended before %s\n%s%s", what, p.out.String(), p.err.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	_ = p.cmd.Process.Kill()
	p.r.t.Fatalf("waited too long until %s\n%s", what, p.err.String())
}

func (p *process) says(line string) func() bool {
	return func() bool { return strings.Contains(p.err.String(), line) }
}

func (p *process) signal(s syscall.Signal) {
	p.r.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.r.t.Fatal(err)
	}
}

// ends demands an exit code and words in what was written, on both streams.
func (p *process) ends(code int, words ...string) {
	p.r.t.Helper()
	if got := p.wait(); got != code {
		p.r.t.Errorf("exit code %d, want %d\n%s%s", got, code, p.out.String(), p.err.String())
	}
	for _, w := range words {
		if !strings.Contains(p.out.String()+p.err.String(), w) {
			p.r.t.Errorf("it does not say %q\n%s%s", w, p.out.String(), p.err.String())
		}
	}
}

// document reads what a run with --json wrote and compares its exit code with the process's.
func (p *process) document() report.Document {
	p.r.t.Helper()
	code := p.wait()
	d, err := report.ReadJSON(strings.NewReader(p.out.String()))
	if err != nil {
		p.r.t.Fatalf("%v\n%s%s", err, p.out.String(), p.err.String())
	}
	if d.ExitCode != code {
		p.r.t.Errorf("the document says exit code %d, the process ended with %d", d.ExitCode, code)
	}
	return d
}

// nothingLeft demands that a process left no other process, mount, container, unfinished layer or temporary file.
func (p *process) nothingLeft() {
	p.r.t.Helper()
	for range 250 { // after SIGKILL the kernel needs a moment
		if len(p.left()) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, l := range p.left() {
		p.r.t.Errorf("left: %s", l)
	}
}

func (p *process) left() []string {
	out := append(p.r.processes(), p.containers()...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], p.r.store+"/") {
			out = append(out, "mount "+f[4])
		}
	}
	killed := p.cmd.ProcessState != nil && !p.cmd.ProcessState.Exited()
	for _, d := range []string{filepath.Join(p.r.store, "engine", "run"), filepath.Join(p.r.store, "tmp"), filepath.Join(p.r.dir, "tmp")} {
		if killed {
			break // files are left to the next run
		}
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			out = append(out, err.Error())
		}
		for _, e := range entries {
			out = append(out, filepath.Join(d, e.Name()))
		}
	}
	return out
}

// processes lists what runs with the rig's home: all that its imgsmith started.
func (r *rig) processes() []string {
	var out []string
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range found {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00HOME="+filepath.Join(r.dir, "home")+"\x00")) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		if pid := filepath.Base(filepath.Dir(f)); pid != strconv.Itoa(os.Getpid()) && len(line) > 0 {
			out = append(out, "process "+pid+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return out
}

// containers lists the containers of this imgsmith.
func (p *process) containers() []string {
	c, err := client.NewClientWithOpts(client.WithHost(p.r.f.docker.Host), client.WithAPIVersionNegotiation())
	if err != nil {
		return []string{err.Error()}
	}
	defer c.Close()
	all, err := c.ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", docker.LabelRun))})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, one := range all {
		owner := strings.Fields(one.Labels[docker.LabelOwner]) // boot id, pid namespace, pid, start time
		if len(owner) == 4 && owner[2] == strconv.Itoa(p.cmd.Process.Pid) {
			out = append(out, "container "+one.ID+" "+one.State)
		}
	}
	return out
}

// running tells whether a container of this imgsmith runs.
func (p *process) running() bool {
	c := p.containers()
	return len(c) == 1 && strings.HasSuffix(c[0], " running")
}
