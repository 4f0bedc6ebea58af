package launchtest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"imgsmith/internal/launch"
)

// Registry serves a few images by digest on the loopback, read only.
type Registry struct {
	Host  string // 127.0.0.1:PORT
	blobs map[string]blob
}

type blob struct {
	media string
	data  []byte
}

// NewRegistry starts a registry that lives as long as the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{blobs: map[string]blob{}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.Host = strings.TrimPrefix(s.URL, "http://")
	return r
}

// ServeHTTP answers the reading half of the distribution API, by digest.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/v2/" {
		return
	}
	b, ok := r.blobs[path.Base(q.URL.Path)]
	if !ok {
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", b.media)
	w.Header().Set("Docker-Content-Digest", path.Base(q.URL.Path))
	w.Header().Set("Content-Length", fmt.Sprint(len(b.data)))
	_, _ = w.Write(b.data)
}

func (r *Registry) put(media string, data []byte) map[string]any {
	d := digest(data)
	r.blobs[d] = blob{media, data}
	return map[string]any{"mediaType": media, "digest": d, "size": len(data)}
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

// Add makes an image of uncompressed layers and returns how a daemon is asked for it.
func (r *Registry) Add(name string, config map[string]any, layers ...[]byte) launch.Image {
	var descs []any
	var diffIDs []string
	for _, l := range layers {
		descs = append(descs, r.put("application/vnd.oci.image.layer.v1.tar", l))
		diffIDs = append(diffIDs, digest(l))
	}
	cfg, _ := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": config, "rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	cd := r.put("application/vnd.oci.image.config.v1+json", cfg)
	man, _ := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": cd, "layers": descs,
	})
	md := r.put("application/vnd.oci.image.manifest.v1+json", man)
	return launch.Image{
		Ref:    r.Host + "/staging/" + name + "@" + md["digest"].(string),
		Digest: md["digest"].(string), ConfigDigest: cd["digest"].(string), DiffIDs: diffIDs,
	}
}

// HostPython is a layer with this host's Python interpreter, its standard library and the libraries both need,
// at their own paths: an image with a real interpreter without any download.
func HostPython(t testing.TB) (layer []byte, python string) {
	t.Helper()
	out, err := exec.Command("python3", "-I", "-c",
		"import sys, os, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib')); print(sys.base_prefix)").Output()
	if err != nil {
		t.Skip("a test image needs python3 on this host")
	}
	f := strings.Split(strings.TrimSpace(string(out)), "\n")
	files := map[string]string{f[0]: f[0]}
	err = filepath.WalkDir(f[1], func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "test" || d.Name() == "site-packages" || d.Name() == "dist-packages" || d.Name() == "__pycache__" || d.Name() == "idlelib" || d.Name() == "tkinter" || strings.HasPrefix(d.Name(), "config-")) {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() && !strings.HasSuffix(p, ".a") {
			files[p] = p
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for p := range files {
		if p == f[0] || strings.HasSuffix(p, ".so") {
			addNeeded(files, p)
		}
	}
	return Tar(t, files, map[string]string{"etc/passwd": "root:x:0:0::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n", "tmp/.keep": ""}), f[0]
}

// addNeeded adds what ldd resolves for one file, under the path the loader asks for.
func addNeeded(files map[string]string, p string) {
	out, _ := exec.Command("ldd", p).Output()
	for line := range strings.SplitSeq(string(out), "\n") {
		for w := range strings.FieldsSeq(line) {
			if strings.HasPrefix(w, "/") {
				files[w] = w
			}
		}
	}
}

// Tar makes one layer: files of the host by their path in the image, and texts.
func Tar(t testing.TB, files map[string]string, texts map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	names := make([]string, 0, len(files)+len(texts))
	for n := range files {
		names = append(names, n)
	}
	for n := range texts {
		names = append(names, n)
	}
	sort.Strings(names)
	dirs := map[string]bool{".": true, "/": true}
	for _, n := range names {
		mode, data := int64(0o644), []byte(texts[n])
		if src, ok := files[n]; ok {
			st, err := os.Stat(src)
			if err == nil {
				data, err = os.ReadFile(src)
			}
			if err != nil {
				t.Fatal(err)
			}
			mode = int64(st.Mode().Perm())
		}
		if err := errors.Join(parents(w, dirs, strings.TrimPrefix(n, "/")), entry(w, strings.TrimPrefix(n, "/"), mode, data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func parents(w *tar.Writer, seen map[string]bool, name string) error {
	d := path.Dir(name)
	if seen[d] {
		return nil
	}
	seen[d] = true
	if err := parents(w, seen, d); err != nil {
		return err
	}
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755})
}

func entry(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(data))
	return err
}
