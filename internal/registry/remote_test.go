package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
)

// otherRegistry is a registry that is not ours, with a gate in front.
func otherRegistry(t *testing.T, gate func(http.ResponseWriter, *http.Request) bool) (addr string) {
	t.Helper()
	h := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithReferrersSupport(true))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gate == nil || gate(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// noLogin keeps the credentials of whoever runs the tests out of them.
func noLogin(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
}

func TestCopyTagResolveAndImport(t *testing.T) {
	noLogin(t)
	s := newTestStore(t)
	repo := otherRegistry(t, nil) + "/team/app"
	ctx := t.Context()
	if err := CopyImage(ctx, s.dir, s.manifest, repo); err != nil {
		t.Fatal(err)
	}
	if tags, err := Tags(ctx, repo); err != nil || len(tags) != 0 {
		t.Errorf("tags after the copy: %v, %v", tags, err)
	}
	if err := Tag(ctx, repo, s.manifest, "v1"); err != nil {
		t.Fatal(err)
	}
	got, err := Resolve(ctx, repo+":v1")
	if err != nil || got != s.manifest {
		t.Errorf("resolved %s, %v; want %s", got, err, s.manifest)
	}
	dir := t.TempDir()
	base, err := ImportBase(ctx, repo+":v1", "linux/amd64", dir)
	if err != nil {
		t.Fatal(err)
	}
	want := BaseImage{Name: repo + ":v1", ManifestDigest: s.manifest, MediaType: mediaOCIManifest, ConfigDigest: digestOf(config("amd64")),
		Config: config("amd64"), Layers: []Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: s.layer, Size: 6000}}}
	if diff := cmp.Diff(want, base); diff != "" {
		t.Errorf("base (-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile((store{dir}).blob(s.layer)); err != nil || string(data) != string(s.data) {
		t.Errorf("the layer is not in the store: %v", err)
	}
	if err := Tag(ctx, repo, digestOf([]byte("absent")), "v2"); KindOf(err) != NotFound {
		t.Errorf("tagging what is not there: %v", err)
	}
	if err := Tag(ctx, repo, s.manifest, "a/b"); KindOf(err) != BadReference {
		t.Errorf("a bad tag: %v", err)
	}
	if tags, err := Tags(ctx, repo); err != nil || cmp.Diff([]string{"v1"}, tags) != "" {
		t.Errorf("tags: %v, %v", tags, err)
	}
}

