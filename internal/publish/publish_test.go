package publish_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/publish"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/validatetest"
)

// registry keeps references in memory and can be told to fail.
type registry struct {
	refs   map[string]string
	failOn string // "copy", "tag:NAME"
	lie    string // digest that Resolve answers for this repository's tags instead
	calls  []string
}

func (r *registry) CopyImage(_ context.Context, digest, repository string) error {
	r.calls = append(r.calls, "copy")
	if r.failOn == "copy" {
		return errors.New("connection reset")
	}
	r.refs[repository+"@"+digest] = digest
	return nil
}

func (r *registry) Resolve(_ context.Context, ref string) (string, bool, error) {
	if r.failOn == "resolve" {
		return "", false, errors.New("unreachable")
	}
	d, ok := r.refs[ref]
	if ok && r.lie != "" && !strings.Contains(ref, "@") {
		d = r.lie
	}
	return d, ok, nil
}

func (r *registry) Tag(_ context.Context, repository, digest, tag string) error {
	r.calls = append(r.calls, "tag "+tag)
	if r.failOn == "tag:"+tag {
		return errors.New("denied")
	}
	r.refs[repository+":"+tag] = digest
	return nil
}

func (r *registry) tags() []string {
	var out []string
	for ref := range r.refs {
		if !strings.Contains(ref, "@") {
			out = append(out, ref)
		}
	}
	slices.Sort(out)
	return out
}

const other = "sha256:2222222222222222222222222222222222222222222222222222222222222222"

func TestImage(t *testing.T) {
	d := validatetest.Digest
	real := validatetest.Clearance(t, d, false)
	fake := validatetest.Clearance(t, d, true)
	for _, c := range []struct {
		name      string
		clearance validate.Clearance
		registry  registry
		repo      string
		tags      []string
		wantTags  []string
		refused   bool // nothing may have been changed
		wantErr   string
	}{
		{name: "two tags, copied before tagged", clearance: real, repo: "example/tf", tags: []string{"b", "a", "b"}, wantTags: []string{"example/tf:a", "example/tf:b"}},
		{name: "no clearance", repo: "example/tf", tags: []string{"a"}, refused: true, wantErr: "no clearance"},
		{name: "fake to a remote registry", clearance: fake, repo: "example/tf", tags: []string{"a"}, refused: true, wantErr: "fake GPU"},
		{name: "fake to a name that only looks local", clearance: fake, repo: "localhost.example/tf", tags: []string{"a"}, refused: true, wantErr: "fake GPU"},
		{name: "fake to loopback", clearance: fake, repo: "127.0.0.1:5000/tf", tags: []string{"a"}, wantTags: []string{"127.0.0.1:5000/tf:a"}},
		{name: "no tag named", clearance: real, repo: "example/tf", refused: true, wantErr: "no tag"},
		{name: "tag points elsewhere", clearance: real, repo: "example/tf", tags: []string{"a", "b"},
			registry: registry{refs: map[string]string{"example/tf:b": other}}, wantTags: []string{"example/tf:b"}, refused: true, wantErr: "points at " + other},
		{name: "same digest again", clearance: real, repo: "example/tf", tags: []string{"a"},
			registry: registry{refs: map[string]string{"example/tf:a": d}}, wantTags: []string{"example/tf:a"}},
		{name: "copy fails", clearance: real, repo: "example/tf", tags: []string{"a"}, registry: registry{failOn: "copy"}, wantErr: "connection reset"},
		{name: "registry unreachable", clearance: real, repo: "example/tf", tags: []string{"a"}, registry: registry{failOn: "resolve"}, wantErr: "unreachable"},
		{name: "second tag denied", clearance: real, repo: "example/tf", tags: []string{"a", "b"}, registry: registry{failOn: "tag:b"}, wantTags: []string{"example/tf:a"}, wantErr: "denied"},
		{name: "tag reads back wrong", clearance: real, repo: "example/tf", tags: []string{"a"}, registry: registry{lie: other}, wantTags: []string{"example/tf:a"}, wantErr: "reading example/tf:a back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.registry
			if r.refs == nil {
				r.refs = map[string]string{}
			}
			_, err := publish.Image(t.Context(), c.clearance, &r, publish.Request{Repository: c.repo, Tags: c.tags})
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Fatalf("error %v, want %q", err, c.wantErr)
			}
			var refused *publish.RefusedError
			if errors.As(err, &refused) != c.refused {
				t.Errorf("refused: %v, want %v", err, c.refused)
			}
			if c.refused && len(r.calls) > 0 {
				t.Errorf("a refusal changed the registry: %v", r.calls)
			}
			if got := r.tags(); !slices.Equal(got, c.wantTags) {
				t.Errorf("tags %v, want %v", got, c.wantTags)
			}
			if err == nil && r.calls[0] != "copy" {
				t.Errorf("calls %v: a tag before the copy", r.calls)
			}
		})
	}
}
