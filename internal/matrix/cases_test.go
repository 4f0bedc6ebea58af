package matrix

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func findings(t *testing.T, text string) []Finding {
	t.Helper()
	r, problems := Read("r.yaml", []byte(text))
	if r == nil || len(problems) > 0 {
		t.Fatalf("%q: %v", text, problems)
	}
	return r.Lint(embedded(t), []string{"wheels"})
}

// TestFailureCases has every case of the failure log's stage "matrix lint": what people ran into, and the answer
// that they should have had.
func TestFailureCases(t *testing.T) {
	for _, tc := range []struct{ id, recipe, rule, severity, message, nearest string }{
		{"B001", "base: python:3.12-alpine\ntensorflow: \"2.18.0\"\npython: {version: \"3.12\", from: base}\n", "libc", "refuse", "base python:3.12-alpine has musl: TensorFlow has wheels for glibc only", "base: debian:12"},
		{"B002", "tensorflow: \"2.10.1\"\nsupplier: apt\npackages: {pip: \"9.0.1\"}\n", "pip-too-old", "warn", "pip 9.0.1 predates the tag manylinux2014 of TensorFlow's wheel", `pip: "19.3" in packages`},
		{"B004", "tensorflow: \"2.5.2\"\nsupplier: apt\nbase: nvidia/cuda:11.0.3-cudnn8-runtime-ubuntu20.04\n", "cudnn-minor", "refuse", "cuDNN 8.0.5.39 is older than 8.1.0, which TensorFlow 2.5.2 was compiled with", "base: nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"},
		{"B004 wheels", "tensorflow: \"2.5.2\"\nbase: nvidia/cuda:11.0.3-cudnn8-runtime-ubuntu20.04\n", "cudnn-minor", "refuse", "cuDNN 8.0.5.39 is older", "base: nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"},
		{"B005 patch", "tensorflow: \"2.9.7\"\nsupplier: apt\n", "tensorflow-inferred", "warn", "TensorFlow 2.9.7 is not in the facts: those of 2.9 are used, inferred", ""},
		{"B005 base", "tensorflow: \"2.9.1\"\nsupplier: apt\nbase: nvidia/cuda:11.7.0-cudnn8-runtime-ubuntu20.04\n", "base-tag", "warn", "is not among the tags whose contents are known", "base: nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"},
		{"B007", "tensorflow: \"2.15.0\"\nsupplier: apt\npackages: {tensorflow-intel: \"2.15.0\"}\n", "package-refused", "refuse", "package tensorflow-intel: it exists for Windows only", "leave it out"},
		{"B008", "tensorflow: \"2.16.1\"\nsupplier: apt\nbase: nvidia/cuda:12.3.2-cudnn9-runtime-ubuntu22.04\n", "cudnn-major", "refuse", "TensorFlow 2.16.1 opens libcudnn.so.8, cuDNN 9.0.0.312 is another major", "base: debian:12 with supplier: wheels"},
		{"B011", "tensorflow: \"2.19.1\"\nsupplier: apt\nbase: nvidia/cuda:12.8.1-cudnn-runtime-ubuntu22.04\nfleet: [{gpu: RTX 4090, driver: \"551.61\"}]\n", "start-gate", "refuse-start", "asks for a driver that supports CUDA 12.8 natively", "base: ubuntu:22.04 with supplier: wheels"},
		{"B013", "tensorflow: \"2.16.1\"\nsupplier: wheels\npackages: {numpy: \"2.1\"}\n", "package-range", "refuse", "numpy 2.1 does not work with TensorFlow 2.16.1, which needs >=1.23.5,<2", "leave numpy out"},
		{"B014", "tensorflow: \"2.7.1\"\nsupplier: apt\npackages: {protobuf: \"4.21.0\"}\n", "package-range", "refuse", "protobuf 4.21.0 does not work with TensorFlow 2.7.1", "leave protobuf out"},
		{"B016", "tensorflow: \"2.16.2\"\nkeras: legacy\n", "legacy-keras", "refuse", "TensorFlow 2.16.2 brings Keras 3; Keras 2 is asked for", `packages: {tf-keras: "2.16.0"}`},
		{"B016 variable", "tensorflow: \"2.16.2\"\nenvironment: {TF_USE_LEGACY_KERAS: \"1\"}\npackages: {tf-keras: \"2.15.0\"}\n", "legacy-keras", "warn", "tf-keras 2.15.0 belongs to another minor", `packages: {tf-keras: "2.16.0"}`},
	} {
		t.Run(tc.id, func(t *testing.T) {
			all := findings(t, "name: a\n"+tc.recipe)
			i := slices.IndexFunc(all, func(f Finding) bool { return f.Rule == tc.rule })
			if i < 0 {
				t.Fatalf("no finding of rule %s: %v", tc.rule, all)
			}
			f := all[i]
			if string(f.Severity) != tc.severity || !strings.Contains(f.Message, tc.message) || !strings.Contains(f.Nearest, tc.nearest) {
				t.Errorf("got %s, nearest %q", f, f.Nearest)
			}
		})
	}
}