// indexOf puts an index of two platforms into the store and returns its digest.
func indexOf(s *testStore) string {
	arm := s.put(imageManifest(s.put(config("arm64")), s.layer, s.data))
	entry := func(digest, platform, arch string) string {
		size := len(imageManifest(digestOf(config("amd64")), s.layer, s.data))
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d,"platform":{"os":%q,"architecture":%q}}`, mediaOCIManifest, digest, size, platform, arch)
	}
	return s.put([]byte(`{"schemaVersion":2,"mediaType":"` + mediaOCIIndex + `","manifests":[` +
		entry(s.manifest, "linux", "amd64") + "," + entry(arm, "linux", "arm64") + "," + entry(arm, "unknown", "unknown") + "]}"))
}

// writeLayout makes the store's directory a layout that names digest as tag.
func (s *testStore) writeLayout(tag, digest string) {
	s.t.Helper()
	if err := s.store.record(tag, Descriptor{MediaType: mediaOCIIndex, Digest: digest, Size: 1}); err != nil {
		s.t.Fatal(err)
	}
}

func TestImportFromLayout(t *testing.T) {
	s := newTestStore(t)
	s.writeLayout("both", indexOf(s))
	s.writeLayout("one", s.manifest)
	s.writeLayout("the-same-again", s.manifest)
	for _, ref := range []string{":both", ":one", "@" + s.manifest} {
		base, err := ImportBase(t.Context(), "oci-layout:"+s.dir+ref, "linux/amd64", t.TempDir())
		if err != nil || base.ManifestDigest != s.manifest || !base.Local {
			t.Errorf("%s: %+v, %v", ref, base, err)
		}
	}
	arm, err := ImportBase(t.Context(), "oci-layout:"+s.dir+":both", "linux/arm64", t.TempDir())
	if err != nil || arm.ManifestDigest == s.manifest {
		t.Errorf("arm64: %+v, %v", arm, err)
	}
}

func TestImportFailures(t *testing.T) {
	noLogin(t)
	ctx := t.Context()
	s := newTestStore(t)
	s.writeLayout("both", indexOf(s))
	s.writeLayout("artifact", s.put([]byte(strings.Replace(string(imageManifest(digestOf(config("amd64")), s.layer, s.data)), "image.config", "helm.config", 1))))
	s.writeLayout("foreign", s.put([]byte(strings.Replace(string(imageManifest(digestOf(config("amd64")), s.layer, s.data)), "layer.v1.tar", "layer.nondistributable.v1.tar", 1))))
	damaged := newTestStore(t)
	damaged.writeLayout("x", damaged.manifest)
	if err := os.WriteFile(damaged.store.blob(damaged.layer), append([]byte("X"), damaged.data[1:]...), 0o644); err != nil {
		t.Fatal(err)
	}
	missing := newTestStore(t)
	missing.writeLayout("x", missing.manifest)
	if err := os.Remove(missing.store.blob(missing.layer)); err != nil {
		t.Fatal(err)
	}
	status := func(code int) string {
		return otherRegistry(t, func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			return false
		}) + "/a/b:1"
	}
	tls := httptest.NewUnstartedServer(http.NotFoundHandler())
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	tls.StartTLS()
	t.Cleanup(tls.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	layout := "oci-layout:" + s.dir
	for _, c := range []struct {
		name, ref, platform string
		kind                Kind
	}{
		{"no such tag", otherRegistry(t, nil) + "/a/b:1", "linux/amd64", NotFound},
		{"unauthorized", status(401), "linux/amd64", Unauthorized},
		{"forbidden", status(403), "linux/amd64", Unauthorized},
		{"rate limit", status(429), "linux/amd64", Limited},
		{"unknown authority", strings.TrimPrefix(tls.URL, "https://") + "/a/b:1", "linux/amd64", UnknownAuthority},
		{"nobody listens", closed.Addr().String() + "/a/b:1", "linux/amd64", Unreachable},
		{"no such host", "registry.invalid/a/b:1", "linux/amd64", Unreachable},
		{"bad reference", "UPPER/case::", "linux/amd64", BadReference},
		{"no such directory", "oci-layout:" + filepath.Join(s.dir, "absent"), "linux/amd64", NotFound},
		{"no such tag in the layout", layout + ":absent", "linux/amd64", NotFound},
		{"no such digest in the layout", layout + "@" + digestOf(nil), "linux/amd64", NotFound},
		{"bad digest", layout + "@sha256:12", "linux/amd64", BadReference},
		{"empty layout reference", "oci-layout:", "linux/amd64", BadReference},
		{"no such platform", layout + ":both", "linux/riscv64", NoPlatform},
		{"artifact", layout + ":artifact", "linux/amd64", Corrupt},
		{"layer elsewhere", layout + ":foreign", "linux/amd64", Corrupt},
		{"changed layer", "oci-layout:" + damaged.dir, "linux/amd64", Corrupt},
		{"missing layer", "oci-layout:" + missing.dir, "linux/amd64", Corrupt},
		{"platform of the config", "oci-layout:" + missing.dir + "/../absent", "linux/amd64", NotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := ImportBase(ctx, c.ref, c.platform, dir)
			var e *Error
			if !errors.As(err, &e) || e.Kind != c.kind || e.Remedy == "" || !strings.HasPrefix(err.Error(), "importing base ") {
				t.Fatalf("kind %q, want %q: %v", KindOf(err), c.kind, err)
			}
			if _, err := os.Stat((store{dir}).blob(damaged.layer)); err == nil {
				t.Error("a bad layer was stored")
			}
		})
	}
}

// TestPlatformOfTheConfig: an image that says it is for another machine is refused even when nobody asked an index.
func TestPlatformOfTheConfig(t *testing.T) {
	s := newTestStore(t)
	s.writeLayout("x", s.manifest)
	_, err := ImportBase(t.Context(), "oci-layout:"+s.dir, "linux/arm64", t.TempDir())
	if KindOf(err) != NoPlatform {
		t.Errorf("error %v", err)
	}
}

func TestImportEndsWithItsContext(t *testing.T) {
	s := newTestStore(t)
	s.writeLayout("x", s.manifest)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("stop")
	cancel(cause)
	if _, err := ImportBase(ctx, "oci-layout:"+s.dir, "linux/amd64", t.TempDir()); !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
}

// TestRegistryThatLies: content that does not fit its digest is never stored.
func TestRegistryThatLies(t *testing.T) {
	noLogin(t)
	s := newTestStore(t)
	lie := false
	addr := otherRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		if lie && strings.Contains(r.URL.Path, "/blobs/"+s.layer) {
			w.Header().Set("Content-Length", "6000")
			_, _ = w.Write(make([]byte, 6000))
			return false
		}
		return true
	})
	if err := CopyImage(t.Context(), s.dir, s.manifest, addr+"/a/b"); err != nil {
		t.Fatal(err)
	}
	lie = true
	dir := t.TempDir()
	if _, err := ImportBase(t.Context(), addr+"/a/b@"+s.manifest, "linux/amd64", dir); err == nil {
		t.Error("a false layer was accepted")
	}
	if (store{dir}).has(s.layer) {
		t.Error("a false layer was stored")
	}
}

// TestPlainHTTP: a name that is not loopback never gets plain http, also through a redirect or token server.
func TestPlainHTTP(t *testing.T) {
	for url, allowed := range map[string]bool{
		"http://127.0.0.1:1/v2/": true, "http://localhost:1/": true, "http://[::1]:1/": true, "https://registry.invalid/": true,
		"http://registry.invalid/v2/": false, "http://10.0.0.1:5000/": false, "http://127.0.0.1.invalid/": false, "http://169.254.1.1/token": false,
	} {
		reached := false
		tr := secureTransport{roundTripper(func(*http.Request) (*http.Response, error) {
			reached = true
			return nil, errors.New("stub")
		})}
		req, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(req); err == nil || reached != allowed {
			t.Errorf("%s: sent %v, want %v (%v)", url, reached, allowed, err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestErrorsHoldNoCredentials(t *testing.T) {
	noLogin(t)
	config := `{"auths":{"registry.invalid":{"auth":"dXNlcjpzM2NyM3Q="}}}` // user:s3cr3t
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HTTPS_PROXY", "http://proxyuser:s3cr3t@127.0.0.1:1")
	for _, err := range []error{
		func() error { _, err := Resolve(t.Context(), "registry.invalid/a/b:1"); return err }(),
		func() error { _, err := Resolve(t.Context(), "user:s3cr3t@registry.invalid/a/b:1"); return err }(),
		func() error { _, err := Resolve(t.Context(), "https://user:s3cr3t@registry.invalid/a/b"); return err }(),
		CopyImage(t.Context(), newTestStore(t).dir, digestOf(nil), "user:s3cr3t@registry.invalid/a/b"),
		classify("op", "ref", errors.New(`Get "https://user:s3cr3t@registry.invalid/v2/": Bearer s3cr3ts3cr3t refused`)),
	} {
		if err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("error %v", err)
		}
	}
}

func TestRedact(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for in, want := range map[string]string{
		"https://u:p@host/v2/":                         "https://***@host/v2/",
		"proxyconnect http://tok@10.0.0.1:80: refused": "proxyconnect http://***@10.0.0.1:80: refused",
		"u:p@host/a":           "***@host/a",
		`parsing "u:p@host/a"`: `parsing "***@host/a"`,
		"GET https://cdn/x?X-Amz-Signature=abc&a=1":     "GET https://cdn/x?X-Amz-Signature=***&a=1",
		"GET https://h/token?service=x&access_token=ab": "GET https://h/token?service=x&access_token=***",
		"Authorization: Basic dXNlcjpwYXNz":             "Authorization: Basic ***",
		"authorization: bearer abcdefgh.ijk":            "authorization: bearer ***",
		"got eyJhbGciOi.eyJzdWIi.c2ln back":             "got *** back",
		"app:v1@" + digest:                              "app:v1@" + digest,
		"127.0.0.1:5000/app:v1@" + digest + " missing":  "127.0.0.1:5000/app:v1@" + digest + " missing",
		"basic authentication failed":                   "basic authentication failed",
		"plain text, nothing to hide: a/b:c":            "plain text, nothing to hide: a/b:c",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q)\n got %q\nwant %q", in, got, want)
		}
	}
}
