package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/moby/buildkit/client"
	"github.com/opencontainers/go-digest"

	"imgsmith/internal/llb"
)

// archive makes an image archive in OCI form; the index comes last, as exporters write it.
func archive(t *testing.T, mediaType string, layers ...[]byte) *bytes.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, data []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(data []byte) digest.Digest {
		d := digest.FromBytes(data)
		add("blobs/sha256/"+d.Encoded(), data)
		return d
	}
	var list []string
	for _, l := range layers {
		list = append(list, fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, blob(l), len(l)))
	}
	manifest := blob([]byte(`{"schemaVersion":2,"config":{},"layers":[` + strings.Join(list, ",") + `]}`))
	add("index.json", []byte(`{"schemaVersion":2,"manifests":[{"digest":"`+string(manifest)+`"}]}`))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(out.Bytes())
}

func TestCopyOnlyLayer(t *testing.T) {
	const content = "the layer's tar"
	var gz bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, err := g.Write([]byte(content))
	if err := errors.Join(err, g.Close()); err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	const layer = "application/vnd.oci.image.layer.v1.tar"
	for name, c := range map[string]struct {
		archive *bytes.Reader
		want    string
		err     string
	}{
		"plain":       {archive(t, layer, []byte(content)), content, ""},
		"gzip":        {archive(t, layer+"+gzip", gz.Bytes()), content, ""},
		"zstd":        {archive(t, layer+"+zstd", z.EncodeAll([]byte(content), nil)), content, ""},
		"no layer":    {archive(t, layer), string(make([]byte, 1024)), ""},
		"two layers":  {archive(t, layer, []byte("a"), []byte("b")), "", "the result has 2 layers, not one"},
		"not gzip":    {archive(t, layer+"+gzip", []byte(content)), "", "gzip: invalid header"},
		"empty":       {bytes.NewReader(nil), "", "it has no index.json"},
		"not a tar":   {bytes.NewReader(bytes.Repeat([]byte("x"), 1024)), "", "archive/tar: invalid tar header"},
		"broken gzip": {archive(t, layer+"+gzip", gz.Bytes()[:len(gz.Bytes())-6]), "", "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := copyOnlyLayer(c.archive, &out)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || out.String() != c.want {
				t.Errorf("got %q, %v", out.String(), err)
			}
		})
	}
}

func TestLookup(t *testing.T) {
	dir, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	put := func(dir, name string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	inPath := put(path, "tool", 0o755)
	check := func(want string) {
		t.Helper()
		if got, err := Lookup("tool", dir); err != nil || got != want {
			t.Errorf("found %s, %v; want %s", got, err, want)
		}
	}
	check(inPath)
	put(dir, "tool", 0o644) // not executable
	check(inPath)
	if err := os.Chmod(filepath.Join(dir, "tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	check(filepath.Join(dir, "tool"))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lookup("absent", dir)
	var missing *NotFoundError
	if !errors.As(err, &missing) || missing.Remedy == "" {
		t.Fatalf("error %v", err)
	}
	here := filepath.Dir(exe)
	want := []string{dir, filepath.Join(here, "libexec", "imgsmith"), filepath.Join(here, "..", "libexec", "imgsmith"), "PATH"}
	if diff := cmp.Diff(want, missing.Searched); diff != "" {
		t.Errorf("searched (-want +got):\n%s", diff)
	}
}

// TestFollower replays what a daemon says of a program whose second step fails.
func TestFollower(t *testing.T) {
	now := time.Now()
	var events []Event
	f := &follower{program: "p", progress: func(e Event) { events = append(events, e) }, steps: map[digest.Digest]*step{}}
	a, b, c := digest.FromString("a"), digest.FromString("b"), digest.FromString("c")
	for _, st := range []*client.SolveStatus{
		{Vertexes: []*client.Vertex{{Digest: a, Name: "first"}, {Digest: b, Name: "second"}, {Digest: c, Name: "third"}}},
		{Vertexes: []*client.Vertex{{Digest: a, Name: "first", Started: &now}}},
		{Vertexes: []*client.Vertex{{Digest: a, Name: "first", Started: &now, Completed: &now}}},
		{Vertexes: []*client.Vertex{{Digest: a, Name: "first", Started: &now}, {Digest: b, Name: "second", Started: &now}}},
		{Logs: []*client.VertexLog{{Vertex: b, Data: []byte("one\r\ntw")}, {Vertex: b, Data: []byte("o\nthree")}, {Vertex: digest.FromString("?"), Data: []byte("x\n")}}},
		{Vertexes: []*client.Vertex{{Digest: c, Name: "third", Error: "context canceled"}, {Digest: b, Name: "second", Error: "exit code: 1"}}},
	} {
		f.update(st)
	}
	err := f.explain(t.Context(), errors.New("solve failed"))
	want := []Event{{"p", "first", Started, ""}, {"p", "first", Done, ""}, {"p", "second", Started, ""}, {"p", "second", Output, "one"},
		{"p", "second", Output, "two"}, {"p", "third", Failed, ""}, {"p", "second", Failed, ""}, {"p", "second", Output, "three"}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	const text = "running p: step \"second\": exit code: 1\nlast lines of its output:\n  one\n  two\n  three"
	var failed *StepError
	if !errors.As(err, &failed) || err.Error() != text {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	cancel(cause)
	if err := f.explain(ctx, errors.New("solve failed")); !errors.Is(err, cause) || errors.As(err, &failed) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestLongOutputIsBounded(t *testing.T) {
	f := &follower{steps: map[digest.Digest]*step{}}
	s := &step{name: "s"}
	for i := range 1000 {
		f.output(s, fmt.Appendf(nil, "line %d\n", i))
	}
	f.output(s, bytes.Repeat([]byte("x"), 1<<20))
	if len(s.tail) != logLines || len(s.partial) > 4096 {
		t.Errorf("%d lines, %d bytes without a line end", len(s.tail), len(s.partial))
	}
}

func TestSecretsAreLimited(t *testing.T) {
	s := Solver{Secrets: map[string][]byte{"big": make([]byte, 501<<10)}}
	if err := s.Extract(t.Context(), llb.Program{Name: "p"}, nil); err == nil || !strings.Contains(err.Error(), "secret big has 513024 bytes") {
		t.Errorf("error %v", err)
	}
}
