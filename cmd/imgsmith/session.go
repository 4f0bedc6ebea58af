package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"imgsmith/internal/component"
	"imgsmith/internal/engine"
	"imgsmith/internal/engine/child"
	"imgsmith/internal/facts"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
	"imgsmith/internal/registry"
)

// session owns what one command opens: the store, the loopback registry in front of it, and the engine, which
// starts at the first step that needs one.
type session struct {
	app   *app
	facts *facts.Table
	store *component.Store
	loop  *registry.Loopback
	// overrides are the rules that the recipe overrides, by entry.
	overrides map[string][]matrix.Override

	mu  sync.Mutex
	eng engine.Engine
}

// open opens the store and serves it on the loopback interface.
func (a *app) open(ctx context.Context) (*session, error) {
	table, err := a.facts()
	if err != nil {
		return nil, err
	}
	store, err := component.OpenStore(ctx, a.flags.store)
	if err != nil {
		return nil, err
	}
	loop, err := registry.NewLoopback(store.Dir())
	if err != nil {
		return nil, err
	}
	return &session{app: a, facts: table, store: store, loop: loop}, nil
}

// close stops what was started; it is called on every path, also after an interrupt.
func (s *session) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.eng != nil {
		errs = append(errs, s.eng.Close())
		s.eng = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(append(errs, s.loop.Close(ctx))...)
}

// engine returns the engine, started at the first call.
func (s *session) engine(ctx context.Context) (engine.Engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.eng != nil {
		return s.eng, nil
	}
	secrets, err := s.secrets()
	if err != nil {
		return nil, err
	}
	eng, err := child.Start(ctx, child.Options{
		EngineDir: s.app.flags.engineDir,
		Root:      filepath.Join(s.store.Dir(), "engine"),
		StoreAddr: s.loop.Addr(),
		Secrets:   secrets,
		Notice:    func(m string) { s.app.note("%s", m) },
		Progress:  s.app.progress,
	})
	if err != nil {
		return nil, err
	}
	s.eng = eng
	return eng, nil
}

// progress prints one line a step that runs a program in the image; what the engine does around it says nothing.
func (a *app) progress(e engine.Event) {
	if e.State != engine.Started || e.Step == "" || e.Step == "base" || e.Step == "merge" {
		return
	}
	for _, around := range []string{"[", "layer ", "changes of ", "exporting ", "importing ", "pushing ", "auth "} {
		if strings.HasPrefix(e.Step, around) {
			return
		}
	}
	a.note("  step  %s", e.Step)
}

// secrets are this host's CA bundle and proxy values. Steps get them by id; they never enter a definition.
func (s *session) secrets() (map[string][]byte, error) {
	out := map[string][]byte{}
	for id, names := range map[string][]string{
		llb.SecretHTTPProxy:  {"http_proxy", "HTTP_PROXY"},
		llb.SecretHTTPSProxy: {"https_proxy", "HTTPS_PROXY"},
		llb.SecretNoProxy:    {"no_proxy", "NO_PROXY"},
	} {
		for _, n := range names {
			if v := s.app.env(n); v != "" {
				out[id] = []byte(v)
				break
			}
		}
	}
	bundle := s.app.env("SSL_CERT_FILE")
	if bundle == "" {
		bundle = "/etc/ssl/certs/ca-certificates.crt"
	}
	pem, err := os.ReadFile(bundle)
	switch {
	case err == nil:
		out[llb.SecretCA] = pem
	case s.app.env("SSL_CERT_FILE") != "":
		return nil, fmt.Errorf("reading SSL_CERT_FILE: %w; remedy: name a readable CA bundle, or unset it", err)
	}
	return out, nil
}

// ref makes the layer reference that programs use for a record.
func ref(rec component.Record) llb.LayerRef {
	return llb.LayerRef{Name: rec.Name, Ref: llb.StoreRef("component/"+rec.Name, rec.ManifestDigest),
		Digest: rec.Digest, DiffID: rec.DiffID, Size: rec.Size}
}

func refs(recs []component.Record) []llb.LayerRef {
	out := make([]llb.LayerRef, len(recs))
	for i, r := range recs {
		out[i] = ref(r)
	}
	return out
}
