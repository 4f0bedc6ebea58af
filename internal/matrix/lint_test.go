package matrix

import (
	"fmt"
	"strings"
	"testing"
)

// TestLintRules gives for every recipe the findings as "severity rule line".
func TestLintRules(t *testing.T) {
	table := embedded(t)
	for _, tc := range []struct{ recipe, want string }{
		{"tensorflow: \"2.19.9\"\n", "warn tensorflow-inferred 2"},
		{"tensorflow: \"2.22.0\"\n", "refuse tensorflow-release 2"},
		{"tensorflow: \"2.22.0\"\ncuda: \"12.8\"\ncudnn: \"9.8\"\n", "unproved tensorflow-release 2"},
		{"tensorflow: \"1.15.5\"\n", "refuse tensorflow-release 2"},
		{"supplier: apt\n", ""},
		{"supplier: conda\n", "refuse supplier 2"},
		{"layout: nope\n", "refuse layout 2"},
		{"layout: ./mine\n", ""},
		{"platform: linux/arm64\n", "refuse platform 2"},
		{"base: python:3.12-alpine\n", "refuse libc 2"},
		{"base: debian:11\npython: \"3.11\"\n", "refuse base-python 3"},
		{"base: debian:trixie-slim\npython: \"3.13\"\ntensorflow: \"2.20.0\"\n", "note extra-range 4"},
		{"base: debian:11\npython: {version: \"3.11\", from: base}\n", ""},
		{"base: oci-layout:/x\npython: \"3.8\"\n", ""},
		{"tensorflow: \"2.19.1\"\ncuda: \"13.0\"\n", "refuse cuda-major 3"},
		{"tensorflow: \"2.19.1\"\ncuda: \"12.4\"\n", "refuse cuda-minor 3\nrefuse wheel-set 3"},
		{"tensorflow: \"2.19.1\"\ncuda: \"12.6\"\n", "warn cuda-pair 3"},
		{"tensorflow: \"2.20.0\"\ncuda: \"12.6\"\n", ""},
		{"tensorflow: \"2.19.1\"\ncuda: \"12.7\"\n", "warn cuda-pair 3\nrefuse wheel-set 3"},
		{"tensorflow: \"2.19.1\"\ncudnn: \"8.9\"\n", "refuse cudnn-major 3"},
		{"tensorflow: \"2.19.1\"\ncudnn: \"9.2.1.18\"\n", "refuse cudnn-minor 3"},
		{"tensorflow: \"2.21.0\"\ncudnn: \"9.5.0\"\n", "warn cudnn-fault 3\nnote extra-range 2"},
		{"tensorflow: \"2.19.1\"\npackages: {tensorflow-intel: \"2.19.1\"}\n", "refuse package-refused 3"},
		{"tensorflow: \"2.16.1\"\npackages: {numpy: \"2.1\"}\n", "refuse package-range 3"},
		{"tensorflow: \"2.19.1\"\npackages: {numpy: \"2.1\"}\n", ""},
		{"environment: {LD_PRELOAD: x.so}\n", "refuse environment 2"},
		{"environment: {LD_LIBRARY_PATH: /opt/lib}\n", ""},
		{"environment: {CUDA_VISIBLE_DEVICES: \"\"}\n", "refuse environment 2"},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: H20, driver: \"580.1\"}]\n", "refuse fleet-gpu 3"},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: \"NVIDIA H200\", driver: \"580.159.04\"}]\n", ""},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: H200, compute_capability: \"8.0\"}]\n", "refuse fleet-gpu 3"},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: A100, driver: \"470.57.02\"}]\n", "refuse driver-floor 3"},
		{"tensorflow: \"2.19.1\"\nfleet:\n  - {gpu: A100}\n  - {compute_capability: \"5.2\"}\n", "refuse compute-capability 5"},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: RTX 5090}]\n", "unproved gpu-unproved 3\nunproved cudnn-variant 3"},
		{"tensorflow: \"2.19.1\"\nfleet: [{compute_capability: \"11.0\"}]\n", "unproved gpu-unproved 3\nunproved cudnn-variant 3"},
		{"tensorflow: \"2.19.1\"\ncudnn: \"9.11\"\nfleet: [{gpu: V100}]\n", "refuse cudnn-cap 4"},
		{"tensorflow: \"2.15.1\"\nfleet: [{gpu: H100, driver: \"545.23.06\"}]\n", "warn ptx-only 3"},
		{"tensorflow: \"2.15.1\"\nfleet: [{gpu: H100, driver: \"525.60.13\"}]\n", "refuse ptx-driver 3"},
		{"tensorflow: \"2.15.1\"\nfleet: [{gpu: H100, driver: \"530.30.02\"}]\n", "warn ptx-only 3"},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: H100, driver: \"535.104.05\"}]\n", "unproved ptx-modules 3"},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: H100, driver: \"555.42.02\"}]\n", ""},
		{"tensorflow: \"2.19.1\"\nfleet: [{gpu: A100, driver: \"535.104.05\"}]\n", ""},
		{"tensorflow: \"2.9.0\"\n", "refuse wheel-set 2"},
	} {
		var got []string
		for _, f := range Lint(mustLoad(t, "name: a\n"+tc.recipe).Entries, table, []string{"wheels"}) {
			got = append(got, fmt.Sprintf("%s %s %d", f.Severity, f.Rule, f.Line))
		}
		if s := strings.Join(got, "\n"); s != tc.want {
			t.Errorf("%q:\n got %q\nwant %q", tc.recipe, s, tc.want)
		}
	}
}

func TestLintTogether(t *testing.T) {
	r := mustLoad(t, `name: m
tensorflow: "2.19.1"
publish: {repository: r/tf, tags: ["{tensorflow}-{cuda}"]}
include:
  - name: a
  - {name: b, cuda: "12.5"}
  - {name: a, publish: {repository: r/other}}
`)
	var got []string
	for _, f := range Lint(r.Entries, embedded(t), nil) {
		got = append(got, f.String())
	}
	want := []string{
		`r.yaml:3:1: entry "b": refuse (entry-tag): entry "a" (line 3) publishes the same tag r/tf:2.19.1-12.5; nearest that works: tags: ["{entry}"]; put {entry} into the tag [imgsmith: one tag names one image]`,
		`r.yaml:7:6: entry "a": refuse (entry-name): line 5 has an entry of the same name; nearest that works: another name; give it another name, or name more axes in entry_name [imgsmith: entries are told apart by name]`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if !Refused(Lint(r.Entries, embedded(t), nil)) || Refused([]Finding{{Severity: Warn}, {Severity: Unproved}}) {
		t.Error("Refused is wrong")
	}
}

func TestExpandTag(t *testing.T) {
	v := TagValues{TensorFlow: "2.19.1+local", Python: "3.11", CUDA: "12.5", CuDNN: "9.3.0.75", Entry: "e"}
	got, err := ExpandTag("{entry}-{tensorflow}-py{python}-cuda{cuda}-cudnn{cudnn}", v)
	if err != nil || got != "e-2.19.1_local-py3.11-cuda12.5-cudnn9.3.0.75" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"", ".x", "a b", "{nope}", strings.Repeat("x", 129), "a/b"} {
		if got, err := ExpandTag(bad, v); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}
