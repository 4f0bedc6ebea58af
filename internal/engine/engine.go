// Package engine says what a place that can run a Program offers, and holds the solve loop that all of them
// share. It knows nothing of recipes or wheels.
package engine

import (
	"context"
	"fmt"
	"io"
	"strings"

	"imgsmith/internal/llb"
)

// Engine runs programs. Implementations are safe for concurrent use until Close.
type Engine interface {
	// Extract runs p and writes its result's file-system difference as a stream of one uncompressed layer tar
	// (with whiteouts) to w. A result without any change is an archive without entries.
	Extract(ctx context.Context, p llb.Program, w io.Writer) error
	// Push runs p and pushes the image with p.Config to ref; it returns the manifest's digest. A ref without a
	// tag is pushed by digest. Both methods return a *StepError when a step failed.
	Push(ctx context.Context, p llb.Program, ref string, opt PushOptions) (digest string, err error)
	// Info describes the engine for the record.
	Info(ctx context.Context) (Info, error)
	Close() error
}

// PushOptions say how the result is exported.
type PushOptions struct {
	Compression string // zstd | gzip: the recipe's; layers that exist already keep theirs
	Epoch       int64  // SOURCE_DATE_EPOCH, seconds
}

// Info is what the record keeps of an engine.
type Info struct {
	Kind    string `json:"kind"`    // child | dockerd | remote
	Version string `json:"version"` // BuildKit version
	State   string `json:"state"`   // state directory, empty when not ours
}

// State says what happened to a step.
type State string

// The states of a step.
const (
	Started State = "started"
	Done    State = "done"
	Cached  State = "cached"
	Failed  State = "failed"
	Output  State = "output" // Line holds one line of the step's output
)

// Event is one piece of progress.
type Event struct {
	Program string
	Step    string
	State   State
	Line    string
}

// Progress receives events in order, from one goroutine per program. It must not block for long.
type Progress func(Event)

// StepError is a step that failed: the program is wrong or the world outside refused, not the engine.
type StepError struct {
	Program string
	Step    string
	Log     []string // last lines of the step's output
	Err     error
}

func (e *StepError) Error() string {
	s := "running " + e.Program
	if !strings.HasSuffix(e.Program, ": "+e.Step) {
		s += fmt.Sprintf(": step %q", e.Step)
	}
	s += ": " + withoutCommand(e.Err.Error())
	if len(e.Log) > 0 {
		s += "\nlast lines of its output:\n  " + strings.Join(e.Log, "\n  ")
	}
	return s
}

func (e *StepError) Unwrap() error { return e.Err }

// Remedy says what to do where that is known.
func (e *StepError) Remedy() string {
	if strings.Contains(e.Err.Error(), "no space left on device") {
		return "free space where the engine keeps its state, or name another directory"
	}
	return ""
}

// withoutCommand leaves out the command line that the engine repeats: ours are whole scripts.
func withoutCommand(s string) string {
	const said = "did not complete successfully: "
	if i := strings.LastIndex(s, said); i >= 0 && strings.HasPrefix(s, "process ") {
		return s[i+len(said):]
	}
	return s
}

// UnavailableError is an engine that cannot be started or reached here.
type UnavailableError struct {
	Kind   string // child | dockerd | remote
	Reason string
	Remedy string
	Log    string // end of the daemon's log, when there is one
	Err    error
}

func (e *UnavailableError) Error() string {
	s := fmt.Sprintf("starting the %s engine: %s", e.Kind, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	s += "; remedy: " + e.Remedy
	if e.Log != "" {
		s += "\nend of the engine's log:\n" + e.Log
	}
	return s
}

func (e *UnavailableError) Unwrap() error { return e.Err }
