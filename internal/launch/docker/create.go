package docker

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"

	"imgsmith/internal/launch"
)

// boot is what the interpreter is told on its command line. The script comes on standard input, which works
// with every daemon, near or far, under a read-only root and without a mount. It first says how the GPU came
// in: the Engine sets NVIDIA_VISIBLE_DEVICES to "void" for CDI and to the list for the older hook.
const boot = "import os, sys; n = int(sys.argv.pop(1)); " +
	"os.write(2, b'" + launchMark + "' + os.environb.get(b'NVIDIA_VISIBLE_DEVICES', b'')[:200].replace(b'\\n', b' ') + b'\\n'); " +
	"s = sys.stdin.buffer.read(n); " +
	"exec(compile(s, 'probe.py', 'exec'), {'__name__': '__main__', 'PROBE_SOURCE': s})"

const launchMark = "imgsmith-launch visible="

const nobody = "65534:65534"

// SpecError says that a launch cannot be asked for like this.
type SpecError struct{ What string }

// Error names the field and the remedy.
func (e *SpecError) Error() string { return "preparing the launch: " + e.What }

// deviceRequests translates what stands after --gpus. A fully qualified CDI name uses the cdi driver.
func deviceRequests(gpus string) ([]container.DeviceRequest, error) {
	r := container.DeviceRequest{Capabilities: [][]string{{"gpu"}}, Options: map[string]string{}}
	switch {
	case gpus == "":
		return nil, nil
	case gpus == "all":
		r.Count = -1
	case strings.HasPrefix(gpus, "device="):
		r.DeviceIDs = strings.Split(strings.TrimPrefix(gpus, "device="), ",")
		if slices.Contains(r.DeviceIDs, "") {
			return nil, &SpecError{fmt.Sprintf("--gpus %q names an empty device (write device=GPU-… or device=0,1)", gpus)}
		}
	case strings.Contains(gpus, "/") && strings.Contains(gpus, "="):
		return []container.DeviceRequest{{Driver: "cdi", DeviceIDs: strings.Split(gpus, ",")}}, nil
	default:
		n, err := strconv.Atoi(gpus)
		if err != nil || n < 1 {
			return nil, &SpecError{fmt.Sprintf("--gpus %q is not understood (write all, a count from 1, device=GPU-… or a CDI name)", gpus)}
		}
		r.Count = n
	}
	return []container.DeviceRequest{r}, nil
}

// configs makes the container's two halves. Caged: entrypoint replaced, environment scrubbed, read-only root,
// no capabilities. As shipped: the image's own user, entrypoint, environment and writable root; network,
// privileges, time, memory and processes stay bounded.
func configs(s launch.Spec, imageID string, labels map[string]string) (*container.Config, *container.HostConfig, error) {
	req, err := deviceRequests(s.GPUs)
	if err != nil {
		return nil, nil, err
	}
	if err := check(s); err != nil {
		return nil, nil, err
	}
	args := append([]string{"-I", "-c", boot, strconv.Itoa(len(s.Script))}, s.Args...)
	c := &container.Config{
		Image: imageID, Labels: labels, Env: environment(s),
		AttachStdin: true, AttachStdout: true, AttachStderr: true, OpenStdin: true, StdinOnce: true,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Cmd:         append([]string{s.Python}, args...),
	}
	h := &container.HostConfig{
		NetworkMode: "none", SecurityOpt: []string{"no-new-privileges:true"}, ShmSize: s.ShmSize,
		LogConfig: container.LogConfig{Type: "none"},
		Resources: container.Resources{PidsLimit: &s.Pids, Memory: s.Memory, MemorySwap: s.Memory, DeviceRequests: req},
	}
	if s.Caged {
		c.Entrypoint, c.Cmd = []string{s.Python}, args
		c.WorkingDir, c.User = "/", user(s)
		h.ReadonlyRootfs, h.CapDrop = true, []string{"ALL"}
		h.Tmpfs = map[string]string{"/tmp": tmpfs(s)}
	}
	return c, h, nil
}

func user(s launch.Spec) string {
	if s.User != "" {
		return s.User
	}
	return nobody
}

func tmpfs(s launch.Spec) string {
	return "rw,nosuid,nodev,noexec,mode=1777,size=" + strconv.FormatInt(s.TmpSize, 10)
}

// check refuses a launch without its bounds: nothing may run unlimited because a caller forgot a field.
func check(s launch.Spec) error {
	switch {
	case s.Python == "":
		return &SpecError{"no interpreter path"}
	case len(s.Script) == 0:
		return &SpecError{"no script"}
	case s.Nonce == "":
		return &SpecError{"no nonce"}
	case s.Timeout <= 0 || s.KillGrace <= 0:
		return &SpecError{"no deadline"}
	case s.MaxOutput <= 0:
		return &SpecError{"no bound on the output"}
	case s.Pids < 1024:
		return &SpecError{fmt.Sprintf("%d processes are too few, TensorFlow needs 1024 or more", s.Pids)}
	case s.Caged && s.TmpSize <= 0:
		return &SpecError{"no size for /tmp"}
	}
	return nil
}

// environment sets what the caller wants and, caged, unsets what could change how the interpreter or the
// loader starts: an entry without "=" removes the image's variable when the container is created.
func environment(s launch.Spec) []string {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, k+"="+s.Env[k])
	}
	if s.Caged {
		for _, k := range s.ScrubEnv {
			if _, ok := s.Env[k]; !ok {
				env = append(env, k)
			}
		}
	}
	return env
}

// commandLine is what a user would type to see the same; the script goes to standard input.
func commandLine(s launch.Spec, c *container.Config, h *container.HostConfig) string {
	w := []string{"docker", "run", "--rm", "-i"}
	if s.GPUs != "" {
		flag := "--gpus"
		if strings.Contains(s.GPUs, "/") {
			flag = "--device"
		}
		w = append(w, flag, s.GPUs)
	}
	w = append(w, "--network", string(h.NetworkMode))
	if h.ReadonlyRootfs {
		w = append(w, "--read-only", "--tmpfs", "/tmp:"+h.Tmpfs["/tmp"])
	}
	for _, k := range h.CapDrop {
		w = append(w, "--cap-drop", k)
	}
	w = append(w, "--security-opt", "no-new-privileges", "--pids-limit", strconv.FormatInt(s.Pids, 10))
	if s.Memory > 0 {
		m := strconv.FormatInt(s.Memory, 10)
		w = append(w, "--memory", m, "--memory-swap", m)
	}
	if s.ShmSize > 0 {
		w = append(w, "--shm-size", strconv.FormatInt(s.ShmSize, 10))
	}
	if c.User != "" {
		w = append(w, "--user", c.User)
	}
	if c.WorkingDir != "" {
		w = append(w, "--workdir", c.WorkingDir)
	}
	for _, e := range c.Env {
		if !strings.Contains(e, "=") {
			e += "=" // the command line cannot unset, only empty
		}
		w = append(w, "--env", e)
	}
	if len(c.Entrypoint) > 0 {
		w = append(w, "--entrypoint", c.Entrypoint[0])
	}
	w = append(append(w, s.Image.Ref), c.Cmd...)
	for i := range w {
		w[i] = quote(w[i])
	}
	return strings.Join(w, " ") + " < probe.py"
}

// quote makes one word safe for a POSIX shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=/.,:@+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
