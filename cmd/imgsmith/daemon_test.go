package main

import (
	"io"
	"strings"
	"testing"

	dockerimage "github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"imgsmith/internal/fakegpu"
	"imgsmith/internal/report"
	"imgsmith/internal/validate"
)

// TestCheckInDaemon checks one image as the store, a registry and a Docker engine give it: the same answer.
func TestCheckInDaemon(t *testing.T) {
	r := need(t).filled(t)
	repository := r.registry() + "/team/tensorflow"
	b := r.imgsmith("build", "--json", "--matrix", r.recipe("good", fakegpu.Good, repository), "--fake-gpu", r.f.kit.Dir)
	d := b.document()
	if d.ExitCode != 0 || len(d.Entries) != 1 || d.Entries[0].Image == nil {
		t.Fatalf("exit code %d\n%s", d.ExitCode, b.err.String())
	}
	c, err := client.NewClientWithOpts(client.WithHost(r.f.docker.Host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ref := repository + ":good"
	pulled, err := c.ImagePull(t.Context(), ref, dockerimage.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, pulled); err != nil {
		t.Fatal(err)
	}
	defer c.ImageRemove(t.Context(), ref, dockerimage.RemoveOptions{Force: true}) //nolint:errcheck // the engine goes with the test

	other := r.f.rig(t) // a store that knows none of the layers
	var first []string
	for _, name := range []string{"oci-layout:" + r.store + "@" + d.Entries[0].Image.Digest, ref, "docker-daemon:" + ref} {
		p := other.imgsmith("check", "--format", "json", name)
		got := p.document()
		if got.ExitCode != 0 || len(got.Entries) != 1 || got.Entries[0].Static == nil {
			t.Fatalf("%s: exit code %d\n%s%s", name, got.ExitCode, p.out.String(), p.err.String())
		}
		if s := lines(got.Entries[0]); first == nil {
			first = s
		} else if a, b := strings.Join(first, "\n"), strings.Join(s, "\n"); a != b {
			t.Errorf("%s: the findings differ from the store's:\n%s\nthe store's:\n%s", name, b, a)
		}
	}
	if p := other.imgsmith("check", "docker-daemon:team/absent:1"); p.wait() != exitError || !strings.Contains(p.err.String(), "remedy") {
		t.Errorf("an image that the engine has not: exit code %d\n%s", p.wait(), p.err.String())
	}
}

// lines are the findings of the static stage, as far as they do not name where the image was read.
func lines(e report.Entry) []string {
	var out []string
	for _, f := range e.Static.Findings {
		if f.Outcome == validate.OutcomePassed {
			out = append(out, f.Check+" "+f.Message)
		}
	}
	return out
}
