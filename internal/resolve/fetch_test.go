package resolve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"imgsmith/internal/matrix"
)

// payload is the content of every wheel here: larger than one read buffer.
func payload() []byte {
	out := make([]byte, 700_000)
	_, _ = rand.New(rand.NewSource(1)).Read(out)
	return out
}

func payloadWheel() matrix.Wheel {
	sum := sha256.Sum256(payload())
	return matrix.Wheel{Name: "x", Version: "1", File: "x-1-py3-none-any.whl", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(payload()))}
}

// server serves the payload and does to each request what script says; after the script it behaves.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	script []func(w http.ResponseWriter, r *http.Request) bool // true: answered
	ranges []string                                            // Range header per request
	auth   []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	n := len(s.ranges)
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	s.auth = append(s.auth, r.Header.Get("Authorization"))
	var step func(http.ResponseWriter, *http.Request) bool
	if n < len(s.script) {
		step = s.script[n]
	}
	s.mu.Unlock()
	if step != nil && step(w, r) {
		return
	}
	w.Header().Set("ETag", `"v1"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(payload()))
}

func serve(t *testing.T, script ...func(http.ResponseWriter, *http.Request) bool) *server {
	s := &server{script: script}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func status(code int, header ...string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		return true
	}
}

// cut sends n bytes of a whole answer and breaks the connection.
func cut(n int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(payload())))
		_, _ = w.Write(payload()[:n])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// whole ignores Range and sends body as 200.
func whole(body []byte) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write(body)
		return true
	}
}

func fetchOne(t *testing.T, dir, url string, change func(*FetchOptions)) error {
	t.Helper()
	w := payloadWheel()
	o := FetchOptions{Settings: HostSettings([]string{"PIP_CONFIG_FILE=/dev/null"}), Tries: 3, Backoff: time.Millisecond}
	if change != nil {
		change(&o)
	}
	return Fetch(t.Context(), []matrix.Wheel{w}, URLs{w.SHA256: url}, dir, o)
}

func TestFetch(t *testing.T) {
	wrong := bytes.Repeat([]byte("x"), len(payload()))
	type step = func(http.ResponseWriter, *http.Request) bool
	for _, tc := range []struct {
		name   string
		script []step
		ranges []string // Range header of every request
		class  Class    // "" for success
	}{
		{"plain", nil, []string{""}, ""},
		{"reset and continue", []step{cut(300_000)}, []string{"", "bytes=300000-"}, ""},
		{"two resets", []step{cut(300_000), status(500), status(503)}, []string{"", "bytes=300000-", "bytes=300000-", "bytes=300000-"}, ""},
		{"reset before a byte", []step{cut(0), cut(0)}, []string{"", "", ""}, ""},
		{"server ignores Range", []step{cut(300_000), whole(payload())}, []string{"", "bytes=300000-"}, ""},
		{"another file under the name", []step{cut(300_000), status(416)}, []string{"", "bytes=300000-", ""}, ""},
		{"wrong range", []step{cut(300_000), status(206, "Content-Range", "bytes 0-1/2")}, []string{"", "bytes=300000-", ""}, ""},
		{"429", []step{status(429, "Retry-After", "0"), status(429, "Retry-After", "1")}, []string{"", "", ""}, ""},
		{"500 and 502", []step{status(500), status(502)}, []string{"", "", ""}, ""},
		{"500 for ever", []step{status(500), status(500), status(500)}, []string{"", "", ""}, Server},
		{"truncated for ever", []step{cut(0), cut(0), cut(0)}, []string{"", "", ""}, Network},
		{"wrong once", []step{whole(wrong)}, []string{"", ""}, ""},
		{"wrong twice", []step{whole(wrong), whole(wrong)}, []string{"", ""}, HashMismatch},
		{"too long", []step{whole(append(payload(), 'x')), whole(append(payload(), 'x'))}, []string{"", ""}, HashMismatch},
		{"too short", []step{whole(payload()[:10]), whole(payload()[:10]), whole(payload()[:10]), whole(payload()[:10])}, []string{"", "bytes=10-", "bytes=10-", "bytes=10-"}, Network},
		{"401", []step{status(401)}, []string{""}, Auth},
		{"403", []step{status(403)}, []string{""}, Auth},
		{"404", []step{status(404)}, []string{""}, NotFound},
		{"407", []step{status(407)}, []string{""}, ProxyAuth},
		{"302 in a circle", []step{status(302, "Location", "/"), status(302, "Location", "/")}, []string{"", "", ""}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, dir := serve(t, tc.script...), t.TempDir()
			err := fetchOne(t, dir, s.URL+"/x-1-py3-none-any.whl", nil)
			checkClass(t, err, tc.class)
			if strings.Join(s.ranges, ",") != strings.Join(tc.ranges, ",") {
				t.Errorf("requests %q, expected %q", s.ranges, tc.ranges)
			}
			checkStore(t, dir, tc.class == "")
		})
	}
}

func checkClass(t *testing.T, err error, want Class) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	var e *Error
	if !errors.As(err, &e) || e.Class != want {
		t.Fatalf("got %v, expected class %q", err, want)
	}
	if e.Remedy == "" || e.Reason == "" || e.Doing == "" {
		t.Errorf("error is not complete: %+v", e)
	}
}

// checkStore wants the file whole under its name, or not there at all.
func checkStore(t *testing.T, dir string, complete bool) {
	t.Helper()
	got, err := os.ReadFile(WheelPath(dir, payloadWheel()))
	if complete && (err != nil || !bytes.Equal(got, payload())) {
		t.Errorf("the wheel is not whole: %d bytes, %v", len(got), err)
	}
	if !complete && !os.IsNotExist(err) {
		t.Errorf("a wheel that was not proved has its name: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*", "*.part*"))
	if complete && len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestFetchChangedETag(t *testing.T) {
	s := serve(t, cut(300_000), status(404))
	dir, w := t.TempDir(), payloadWheel()
	checkClass(t, fetchOne(t, dir, s.URL, nil), NotFound)
	if err := os.WriteFile(WheelPath(dir, w)+".part.etag", []byte(`"v0"`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fetchOne(t, dir, s.URL, nil); err != nil {
		t.Fatal(err)
	}
	if len(s.ranges) != 3 || s.ranges[2] != "bytes=300000-" { // asked to continue, and got everything because the tag differs
		t.Errorf("requests %q", s.ranges)
	}
	checkStore(t, dir, true)
}

func TestFetchCorruptPartial(t *testing.T) {
	s, dir, w := serve(t), t.TempDir(), payloadWheel()
	if err := os.MkdirAll(filepath.Dir(WheelPath(dir, w)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(WheelPath(dir, w)+".part", []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fetchOne(t, dir, s.URL, nil); err != nil {
		t.Fatal(err)
	}
	if strings.Join(s.ranges, ",") != "bytes=7-," {
		t.Errorf("requests %q", s.ranges)
	}
	checkStore(t, dir, true)
}

func TestFetchCancelAndContinue(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(payload())))
		_, _ = w.Write(payload()[:400_000])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	})
	defer close(release)
	dir, w := t.TempDir(), payloadWheel()
	why := errors.New("interrupted by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := FetchOptions{Settings: HostSettings(nil), Progress: func(p Progress) {
		if p.Done == 400_000 {
			cancel(why)
		}
	}}
	err := Fetch(ctx, []matrix.Wheel{w}, URLs{w.SHA256: s.URL}, dir, o)
	if !errors.Is(err, why) {
		t.Fatalf("got %v", err)
	}
	if fi, err := os.Stat(WheelPath(dir, w) + ".part"); err != nil || fi.Size() != 400_000 {
		t.Fatalf("partial file: %v %v", fi, err)
	}
	if err := fetchOne(t, dir, s.URL, nil); err != nil {
		t.Fatal(err)
	}
	if s.ranges[1] != "bytes=400000-" {
		t.Errorf("requests %q", s.ranges)
	}
	checkStore(t, dir, true)
}

func TestFetchStall(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(payload())))
		_, _ = w.Write(payload()[:200_000])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	})
	dir := t.TempDir()
	if err := fetchOne(t, dir, s.URL, func(o *FetchOptions) { o.Stall = 300 * time.Millisecond }); err != nil {
		t.Fatal(err)
	}
	if strings.Join(s.ranges, ",") != ",bytes=200000-" {
		t.Errorf("requests %q", s.ranges)
	}
	checkStore(t, dir, true)
}

// Two that want the same wheel at once: one downloads, both have it.
func TestFetchTwoAtOnce(t *testing.T) {
	s, dir := serve(t), t.TempDir()
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = fetchOne(t, dir, s.URL, nil) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if len(s.ranges) != 1 {
		t.Errorf("%d requests", len(s.ranges))
	}
	checkStore(t, dir, true)
}

func TestFetchTLS(t *testing.T) {
	s := &server{}
	s.Server = httptest.NewTLSServer(s)
	defer s.Close()
	dir := t.TempDir()
	checkClass(t, fetchOne(t, dir, s.URL, nil), TLS)
	if len(s.ranges) != 0 {
		t.Error("a request went over a connection that is not trusted")
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, variable := range []string{"SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"} {
		err := fetchOne(t, t.TempDir(), s.URL, func(o *FetchOptions) { o.Settings = HostSettings([]string{variable + "=" + ca}) })
		if err != nil {
			t.Errorf("%s: %v", variable, err)
		}
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err := fetchOne(t, dir, s.URL, func(o *FetchOptions) { o.Settings = HostSettings([]string{"PIP_CERT=" + empty}) })
	if err == nil || !strings.Contains(err.Error(), "holds no certificate; correct SSL_CERT_FILE") {
		t.Errorf("got %v", err)
	}
}

func TestFetchUnreachable(t *testing.T) {
	dir := t.TempDir()
	checkClass(t, fetchOne(t, dir, "http://no-such-host.invalid/x", func(o *FetchOptions) { o.Tries = 1 }), DNS)
	s := serve(t)
	s.Close()
	checkClass(t, fetchOne(t, dir, s.URL, nil), Network)
	checkClass(t, fetchOne(t, dir, "", nil), NotFound)
	err := fetchOne(t, dir, "http://user:secret@"+strings.TrimPrefix(s.URL, "http://")+"/x?token=secret", nil)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("credentials in the error: %v", err)
	}
}

func TestFetchCredentials(t *testing.T) {
	s := serve(t)
	host := strings.TrimPrefix(s.URL, "http://")
	netrc := filepath.Join(t.TempDir(), "netrc")
	text := "# a comment\nmachine other login a password b\nmachine 127.0.0.1\n login me\n password mine\ndefault login d password e\n"
	if err := os.WriteFile(netrc, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		env  []string
		want string
	}{
		{[]string{"NETRC=" + netrc}, "Basic bWU6bWluZQ=="},
		{[]string{"UV_DEFAULT_INDEX=http://u:p@" + host + "/simple"}, "Basic dTpw"},
		{[]string{"PIP_INDEX_URL=http://u:p@" + host + "/simple", "NETRC=" + netrc}, "Basic dTpw"},
		{[]string{"UV_INDEX=mine=http://" + host + "/simple", "UV_INDEX_MINE_USERNAME=u", "UV_INDEX_MINE_PASSWORD=p"}, "Basic dTpw"},
		{[]string{"UV_DEFAULT_INDEX=http://u:p@other.invalid/simple"}, ""},
		{[]string{"UV_DEFAULT_INDEX=https://u:p@" + host + "/simple"}, ""},
		{nil, ""},
	} {
		s.mu.Lock()
		s.auth = nil
		s.mu.Unlock()
		if err := fetchOne(t, t.TempDir(), s.URL, func(o *FetchOptions) { o.Settings = HostSettings(tc.env) }); err != nil {
			t.Fatal(err)
		}
		if s.auth[0] != tc.want {
			t.Errorf("%v: sent %q, expected %q", tc.env, s.auth[0], tc.want)
		}
	}
	// Another host, reached by a redirect, gets nothing.
	other := serve(t)
	s.script = append(make([]func(http.ResponseWriter, *http.Request) bool, len(s.ranges)),
		status(302, "Location", strings.Replace(other.URL, "127.0.0.1", "localhost", 1)))
	err := fetchOne(t, t.TempDir(), s.URL, func(o *FetchOptions) { o.Settings = HostSettings([]string{"UV_DEFAULT_INDEX=http://u:p@" + host}) })
	if err != nil || len(other.auth) != 1 || other.auth[0] != "" {
		t.Errorf("%v, the other host got %q", err, other.auth)
	}
}

func TestFetchLocalAndOffline(t *testing.T) {
	source, w := filepath.Join(t.TempDir(), "x-1-py3-none-any.whl"), payloadWheel()
	if err := os.WriteFile(source, payload(), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Fetch(t.Context(), []matrix.Wheel{w}, URLs{w.SHA256: fileURL(source)}, dir, FetchOptions{Offline: true}); err != nil {
		t.Fatal(err)
	}
	checkStore(t, dir, true)
	if err := Fetch(t.Context(), []matrix.Wheel{w}, nil, dir, FetchOptions{Offline: true}); err != nil {
		t.Errorf("what is in the store is asked for again: %v", err)
	}
	var missing *MissingError
	err := Fetch(t.Context(), []matrix.Wheel{w}, URLs{w.SHA256: "http://127.0.0.1:9/"}, t.TempDir(), FetchOptions{Offline: true})
	if !errors.As(err, &missing) || len(missing.Wheels) != 1 || !strings.Contains(err.Error(), "1 wheel is missing from the store (0.7 MB): x-1-py3-none-any.whl; run once without --offline") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(source, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	checkClass(t, fetchOne(t, dir, fileURL(source), nil), HashMismatch)
	checkStore(t, dir, false)
}

func TestFetchDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("cannot mount a small tmpfs: %v; needs root", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	checkClass(t, fetchOne(t, dir, serve(t).URL, nil), DiskFull)
	checkStore(t, dir, false)
}

func TestFetchProxy(t *testing.T) {
	proxy := serve(t) // answers every request that comes to it, whatever its host
	dir := t.TempDir()
	err := fetchOne(t, dir, "http://files.invalid/x", func(o *FetchOptions) { o.Settings = HostSettings([]string{"HTTP_PROXY=" + proxy.URL}) })
	if err != nil || len(proxy.ranges) != 1 {
		t.Errorf("%v, %d requests", err, len(proxy.ranges))
	}
	err = fetchOne(t, t.TempDir(), "http://files.invalid/x", func(o *FetchOptions) {
		o.Settings, o.Tries = HostSettings([]string{"HTTP_PROXY=" + proxy.URL, "NO_PROXY=files.invalid"}), 1
	})
	checkClass(t, err, DNS)
	refusing := serve(t, status(407), status(407))
	err = fetchOne(t, t.TempDir(), "https://files.invalid/x", func(o *FetchOptions) { o.Settings = HostSettings([]string{"PIP_PROXY=" + refusing.URL}) })
	checkClass(t, err, ProxyAuth)
}
