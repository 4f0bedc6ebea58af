package registry

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
)

// upload is a blob that arrives in one or more requests.
type upload struct {
	mu   sync.Mutex
	file *os.File
	hash hash.Hash
	size int64
}

func (u *upload) discard() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.file.Close()
	os.Remove(u.file.Name())
}

// receive appends a request's body. A body that ends early or whose range does not fit spoils the upload.
func (u *upload) receive(r *http.Request) error {
	if cr := r.Header.Get("Content-Range"); cr != "" {
		var from, to int64
		if _, err := fmt.Sscanf(cr, "%d-%d", &from, &to); err != nil || from != u.size || to < from {
			return fmt.Errorf("range %q does not continue at %d", cr, u.size)
		}
	}
	n, err := io.Copy(io.MultiWriter(u.file, u.hash), r.Body)
	u.size += n
	if err != nil {
		return fmt.Errorf("upload ended early: %w", err)
	}
	return nil
}

func (l *Loopback) serveUpload(w http.ResponseWriter, r *http.Request, repo, id string) {
	if id == "" && r.Method == http.MethodPost {
		l.startUpload(w, r, repo)
		return
	}
	l.mu.Lock()
	u := l.uploads[id]
	l.mu.Unlock()
	if u == nil {
		fail(w, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload")
		return
	}
	switch r.Method {
	case http.MethodGet:
		u.mu.Lock()
		defer u.mu.Unlock()
		uploadStatus(w, repo, id, u.size, http.StatusNoContent)
	case http.MethodPatch:
		u.mu.Lock()
		err := u.receive(r)
		size := u.size
		u.mu.Unlock()
		if err != nil {
			l.dropUpload(id, u)
			fail(w, http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", err.Error())
			return
		}
		uploadStatus(w, repo, id, size, http.StatusAccepted)
	case http.MethodPut:
		l.finishUpload(w, r, repo, id, u)
	case http.MethodDelete:
		l.dropUpload(id, u)
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "not a way to upload")
	}
}

// startUpload answers a mount of a blob that is there at once: all repositories share the blobs.
func (l *Loopback) startUpload(w http.ResponseWriter, r *http.Request, repo string) {
	query := r.URL.Query()
	if mount := query.Get("mount"); mount != "" && digestPattern.MatchString(mount) && l.store.has(mount) {
		blobCreated(w, repo, mount)
		return
	}
	f, err := os.CreateTemp(filepath.Join(l.store.dir, "blobs", "sha256"), ".upload-*")
	if err != nil {
		fail(w, http.StatusInsufficientStorage, "UNKNOWN", "cannot write to the store: "+err.Error())
		return
	}
	u := &upload{file: f, hash: sha256.New()}
	id := rand.Text()
	l.mu.Lock()
	l.uploads[id] = u
	l.mu.Unlock()
	if query.Get("digest") != "" {
		l.finishUpload(w, r, repo, id, u)
		return
	}
	uploadStatus(w, repo, id, 0, http.StatusAccepted)
}

func uploadStatus(w http.ResponseWriter, repo, id string, size int64, status int) {
	w.Header().Set("Location", "/v2/"+repo+"/blobs/uploads/"+id)
	w.Header().Set("Docker-Upload-Uuid", id)
	w.Header().Set("Range", fmt.Sprintf("0-%d", max(size-1, 0)))
	w.WriteHeader(status)
}

func blobCreated(w http.ResponseWriter, repo, digest string) {
	w.Header().Set("Location", "/v2/"+repo+"/blobs/"+digest)
	w.Header().Set("Docker-Content-Digest", digest)
	w.WriteHeader(http.StatusCreated)
}

func (l *Loopback) dropUpload(id string, u *upload) {
	l.mu.Lock()
	delete(l.uploads, id)
	l.mu.Unlock()
	u.discard()
}

func (l *Loopback) finishUpload(w http.ResponseWriter, r *http.Request, repo, id string, u *upload) {
	defer l.dropUpload(id, u)
	digest := r.URL.Query().Get("digest")
	if !digestPattern.MatchString(digest) {
		fail(w, http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest")
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.receive(r); err != nil {
		fail(w, http.StatusBadRequest, "BLOB_UPLOAD_INVALID", err.Error())
		return
	}
	if got := "sha256:" + hex.EncodeToString(u.hash.Sum(nil)); got != digest {
		fail(w, http.StatusBadRequest, "DIGEST_INVALID", "the content has digest "+got)
		return
	}
	if err := commit(u.file, l.store.blob(digest)); err != nil {
		fail(w, http.StatusInsufficientStorage, "UNKNOWN", "cannot write to the store: "+err.Error())
		return
	}
	blobCreated(w, repo, digest)
}

func (l *Loopback) serveManifest(w http.ResponseWriter, r *http.Request, repo, ref string) {
	byDigest := digestPattern.MatchString(ref)
	if !byDigest && !tagPattern.MatchString(ref) {
		fail(w, http.StatusBadRequest, "MANIFEST_INVALID", "neither a tag nor a sha256 digest")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		l.getManifest(w, r, repo, ref, byDigest)
	case http.MethodPut:
		l.putManifest(w, r, repo, ref, byDigest)
	default:
		fail(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "manifests are not removed here")
	}
}

func (l *Loopback) getManifest(w http.ResponseWriter, r *http.Request, repo, ref string, byDigest bool) {
	digest := ref
	if !byDigest {
		d, ok, err := l.store.find(repo + ":" + ref)
		if err != nil || !ok {
			fail(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "no such tag")
			return
		}
		digest = d.Digest
	}
	m, data, err := l.store.manifest(digest)
	if err != nil {
		fail(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "no such manifest")
		return
	}
	w.Header().Set("Content-Type", m.mediaType())
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(data)
	}
}

// putManifest accepts a manifest only when everything it points to is in the store.
func (l *Loopback) putManifest(w http.ResponseWriter, r *http.Request, repo, ref string, byDigest bool) {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxManifest+1))
	if err != nil || len(data) > maxManifest {
		fail(w, http.StatusBadRequest, "MANIFEST_INVALID", "the manifest ended early or is too large")
		return
	}
	m, err := parseManifest(data)
	if err != nil {
		fail(w, http.StatusBadRequest, "MANIFEST_INVALID", err.Error())
		return
	}
	digest, name := digestOf(data), repo+":"+ref
	if byDigest {
		name = repo + "@" + digest
		if digest != ref {
			fail(w, http.StatusBadRequest, "DIGEST_INVALID", "the content has digest "+digest)
			return
		}
	}
	for _, d := range m.references() {
		if info, err := os.Stat(l.store.blob(d.Digest)); err != nil || info.Size() != d.Size {
			fail(w, http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "no blob of that size: "+d.Digest)
			return
		}
	}
	if err := writeAtomic(l.store.blob(digest), data); err == nil {
		err = l.store.record(name, Descriptor{MediaType: m.mediaType(), Digest: digest, Size: int64(len(data))})
		if err == nil {
			w.Header().Set("Location", "/v2/"+repo+"/manifests/"+digest)
			w.Header().Set("Docker-Content-Digest", digest)
			w.WriteHeader(http.StatusCreated)
			return
		}
	}
	fail(w, http.StatusInsufficientStorage, "UNKNOWN", "cannot write to the store")
}

func (l *Loopback) serveTags(w http.ResponseWriter, r *http.Request, repo string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		fail(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "tags are listed only")
		return
	}
	idx, err := l.store.index()
	if err != nil {
		fail(w, http.StatusInternalServerError, "UNKNOWN", "cannot read the store")
		return
	}
	tags := []string{}
	for _, m := range idx.Manifests {
		if tag, ok := strings.CutPrefix(m.Annotations[refNameAnnotation], repo+":"); ok && tagPattern.MatchString(tag) {
			tags = append(tags, tag)
		}
	}
	sort.Strings(tags)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"name": repo, "tags": tags}) // fails when the client is gone
}
