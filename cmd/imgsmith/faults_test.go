package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"imgsmith/internal/fakegpu"
	"imgsmith/internal/registry"
	"imgsmith/internal/report"
	"imgsmith/internal/validate"
)

// TestFakeMatrix is the whole job: of three entries one passes, and it alone has a tag.
func TestFakeMatrix(t *testing.T) {
	r := need(t).filled(t)
	repository := r.registry() + "/team/tensorflow"
	kit := filepath.Join(r.dir, "kit")
	if err := os.CopyFS(filepath.Join(kit, "tensorflow"), os.DirFS(filepath.Join(r.f.kit.Dir, "tensorflow"))); err != nil {
		t.Fatal(err)
	}
	matrix, err := fakegpu.Matrix(kit, repository)
	if err != nil {
		t.Fatal(err)
	}
	p := r.imgsmith("build", "--matrix", matrix, "--fake-gpu", r.f.kit.Dir, "--json")
	d := p.document()
	if d.ExitCode != exitFailed || !d.Fake || d.Host == nil || !d.Host.Fake || len(d.Entries) != 3 {
		t.Fatalf("exit code %d, fake %t, %d entries\n%s", d.ExitCode, d.Fake, len(d.Entries), p.err.String())
	}
	good, link, conv := d.Entries[0], d.Entries[1], d.Entries[2]
	if good.Result != report.ResultPublished || !good.Verdict.Grade.FakeGPU || !slices.Equal(good.Published, []string{repository + ":good@" + good.Image.Digest}) {
		t.Errorf("good: %+v", good)
	}
	if link.Name != fakegpu.EntryBrokenLink || link.Result != report.ResultFailed || link.Stage != report.StageStatic || link.Image != nil {
		t.Errorf("broken link: %s at %s", link.Result, link.Stage)
	}
	names(t, link.Static.Findings, "static.links", "/usr/local/cuda-12.5/lib64/libcudnn_cnn.so.9")
	if conv.Name != fakegpu.EntryConvOnCPU || conv.Result != report.ResultFailed || conv.Stage != report.StageVerify {
		t.Fatalf("convolution: %s at %s: %s", conv.Result, conv.Stage, conv.Reason)
	}
	layers := conv.Verdict.Layers
	for i, l := range layers {
		if want := map[bool]validate.Outcome{true: validate.OutcomeFailed, false: validate.OutcomePassed}[i == 4]; l.Outcome != want {
			t.Errorf("convolution, layer %s: %s", l.Layer, l.Outcome)
		}
	}
	names(t, layers[4].Findings, "tensorflow.op.convolution", "convolution")
	if tags := r.tags(repository); !slices.Equal(tags, []string{"good"}) {
		t.Errorf("tags: %v", tags)
	}
	if _, err := registry.Resolve(t.Context(), repository+"@"+conv.Image.Digest); registry.KindOf(err) != registry.NotFound {
		t.Errorf("the registry has the failed image: %v", err)
	}
	p.nothingLeft()
}

// names demands a failed finding of a check, with its subject and a remedy.
func names(t *testing.T, fs []validate.Finding, check, subject string) {
	t.Helper()
	for _, f := range fs {
		if f.Outcome == validate.OutcomeFailed && f.Check == check && strings.HasPrefix(f.Subject, subject) && f.Remedy != "" {
			return
		}
	}
	t.Errorf("no failed %s of %s with a remedy in %+v", check, subject, fs)
}

// TestInterruptBuild interrupts a step that the engine runs.
func TestInterruptBuild(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			r := need(t).rig(t)
			repository := r.registry() + "/team/tensorflow"
			p := r.imgsmith("build", "--matrix", r.recipe("good", fakegpu.Good, repository), "--fake-gpu", r.f.kit.Dir)
			p.until("a step runs", p.says("step  os packages"))
			if len(r.processes()) < 3 {
				t.Error("the check for leftovers does not see a running engine")
			}
			p.signal(s)
			p.ends(exitInterrupted, "imgsmith: interrupted;")
			if strings.Contains(p.err.String(), "remedy") || p.out.String() != "" {
				t.Errorf("it says more than that:\n%s%s", p.out.String(), p.err.String())
			}
			p.nothingLeft()
			if tags := r.tags(repository); len(tags) > 0 {
				t.Errorf("tags: %v", tags)
			}
		})
	}
}

