package child

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

func TestDaemonConfig(t *testing.T) {
	raw, err := daemonConfig("/", "/opt/runc", Options{StoreAddr: "127.0.0.1:1234", Limits: Limits{MaxUsed: 4000, MinFree: 500}})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := toml.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"root":    "/state",
		"grpc":    map[string]any{"uid": int64(os.Getuid()), "gid": int64(os.Getgid())},
		"otel":    map[string]any{"socketPath": "/run/otel.sock"},
		"log":     map[string]any{"level": "info"},
		"history": map[string]any{"maxEntries": int64(20), "maxAge": "24h"},
		"worker": map[string]any{
			"containerd": map[string]any{"enabled": false},
			"oci": map[string]any{"enabled": true, "binary": "/opt/runc", "networkMode": "host", "gc": true,
				"defaultCgroupParent": fmt.Sprintf("/imgsmith/%d", os.Getpid()),
				"gcpolicy":            []any{map[string]any{"all": true, "reservedSpace": int64(1000), "maxUsedSpace": int64(4000), "minFreeSpace": int64(500)}}},
		},
		"registry": map[string]any{
			"store.imgsmith.invalid": map[string]any{"mirrors": []any{"127.0.0.1:1234"}},
			"127.0.0.1:1234":         map[string]any{"http": true},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestDefaultLimits(t *testing.T) {
	l, err := Limits{}.fill(t.TempDir())
	if err != nil || l.MaxUsed <= 0 || l.MaxUsed > 20e9 || l.MinFree <= 0 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := (Limits{}).fill("/no/such/directory"); err == nil {
		t.Error("a directory that is not there has a size")
	}
}

func TestDaemonEnv(t *testing.T) {
	got := daemonEnv([]string{"PATH=/bin", "SECRET_TOKEN=x", "https_proxy=http://p", "LD_PRELOAD=/x.so", "BUILDKIT_DEBUG=1", "HOME=/root", "broken"})
	if diff := cmp.Diff([]string{"PATH=/bin", "https_proxy=http://p", "HOME=/root"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTail(t *testing.T) {
	l := &tail{limit: 20}
	for i := range 100 {
		fmt.Fprintf(l, "line %d\n", i)
	}
	if got := l.String(); got != "line 98\nline 99" {
		t.Errorf("got %q", got)
	}
	if len(l.buf) > 60 {
		t.Errorf("%d bytes are kept", len(l.buf))
	}
	short := &tail{limit: 20}
	fmt.Fprint(short, "one\n")
	if short.String() != "one" {
		t.Errorf("got %q", short.String())
	}
}

func TestInitIsNotRunByAccident(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	for _, os.Args = range [][]string{{initName}, {initName, "a", "b", "c"}, {"imgsmith", "a", "b", "c"}} {
		if ran, _ := RunInitIfRequested(); ran {
			t.Errorf("%s ran the init in process %d", strings.Join(os.Args, " "), os.Getpid())
		}
	}
}
