package fakegpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// containerLib is where driver files go in a container: the multiarch directory of Debian's family.
const containerLib = "/usr/lib/x86_64-linux-gnu"

// nvidiaMajor is the character device major of NVIDIA's driver (kernel documentation, admin-guide/devices.txt).
const nvidiaMajor = 195

type cdiHook struct {
	HookName string   `json:"hookName"`
	Path     string   `json:"path"`
	Args     []string `json:"args"`
}

type cdiNode struct {
	Path     string `json:"path"`
	HostPath string `json:"hostPath"`
	Type     string `json:"type"`
	Major    int64  `json:"major"`
	Minor    int64  `json:"minor"`
}

type cdiMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

type cdiEdits struct {
	Env    []string   `json:"env,omitempty"`
	Nodes  []cdiNode  `json:"deviceNodes,omitempty"`
	Mounts []cdiMount `json:"mounts,omitempty"`
	Hooks  []cdiHook  `json:"hooks,omitempty"`
}

type cdiDevice struct {
	Name  string   `json:"name"`
	Edits cdiEdits `json:"containerEdits"`
}

// devices makes the device nodes and the CDI specification. Without the right to make nodes the kit has
// neither and says why.
func devices(k *Kit, s spec, opt Options) error {
	if opt.CDIHook == "" {
		k.NoDevices = "no nvidia-cdi-hook was named"
		return nil
	}
	dev := filepath.Join(k.Dir, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return fmt.Errorf("making fake device nodes: %w", err)
	}
	nodes := []cdiNode{}
	for _, n := range []struct {
		name  string
		minor int64
	}{{"nvidia0", 0}, {"nvidiactl", 255}} {
		p := filepath.Join(dev, n.name)
		err := syscall.Mknod(p, syscall.S_IFCHR|0o666, int(nvidiaMajor<<8|n.minor))
		if errors.Is(err, fs.ErrPermission) {
			k.NoDevices = "making device nodes needs root"
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making the fake device node %s: %w", p, err)
		}
		if err := os.Chmod(p, 0o666); err != nil { // the umask took bits away
			return fmt.Errorf("making the fake device node %s: %w", p, err)
		}
		nodes = append(nodes, cdiNode{Path: "/dev/" + n.name, HostPath: p, Type: "c", Major: nvidiaMajor, Minor: n.minor})
	}
	k.CDIDir = filepath.Join(k.Dir, "cdi")
	return writeCDI(k, s, opt, nodes)
}

// writeCDI writes a specification of version 0.5.0, which every engine with CDI reads, shaped as nvidia-ctk
// writes one: files mounted under their versioned names, links and the loader cache made by the hook.
func writeCDI(k *Kit, s spec, opt Options, nodes []cdiNode) error {
	env := []string{"NVIDIA_VISIBLE_DEVICES=void", "IMGSMITH_FAKE_GPU=1"}
	for _, key := range slices.Sorted(maps.Keys(opt.Env)) {
		env = append(env, key+"="+opt.Env[key])
	}
	var mounts []cdiMount
	for _, stem := range []string{"libcuda.so.", "libnvidia-ml.so."} {
		mounts = append(mounts, cdiMount{filepath.Join(k.DriverDir, stem+s.Driver.Version), containerLib + "/" + stem + s.Driver.Version,
			[]string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	hook := func(args ...string) cdiHook {
		return cdiHook{"createContainer", opt.CDIHook, append([]string{"nvidia-cdi-hook"}, args...)}
	}
	doc := map[string]any{
		"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
		"containerEdits": cdiEdits{Env: env, Nodes: nodes[1:], Mounts: mounts, Hooks: []cdiHook{
			hook("create-symlinks", "--link", "libcuda.so.1::"+containerLib+"/libcuda.so"),
			hook("update-ldcache", "--folder", containerLib),
		}},
		"devices": []cdiDevice{
			{"0", cdiEdits{Nodes: nodes[:1]}},
			{"GPU-0000fa4e-0000-0000-0000-000000000000", cdiEdits{Nodes: nodes[:1]}},
			{"all", cdiEdits{Nodes: nodes[:1]}},
		},
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the fake CDI specification: %w", err)
	}
	if err := os.MkdirAll(k.CDIDir, 0o755); err != nil {
		return fmt.Errorf("writing the fake CDI specification: %w", err)
	}
	if err := os.WriteFile(filepath.Join(k.CDIDir, "nvidia.json"), b, 0o644); err != nil {
		return fmt.Errorf("writing the fake CDI specification: %w", err)
	}
	return nil
}
