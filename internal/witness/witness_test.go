package witness

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"imgsmith/internal/launch/launchtest"
	"imgsmith/internal/registry"
)

// TestWitness has three programs that share no code with us unpack the real image: their trees must be the one
// that the component tables predict, path for path.
func TestWitness(t *testing.T) {
	usual := asked(t, "IMGSMITH_TEST_WITNESS", "make test-witness")
	for _, c := range []struct {
		name string
		env  env
	}{{"zstd", usual}, {"gzip", usual.emptyStore(t)}} {
		t.Run(c.name, func(t *testing.T) {
			file, target := variant(t, c.name)
			img, took := c.env.build(t, file)
			s := c.env.open(t, img)
			want := predicted(t, s.tree)
			say("%s, level %s: staged in %.1f s, %d layers, %.0f MB, %d paths predicted", c.name, target.Compression.Level, took.Seconds(), len(img.Layers), float64(img.Size)/1e6, len(want))
			for _, w := range []struct {
				name   string
				unpack func(*testing.T, env, staged) tree
			}{{"go-containerregistry", byLibrary}, {"containerd", byContainerd}, {"docker-overlay2", byDocker}} {
				t.Run(w.name, func(t *testing.T) {
					start := time.Now()
					got := w.unpack(t, c.env, s)
					equal(t, w.name, want, got)
					say("%s, %s: %d paths compared, %d files, %.0f s", c.name, w.name, len(got), files(got), time.Since(start).Seconds())
				})
			}
		})
	}
}

func files(t tree) (n int) {
	for _, x := range t {
		if x.kind == "file" {
			n++
		}
	}
	return n
}

// byLibrary flattens the image with go-containerregistry.
func byLibrary(t *testing.T, e env, s staged) tree {
	p, err := layout.FromPath(e.store)
	if err != nil {
		t.Fatal(err)
	}
	h, err := gcr.NewHash(s.Digest)
	if err != nil {
		t.Fatal(err)
	}
	img, err := p.Image(h)
	if err != nil {
		t.Fatal(err)
	}
	r := mutate.Extract(img)
	defer r.Close()
	return inTar(t, r)
}

// byContainerd imports the image into a containerd of our own and mounts the snapshot that it unpacked.
func byContainerd(t *testing.T, e env, s staged) tree {
	dir := scratch(t)
	sock := startContainerd(t, e, dir)
	const name = "witness.invalid/image:staged"
	ctr := func(stdin io.Reader, args ...string) string {
		cmd := exec.CommandContext(t.Context(), filepath.Join(e.engines, "ctr"), append([]string{"--address", sock, "--namespace", "witness"}, args...)...)
		cmd.Stdin = stdin
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, tail(out))
		}
		return string(out)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive(w, e, s, name)) }()
	ctr(r, "images", "import", "--snapshotter", "overlayfs", "--platform", "linux/amd64", "-")
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	ctr(nil, "images", "mount", "--snapshotter", "overlayfs", name, root)
	defer func() {
		if err := syscall.Unmount(root, 0); err != nil {
			t.Errorf("unmounting the snapshot: %v", err)
		}
	}()
	return onDisk(t, root)
}

// archive writes the image as an OCI archive.
func archive(w io.Writer, e env, s staged, name string) error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{map[string]any{
		"mediaType": s.manifest.MediaType, "digest": s.Digest, "size": fileSize(s.store.BlobPath(s.Digest)),
		"annotations": map[string]string{"io.containerd.image.name": name}, "platform": map[string]string{"os": "linux", "architecture": "amd64"}}}})
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	add := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	for name, text := range map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index} {
		if err := add(name, int64(len(text)), bytes.NewReader(text)); err != nil {
			return err
		}
	}
	blobs := []string{s.Digest, s.manifest.Config.Digest.String()}
	for _, l := range s.manifest.Layers {
		blobs = append(blobs, l.Digest.String())
	}
	for _, d := range blobs {
		f, err := os.Open(s.store.BlobPath(d))
		if err != nil {
			return err
		}
		err = add("blobs/"+strings.Replace(d, ":", "/", 1), fileSize(f.Name()), f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return tw.Close()
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return -1
	}
	return st.Size()
}

// containerdConfig leaves out what would write outside our directory.
const containerdConfig = `version = 3
root = %[1]q
state = %[2]q
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
address = %[3]q
`

// startContainerd returns the socket of a daemon that ends with the test, by whatever way that ends.
func startContainerd(t *testing.T, e env, dir string) string {
	t.Helper()
	sock, config := filepath.Join(dir, "c.sock"), filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, containerdConfig, filepath.Join(dir, "data"), filepath.Join(dir, "state"), sock), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(e.engines, "containerd"), "--config", config)
	cmd.Env = append(os.Environ(), "PATH="+e.engines+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the death signal is tied to the thread that forked
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("end of containerd's log:\n%s", tail(read(t, log.Name())))
		}
		log.Close()
	})
	for range 300 {
		if _, err := os.Stat(sock); err == nil && exec.Command(filepath.Join(e.engines, "ctr"), "--address", sock, "version").Run() == nil {
			return sock
		}
		select {
		case <-done:
			t.Fatalf("containerd ended:\n%s", tail(read(t, log.Name())))
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatal("containerd does not answer")
	return ""
}

// addedByDocker are the paths that a Docker engine puts into every container that it makes.
var addedByDocker = []string{".dockerenv", "dev", "dev/console", "dev/pts", "dev/shm", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "proc", "sys"}

// byDocker pulls the image into an engine with overlay2 and has it export the file system of a container that
// never ran.
func byDocker(t *testing.T, e env, s staged) tree {
	d := launchtest.ForTest(t, launchtest.Config{Engines: e.engines, Store: "graphdriver"})
	api, ref := pulled(t, d, e, s.Digest)
	info, err := api.Info(t.Context())
	if err != nil || info.Driver != "overlay2" {
		t.Fatalf("the engine's storage driver is %s, %v; want overlay2", info.Driver, err)
	}
	made, err := api.ContainerCreate(t.Context(), &container.Config{Image: ref, Cmd: []string{"none"}}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := api.ContainerExport(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := inTar(t, r)
	promised := predicted(t, s.tree)
	for _, p := range addedByDocker {
		if want, ok := promised[p]; ok {
			got[p] = want
		} else {
			delete(got, p)
		}
	}
	return got
}

// pulled gives an engine the image from a loopback registry over the store, by digest.
func pulled(t *testing.T, d *launchtest.Dockerd, e env, digest string) (*client.Client, string) {
	t.Helper()
	loop, err := registry.NewLoopback(e.store)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := later()
		defer cancel()
		if err := loop.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	api, err := client.NewClientWithOpts(client.WithHost(d.Host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	ref := loop.Addr() + "/staging/quickstart@" + digest
	if err := pull(t.Context(), api, ref); err != nil {
		t.Fatal(err)
	}
	return api, ref
}

func pull(ctx context.Context, api *client.Client, ref string) error {
	rc, err := api.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return err
	}
	defer rc.Close()
	dec := json.NewDecoder(rc)
	for {
		var m struct {
			Error string `json:"error"`
		}
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if m.Error != "" {
			return errors.New(m.Error)
		}
	}
}
