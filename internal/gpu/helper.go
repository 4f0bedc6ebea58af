package gpu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// HelperName is the program that reads NVML: a process of its own, because a driver without a symbol that the
// binding calls ends the process that calls it.
const HelperName = "imgsmith-nvml"

// helperTimeout bounds one reading: loading a driver without persistence mode takes seconds per card.
const helperTimeout = 60 * time.Second

// Reading is what the helper prints for `inventory`: one of the two parts.
type Reading struct {
	Inventory *Inventory `json:"inventory,omitempty"`
	Failure   *Failure   `json:"failure,omitempty"`
}

// The kinds of Failure.
const (
	NoDriver   = "no-driver"   // the library was not found: no NVIDIA driver here
	InitFailed = "init-failed" // the library is here and does not start
	CallFailed = "call-failed" // it started and refused a call that everything hangs on
)

// Failure says that NVML answered with an error, or is not here.
type Failure struct {
	Kind    string `json:"kind"`
	Call    string `json:"call"`
	Code    int    `json:"code"` // nvmlReturn_t
	Message string `json:"message"`
}

// Error names the call, the reason and the remedy.
func (f *Failure) Error() string {
	s := fmt.Sprintf("reading NVML on this host: %s: %s (code %d)", f.Call, f.Message, f.Code)
	if f.Kind == NoDriver {
		return s + ": no NVIDIA driver is installed (run on a host with an NVIDIA GPU and driver)"
	}
	return s + ": the driver is installed but does not work (see nvidia-smi; after a driver update restart the host)"
}

// HelperError says that the helper itself could not be used.
type HelperError struct {
	Path   string
	Err    error
	Stderr string // its end
}

// Error names the program, the reason and the remedy.
func (e *HelperError) Error() string {
	s := fmt.Sprintf("running %s: %v", e.Path, e.Err)
	if t := strings.TrimSpace(e.Stderr); t != "" {
		s += ": " + t
	}
	return s + " (put " + HelperName + " of this release into libexec/imgsmith beside imgsmith)"
}

// Unwrap returns the cause.
func (e *HelperError) Unwrap() error { return e.Err }

// ReadHelper runs the helper at path and returns the host's inventory. env is added to its environment; tests
// point LD_LIBRARY_PATH at another NVML with it. Errors are *HelperError, *Failure or the context's.
func ReadHelper(ctx context.Context, path string, env ...string) (Inventory, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, helperTimeout, fmt.Errorf("no answer in %s", helperTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "inventory")
	cmd.Env = append(cmd.Environ(), env...)
	cmd.WaitDelay = 2 * time.Second // a process stuck in the driver must not hold us
	var out, errOut head
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return Inventory{}, &HelperError{Path: path, Err: err, Stderr: errOut.String()}
	}
	return decodeReading(path, out.Bytes())
}

func decodeReading(path string, b []byte) (Inventory, error) {
	var r Reading
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Inventory{}, &HelperError{Path: path, Err: fmt.Errorf("its answer cannot be read: %w", err)}
	}
	switch {
	case r.Failure != nil:
		return Inventory{}, r.Failure
	case r.Inventory == nil:
		return Inventory{}, &HelperError{Path: path, Err: errors.New("its answer is empty")}
	}
	return *r.Inventory, nil
}

// head keeps the first MiB: an inventory is a few KiB.
type head struct{ bytes.Buffer }

// Write never fails.
func (t *head) Write(p []byte) (int, error) {
	if room := 1<<20 - t.Len(); room > 0 {
		t.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Sample is one line of the helper's `watch`.
type Sample struct {
	Devices []SampleDevice `json:"devices"`
}

// SampleDevice is one device at one moment.
type SampleDevice struct {
	UUID           string          `json:"uuid"`
	MemoryUsed     *uint64         `json:"memory_used,omitempty"`     // bytes
	UtilizationGPU *uint32         `json:"utilization_gpu,omitempty"` // percent
	Processes      []SampleProcess `json:"processes,omitempty"`       // compute processes
}

// SampleProcess is one compute process, by the pid of the namespace that the helper runs in.
type SampleProcess struct {
	PID    uint32 `json:"pid"`
	Memory uint64 `json:"memory"` // bytes, 0 when the driver does not say
}

// Activity is what was seen of one device while a run lasted.
type Activity struct {
	UUID           string   `json:"uuid"`
	Samples        int      `json:"samples"`
	MemoryMin      uint64   `json:"memory_min"` // bytes
	MemoryMax      uint64   `json:"memory_max"` // bytes
	UtilizationMax uint32   `json:"utilization_max"`
	Processes      []uint32 `json:"processes,omitempty"` // every pid seen, sorted
}

// Watcher observes the GPUs while something runs.
type Watcher struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}

	mu   sync.Mutex
	seen map[string]*Activity
	err  error
}

// Watch starts the helper in its sampling mode. Stop must be called.
func Watch(ctx context.Context, path string, every time.Duration, env ...string) (*Watcher, error) {
	cmd := exec.CommandContext(ctx, path, "watch", every.String())
	cmd.Env = append(cmd.Environ(), env...)
	cmd.WaitDelay = 2 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, &HelperError{Path: path, Err: err}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, &HelperError{Path: path, Err: err}
	}
	if err := cmd.Start(); err != nil {
		return nil, &HelperError{Path: path, Err: err}
	}
	w := &Watcher{cmd: cmd, stdin: in, done: make(chan struct{}), seen: map[string]*Activity{}}
	go w.read(path, out)
	return w, nil
}

func (w *Watcher) read(path string, r io.Reader) {
	defer close(w.done)
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var line struct {
			Sample
			Failure *Failure `json:"failure"`
		}
		w.mu.Lock()
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			w.err = &HelperError{Path: path, Err: fmt.Errorf("its answer cannot be read: %w", err)}
		} else if line.Failure != nil {
			w.err = line.Failure
		}
		for _, d := range line.Devices {
			w.note(d)
		}
		w.mu.Unlock()
	}
}

func (w *Watcher) note(d SampleDevice) {
	a := w.seen[d.UUID]
	if a == nil {
		a = &Activity{UUID: d.UUID, MemoryMin: ^uint64(0)}
		w.seen[d.UUID] = a
	}
	a.Samples++
	if d.MemoryUsed != nil {
		a.MemoryMin, a.MemoryMax = min(a.MemoryMin, *d.MemoryUsed), max(a.MemoryMax, *d.MemoryUsed)
	}
	if d.UtilizationGPU != nil {
		a.UtilizationMax = max(a.UtilizationMax, *d.UtilizationGPU)
	}
	for _, p := range d.Processes {
		if i, found := slices.BinarySearch(a.Processes, p.PID); !found && len(a.Processes) < 10000 {
			a.Processes = slices.Insert(a.Processes, i, p.PID)
		}
	}
}

// Stop ends the sampling and returns what was seen, sorted by UUID.
func (w *Watcher) Stop() ([]Activity, error) {
	_ = w.stdin.Close() // the helper ends when its standard input does
	timer := time.AfterFunc(5*time.Second, func() { _ = w.cmd.Process.Kill() })
	<-w.done
	_ = w.cmd.Wait()
	timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Activity
	for _, a := range w.seen {
		if a.MemoryMin > a.MemoryMax { // the driver never said
			a.MemoryMin = a.MemoryMax
		}
		out = append(out, *a)
	}
	slices.SortFunc(out, func(a, b Activity) int { return strings.Compare(a.UUID, b.UUID) })
	return out, w.err
}