// TestInterruptVerify interrupts a run whose matmul never returns.
func TestInterruptVerify(t *testing.T) {
	t.Parallel()
	r := need(t).filled(t)
	repository := r.registry() + "/team/tensorflow"
	recipe := r.recipe("hang", fakegpu.Hang, repository)
	d := r.imgsmith("build", "--stage-only", "--json", "--matrix", recipe).document()
	if d.ExitCode != exitOK {
		t.Fatalf("%+v", d.Entries)
	}
	for name, args := range map[string][]string{
		"build":  {"build", "--matrix", recipe},
		"verify": {"verify", d.Entries[0].Image.Reference},
	} {
		p := r.imgsmith(append(args, "--fake-gpu", r.f.kit.Dir)...)
		p.until("the container runs", p.running)
		p.signal(syscall.SIGINT)
		p.ends(exitInterrupted, "imgsmith: interrupted;")
		p.nothingLeft()
		if t.Failed() {
			t.Fatalf("interrupted %s", name)
		}
	}
	if tags := r.tags(repository); len(tags) > 0 {
		t.Errorf("tags: %v", tags)
	}
}

// TestKillThenTwoBuilds kills imgsmith in a step; two builds then share the store that it left.
func TestKillThenTwoBuilds(t *testing.T) {
	t.Parallel()
	r := need(t).rig(t)
	recipe := r.recipe("good", fakegpu.Good, "")
	killed := r.imgsmith("build", "--stage-only", "--matrix", recipe)
	killed.until("a step runs", killed.says("step  os packages"))
	killed.signal(syscall.SIGKILL)
	killed.wait()
	killed.nothingLeft()

	first := r.imgsmith("build", "--stage-only", "--json", "--matrix", recipe)
	second := r.imgsmith("build", "--stage-only", "--json", "--matrix", recipe)
	a, b := first.document(), second.document()
	if a.ExitCode != exitOK || b.ExitCode != exitOK {
		t.Fatalf("exit codes %d and %d\n%s%s", a.ExitCode, b.ExitCode, first.err.String(), second.err.String())
	}
	if x, y := a.Entries[0].Image.Digest, b.Entries[0].Image.Digest; x != y || x == "" {
		t.Errorf("digests %q and %q", x, y)
	}
	if !strings.Contains(first.err.String()+second.err.String(), "waiting for another imgsmith process") {
		t.Error("neither said that it waits for the other")
	}
	first.nothingLeft()
}

// TestFullDisk fills the file system of the store: at once, and when the engine unpacks the base.
func TestFullDisk(t *testing.T) {
	for size, words := range map[string][]string{
		"1m":  {"disk full", "no space left on device", "remedy: free space"},
		"60m": {"no space left on device", "remedy   free space"},
	} {
		t.Run(size, func(t *testing.T) {
			t.Parallel()
			r := need(t).rig(t)
			if err := os.Mkdir(r.store, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mount("tmpfs", r.store, "tmpfs", 0, "size="+size); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(r.store, 0); err != nil {
					t.Error(err)
				}
			})
			repository := r.registry() + "/team/tensorflow"
			p := r.imgsmith("build", "--matrix", r.recipe("good", fakegpu.Good, repository), "--fake-gpu", r.f.kit.Dir)
			p.ends(exitError, append(words, "good: error at stage", "nothing published")...)
			p.nothingLeft()
			if tags := r.tags(repository); len(tags) > 0 {
				t.Errorf("tags: %v", tags)
			}
		})
	}
}

// TestNotProved: what this host cannot prove is staged and gets no tag.
func TestNotProved(t *testing.T) {
	t.Parallel()
	r := need(t).filled(t)
	repository := r.registry() + "/team/tensorflow"
	recipe := r.recipe("good", fakegpu.Good, repository)
	real := func(r *rig) []string { return nil }
	fake := func(r *rig) []string { return []string{"--fake-gpu", r.f.kit.Dir} }
	for _, c := range []struct {
		name  string
		set   [2]string
		flags func(*rig) []string
		words []string
	}{
		{"no Docker", [2]string{"DOCKER_HOST", "unix://" + r.dir + "/no.sock"}, fake, []string{"asking the Docker daemon at unix://", "start the daemon, or set DOCKER_HOST"}},
		{"a fake GPU that nobody asked for", [2]string{"LD_LIBRARY_PATH", r.f.kit.DriverDir}, real, []string{"this host's GPU is a fake"}},
		{"no GPU", [2]string{"LD_LIBRARY_PATH", ""}, real, []string{"built, static check passed, not proved: no NVIDIA GPU on this host, nothing published"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat("/dev/nvidiactl"); err == nil && c.name == "no GPU" {
				t.Skip("this host has an NVIDIA GPU")
			}
			r := *r
			r.t, r.env = t, slices.Clone(r.env)
			r.set(c.set[0], c.set[1])
			p := r.imgsmith(append([]string{"build", "--matrix", recipe}, c.flags(&r)...)...)
			p.ends(exitNotProved, append(c.words, "(exit 4)")...)
			p.nothingLeft()
			if tags := r.tags(repository); len(tags) > 0 {
				t.Errorf("tags: %v", tags)
			}
		})
	}
}

