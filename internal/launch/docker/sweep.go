package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"imgsmith/internal/launch"
)

// Labels of every container of ours. LabelOwner names the process that answers for it.
const (
	LabelRun     = "imgsmith.run"
	LabelOwner   = "imgsmith.owner"   // boot id, pid namespace, pid, start time of the process
	LabelStarted = "imgsmith.started" // RFC 3339
)

func (l *Launcher) labels(s launch.Spec) map[string]string {
	out := map[string]string{}
	maps.Copy(out, s.Labels)
	out[LabelRun] = l.opt.RunID
	out[LabelOwner] = owner(os.Getpid())
	out[LabelStarted] = time.Now().UTC().Format(time.RFC3339)
	return out
}

// owner names a process so that a later process of the same number cannot be taken for it. Where the kernel
// tells nothing the name is empty, and nobody will remove that container for us.
func owner(pid int) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	start := startTime(pid)
	if start == "" {
		return ""
	}
	return strings.Join([]string{strings.TrimSpace(string(boot)), ns, strconv.Itoa(pid), start}, " ")
}

// startTime is field 22 of the process's stat line, empty when there is no such process.
func startTime(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// the command name in parentheses may hold anything
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	if f := strings.Fields(rest); ok && len(f) > 19 {
		return f[19]
	}
	return ""
}

// dead says that the owner was a process of this boot and pid namespace that is no more. Anything else, above
// all another host on the same daemon, is left alone.
func dead(label string) bool {
	f := strings.Fields(label)
	if len(f) != 4 {
		return false
	}
	pid, err := strconv.Atoi(f[2])
	if err != nil {
		return false
	}
	self := strings.Fields(owner(os.Getpid()))
	return len(self) == 4 && self[0] == f[0] && self[1] == f[1] && startTime(pid) != f[3]
}

// sweep removes containers whose owner is dead: the daemon keeps them when a client is killed, and they would
// hold GPU memory.
func (l *Launcher) sweep(ctx context.Context) error {
	list, err := l.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", LabelRun))})
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	var errs []error
	for _, c := range list {
		if dead(c.Labels[LabelOwner]) {
			l.log.Info("removing a container that a dead run left", "container", c.ID, "run", c.Labels[LabelRun])
			errs = append(errs, l.remove(c.ID))
		}
	}
	return errors.Join(errs...)
}
