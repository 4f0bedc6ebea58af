package child

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"imgsmith/internal/llb"
)

// cgroupParent is the control group of all build steps of all our daemons; below it each has its own, named by
// the process id of the imgsmith that started it.
const cgroupParent = "imgsmith"

// daemonConfig returns buildkitd.toml. It mentions our own store only: what the user configured for other
// daemons on this host does not change what we build.
func daemonConfig(root, runc string, opt Options) ([]byte, error) {
	limits, err := opt.Limits.fill(root)
	if err != nil {
		return nil, err
	}
	registries := map[string]any{}
	if opt.StoreAddr != "" {
		registries[llb.StoreHost] = map[string]any{"mirrors": []string{opt.StoreAddr}}
		registries[opt.StoreAddr] = map[string]any{"http": true}
	}
	return toml.Marshal(map[string]any{
		"root": filepath.Join(root, "state"),
		"grpc": map[string]any{"uid": os.Getuid(), "gid": os.Getgid()},
		"otel": map[string]any{"socketPath": filepath.Join(root, "run", "otel.sock")},
		"log":  map[string]any{"level": "info"},
		// History would keep results of programs that the cache policy wants to drop.
		"history": map[string]any{"maxEntries": 20, "maxAge": "24h"},
		"worker": map[string]any{
			"containerd": map[string]any{"enabled": false},
			"oci": map[string]any{
				"enabled": true,
				"binary":  runc,
				// Without a bridge of our own a step with network uses the host's.
				"networkMode":         "host",
				"defaultCgroupParent": "/" + cgroupParent + "/" + cgroupName(),
				"gc":                  true,
				"gcpolicy": []map[string]any{{
					"all":           true,
					"reservedSpace": limits.MaxUsed / 4,
					"maxUsedSpace":  limits.MaxUsed,
					"minFreeSpace":  limits.MinFree,
				}},
			},
		},
		"registry": registries,
	})
}

// fill replaces zero values by shares of the file system that holds the state.
func (l Limits) fill(root string) (Limits, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return l, err
	}
	total := int64(fs.Blocks) * fs.Bsize
	if l.MaxUsed <= 0 {
		l.MaxUsed = min(20e9, total/10)
	}
	if l.MinFree <= 0 {
		l.MinFree = total / 20
	}
	return l, nil
}

// cgroupName names the group of this process below cgroupParent.
func cgroupName() string { return strconv.Itoa(os.Getpid()) }

// removeStaleCgroups removes the empty control groups of daemons whose imgsmith is gone. Killed steps leave
// them behind; the kernel refuses to remove one that still holds a process.
func removeStaleCgroups() {
	for _, parent := range cgroupParents() {
		groups, _ := os.ReadDir(parent)
		for _, g := range groups {
			pid, err := strconv.Atoi(g.Name())
			if err == nil && (pid == os.Getpid() || unix.Kill(pid, 0) != nil) {
				removeGroup(filepath.Join(parent, g.Name()))
			}
		}
		_ = unix.Rmdir(parent)
	}
}

// cgroupParents returns the directory of cgroupParent in every hierarchy that has it.
func cgroupParents() []string {
	one, _ := filepath.Glob("/sys/fs/cgroup/" + cgroupParent)
	many, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroupParent)
	return append(one, many...)
}

// removeGroup removes a control group and those below it. Its files are not removed but vanish with it.
func removeGroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = unix.Rmdir(dir)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu    sync.Mutex
	limit int
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*t.limit {
		t.buf = append([]byte(nil), t.buf[len(t.buf)-t.limit:]...)
	}
	return len(p), nil
}

// String returns the last lines, at most the limit in bytes.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := string(t.buf[max(0, len(t.buf)-t.limit):])
	if len(s) == t.limit {
		_, s, _ = strings.Cut(s, "\n")
	}
	return strings.TrimRight(s, "\n")
}
