package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"

	"imgsmith/internal/launch"
)

// The two image stores of Docker. They name an image differently: by manifest digest, or by config digest.
const (
	storeContainerd  = "containerd"
	storeGraphdriver = "graphdriver"
)

// PullError says that the daemon could not get the image.
type PullError struct {
	Ref    string
	Remote bool
	Err    error
}

// Error names the reference, the daemon's reason and the remedy.
func (e *PullError) Error() string {
	s := fmt.Sprintf("pulling %s into the Docker daemon: %v", e.Ref, e.Err)
	if strings.HasPrefix(e.Ref, "127.0.0.1:") || strings.HasPrefix(e.Ref, "localhost:") {
		return s + " (the reference is on this host's loopback: a daemon on another machine or in a virtual machine has " +
			"another one; name a staging registry that both can reach)"
	}
	return s + " (the daemon itself must reach this registry and trust its certificate)"
}

// Unwrap returns the daemon's error.
func (e *PullError) Unwrap() error { return e.Err }

// IdentityError says that what the daemon holds is not, or cannot be shown to be, the image asked for.
type IdentityError struct {
	Ref, What, Got, Want string
}

// Error names what differs.
func (e *IdentityError) Error() string {
	return fmt.Sprintf("comparing %s with what the Docker daemon holds: %s is %q, want %q (remove that image from the "+
		"daemon and try again)", e.Ref, e.What, e.Got, e.Want)
}

// acquire returns the name by which this daemon runs exactly the image asked for, pulling it if needed.
func (l *Launcher) acquire(ctx context.Context, img launch.Image) (string, error) {
	if img.Digest == "" {
		return "", &IdentityError{Ref: img.Ref, What: "the digest asked for", Want: "sha256:…"}
	}
	if id, err := l.present(ctx, img); err != nil || id != "" {
		return id, err
	}
	if !strings.Contains(img.Ref, "@"+img.Digest) {
		return "", &PullError{Ref: img.Ref, Err: errors.New("the reference does not name the digest")}
	}
	if err := l.pull(ctx, img.Ref); err != nil {
		return "", &PullError{Ref: img.Ref, Remote: l.info.Remote, Err: err}
	}
	l.mu.Lock()
	l.pulled = append(l.pulled, img.Ref)
	l.mu.Unlock()
	in, err := l.api.ImageInspect(ctx, img.Ref)
	if err != nil {
		return "", fmt.Errorf("inspecting the pulled image %s: %w", img.Ref, err)
	}
	return in.ID, identical(l.info.Store, img, in)
}

// present looks for the image by every name that pins its content. It returns "" when it is not there.
func (l *Launcher) present(ctx context.Context, img launch.Image) (string, error) {
	names := []string{}
	if strings.Contains(img.Ref, "@"+img.Digest) {
		names = append(names, img.Ref)
	}
	if l.info.Store == storeContainerd {
		names = append(names, img.Digest)
	} else if img.ConfigDigest != "" {
		names = append(names, img.ConfigDigest)
	}
	for _, name := range names {
		in, err := l.api.ImageInspect(ctx, name)
		if cerrdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("inspecting image %s: %w", name, err)
		}
		return in.ID, identical(l.info.Store, img, in)
	}
	return "", nil
}

// identical compares content, not names: the manifest digest where the store keeps it, else the config digest
// and the digests of the uncompressed layers.
func identical(store string, img launch.Image, in image.InspectResponse) error {
	if store == storeContainerd {
		got := in.ID
		if in.Descriptor != nil {
			got = in.Descriptor.Digest.String()
		}
		if got != img.Digest {
			return &IdentityError{Ref: img.Ref, What: "the manifest digest", Got: got, Want: img.Digest}
		}
	} else if img.ConfigDigest == "" || in.ID != img.ConfigDigest {
		return &IdentityError{Ref: img.Ref, What: "the config digest", Got: in.ID, Want: img.ConfigDigest}
	}
	if store == storeGraphdriver || len(img.DiffIDs) > 0 {
		if !slices.Equal(in.RootFS.Layers, img.DiffIDs) {
			return &IdentityError{Ref: img.Ref, What: "the list of layers", Got: strings.Join(in.RootFS.Layers, " "), Want: strings.Join(img.DiffIDs, " ")}
		}
	}
	return nil
}

func (l *Launcher) pull(ctx context.Context, ref string) error {
	var opt image.PullOptions
	if l.opt.Auth != nil {
		auth, err := l.opt.Auth(ctx, ref)
		if err != nil {
			return fmt.Errorf("finding credentials: %w", err)
		}
		opt.RegistryAuth = auth
	}
	rc, err := l.api.ImagePull(ctx, ref, opt)
	if err != nil {
		return err
	}
	defer rc.Close()
	return readPull(rc)
}

// readPull reads the daemon's progress to its end; a failure is a message in it.
func readPull(r io.Reader) error {
	d := json.NewDecoder(r)
	for {
		var m struct {
			Error       string `json:"error"`
			ErrorDetail *struct {
				Message string `json:"message"`
			} `json:"errorDetail"`
		}
		switch err := d.Decode(&m); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("reading the daemon's progress: %w", err)
		case m.ErrorDetail != nil && m.ErrorDetail.Message != "":
			return errors.New(m.ErrorDetail.Message)
		case m.Error != "":
			return errors.New(m.Error)
		}
	}
}
