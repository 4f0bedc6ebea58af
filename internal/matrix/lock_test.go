package matrix

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sampleTarget() Target {
	hex := strings.Repeat("0123456789abcdef", 4)
	return Target{Entry: "all", Platform: "linux/amd64", Base: Base{Name: "debian:12", Digest: "sha256:" + hex, Glibc: "2.36"},
		Python: Python{"3.11", "os"}, TensorFlow: "2.19.1", CUDA: "12.5", CuDNN: "9.3.0.75", Supplier: "wheels", Layout: "wheels",
		Wheels: []Wheel{{"tensorflow", "2.19.1", "tensorflow-2.19.1-cp311-cp311-manylinux_2_17_x86_64.whl", hex, 5},
			{"absl-py", "2.5.1", "absl_py-2.5.1-py3-none-any.whl", hex, 1 << 33}},
		Requested: []string{"tensorflow", "pip"}, Environment: map[string]string{"B": "2", "A": "yes"}, Bytecode: true, Constraints: true,
		Compression: Compression{"zstd", "default", "klauspost-zstd/1"}, Epoch: 1704067200, Lines: map[string]int{"name": 1}}
}

func TestLockRoundTrip(t *testing.T) {
	r := mustLoad(t, full)
	l := NewLock(r, []Target{sampleTarget()}, nil)
	first, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := LoadLock("x.lock.yaml", first)
	if err != nil {
		t.Fatalf("%v\n%s", err, first)
	}
	if d := cmp.Diff(l, back); d != "" {
		t.Error(d)
	}
	if back.Targets[0].Wheels[0].Name != "absl-py" || back.Targets[0].Requested[0] != "pip" {
		t.Errorf("not sorted: %+v", back.Targets[0])
	}
	again, err := back.Marshal()
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("bytes differ: %v\n%s\n%s", err, first, again)
	}
	if bytes.Contains(first, []byte("://")) {
		t.Error("the lock holds an address")
	}
	if err := back.Matches(r); err != nil {
		t.Error(err)
	}
	if _, ok := back.Target("all"); !ok {
		t.Error("target not found")
	}
}

// A base that exists on one machine only is pinned as local, without its digest.
func TestLockLocalBase(t *testing.T) {
	target := sampleTarget()
	target.Base.Local = true
	raw, err := NewLock(mustLoad(t, full), []Target{target}, nil).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	l, err := LoadLock("x.lock.yaml", raw)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Targets[0].Base; got != (Base{Name: "debian:12", Glibc: "2.36", Local: true}) {
		t.Errorf("base is %+v", got)
	}
	if !target.Base.Local || target.Base.Digest == "" {
		t.Error("the caller's target was changed")
	}
}

func TestLockMatches(t *testing.T) {
	r := mustLoad(t, full)
	for name, change := range map[string]func(*Lock, *Recipe){
		"recipe changed": func(_ *Lock, r *Recipe) { r.Checksum = Checksum([]byte("other")) },
		"entry missing":  func(l *Lock, _ *Recipe) { l.Targets = nil },
		"entry renamed":  func(l *Lock, _ *Recipe) { l.Targets[0].Entry = "x" },
		"entry too many": func(l *Lock, _ *Recipe) { l.Targets = append(l.Targets, Target{Entry: "more"}) },
	} {
		c := *r
		l := NewLock(r, []Target{sampleTarget()}, nil)
		change(l, &c)
		var stale *StaleLockError
		if err := l.Matches(&c); !errors.As(err, &stale) || !strings.Contains(err.Error(), "run imgsmith lock") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLockRefused(t *testing.T) {
	good, err := NewLock(mustLoad(t, full), []Target{sampleTarget()}, nil).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]struct{ old, new string }{
		"schema":          {"schema_version: 2", "schema_version: 3"},
		"unknown key":     {"cuda:", "cuda_root:"},
		"checksum":        {"recipe: sha256:", "recipe: md5:"},
		"hash":            {"sha256: \"0123", "sha256: \"x123"},
		"hash plain":      {"sha256: 0123", "sha256: x123"},
		"path in name":    {"file: absl_py", "file: ../absl_py"},
		"size":            {"size: 5", "size: 0"},
		"name":            {"name: absl-py", "name: Absl_Py"},
		"twice":           {"name: absl-py", "name: tensorflow"},
		"epoch":           {"source_date_epoch: 1704067200", "source_date_epoch: 0"},
		"NUL":             {"linux/amd64", "linux\x00amd64"},
		"base digest":     {"digest: sha256:", "digest: sha1:"},
		"not YAML":        {"targets:", "targets: ["},
		"wrong type":      {"size: 5", "size: five"},
		"duplicate key":   {"cuda: \"12.5\"", "cuda: \"12.5\"\n    cuda: \"12.5\""},
		"old version":     {"schema_version: 2", "schema_version: 1"},
		"set away":        {"wheel_set: all", "wheel_set: other"},
		"file away":       {"absl-py 2.5.1", "absl-py 2.5.2"},
		"file unused":     {"wheels:\n", "wheels:\n  - {name: x, version: \"1\", file: x-1-py3-none-any.whl, sha256: " + strings.Repeat("a", 64) + ", size: 1}\n"},
		"nested too deep": {"targets:", strings.Repeat("[", 1000) + "targets:"},
	} {
		bad := strings.Replace(string(good), m.old, m.new, 1)
		if bad == string(good) {
			if name != "hash" && name != "hash plain" {
				t.Errorf("%s: %q is not in the lock", name, m.old)
			}
			continue
		}
		if _, err := LoadLock("x.lock.yaml", []byte(bad)); err == nil || !strings.HasPrefix(err.Error(), "x.lock.yaml") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLockPath(t *testing.T) {
	for in, want := range map[string]string{"a/x.yaml": "a/x.lock.yaml", "x.yml": "x.lock.yml", "x": "x.lock.yaml"} {
		if got := LockPath(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// Hashes that look like numbers come back as the text they are.
func TestLockHashesStayText(t *testing.T) {
	for _, hex := range []string{strings.Repeat("1", 64), strings.Repeat("0", 64), "1e" + strings.Repeat("5", 62), "0b" + strings.Repeat("1", 62), strings.Repeat("0", 62) + "e1"} {
		target := sampleTarget()
		target.Wheels[0].SHA256 = hex
		raw, err := NewLock(mustLoad(t, full), []Target{target}, nil).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		l, err := LoadLock("x", raw)
		if err != nil || l.Targets[0].Wheels[1].SHA256 != hex {
			t.Errorf("%s: %v", hex, err)
		}
	}
}

// The shipped lock belongs to the shipped recipe and pins no base, which is another one on every host.
func TestQuickstartLock(t *testing.T) {
	var data [2][]byte
	for i, f := range []string{"quickstart.yaml", "quickstart.lock.yaml"} {
		var err error
		if data[i], err = os.ReadFile("../../recipes/" + f); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Load("quickstart.yaml", data[0])
	if err != nil {
		t.Fatal(err)
	}
	l, err := LoadLock("quickstart.lock.yaml", data[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Matches(r); err != nil {
		t.Error(err)
	}
	if b := l.Targets[0].Base; b != (Base{Name: "debian:12", Glibc: "2.36"}) {
		t.Errorf("base is %+v", b)
	}
	if again, err := l.Marshal(); err != nil || !bytes.Equal(again, data[1]) {
		t.Errorf("it is not what Marshal writes: %v", err)
	}
}
