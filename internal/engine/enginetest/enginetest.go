// Package enginetest is the conformance suite of engines. An engine is done when Run passes with it. It is for
// tests only.
package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bkllb "github.com/moby/buildkit/client/llb"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/engine"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/registry"
)

// Epoch is the source date of everything the suite makes.
const Epoch = 1735689600

// SecretID and SecretValue are the one secret that the engine under test must have.
const (
	SecretID    = "enginetest-secret"
	SecretValue = "value of the secret"
)

// Config is what a factory gets.
type Config struct {
	StoreAddr string // address of the loopback registry with the suite's images
	Secrets   map[string][]byte
	Progress  engine.Progress
}

// Factory starts an engine with an empty state. The suite closes it.
type Factory func(t *testing.T, c Config) engine.Engine

// Suite is a store with test images, and an engine that reaches it.
type Suite struct {
	Engine engine.Engine
	Store  *registry.Loopback
	Dir    string        // the store's directory
	Base   llb.BaseImage // holds the tool and a few files
	base   image

	mu     sync.Mutex
	events []engine.Event
}

// New makes the images and starts the engine.
func New(t *testing.T, factory Factory) *Suite {
	t.Helper()
	s := &Suite{Dir: t.TempDir()}
	store, err := registry.NewLoopback(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close(context.Background()) })
	s.Store = store
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tool, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	s.base = s.image(t, map[string]string{"tool": string(tool), "etc/old": "old", "etc/kept": "kept", "run/": "", "proc/": "", "sys/": "", "dev/": "", "tmp/": ""})
	s.Base = llb.BaseImage{Name: "test", Ref: llb.StoreRef("base/test", s.base.manifest), Config: s.base.config}
	s.Engine = factory(t, Config{StoreAddr: store.Addr(), Secrets: map[string][]byte{SecretID: []byte(SecretValue)}, Progress: s.record})
	t.Cleanup(func() {
		if err := s.Engine.Close(); err != nil {
			t.Errorf("closing the engine: %v", err)
		}
	})
	return s
}

func (s *Suite) record(e engine.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// Target is what the suite compiles for.
func Target() matrix.Target {
	return matrix.Target{Entry: "test", Platform: "linux/amd64", Python: matrix.Python{Version: "3.11"}, Epoch: Epoch}
}

// Step is a program whose result is what the tool's commands change on the base.
func (s *Suite) Step(t *testing.T, name string, commands ...string) llb.Program {
	t.Helper()
	lower := bkllb.Image(s.Base.Ref)
	run := lower.Run(bkllb.Args(append([]string{toolPath, toolName}, commands...)), bkllb.WithCustomName(name), bkllb.Network(bkllb.NetModeNone),
		bkllb.AddSecret("/run/secret", bkllb.SecretID(SecretID), bkllb.SecretOptional),
		bkllb.AddSecret("/run/missing", bkllb.SecretID("not-there"), bkllb.SecretOptional),
		bkllb.AddSecret("SECRET", bkllb.SecretID(SecretID), bkllb.SecretAsEnv(true), bkllb.SecretOptional),
		bkllb.AddSecret("MISSING", bkllb.SecretID("not-there"), bkllb.SecretAsEnv(true), bkllb.SecretOptional))
	def, err := bkllb.Diff(lower, run.Root()).Marshal(context.Background(), bkllb.LinuxAmd64)
	if err != nil {
		t.Fatal(err)
	}
	return llb.Program{Name: "test: " + name, Def: def.ToPB()}
}

// image is a one-layer image in the store.
type image struct {
	layer, diffID, manifest string
	size                    int64
	config                  []byte
}

// image makes a one-layer image; names that end in a slash are directories.
func (s *Suite) image(t *testing.T, files map[string]string) image {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), ModTime: time.Unix(Epoch, 0), Format: tar.FormatPAX}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := errors.Join(w.WriteHeader(h), write(w, files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return putImage(t, s.Dir, layer.Bytes())
}

// putImage writes a layer's tar and a one-layer image around it into a store.
func putImage(t *testing.T, dir string, layer []byte) image {
	t.Helper()
	i := image{layer: blob(t, dir, layer), size: int64(len(layer))}
	i.diffID = i.layer
	i.config = []byte(`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["` + i.diffID + `"]}}`)
	i.manifest = blob(t, dir, fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
		ocispecs.MediaTypeImageManifest, ocispecs.MediaTypeImageConfig, blob(t, dir, i.config), len(i.config), ocispecs.MediaTypeImageLayer, i.layer, i.size))
	return i
}

// PutLayer writes an uncompressed layer into the store in dir and returns it as programs refer to it.
func PutLayer(t *testing.T, dir, name string, layer []byte) llb.LayerRef {
	t.Helper()
	i := putImage(t, dir, layer)
	return llb.LayerRef{Name: name, Ref: llb.StoreRef("component/"+name, i.manifest), Digest: i.layer, DiffID: i.diffID, Size: i.size}
}

func write(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

func blob(t *testing.T, dir string, data []byte) string {
	t.Helper()
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", name), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return "sha256:" + name
}

// readBlob reads a JSON blob of the store.
func (s *Suite) readBlob(t *testing.T, digest string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.Dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:")))
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatalf("reading %s: %v", digest, err)
	}
}

// Extracted runs a step and lists its result as "name content" or "name/" lines, sorted, without directories
// that the base has.
func (s *Suite) Extracted(t *testing.T, p llb.Program) []string {
	t.Helper()
	var out bytes.Buffer
	if err := s.Engine.Extract(t.Context(), p, &out); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(lines)
			return lines
		}
		if err != nil {
			t.Fatalf("the result is not a plain tar: %v", err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case h.Typeflag == tar.TypeDir && (h.Name == "etc/" || h.Name == "run/"):
		case h.Typeflag == tar.TypeDir:
			lines = append(lines, h.Name)
		default:
			lines = append(lines, strings.TrimSpace(h.Name+" "+string(data)))
		}
	}
}
