package launchtest

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// using lists processes that have dir on their command line.
func using(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range list {
		b, _ := os.ReadFile(p)
		if bytes.Contains(b, []byte(dir)) {
			out = append(out, p+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

func clean(t *testing.T, dir string) {
	t.Helper()
	for range 100 { // the kernel takes a moment to end a PID namespace
		if len(using(t, dir)) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if left := using(t, dir); len(left) > 0 {
		t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(b, []byte(dir)) {
		t.Errorf("mounts are left below %s", dir)
	}
}

const playKey = "LAUNCHTEST_PLAY"

// TestMain lets the test binary be a process that starts an engine and is killed.
func TestMain(m *testing.M) {
	dir := os.Getenv(playKey)
	if dir == "" {
		os.Exit(m.Run())
	}
	d, err := Start(context.Background(), Config{Engines: Engines(), Dir: dir})
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString("ready\n")
	d.Wait()
}

func TestEngineLeavesNothing(t *testing.T) {
	engines := Engines()
	if why := Missing(engines); why != "" {
		t.Skip(why)
	}
	dir := func(t *testing.T) string {
		d, err := os.MkdirTemp("", "imgd")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(d) })
		return d
	}
	t.Run("stop", func(t *testing.T) {
		dir := dir(t)
		d, err := Start(t.Context(), Config{Engines: engines, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if len(using(t, dir)) == 0 {
			t.Fatal("no process uses the folder: this test sees nothing")
		}
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		clean(t, dir)
	})
	t.Run("crash", func(t *testing.T) {
		dir := dir(t)
		d, err := Start(t.Context(), Config{Engines: engines, Dir: dir, Store: "graphdriver"})
		if err != nil {
			t.Fatal(err)
		}
		d.Kill()
		clean(t, dir)
		if err := d.Stop(); err != nil {
			t.Errorf("stopping what is gone: %v", err)
		}
	})
	t.Run("its starter is killed", func(t *testing.T) {
		dir := dir(t)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), playKey+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 6)
		if n, err := out.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
			t.Fatalf("it said %q, %v", buf[:n], err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		clean(t, dir)
	})
	t.Run("does not start", func(t *testing.T) {
		dir := dir(t)
		if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Start(t.Context(), Config{Engines: engines, Dir: dir}); err == nil || !strings.Contains(err.Error(), "data") {
			t.Errorf("got %v, want the engine's own words", err)
		}
		clean(t, dir)
	})
}

func TestMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to come past the first question")
	}
	if why := Missing(t.TempDir()); !strings.Contains(why, "no dockerd in") || !strings.Contains(why, EngineDirEnv) {
		t.Errorf("got %q", why)
	}
}

func TestRegistry(t *testing.T) {
	r := NewRegistry(t)
	img := r.Add("x", map[string]any{"User": "1"}, Tar(t, nil, map[string]string{"a/b": "c"}))
	if img.Ref != r.Host+"/staging/x@"+img.Digest || len(img.DiffIDs) != 1 || img.ConfigDigest == img.Digest {
		t.Fatalf("got %+v", img)
	}
	for path, want := range map[string]int{
		"/v2/": 200, "/v2/staging/x/manifests/" + img.Digest: 200, "/v2/staging/x/blobs/" + img.ConfigDigest: 200,
		"/v2/staging/x/blobs/" + img.DiffIDs[0]: 200, "/v2/staging/x/manifests/latest": 404,
	} {
		resp, err := http.Get("http://" + r.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}
