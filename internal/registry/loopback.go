package registry

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// Loopback serves a store as a registry on 127.0.0.1 and a random port. Every repository name shows the same
// blobs, so that an engine finds the layers of a component already there when it pushes an image.
type Loopback struct {
	store    store
	listener net.Listener
	server   *http.Server
	served   chan struct{}

	mu      sync.Mutex
	log     []Access
	uploads map[string]*upload
}

// Access is one request that a loopback registry answered.
type Access struct {
	Method string
	Path   string // with the query
	Status int
	Bytes  int64 // of the answer's body
	Read   int64 // of the request's body
}

// BlobDownload returns the digest when the access sent content of a blob.
func (a Access) BlobDownload() (digest string, ok bool) {
	path, _, _ := strings.Cut(a.Path, "?")
	i := strings.LastIndex(path, "/blobs/sha256:")
	if a.Method != http.MethodGet || i < 0 || a.Bytes == 0 || a.Status/100 != 2 {
		return "", false
	}
	return path[i+len("/blobs/"):], true
}

// NewLoopback starts a registry over the store in dir, which is made when it does not exist.
func NewLoopback(dir string) (*Loopback, error) {
	s, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting loopback registry: %w", err)
	}
	l := &Loopback{store: s, listener: listener, served: make(chan struct{}), uploads: map[string]*upload{}}
	l.server = &http.Server{Handler: http.HandlerFunc(l.serve), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}
	go func() {
		defer close(l.served)
		_ = l.server.Serve(listener) // ends with Close; a broken listener shows as refused connections
	}()
	return l, nil
}

// Addr is the registry's address, 127.0.0.1:PORT.
func (l *Loopback) Addr() string { return l.listener.Addr().String() }

// AccessLog returns what was answered so far, in order of completion.
func (l *Loopback) AccessLog() []Access {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Access(nil), l.log...)
}

// Close stops the server. Requests in flight may end until ctx is done, then they are cut off. Unfinished
// uploads are removed.
func (l *Loopback) Close(ctx context.Context) error {
	err := l.server.Shutdown(ctx)
	if err != nil {
		err = l.server.Close()
	}
	<-l.served
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, u := range l.uploads {
		u.discard()
		delete(l.uploads, id)
	}
	return err
}

func (l *Loopback) serve(w http.ResponseWriter, r *http.Request) {
	cw := &countingWriter{ResponseWriter: w, status: http.StatusOK}
	body := &countingReader{r: r.Body}
	r.Body = body
	l.route(cw, r)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, Access{Method: r.Method, Path: r.URL.RequestURI(), Status: cw.status, Bytes: cw.n, Read: body.n})
}

// route splits /v2/REPOSITORY/KIND/REST. The raw path is used: nothing in a valid one is escaped or cleaned.
func (l *Loopback) route(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	// A name that resolves to this address must not reach us from a browser.
	if host, _, err := net.SplitHostPort(r.Host); err != nil || (host != "127.0.0.1" && host != "localhost") {
		fail(w, http.StatusForbidden, "DENIED", "only loopback names are served")
		return
	}
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), "/v2/")
	switch {
	case ok && path == "":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
		return
	case !ok && r.URL.Path == "/v2":
		http.Redirect(w, r, "/v2/", http.StatusMovedPermanently)
		return
	}
	for _, kind := range []string{"/blobs/uploads", "/blobs/", "/manifests/", "/tags/list"} {
		i := strings.LastIndex(path, kind)
		if !ok || i < 0 {
			continue
		}
		repo, rest := path[:i], strings.TrimPrefix(path[i+len(kind):], "/")
		if len(repo) > 255 || !repoPattern.MatchString(repo) {
			fail(w, http.StatusBadRequest, "NAME_INVALID", "invalid repository name")
			return
		}
		switch kind {
		case "/blobs/uploads":
			l.serveUpload(w, r, repo, rest)
		case "/blobs/":
			l.serveBlob(w, r, rest)
		case "/manifests/":
			l.serveManifest(w, r, repo, rest)
		default:
			l.serveTags(w, r, repo)
		}
		return
	}
	fail(w, http.StatusNotFound, "NAME_UNKNOWN", "no such resource")
}

func (l *Loopback) serveBlob(w http.ResponseWriter, r *http.Request, digest string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		fail(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "blobs are read only")
		return
	}
	if !digestPattern.MatchString(digest) {
		fail(w, http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest")
		return
	}
	f, err := os.Open(l.store.blob(digest))
	if err != nil {
		fail(w, http.StatusNotFound, "BLOB_UNKNOWN", "no such blob")
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		fail(w, http.StatusNotFound, "BLOB_UNKNOWN", "no such blob")
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Etag", `"`+digest+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, code, message)
}

// countingWriter notes status and bytes, and keeps the way for the kernel to send files itself.
type countingWriter struct {
	http.ResponseWriter
	status int
	n      int64
}

func (c *countingWriter) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

func (c *countingWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.ResponseWriter, r)
	c.n += n
	return n, err
}

type countingReader struct {
	r io.ReadCloser
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *countingReader) Close() error { return c.r.Close() }
