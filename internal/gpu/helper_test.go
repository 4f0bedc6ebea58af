package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const playKey = "GPU_TEST_PLAY"

// TestMain lets the test binary play the helper.
func TestMain(m *testing.M) {
	switch how := os.Getenv(playKey); {
	case how == "":
		os.Exit(m.Run())
	case how == "crash":
		fmt.Fprintln(os.Stderr, "symbol lookup error: undefined symbol: nvmlNewThing")
		os.Exit(127)
	case how == "hang":
		time.Sleep(time.Hour)
	case strings.HasPrefix(how, "watch:"):
		for _, l := range strings.Split(strings.TrimPrefix(how, "watch:"), "|") {
			fmt.Println(l)
		}
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	default:
		fmt.Println(how)
	}
	os.Exit(0)
}

func self(t *testing.T) string {
	t.Helper()
	p, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestReadHelper(t *testing.T) {
	inv, err := ReadHelper(t.Context(), self(t), playKey+`={"inventory":{"source":"nvml-host","driver_version":"580.1","driver_cuda":"13.0","devices":[{"index":0,"uuid":"GPU-1","name":"n","compute_capability":"9.0","memory_total":5}]}}`)
	want := Inventory{Source: "nvml-host", DriverVersion: "580.1", DriverCUDA: "13.0", Devices: []Device{{UUID: "GPU-1", Name: "n", ComputeCapability: "9.0", MemoryTotal: 5}}}
	if err != nil || cmp.Diff(want, inv) != "" {
		t.Fatalf("%v\n%s", err, cmp.Diff(want, inv))
	}
}

func TestReadHelperErrors(t *testing.T) {
	for name, tc := range map[string]struct{ play, text string }{
		"crash":       {"crash", "undefined symbol: nvmlNewThing"},
		"garbage":     {"hello", "cannot be read"},
		"empty":       {"{}", "empty"},
		"unknown key": {`{"inventory":{},"verdict":"passed"}`, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadHelper(t.Context(), self(t), playKey+"="+tc.play)
			var he *HelperError
			if !errors.As(err, &he) || !strings.Contains(err.Error(), tc.text) || !strings.Contains(err.Error(), "libexec/imgsmith") {
				t.Fatalf("got %v", err)
			}
		})
	}
	t.Run("no such program", func(t *testing.T) {
		_, err := ReadHelper(t.Context(), filepath.Join(t.TempDir(), HelperName))
		var he *HelperError
		if !errors.As(err, &he) || !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("no driver", func(t *testing.T) {
		_, err := ReadHelper(t.Context(), self(t), playKey+`={"failure":{"kind":"no-driver","call":"dlopen","code":12,"message":"library not found"}}`)
		var f *Failure
		if !errors.As(err, &f) || f.Kind != NoDriver || f.Code != 12 || !strings.Contains(err.Error(), "no NVIDIA driver is installed") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("hang", func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(200*time.Millisecond, func() { cancel(why) })
		if _, err := ReadHelper(ctx, self(t), playKey+"=hang"); !errors.Is(err, why) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestWatch(t *testing.T) {
	play := `watch:{"devices":[{"uuid":"B","memory_used":5,"utilization_gpu":1}]}|{"devices":[{"uuid":"A"},{"uuid":"B","memory_used":90,"processes":[{"pid":7,"memory":80},{"pid":3,"memory":0}]}]}|{"devices":[{"uuid":"B","memory_used":6,"utilization_gpu":40,"processes":[{"pid":7,"memory":1}]}]}`
	w, err := Watch(t.Context(), self(t), time.Second, playKey+"="+play)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 3; time.Sleep(10 * time.Millisecond) { // all lines must be read before the end
		w.mu.Lock()
		if a := w.seen["B"]; a != nil {
			n = a.Samples
		}
		w.mu.Unlock()
	}
	got, err := w.Stop()
	want := []Activity{{UUID: "A", Samples: 1}, {UUID: "B", Samples: 3, MemoryMin: 5, MemoryMax: 90, UtilizationMax: 40, Processes: []uint32{3, 7}}}
	if err != nil || cmp.Diff(want, got) != "" {
		t.Fatalf("%v\n%s", err, cmp.Diff(want, got))
	}
}

func TestWatchFailure(t *testing.T) {
	w, err := Watch(t.Context(), self(t), time.Second, playKey+`=watch:{"failure":{"kind":"init-failed","call":"nvmlInit_v2","code":18,"message":"mismatch"}}`)
	if err != nil {
		t.Fatal(err)
	}
	var f *Failure
	if got, err := w.Stop(); !errors.As(err, &f) || f.Code != 18 || len(got) != 0 {
		t.Fatalf("got %v, %v", got, err)
	}
}
