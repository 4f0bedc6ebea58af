package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"imgsmith/internal/component"
	"imgsmith/internal/engine"
	"imgsmith/internal/llb"
	"imgsmith/internal/matrix"
)

// debsSession opens a store with the base that `make base` made, or skips.
func debsSession(t *testing.T, store string) (*session, *base) {
	t.Helper()
	dir := os.Getenv("IMGSMITH_TEST_BASE")
	switch {
	case dir == "":
		t.Skip("IMGSMITH_TEST_BASE is not set: needs the base of make base, an engine and the base's package index")
	case os.Getuid() != 0:
		t.Skip("not root: the child engine needs it")
	}
	if _, err := engine.Lookup("buildkitd", os.Getenv("IMGSMITH_ENGINE_DIR")); err != nil {
		t.Skipf("no engine: %v", err)
	}
	s := sessionFor(t, store)
	s.app.flags.engineDir = os.Getenv("IMGSMITH_ENGINE_DIR")
	b, err := s.base(t.Context(), "debian:12", "linux/amd64", map[string]string{"debian:12": "oci-layout:" + dir})
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

func debsTarget() matrix.Target {
	return matrix.Target{Entry: "debs", Platform: "linux/amd64", Python: matrix.Python{Version: "3.11", From: "os"}, Base: matrix.Base{Name: "debian:12", Local: true},
		OSPackages: []string{"ca-certificates"}, Epoch: 1704067200, Compression: matrix.Compression{Algorithm: "zstd", Level: "default", Encoder: "klauspost-zstd/1"}}
}

// TestLockedDebs: the lock's OS packages come from the signed index with version, file and sum; a build installs
// exactly those without a network; one that vanished is an error of its own unless a store keeps it; one that
// changed is another.
func TestLockedDebs(t *testing.T) {
	s, b := debsSession(t, t.TempDir())
	target := debsTarget()
	debs, err := s.lockDebs(t.Context(), target, b)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]matrix.Deb{}
	for _, d := range debs {
		names[d.Name] = d
		if len(d.SHA256) != 64 || d.Size <= 0 || !strings.HasSuffix(d.File, ".deb") {
			t.Errorf("deb %+v", d)
		}
		if _, err := os.Stat(s.debPath(d)); err != nil {
			t.Errorf("the store lacks %s: %v", d.File, err)
		}
	}
	if names["ca-certificates"].Version == "" {
		t.Fatalf("got %v", debs)
	}
	target.Debs = debs
	w := &preparer{s: s, opts: component.Options{Compression: target.Compression, Epoch: target.Epoch, Platform: target.Platform}, base: b.image(), p: &prepared{target: target, base: b, made: map[string]bool{}}}
	rec, err := w.osPackages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	table, err := s.store.Table(rec)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, n := range table {
		found = found || n.Path == "etc/ca-certificates.conf"
		if strings.Contains(n.Path, "imgsmith-debs") || strings.HasPrefix(n.Path, "debs") {
			t.Errorf("the layer holds %s", n.Path)
		}
	}
	if !found {
		t.Errorf("the layer lacks what ca-certificates installs: %d files", len(table))
	}
	kept := s.debPath(names["ca-certificates"])
	if err := os.Remove(kept); err != nil {
		t.Fatal(err)
	}
	var m *missingDebsError
	if err := s.needDebs(t.Context(), target, b.image(), true); !errors.As(err, &m) || len(m.debs) != 1 {
		t.Errorf("offline: %v", err)
	}
	if err := s.needDebs(t.Context(), target, b.image(), false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a locked package that is fetched again lies elsewhere: %v", err)
	}
	old := names["ca-certificates"]
	old.Version, old.SHA256 = "20000101", strings.Repeat("0", 64)
	gone := target
	gone.Debs = []matrix.Deb{old}
	err = s.needDebs(t.Context(), gone, b.image(), false)
	var g *goneDebsError
	if !errors.As(err, &g) || len(g.debs) != 1 || !strings.Contains(err.Error(), "ca-certificates=20000101") || !strings.Contains(g.Remedy(), "--store") {
		t.Errorf("a vanished package: %v", err)
	}
	changed := target
	other := names["ca-certificates"]
	other.SHA256 = strings.Repeat("0", 64)
	changed.Debs = []matrix.Deb{other}
	var c *changedDebError
	if err = s.needDebs(t.Context(), changed, b.image(), false); !errors.As(err, &c) || c.want != other.SHA256 {
		t.Errorf("a changed package: %v", err)
	}
}

// TestUnpackDebsRefused: what a step brings counts only with the sum of the index.
func TestUnpackDebsRefused(t *testing.T) {
	s := sessionFor(t, t.TempDir())
	files := map[string]matrix.Deb{"a.deb": {File: "a.deb", SHA256: strings.Repeat("1", 64), Size: 1}}
	for index, want := range map[string]string{
		"a 1 a.deb\n": "is not NAME VERSION FILE SHA256",
		"b 1 b.deb " + strings.Repeat("1", 64) + "\n": "is listed and was not brought",
		"a 1 a.deb " + strings.Repeat("2", 64) + "\n": "the lock says 2222",
	} {
		if _, err := s.keepDebs(files, index, t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", index, err)
		}
	}
	if _, err := llb.ResolveDebsStep(debsTarget(), llb.BaseImage{Ref: llb.StoreRef("base/image", "sha256:"+strings.Repeat("b", 64))}, []string{"a;b"}); err == nil {
		t.Error("a package name with a semicolon is accepted")
	}
}
