package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/secrets/secretsprovider"
	"github.com/opencontainers/go-digest"

	"imgsmith/internal/llb"
)

// logLines is how many lines of a failed step its error shows.
const logLines = 20

// Solver runs programs on any BuildKit that a client reaches. Engines embed it.
type Solver struct {
	Client   *client.Client
	Secrets  map[string][]byte // by id; a program may ask for more than there are
	Progress Progress          // may be nil
}

// Extract implements Engine.
func (s Solver) Extract(ctx context.Context, p llb.Program, w io.Writer) error {
	archive, err := os.CreateTemp("", "imgsmith-extract-")
	if err != nil {
		return fmt.Errorf("running %s: %w", p.Name, err)
	}
	defer archive.Close()
	// without a name it is gone with this process, however that ends
	if err := os.Remove(archive.Name()); err != nil {
		return fmt.Errorf("running %s: %w", p.Name, err)
	}
	_, err = s.solve(ctx, p, client.ExportEntry{
		Type:   client.ExporterOCI,
		Attrs:  map[string]string{"compression": "uncompressed", "source-date-epoch": "0"},
		Output: func(map[string]string) (io.WriteCloser, error) { return nopCloser{archive}, nil },
	})
	if err != nil {
		return err
	}
	if err := copyOnlyLayer(archive, w); err != nil {
		return fmt.Errorf("running %s: reading its result: %w", p.Name, err)
	}
	return nil
}

// Push implements Engine.
func (s Solver) Push(ctx context.Context, p llb.Program, ref string, opt PushOptions) (string, error) {
	if opt.Compression != "zstd" && opt.Compression != "gzip" {
		return "", fmt.Errorf("pushing %s: compression %q is neither zstd nor gzip", p.Name, opt.Compression)
	}
	if len(p.Config) == 0 {
		return "", fmt.Errorf("pushing %s: the program has no image config", p.Name)
	}
	attrs := map[string]string{
		"name": ref, "push": "true", "oci-mediatypes": "true", "compression": opt.Compression,
		"source-date-epoch": strconv.FormatInt(opt.Epoch, 10),
	}
	if !strings.Contains(ref[strings.LastIndexByte(ref, '/')+1:], ":") {
		attrs["push-by-digest"] = "true"
	}
	res, err := s.solve(ctx, p, client.ExportEntry{Type: client.ExporterImage, Attrs: attrs})
	if err != nil {
		return "", err
	}
	d := res.ExporterResponse[exptypes.ExporterImageDigestKey]
	if d == "" {
		return "", fmt.Errorf("pushing %s to %s: the engine named no digest", p.Name, ref)
	}
	return d, nil
}

// solve runs the program through a gateway function, which carries the image config, and follows its progress.
func (s Solver) solve(ctx context.Context, p llb.Program, export client.ExportEntry) (*client.SolveResponse, error) {
	for id, v := range s.Secrets {
		if len(v) > secretsprovider.MaxSecretSize {
			return nil, fmt.Errorf("running %s: secret %s has %d bytes, more than an engine takes (%d); remedy: name a smaller file",
				p.Name, id, len(v), secretsprovider.MaxSecretSize)
		}
	}
	f := &follower{program: p.Name, progress: s.Progress, steps: map[digest.Digest]*step{}}
	statuses := make(chan *client.SolveStatus)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		for st := range statuses {
			f.update(st)
		}
	}()
	build := func(ctx context.Context, c gateway.Client) (*gateway.Result, error) {
		res, err := c.Solve(ctx, gateway.SolveRequest{Definition: p.Def, Evaluate: len(p.Config) == 0})
		if err != nil {
			return nil, err
		}
		if len(p.Config) > 0 {
			res.AddMeta(exptypes.ExporterImageConfigKey, p.Config)
		}
		return res, nil
	}
	opt := client.SolveOpt{
		Exports: []client.ExportEntry{export},
		Session: []session.Attachable{secretsprovider.FromMap(s.Secrets)},
	}
	res, err := s.Client.Build(ctx, opt, "imgsmith", build, statuses)
	<-followed
	if err != nil {
		return nil, f.explain(ctx, err)
	}
	return res, nil
}

// follower turns status updates into events and remembers what a failing step said.
type follower struct {
	program  string
	progress Progress
	steps    map[digest.Digest]*step
	failed   *step
}

type step struct {
	name    string
	state   State
	err     string
	tail    []string
	partial []byte // output after the last line end
}

func (f *follower) emit(s *step, state State, line string) {
	if f.progress != nil {
		f.progress(Event{Program: f.program, Step: s.name, State: state, Line: line})
	}
}

func (f *follower) update(st *client.SolveStatus) {
	for _, v := range st.Vertexes {
		s := f.steps[v.Digest]
		if s == nil {
			s = &step{}
			f.steps[v.Digest] = s
		}
		s.name = v.Name
		state := s.state
		switch {
		case v.Error != "":
			state, s.err = Failed, v.Error
			// The first failure is the cause; others are what it cancelled.
			if f.failed == nil && !strings.Contains(v.Error, context.Canceled.Error()) {
				f.failed = s
			}
		case v.Cached:
			state = Cached
		case v.Completed != nil:
			state = Done
		case v.Started != nil && s.state == "":
			state = Started // a step may start, complete and start again; people are told once
		}
		if state != s.state {
			s.state = state
			f.emit(s, state, "")
		}
	}
	for _, l := range st.Logs {
		if s := f.steps[l.Vertex]; s != nil {
			f.output(s, l.Data)
		}
	}
}

func (f *follower) output(s *step, data []byte) {
	s.partial = append(s.partial, data...)
	for {
		i := bytes.IndexByte(s.partial, '\n')
		if i < 0 && len(s.partial) < 4096 {
			return
		}
		if i < 0 {
			i = len(s.partial) - 1
		}
		f.line(s, strings.TrimRight(string(s.partial[:i]), "\r"))
		s.partial = s.partial[i+1:]
	}
}

func (f *follower) line(s *step, line string) {
	f.emit(s, Output, line)
	s.tail = append(s.tail, line)
	if len(s.tail) > logLines {
		s.tail = s.tail[1:]
	}
}

// explain makes an error that names the step and shows what it said last.
func (f *follower) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("running %s: %w", f.program, context.Cause(ctx))
	}
	if f.failed == nil {
		return fmt.Errorf("running %s: %w", f.program, err)
	}
	s := f.failed
	if len(s.partial) > 0 {
		f.line(s, string(s.partial))
	}
	return &StepError{Program: f.program, Step: s.name, Log: s.tail, Err: errors.New(s.err)}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
