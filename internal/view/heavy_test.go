package view

import (
	"context"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"imgsmith/internal/registry"
)

// TestAgainstDecompressing compares reading a real image with decompressing its layers only. It reports; the
// figures stand in docs/static.md.
func TestAgainstDecompressing(t *testing.T) {
	ref := os.Getenv("IMGSMITH_TEST_IMAGE")
	if ref == "" {
		t.Skip("needs IMGSMITH_TEST_IMAGE, a reference of a real image such as oci-layout:DIR@sha256:…")
	}
	img, err := registry.Open(t.Context(), ref, "linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	raw := func() (n int64) {
		for i := range img.Layers {
			r, err := img.OpenLayer(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			z, err := decompress(r)
			if err != nil {
				t.Fatal(err)
			}
			k, err := io.Copy(io.Discard, z)
			if err != nil {
				t.Fatal(err)
			}
			n += k
			z.Close()
			r.Close()
		}
		return n
	}
	raw() // into the page cache
	for range 3 {
		start, cpu := time.Now(), spent(t)
		n := raw()
		plain, plainCPU := time.Since(start), spent(t)-cpu
		layers := make([]Layer, len(img.Layers))
		for i, d := range img.Layers {
			layers[i] = Layer{Digest: d.Digest, Size: d.Size}
		}
		start, cpu = time.Now(), spent(t)
		got, err := Layered(context.WithoutCancel(t.Context()), Image{Ref: ref, Config: img.Config, Layers: layers}, img.OpenLayer, Options{})
		if err != nil {
			t.Fatal(err)
		}
		read, readCPU := time.Since(start), spent(t)-cpu
		t.Logf("decompressing %d MB: %v (processor %v); reading: %v (%v), %.2f (%.2f) times; %d nodes; peak memory %d MiB", n>>20, plain, plainCPU, read, readCPU,
			float64(read)/float64(plain), float64(readCPU)/float64(plainCPU), got.Tree.Len(), peak(t)>>10)
		runtime.GC()
		if got.Tree.Len() == 0 {
			t.Fatal("nothing was read")
		}
	}
}

// peak is the largest resident set of this process, in KiB.
func peak(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc")
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// spent is the processor time of this process.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
