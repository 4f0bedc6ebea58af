package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"imgsmith/internal/launch"
)

// cleanUpTimeout bounds removal. It runs on a context of its own, so that an interrupt cannot leave a container.
const cleanUpTimeout = 60 * time.Second

// drainTimeout bounds the wait for the last output of a container that has ended.
const drainTimeout = 10 * time.Second

// transcriptVersion is the schema version of launch.Transcript.
const transcriptVersion = 1

// Run gets the image, runs the script in it and removes the container on every path. A container that did
// not start or did not end well is a transcript; errors are *PullError, *IdentityError, *SpecError, a lost
// daemon, or the context's cause.
func (l *Launcher) Run(ctx context.Context, s launch.Spec) (launch.Transcript, error) {
	t := launch.Transcript{
		SchemaVersion: transcriptVersion, Launcher: "docker", Engine: l.info, Injection: "unknown",
		Caged: s.Caged, Nonce: s.Nonce, ImageDigest: s.Image.Digest, ExitCode: -1,
	}
	c, h, err := configs(s, "", l.labels(s))
	if err != nil {
		return t, err
	}
	t.Command = commandLine(s, c, h)
	if c.Image, err = l.acquire(ctx, s.Image); err != nil {
		return t, errors.Join(err, context.Cause(ctx))
	}
	created, err := l.api.ContainerCreate(ctx, c, h, nil, nil, "")
	if err != nil {
		return t, fmt.Errorf("creating a container of %s: %w", s.Image.Ref, err)
	}
	start := time.Now()
	runErr := l.supervise(ctx, created.ID, s, &t)
	t.Duration = time.Since(start)
	rmErr := l.remove(created.ID)
	if t.HostStuck {
		rmErr = nil // it cannot be removed: that is what HostStuck says
	}
	t.Injection, t.Stderr = injection(s.GPUs, t.Stderr)
	return t, errors.Join(runErr, rmErr)
}

// supervise attaches, starts, feeds the script and waits for the end or a bound.
func (l *Launcher) supervise(ctx context.Context, id string, s launch.Spec, t *launch.Transcript) error {
	// the streams and the wait outlive a cancelled ctx until the container is dead
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	at, err := l.api.ContainerAttach(live, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return fmt.Errorf("attaching to the container: %w", err)
	}
	defer at.Close()
	exit, waitErr := l.api.ContainerWait(live, id, container.WaitConditionNextExit)
	if err := l.api.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		if client.IsErrConnectionFailed(err) || ctx.Err() != nil {
			return fmt.Errorf("starting the container: %w", errors.Join(err, context.Cause(ctx)))
		}
		t.StartError = err.Error()
		return nil
	}
	over := make(chan struct{})
	trip := sync.OnceFunc(func() { close(over) })
	out, errOut := &bounded{max: s.MaxOutput, trip: trip}, &bounded{max: s.MaxOutput, trip: trip}
	go feed(at, s.Script)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = stdcopy.StdCopy(out, errOut, at.Reader)
	}()
	err = l.await(ctx, id, s, t, exit, waitErr, over)
	if err != nil || t.HostStuck {
		at.Close() // nobody will end this stream
	}
	select {
	case <-drained:
	case <-time.After(drainTimeout):
		at.Close()
	}
	t.Stdout, t.Stderr = out.String(), errOut.String()
	t.Truncated = out.cut() || errOut.cut()
	return err
}

// await waits for the exit, the deadline, too much output or the caller's cancellation, and kills if needed.
func (l *Launcher) await(ctx context.Context, id string, s launch.Spec, t *launch.Transcript,
	exit <-chan container.WaitResponse, waitErr <-chan error, over <-chan struct{}) error {
	deadline := time.NewTimer(s.Timeout)
	defer deadline.Stop()
	var cause error
	select {
	case r := <-exit:
		return l.ended(id, r, t)
	case err := <-waitErr:
		return fmt.Errorf("waiting for the container: %w", err)
	case <-deadline.C:
		t.TimedOut = true
	case <-over:
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.KillGrace)
	defer cancel()
	// a container that ended meanwhile is not an error
	if err := l.api.ContainerKill(kctx, id, "KILL"); err != nil && !cerrdefs.IsConflict(err) && !cerrdefs.IsNotFound(err) && kctx.Err() == nil {
		return errors.Join(cause, fmt.Errorf("killing the container: %w", err))
	}
	select {
	case r := <-exit:
		return errors.Join(cause, l.ended(id, r, t))
	case err := <-waitErr:
		return errors.Join(cause, fmt.Errorf("waiting for the killed container: %w", err))
	case <-kctx.Done():
		t.HostStuck = true
		return cause
	}
}

// ended records how the container ended.
func (l *Launcher) ended(id string, r container.WaitResponse, t *launch.Transcript) error {
	t.ExitCode = int(r.StatusCode)
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	in, err := l.api.ContainerInspect(ctx, id)
	if err != nil {
		return fmt.Errorf("inspecting the ended container: %w", err)
	}
	if in.State != nil {
		t.OOMKilled = in.State.OOMKilled
	}
	if r.Error != nil && r.Error.Message != "" {
		t.StartError = r.Error.Message
	}
	return nil
}

func (l *Launcher) remove(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	err := l.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("removing container %s: %w (remove it by hand: docker rm -f %[1]s)", id, err)
	}
	return nil
}

// feed writes the script and closes the writing side; the script's length is known to the reader, so a
// transport that cannot half-close does no harm.
func feed(at types.HijackedResponse, script []byte) {
	if _, err := at.Conn.Write(script); err == nil {
		_ = at.CloseWrite()
	}
}

// injection reads how the GPU came in from the launcher's own line and takes that line out.
func injection(gpus, stderr string) (how, rest string) {
	how = "unknown"
	before, after, found := strings.Cut(stderr, launchMark)
	if found && (before == "" || strings.HasSuffix(before, "\n")) {
		visible, tail, _ := strings.Cut(after, "\n")
		stderr = before + tail
		switch {
		case gpus == "":
		case visible == "void" || strings.Contains(gpus, "/"):
			how = "cdi"
		case visible != "":
			how = "hook"
		}
	}
	if gpus == "" {
		how = "none"
	}
	return how, stderr
}

// bounded keeps the first max bytes and calls trip when there is more.
type bounded struct {
	max  int64
	trip func()

	mu   sync.Mutex
	buf  []byte
	more bool
}

var _ io.Writer = (*bounded)(nil)

// Write never fails: what is over the bound is dropped.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := b.max - int64(len(b.buf)); int64(len(p)) > room {
		b.buf = append(b.buf, p[:room]...)
		b.more = true
		b.trip()
	} else {
		b.buf = append(b.buf, p...)
	}
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.buf)
}

func (b *bounded) cut() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.more
}
