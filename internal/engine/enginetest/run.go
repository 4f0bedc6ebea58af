package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/engine"
	"imgsmith/internal/llb"
)

// Run runs the whole suite with one engine.
func Run(t *testing.T, factory Factory) {
	s := New(t, factory)
	for _, c := range []struct {
		name string
		test func(*Suite, *testing.T)
	}{
		{"info", (*Suite).testInfo},
		{"extract gives the change as one layer", (*Suite).testExtract},
		{"a step without any change", (*Suite).testNoChange},
		{"secrets are there and leave nothing", (*Suite).testSecrets},
		{"a failing step is named with its output", (*Suite).testFailure},
		{"cancelling a step", (*Suite).testCancel},
		{"several programs at once", (*Suite).testConcurrent},
		{"push keeps layers and downloads none", (*Suite).testPush},
		{"push refuses", (*Suite).testPushRefuses},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(s, t) })
	}
}

func (s *Suite) testInfo(t *testing.T) {
	info, err := s.Engine.Info(t.Context())
	if err != nil || info.Kind == "" || info.Version == "" {
		t.Errorf("info %+v, %v", info, err)
	}
}

func (s *Suite) testExtract(t *testing.T) {
	p := s.Step(t, "change", "write /etc/new=1", "write /etc/old=2", "mkdir /d", "write /d/x=3", "remove /etc/kept")
	got := s.Extracted(t, p)
	if diff := cmp.Diff([]string{"d/", "d/x 3", "etc/.wh.kept", "etc/new 1", "etc/old 2"}, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, s.Extracted(t, p)); diff != "" {
		t.Errorf("the second time (-first +second):\n%s", diff)
	}
}

func (s *Suite) testNoChange(t *testing.T) {
	if got := s.Extracted(t, s.Step(t, "nothing", "print hello")); len(got) != 0 {
		t.Errorf("result %q, want none", got)
	}
}

func (s *Suite) testSecrets(t *testing.T) {
	got := s.Extracted(t, s.Step(t, "secrets", "copy /etc/a=/run/secret", "copy /etc/b=/run/missing",
		"environ /etc/c=SECRET", "environ /etc/d=MISSING"))
	want := []string{"etc/a " + SecretValue, "etc/b", "etc/c " + SecretValue, "etc/d"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func (s *Suite) testFailure(t *testing.T) {
	var commands []string
	for i := range 30 {
		commands = append(commands, fmt.Sprintf("print line %d", i))
	}
	err := s.Engine.Extract(t.Context(), s.Step(t, "the bad one", append(commands, "exit 3")...), io.Discard)
	var failed *engine.StepError
	if !errors.As(err, &failed) {
		t.Fatalf("error %v is not a StepError", err)
	}
	if failed.Step != "the bad one" || failed.Program != "test: the bad one" || len(failed.Log) != 20 ||
		failed.Log[19] != "line 29" || !strings.Contains(failed.Err.Error(), "exit code: 3") {
		t.Errorf("got %+v", failed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.events, func(e engine.Event) bool { return e.Step == "the bad one" && e.State == engine.Failed }) {
		t.Error("progress does not show the failure")
	}
}

func (s *Suite) testCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	p := s.Step(t, "long", "print running", "sleep 600")
	done := make(chan error, 1)
	go func() { done <- s.Engine.Extract(ctx, p, io.Discard) }()
	for !s.saw("long", "running") {
		select {
		case err := <-done:
			t.Fatalf("it ended early: %v", err)
		default:
		}
	}
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("error %v, want the cause", err)
	}
	if got := s.Extracted(t, s.Step(t, "after", "write /etc/new=after")); len(got) != 1 {
		t.Errorf("afterwards: %q", got)
	}
}

func (s *Suite) saw(step, line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.events, func(e engine.Event) bool { return e.Step == step && e.State == engine.Output && e.Line == line })
}

func (s *Suite) testConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	results := make([]bytes.Buffer, 4)
	errs := make([]error, len(results))
	for i := range results {
		p := s.Step(t, fmt.Sprint("parallel ", i), fmt.Sprintf("write /etc/n=%d-of-many", i))
		wg.Go(func() { errs[i] = s.Engine.Extract(t.Context(), p, &results[i]) })
	}
	wg.Wait()
	for i := range results {
		if errs[i] != nil || !strings.Contains(results[i].String(), fmt.Sprintf("%d-of-many", i)) {
			t.Errorf("program %d: %v, or another's result", i, errs[i])
		}
	}
}

// testPush merges components that no step touched.
func (s *Suite) testPush(t *testing.T) {
	var layers []llb.LayerRef
	var want []string
	want = append(want, s.base.layer)
	for _, name := range []string{"one", "two", "three"} {
		i := s.image(t, map[string]string{"opt/" + name: strings.Repeat(name, 100_000)})
		layers = append(layers, llb.LayerRef{Name: name, Ref: llb.StoreRef("component/"+name, i.manifest), Digest: i.layer, DiffID: i.diffID, Size: i.size})
		want = append(want, i.layer)
	}
	p, err := llb.Compile(Target(), s.Base, layers, llb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	before := len(s.Store.AccessLog())
	opt := engine.PushOptions{Compression: "zstd", Epoch: Epoch}
	digest, err := s.Engine.Push(t.Context(), p, s.Store.Addr()+"/staging/test", opt)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispecs.Manifest
	s.readBlob(t, digest, &m)
	var got []string
	for _, l := range m.Layers {
		got = append(got, string(l.Digest))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	for _, a := range s.Store.AccessLog()[before:] {
		if d, ok := a.BlobDownload(); ok && slices.Contains(want, d) {
			t.Errorf("the engine downloaded layer %s: %+v", d, a)
		}
	}
	var config ocispecs.Image
	s.readBlob(t, string(m.Config.Digest), &config)
	if config.Created == nil || config.Created.Unix() != Epoch || len(config.History) != len(want) || config.Config.Labels["imgsmith.entry"] != "test" {
		t.Errorf("config %+v", config)
	}
	again, err := s.Engine.Push(t.Context(), p, s.Store.Addr()+"/staging/again:tag", opt)
	if err != nil || again != digest {
		t.Errorf("second push: %s, %v; first %s", again, err, digest)
	}
}

func (s *Suite) testPushRefuses(t *testing.T) {
	p := s.Step(t, "unused", "print x")
	if _, err := s.Engine.Push(t.Context(), p, s.Store.Addr()+"/staging/x", engine.PushOptions{Compression: "zstd"}); err == nil {
		t.Error("a program without config was pushed")
	}
	p.Config = []byte(`{"architecture":"amd64","os":"linux"}`)
	if _, err := s.Engine.Push(t.Context(), p, s.Store.Addr()+"/staging/x", engine.PushOptions{Compression: "brotli"}); err == nil {
		t.Error("an unknown compression was accepted")
	}
}
