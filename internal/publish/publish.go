// Package publish moves judged images to where users pull them. It takes a clearance and nothing less: there
// is no way to tag a digest that did not pass. It builds and judges nothing.
package publish

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"imgsmith/internal/validate"
)

// Registry is what publishing needs of a registry client. A reference is REPOSITORY@DIGEST or REPOSITORY:TAG.
type Registry interface {
	// CopyImage copies the image with this manifest digest from the store to the repository, without a tag.
	CopyImage(ctx context.Context, digest, repository string) error
	// Resolve returns the digest behind a reference; found is false when the registry says that it has none.
	Resolve(ctx context.Context, ref string) (digest string, found bool, err error)
	// Tag points repository:tag at a digest that the repository has.
	Tag(ctx context.Context, repository, digest, tag string) error
}

// Request says where a cleared digest goes.
type Request struct {
	Repository string   // without tag
	Tags       []string // at least one
}

// RefusedError is a publication that was not allowed. Nothing was changed.
type RefusedError struct{ Reason, Remedy string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("not published: %s; %s", e.Reason, e.Remedy)
}

// Image copies the cleared digest by digest, reads it back, and then sets the tags, last. It returns the
// references that now exist. A tag that points elsewhere is not moved: all are looked at before any is set.
func Image(ctx context.Context, c validate.Clearance, r Registry, req Request) ([]string, error) {
	if c.Digest() == "" {
		return nil, &RefusedError{Reason: "no clearance", Remedy: "verify the image first"}
	}
	if !c.Signable() && !Loopback(req.Repository) {
		return nil, &RefusedError{Reason: "a fake GPU took part", Remedy: "verify on a real GPU, or name a loopback registry"}
	}
	if len(req.Tags) == 0 {
		return nil, &RefusedError{Reason: "no tag is named", Remedy: "add publish.tags to the recipe"}
	}
	tags := slices.Compact(slices.Sorted(slices.Values(req.Tags)))
	if err := unmoved(ctx, c, r, req.Repository, tags); err != nil {
		return nil, err
	}
	if err := r.CopyImage(ctx, c.Digest(), req.Repository); err != nil {
		return nil, fmt.Errorf("copying %s to %s: %w", c.Digest(), req.Repository, err)
	}
	if err := reads(ctx, c, r, req.Repository+"@"+c.Digest()); err != nil {
		return nil, err
	}
	var done []string
	for _, t := range tags {
		if err := r.Tag(ctx, req.Repository, c.Digest(), t); err != nil {
			return done, fmt.Errorf("tagging %s:%s: %w", req.Repository, t, err)
		}
		if err := reads(ctx, c, r, req.Repository+":"+t); err != nil {
			return done, err
		}
		done = append(done, req.Repository+":"+t+"@"+c.Digest())
	}
	return done, nil
}

// unmoved refuses when one of the tags points at another digest.
func unmoved(ctx context.Context, c validate.Clearance, r Registry, repo string, tags []string) error {
	for _, t := range tags {
		at, found, err := r.Resolve(ctx, repo+":"+t)
		if err != nil {
			return fmt.Errorf("looking at %s:%s: %w", repo, t, err)
		}
		if found && at != c.Digest() {
			return &RefusedError{Reason: fmt.Sprintf("%s:%s points at %s", repo, t, at), Remedy: "use another tag, or delete this one in the registry"}
		}
	}
	return nil
}

// reads demands that a reference answers with the cleared digest.
func reads(ctx context.Context, c validate.Clearance, r Registry, ref string) error {
	at, found, err := r.Resolve(ctx, ref)
	if err != nil {
		return fmt.Errorf("reading %s back: %w", ref, err)
	}
	if !found || at != c.Digest() {
		return fmt.Errorf("reading %s back: found %q, want %s", ref, at, c.Digest())
	}
	return nil
}

// Loopback tells whether a repository (HOST[:PORT]/NAME) is on this machine.
func Loopback(repository string) bool {
	host, _, ok := strings.Cut(repository, "/")
	if !ok {
		return false
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