// TestPublishFaults: an image that passed, and a registry that does not take it.
func TestPublishFaults(t *testing.T) {
	t.Parallel()
	r := need(t).filled(t)
	address := r.registry()
	p := r.imgsmith("build", "--matrix", r.recipe("good", fakegpu.Good, "127.0.0.1:1/team/tensorflow"), "--fake-gpu", r.f.kit.Dir)
	p.ends(exitError, "good: error at stage publish, nothing published", "unreachable", "connection refused", "remedy: check name, network and proxy settings")
	p.nothingLeft()

	// A tag that another image has is not moved.
	first := r.imgsmith("build", "--json", "--matrix", r.recipe("good", fakegpu.Good, address+"/team/tensorflow"), "--fake-gpu", r.f.kit.Dir).document()
	if first.ExitCode != exitOK || first.Entries[0].Result != report.ResultPublished {
		t.Fatalf("%+v", first.Entries[0])
	}
	other := r.recipe("good", fakegpu.Good, address+"/team/tensorflow", "environment: {OTHER: image}")
	p = r.imgsmith("build", "--matrix", other, "--fake-gpu", r.f.kit.Dir)
	p.ends(exitError, "not published: "+address+"/team/tensorflow:good points at "+first.Entries[0].Image.Digest, "use another tag")
	if at, err := registry.Resolve(t.Context(), address+"/team/tensorflow:good"); err != nil || at != first.Entries[0].Image.Digest {
		t.Errorf("the tag points at %s, %v", at, err)
	}
}

// TestNoNetwork: an index that nobody can reach, and --offline without the wheels.
func TestNoNetwork(t *testing.T) {
	t.Parallel()
	r := need(t).filled(t)
	recipe := r.recipe("good", fakegpu.Good, "", "layout: other.yaml")
	r.file("other.yaml", "name: other\nextends: wheels\ntest: true\n") // other keys: no layer of it is made
	r.set("UV_NO_INDEX", "")
	r.set("UV_FIND_LINKS", "")
	r.set("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
	r.set("UV_HTTP_RETRIES", "0")
	p := r.imgsmith("lock", recipe)
	p.ends(exitError, "good: error at stage lock", "the package index could not be read", "Connection refused")
	p.nothingLeft()

	r.set("UV_FIND_LINKS", r.f.kit.FindLinks)
	r.set("UV_NO_INDEX", "1")
	p = r.imgsmith("lock", recipe)
	p.ends(exitOK)
	if err := os.RemoveAll(filepath.Join(r.store, "wheels")); err != nil {
		t.Fatal(err)
	}
	r.set("UV_FIND_LINKS", "")
	r.set("UV_NO_INDEX", "")
	p = r.imgsmith("build", "--stage-only", "--locked", "--offline", "--matrix", recipe)
	p.ends(exitError, "good: error at stage make", "nvidia_cudnn_cu12-9.3.0.75", "without --offline")
	p.nothingLeft()
}

// TestNoEngine: the error names the program, where it was looked for, and what to do.
func TestNoEngine(t *testing.T) {
	t.Parallel()
	r := need(t).rig(t)
	r.set("IMGSMITH_UV", os.Getenv("IMGSMITH_UV"))
	p := r.imgsmith("build", "--stage-only", "--matrix", r.recipe("good", fakegpu.Good, ""), "--engine-dir", r.dir)
	p.ends(exitError, "looking for buildkitd: not found in "+r.dir, "remedy: run 'make engines', or name the directory that has it with --engine-dir")
	p.nothingLeft()
}

// TestFailingStep: a step that fails names itself and shows the end of its output, not its script.
func TestFailingStep(t *testing.T) {
	t.Parallel()
	r := need(t).rig(t)
	r.set("http_proxy", "http://127.0.0.1:1")
	r.set("https_proxy", "http://127.0.0.1:1")
	p := r.imgsmith("build", "--stage-only", "--matrix", r.recipe("good", fakegpu.Good, ""))
	p.ends(exitError, "reason   pinning OS packages: running good: os-package files: exit code: 100", "last lines of its output:", "127.0.0.1")
	if strings.Contains(p.out.String(), "DEBIAN_FRONTEND") {
		t.Errorf("the error holds the script:\n%s", p.out.String())
	}
	p.nothingLeft()
}
