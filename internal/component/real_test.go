package component_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"imgsmith/internal/matrix"
)

// realWheels are the kinds that issue a comparison each; the first match in the directory is taken.
func realWheels() []string {
	return []string{"nvidia_cudnn_*", "nvidia_cuda_nvcc_*", "nvidia_cublas_*", "numpy-*", "markdown-*", "tensorboard-*", "libclang-*",
		"setuptools-*", "protobuf-*", "tensorflow-[0-9]*"}
}

// TestRealWheels compares real wheels with real pip installs: make test-wheels sets IMGSMITH_TEST_WHEELS to a
// directory that holds them. Everything is compared byte for byte, scripts and RECORD included, when the directory
// has the pip whose script text the layout carries (26.x); with another pip those two may differ.
func TestRealWheels(t *testing.T) {
	dir := os.Getenv("IMGSMITH_TEST_WHEELS")
	if dir == "" {
		t.Skip("IMGSMITH_TEST_WHEELS is not set to a directory of wheels (make test-wheels does it)")
	}
	h := newPipHost(t)
	upgrade := ""
	if m, err := filepath.Glob(filepath.Join(dir, "pip-26.*.whl")); err == nil && len(m) > 0 {
		upgrade = m[0]
	}
	compared := 0
	for _, pattern := range realWheels() {
		files, err := filepath.Glob(filepath.Join(dir, pattern+".whl"))
		if err != nil || len(files) == 0 {
			t.Logf("no wheel %s in %s", pattern, dir)
			continue
		}
		compared++
		t.Run(strings.TrimRight(pattern, "-_*[0-9]"), func(t *testing.T) { compareReal(t, h, dir, upgrade, lockFile(t, files[0])) })
	}
	if compared < 5 {
		t.Errorf("only %d wheels compared; %s is not the set this test is for", compared, dir)
	}
}

func compareReal(t *testing.T, h *pipHost, dir, upgrade string, w matrix.Wheel) {
	differ := func(p string) bool {
		if upgrade != "" {
			return false
		}
		return strings.HasSuffix(p, "/RECORD") || strings.HasPrefix(p, "/"+h.resolved(t).Venv+"/bin/")
	}
	requirement := fmt.Sprintf("%s==%s", w.Name, w.Version)
	pip := h.pipTree(t, dir, upgrade, requirement)
	tree, _ := h.ours(t, dir, []matrix.Wheel{w})
	h.compare(t, pip, tree, differ)
}