// B009, a base tag that was deleted, is a question to the registry: see the online test of the command.

// TestKnownGood: the recipes that are known to work are never refused.
func TestKnownGood(t *testing.T) {
	image := func(tf, python, ref string) string {
		return fmt.Sprintf("tensorflow: %q\npython: %q\nbase: %s\nsupplier: apt\n", tf, python, ref)
	}
	var recipes []string
	for _, tf := range []string{"2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11"} {
		recipes = append(recipes, image(tf, "3.8", "nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"))
	}
	for _, tf := range []string{"2.12", "2.13", "2.14"} {
		recipes = append(recipes, image(tf, "3.10", "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04"))
	}
	recipes = append(recipes, image("2.15", "3.10", "nvidia/cuda:12.2.2-cudnn8-runtime-ubuntu22.04"))
	for _, tf := range []string{"2.16", "2.17"} {
		recipes = append(recipes, image(tf, "3.10", "nvidia/cuda:12.3.2-runtime-ubuntu22.04")+"cudnn: 8.9.7.29\n")
	}
	for _, tf := range []string{"2.18", "2.19", "2.20", "2.21"} {
		for _, ref := range []string{"12.6.0-cudnn", "12.6.1-cudnn", "12.8.1-cudnn", "12.9.1-cudnn"} {
			recipes = append(recipes, image(tf, "3.10", "nvidia/cuda:"+ref+"-runtime-ubuntu22.04"))
		}
		for base, python := range map[string]string{"debian:12": "3.11", "ubuntu:22.04": "3.10"} {
			recipes = append(recipes, fmt.Sprintf("tensorflow: %q\npython: %q\nbase: %s\n", tf, python, base))
		}
	}
	recipes = append(recipes, "tensorflow: \"2.15.1\"\npython: \"3.11\"\nbase: debian:12\n", "tensorflow: \"2.19\"\npython: \"3.12\"\nbase: ubuntu:24.04\n")
	for _, text := range recipes {
		if got := findings(t, "name: a\n"+text); Refused(got) {
			t.Errorf("%q is refused: %v", text, got)
		}
	}
	if len(recipes) != 39 {
		t.Errorf("%d recipes, expected 39", len(recipes))
	}
}

// TestTwelveMistakes: a recipe with twelve mistakes gets twelve findings, each with its place, rule, reason, remedy
// and source, whether a line is not well formed or asks for what cannot work.
func TestTwelveMistakes(t *testing.T) {
	text := `name: twelve
pyhton: "3.11"
python: 3.10
compression: xz
include:
  - {name: cuda, tensorflow: "2.15.1", cuda: "11.8"}
  - {name: cudnn, tensorflow: "2.18.0", cudnn: "9.1.0.70"}
  - {name: musl, base: alpine:3.20, tensorflow: "2.19.1"}
  - {name: arm, platform: linux/arm64}
  - {name: numpy, tensorflow: "2.16.2", packages: {numpy: "2.1"}}
  - {name: stubs, environment: {LD_LIBRARY_PATH: /usr/local/cuda/lib64/stubs}}
  - {name: kepler, tensorflow: "2.15.1", fleet: [{gpu: Tesla K80}]}
  - {name: volta, tensorflow: "2.21.0", cuda: "12.5", fleet: [{gpu: V100, driver: "590.48.01"}]}
  - {name: extra, tensorflow: "2.21.0", supplier: and-cuda}
`
	r, problems := Read("r.yaml", []byte(text))
	all := Findings(r, problems, embedded(t), nil)
	want := []string{
		"2:1 recipe", "3:9 recipe", "4:14 recipe", "6:40 cuda-major", "7:41 cudnn-minor", "8:18 libc", "9:17 platform", "10:41 package-range", "11:19 environment",
		"12:51 compute-capability", "13:64 driver-ceiling", "14:41 extra-broken",
	}
	var got []string
	for _, f := range all {
		got = append(got, fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Rule))
		if f.Remedy == "" || f.Source == "" || f.Message == "" || f.File != "r.yaml" {
			t.Errorf("finding is not complete: %+v", f)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %d findings:\n%s\nwant:\n%s", len(got), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
