// Package docker launches probes through the Docker Engine API with the device request that `--gpus` means,
// in a cage: no network, read-only root, no capabilities, bounded time, memory, processes and output. It
// gets the image into the daemon and proves that it is the one asked for. It does not judge what comes back.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"imgsmith/internal/launch"
)

// Options say which daemon and how. The zero value is the daemon that the environment names.
type Options struct {
	Host         string                                                // empty: DOCKER_HOST, then the client's default
	RunID        string                                                // label of every container; required
	RemovePulled bool                                                  // Close removes images that this launcher pulled
	Auth         func(ctx context.Context, ref string) (string, error) // X-Registry-Auth for a pull, nil: none
	Logger       *slog.Logger                                          // nil: silent
}

// Launcher is a launch.Launcher. It is safe for concurrent use.
type Launcher struct {
	api  *client.Client
	opt  Options
	log  *slog.Logger
	info launch.Info

	mu     sync.Mutex
	pulled []string
}

var _ launch.Launcher = (*Launcher)(nil)

// NoDaemonError says that no Docker daemon answered.
type NoDaemonError struct {
	Host string
	Err  error
}

// Error names the address, the reason and the remedy.
func (e *NoDaemonError) Error() string {
	return fmt.Sprintf("asking the Docker daemon at %s: %v (start the daemon, or set DOCKER_HOST to one that runs; "+
		"this user must be allowed to use its socket)", e.Host, e.Err)
}

// Unwrap returns the client's error.
func (e *NoDaemonError) Unwrap() error { return e.Err }

// pingTimeout bounds the first contact: a daemon that does not answer a ping in it is not there for us.
const pingTimeout = 20 * time.Second

// New finds the daemon, agrees on an API version, reads what it is, and removes containers that dead runs of
// imgsmith on this host left behind. The error is a *NoDaemonError when nobody answers.
func New(ctx context.Context, opt Options) (*Launcher, error) {
	if opt.RunID == "" {
		return nil, errors.New("making the docker launcher: a run id is required")
	}
	opts := []client.Opt{client.FromEnv, client.WithAPIVersionNegotiation()}
	if opt.Host != "" {
		opts = append(opts, client.WithHost(opt.Host))
	}
	api, err := client.NewClientWithOpts(opts...)
	if err != nil { // an address that it does not understand, ssh:// for example
		return nil, &NoDaemonError{Host: cmp.Or(opt.Host, os.Getenv(client.EnvOverrideHost)), Err: err}
	}
	l := &Launcher{api: api, opt: opt, log: opt.Logger}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	pctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if l.info, err = l.readInfo(pctx); err != nil {
		_ = api.Close()
		return nil, &NoDaemonError{Host: api.DaemonHost(), Err: err}
	}
	if err := l.sweep(pctx); err != nil {
		l.log.Warn("looking for left-over containers", "error", err)
	}
	return l, nil
}

// Info describes the daemon as it was when New was called.
func (l *Launcher) Info(context.Context) (launch.Info, error) { return l.info, nil }

func (l *Launcher) readInfo(ctx context.Context) (launch.Info, error) {
	if _, err := l.api.Ping(ctx); err != nil {
		return launch.Info{}, err
	}
	in, err := l.api.Info(ctx)
	if err != nil {
		return launch.Info{}, err
	}
	out := launch.Info{
		Kind: "docker", Version: in.ServerVersion, API: l.api.ClientVersion(), Store: storeGraphdriver,
		Remote: !strings.HasPrefix(l.api.DaemonHost(), "unix://"),
	}
	for _, kv := range in.DriverStatus {
		if kv[0] == "driver-type" && strings.HasPrefix(kv[1], "io.containerd.snapshotter") {
			out.Store = storeContainerd
		}
	}
	for _, d := range in.DiscoveredDevices {
		if d.Source == "cdi" {
			out.CDIDevices = append(out.CDIDevices, d.ID)
		}
	}
	return out, nil
}

// Close removes the images that were pulled, when asked to, and closes the connection.
func (l *Launcher) Close() error {
	l.mu.Lock()
	pulled := l.pulled
	l.pulled = nil
	l.mu.Unlock()
	var errs []error
	if l.opt.RemovePulled {
		ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
		defer cancel()
		for _, ref := range pulled {
			if _, err := l.api.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true}); err != nil {
				errs = append(errs, fmt.Errorf("removing the pulled image %s: %w", ref, err))
			}
		}
	}
	return errors.Join(append(errs, l.api.Close())...)
}
