package registry

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testStore is a loopback registry with one image: a config, two layers.
type testStore struct {
	*Loopback
	t        *testing.T
	dir      string
	layer    string
	data     []byte
	manifest string
}

func newTestStore(t *testing.T) *testStore {
	t.Helper()
	dir := t.TempDir()
	l, err := NewLoopback(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	s := &testStore{Loopback: l, t: t, dir: dir, data: bytes.Repeat([]byte("layer "), 1000)}
	s.layer = s.put(s.data)
	s.manifest = s.put(imageManifest(s.put(config("amd64")), s.layer, s.data))
	return s
}

func config(arch string) []byte {
	return fmt.Appendf(nil, `{"architecture":%q,"os":"linux","rootfs":{"type":"layers","diff_ids":[]}}`, arch)
}

func imageManifest(configDigest, layer string, data []byte) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`,
		mediaOCIManifest, configDigest, len(config("amd64")), layer, len(data))
}

func (s *testStore) put(data []byte) string {
	s.t.Helper()
	digest := digestOf(data)
	if err := s.store.write(digest, int64(len(data)), bytes.NewReader(data)); err != nil {
		s.t.Fatal(err)
	}
	return digest
}

// do sends a request; header pairs follow the body.
func (s *testStore) do(method, path, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if i := slices.Index(header, "Host"); i >= 0 {
		req.Host = header[i+1]
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res, string(data)
}

func TestBlobs(t *testing.T) {
	s := newTestStore(t)
	res, body := s.do("GET", "/v2/any/name/blobs/"+s.layer, "")
	if res.StatusCode != 200 || body != string(s.data) || res.Header.Get("Docker-Content-Digest") != s.layer {
		t.Errorf("GET: %s, %d bytes", res.Status, len(body))
	}
	res, body = s.do("HEAD", "/v2/x/blobs/"+s.layer, "")
	if res.StatusCode != 200 || body != "" || res.ContentLength != int64(len(s.data)) {
		t.Errorf("HEAD: %s, length %d", res.Status, res.ContentLength)
	}
	res, body = s.do("GET", "/v2/x/blobs/"+s.layer, "", "Range", "bytes=6-11")
	if res.StatusCode != 206 || body != "layer " || res.Header.Get("Content-Range") != "bytes 6-11/6000" {
		t.Errorf("range: %s %q", res.Status, body)
	}
	want := []Access{
		{"GET", "/v2/any/name/blobs/" + s.layer, 200, 6000, 0},
		{"HEAD", "/v2/x/blobs/" + s.layer, 200, 0, 0},
		{"GET", "/v2/x/blobs/" + s.layer, 206, 6, 0},
	}
	if diff := cmp.Diff(want, s.AccessLog()); diff != "" {
		t.Errorf("access log (-want +got):\n%s", diff)
	}
	var downloads []bool
	for _, a := range s.AccessLog() {
		_, ok := a.BlobDownload()
		downloads = append(downloads, ok)
	}
	if diff := cmp.Diff([]bool{true, false, true}, downloads); diff != "" {
		t.Error(diff)
	}
}

func TestManifestByDigestNeedsNoRecord(t *testing.T) {
	s := newTestStore(t)
	res, body := s.do("GET", "/v2/component/x/manifests/"+s.manifest, "")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != mediaOCIManifest || digestOf([]byte(body)) != s.manifest {
		t.Errorf("%s %s %s", res.Status, res.Header.Get("Content-Type"), body)
	}
	if res, _ := s.do("GET", "/v2/component/x/manifests/"+s.layer, ""); res.StatusCode != 404 {
		t.Errorf("a layer as manifest: %s", res.Status)
	}
}

func TestPushedManifestsAreFoundAgain(t *testing.T) {
	s := newTestStore(t)
	_, data := s.do("GET", "/v2/a/manifests/"+s.manifest, "")
	for _, ref := range []string{"v1", "latest", s.manifest} {
		res, body := s.do("PUT", "/v2/staging/app/manifests/"+ref, data)
		if res.StatusCode != 201 || res.Header.Get("Docker-Content-Digest") != s.manifest {
			t.Fatalf("PUT %s: %s %s", ref, res.Status, body)
		}
	}
	// A tag moves: index.json must not hold it twice.
	other := string(imageManifest(s.put(config("amd64")), s.put([]byte("other")), []byte("other")))
	if res, body := s.do("PUT", "/v2/staging/app/manifests/v1", other); res.StatusCode != 201 {
		t.Fatalf("PUT: %s %s", res.Status, body)
	}
	second, err := NewLoopback(s.dir) // as after a restart
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close(t.Context())
	r := &testStore{Loopback: second, t: t}
	if res, body := r.do("GET", "/v2/staging/app/manifests/v1", ""); res.StatusCode != 200 || body != other {
		t.Errorf("GET by tag: %s %s", res.Status, body)
	}
	if res, _ := r.do("GET", "/v2/staging/other/manifests/v1", ""); res.StatusCode != 404 {
		t.Errorf("another repository has the tag: %s", res.Status)
	}
	if _, body := r.do("GET", "/v2/staging/app/tags/list", ""); body != `{"name":"staging/app","tags":["latest","v1"]}`+"\n" {
		t.Errorf("tags: %s", body)
	}
	var index Manifest
	raw, err := os.ReadFile(filepath.Join(s.dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(raw, &index)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range index.Manifests {
		got[m.Annotations["org.opencontainers.image.ref.name"]] = m.Digest
	}
	want := map[string]string{"staging/app:latest": s.manifest, "staging/app@" + s.manifest: s.manifest, "staging/app:v1": digestOf([]byte(other))}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("index.json (-want +got):\n%s", diff)
	}
}

func TestUpload(t *testing.T) {
	s := newTestStore(t)
	for _, chunked := range []bool{false, true} {
		data := fmt.Sprintf("content %v", chunked)
		digest := digestOf([]byte(data))
		res, _ := s.do("POST", "/v2/app/blobs/uploads/", "")
		location := res.Header.Get("Location")
		if res.StatusCode != 202 || location == "" {
			t.Fatalf("POST: %s", res.Status)
		}
		rest := data
		if chunked {
			for _, part := range []string{data[:4], data[4:9]} {
				from := len(data) - len(rest)
				res, body := s.do("PATCH", location, part, "Content-Range", fmt.Sprintf("%d-%d", from, from+len(part)-1))
				if res.StatusCode != 202 || res.Header.Get("Range") != fmt.Sprintf("0-%d", from+len(part)-1) {
					t.Fatalf("PATCH: %s %s %s", res.Status, res.Header.Get("Range"), body)
				}
				rest = rest[len(part):]
			}
		}
		if res, body := s.do("PUT", location+"?digest="+digest, rest); res.StatusCode != 201 {
			t.Fatalf("PUT: %s %s", res.Status, body)
		}
		if _, body := s.do("GET", "/v2/app/blobs/"+digest, ""); body != data {
			t.Errorf("got %q back", body)
		}
	}
	one := digestOf([]byte("one"))
	if res, _ := s.do("POST", "/v2/app/blobs/uploads/?digest="+one, "one"); res.StatusCode != 201 {
		t.Errorf("single POST: %s", res.Status)
	}
}

func TestMount(t *testing.T) {
	s := newTestStore(t)
	res, _ := s.do("POST", "/v2/staging/app/blobs/uploads/?mount="+s.layer+"&from=component/x", "")
	if res.StatusCode != 201 || res.Header.Get("Location") != "/v2/staging/app/blobs/"+s.layer {
		t.Errorf("mount: %s %s", res.Status, res.Header.Get("Location"))
	}
	res, _ = s.do("POST", "/v2/staging/app/blobs/uploads/?mount="+digestOf([]byte("absent"))+"&from=x", "")
	if res.StatusCode != 202 {
		t.Errorf("mount of what is not there: %s, want an upload", res.Status)
	}
}

// TestRefusedRequests: nothing bad is stored, nothing outside the blobs is served.
func TestRefusedRequests(t *testing.T) {
	s := newTestStore(t)
	if err := os.WriteFile(filepath.Join(s.dir, "private"), []byte("private"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := blobNames(t, s.dir)
	good := digestOf([]byte("good"))
	upload := func() string {
		res, _ := s.do("POST", "/v2/app/blobs/uploads/", "")
		return res.Header.Get("Location")
	}
	_, manifest := s.do("GET", "/v2/a/manifests/"+s.manifest, "")
	broken := upload()
	if res, _ := s.do("PATCH", broken, "x", "Content-Range", "5-5"); res.StatusCode != 416 {
		t.Errorf("a gap: %s", res.Status)
	}
	cases := []struct {
		name, method, path, body string
		status                   int
	}{
		{"wrong digest", "PUT", upload() + "?digest=" + good, "bad", 400},
		{"no digest", "PUT", upload(), "good", 400},
		{"digest of another kind", "PUT", upload() + "?digest=md5:00", "good", 400},
		{"single POST, wrong digest", "POST", "/v2/app/blobs/uploads/?digest=" + good, "bad", 400},
		{"upload that was spoiled", "PUT", broken + "?digest=" + good, "good", 404},
		{"unknown upload", "PATCH", "/v2/app/blobs/uploads/nope", "x", 404},
		{"path as digest", "GET", "/v2/app/blobs/../../private", "", 400},
		{"escaped path as digest", "GET", "/v2/app/blobs/sha256:..%2f..%2f..%2fprivate", "", 400},
		{"upper case digest", "GET", "/v2/app/blobs/" + strings.ToUpper(s.layer), "", 400},
		{"path as repository", "GET", "/v2/../../blobs/" + s.layer, "", 400},
		{"upper case repository", "GET", "/v2/App/blobs/" + s.layer, "", 400},
		{"empty repository", "GET", "/v2//blobs/" + s.layer, "", 400},
		{"path as tag", "GET", "/v2/app/manifests/..%2f..%2findex.json", "", 400},
		{"outside", "GET", "/index.json", "", 404},
		{"blob is read only", "PUT", "/v2/app/blobs/" + s.layer, "x", 405},
		{"blob is kept", "DELETE", "/v2/app/blobs/" + s.layer, "", 405},
		{"manifest is kept", "DELETE", "/v2/app/manifests/" + s.manifest, "", 405},
		{"manifest under another digest", "PUT", "/v2/app/manifests/" + good, manifest, 400},
		{"manifest that is no JSON", "PUT", "/v2/app/manifests/x", "{", 400},
		{"manifest without meaning", "PUT", "/v2/app/manifests/x", "{}", 400},
		{"manifest of a missing layer", "PUT", "/v2/app/manifests/x", strings.Replace(manifest, s.layer, good, 1), 400},
		{"manifest with a wrong size", "PUT", "/v2/app/manifests/x", strings.Replace(manifest, `"size":6000`, `"size":6001`, 1), 400},
		{"manifest that is too large", "PUT", "/v2/app/manifests/x", strings.Repeat(" ", maxManifest+1), 400},
		{"manifest that is not there", "GET", "/v2/app/manifests/" + good, "", 404},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			res, body := s.do(c.method, c.path, c.body)
			if res.StatusCode != c.status || strings.Contains(body, "private") && c.status == 200 {
				t.Errorf("%s, want %d: %.200s", res.Status, c.status, body)
			}
			if c.status == 400 && !strings.Contains(body, `"errors"`) {
				t.Errorf("no reason is given: %s", body)
			}
		})
	}
	if diff := cmp.Diff(before, blobNames(t, s.dir)); diff != "" {
		t.Errorf("blobs before and after (-before +after):\n%s", diff)
	}
}

// TestTruncatedUpload sends fewer bytes than announced and hangs up.
func TestTruncatedUpload(t *testing.T) {
	s := newTestStore(t)
	before := blobNames(t, s.dir)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	data := "good"
	fmt.Fprintf(conn, "POST /v2/app/blobs/uploads/?digest=%s HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 10\r\n\r\n%s", digestOf([]byte(data)), data)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != 400 {
		t.Errorf("answer %v, %v", res, err)
	}
	conn.Close()
	if diff := cmp.Diff(before, blobNames(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyLoopback(t *testing.T) {
	s := newTestStore(t)
	host, _, err := net.SplitHostPort(s.Addr())
	if err != nil || host != "127.0.0.1" {
		t.Errorf("address %s", s.Addr())
	}
	if res, _ := s.do("GET", "/v2/", "", "Host", "rebound.invalid:80"); res.StatusCode != 403 {
		t.Errorf("a foreign host name: %s", res.Status)
	}
	if res, body := s.do("GET", "/v2/", ""); res.StatusCode != 200 || body != "{}" {
		t.Errorf("ping: %s %s", res.Status, body)
	}
}

func TestCloseRemovesUnfinishedUploads(t *testing.T) {
	s := newTestStore(t)
	before := blobNames(t, s.dir)
	res, _ := s.do("POST", "/v2/app/blobs/uploads/", "")
	s.do("PATCH", res.Header.Get("Location"), "half")
	if len(blobNames(t, s.dir)) != len(before)+1 {
		t.Fatal("the upload is not on disk")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, blobNames(t, s.dir)); diff != "" {
		t.Error(diff)
	}
	if _, err := net.Dial("tcp", s.Addr()); err == nil {
		t.Error("it still listens")
	}
}

func blobNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
