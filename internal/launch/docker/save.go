package docker

import (
	"context"
	"fmt"
	"io"
	"os"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
)

// Save returns an image of the daemon that the environment names as the archive of `docker save`. Closing the
// reader closes the connection. The error is a *NoDaemonError when nobody answers.
func Save(ctx context.Context, ref string) (io.ReadCloser, error) {
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, &NoDaemonError{Host: os.Getenv(client.EnvOverrideHost), Err: err}
	}
	pctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if _, err := api.Ping(pctx); err != nil {
		_ = api.Close()
		return nil, &NoDaemonError{Host: api.DaemonHost(), Err: err}
	}
	r, err := api.ImageSave(ctx, []string{ref})
	if err != nil {
		_ = api.Close()
		if cerrdefs.IsNotFound(err) {
			return nil, &NoImageError{Ref: ref, Err: err}
		}
		return nil, fmt.Errorf("reading image %s from the Docker daemon: %w", ref, err)
	}
	return saved{r, api}, nil
}

// NoImageError says that the daemon has no image of this name.
type NoImageError struct {
	Ref string
	Err error
}

func (e *NoImageError) Error() string {
	return fmt.Sprintf("the Docker daemon has no image %s: %v", e.Ref, e.Err)
}

// Unwrap gives the daemon's answer.
func (e *NoImageError) Unwrap() error { return e.Err }

// Remedy tells what to do.
func (e *NoImageError) Remedy() string {
	return "pull it into the daemon, or name the registry reference without docker-daemon:"
}

// saved is the archive with the connection that it comes over.
type saved struct {
	io.ReadCloser
	api *client.Client
}

// Close ends reading and closes the connection.
func (s saved) Close() error {
	err := s.ReadCloser.Close()
	if cerr := s.api.Close(); err == nil {
		err = cerr
	}
	return err
}
