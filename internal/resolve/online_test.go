package resolve

import (
	"os"
	"strings"
	"testing"
	"time"

	"imgsmith/internal/facts"
	"imgsmith/internal/matrix"
)

// TestTargetOnline resolves real entries against the host's own index. It is asked for by name, because it
// needs a network and its answer is that of the day.
func TestTargetOnline(t *testing.T) {
	if os.Getenv("IMGSMITH_TEST_ONLINE") == "" {
		t.Skip("IMGSMITH_TEST_ONLINE is not set: needs the network and a package index")
	}
	r := testResolver(t, os.Environ())
	var first []matrix.Wheel
	for _, tc := range []struct{ tensorflow, python, glibc string }{
		{"2.19.1", "3.11", "2.36"}, {"2.21.0", "3.11", "2.36"}, {"2.19.1", "3.11", "2.31"}, {"2.18", "3.11", "2.36"}, {"2.12.1", "3.11", "2.36"}, {"2.14.1", "3.11", "2.36"}, {"2.16.2", "3.11", "2.36"}, {"2.21.0", "3.13", "2.41"},
	} {
		e := matrix.Entry{Name: "online", File: "x.yaml", Base: "debian:12", Platform: "linux/amd64", Supplier: "wheels",
			Python: matrix.Python{Version: tc.python, From: "os"}, TensorFlow: matrix.TensorFlow{Version: tc.tensorflow},
			CUDA: "auto", CuDNN: "auto", Compression: matrix.Compression{Algorithm: "zstd", Level: "default"}}
		start := time.Now()
		target, urls, warnings, err := r.Target(t.Context(), e, BaseInfo{Glibc: tc.glibc})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		var size int64
		nvidia := map[string]string{}
		for _, w := range target.Wheels {
			size += w.Size
			if strings.HasPrefix(w.Name, "nvidia-") {
				nvidia[w.Name] = w.Version
			}
			if urls[w.SHA256] == "" {
				t.Errorf("%s has no URL", w.File)
			}
		}
		t.Logf("tensorflow %s python %s glibc %s: %d wheels, %.2f GB, %v, cuda %s cudnn %s %v\n%v", target.TensorFlow, tc.python, tc.glibc,
			len(target.Wheels), float64(size)/1e9, took.Round(time.Millisecond), target.CUDA, target.CuDNN, warnings, nvidia)
		if facts.Compare(tc.tensorflow, "2.18") >= 0 && (target.CUDA != "12.5" || target.CuDNN != "9.3.0.75") {
			t.Errorf("pair is %s/%s", target.CUDA, target.CuDNN)
		}
		if first == nil {
			first = target.Wheels
		}
		again, err := r.Locate(t.Context(), e, target)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range target.Wheels {
			if again[w.SHA256] != urls[w.SHA256] {
				t.Errorf("%s: found at %q, before at %q", w.File, again[w.SHA256], urls[w.SHA256])
			}
		}
	}
}
