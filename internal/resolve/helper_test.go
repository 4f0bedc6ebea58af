package resolve

import (
	"os"
	"os/exec"
	"testing"

	"imgsmith/internal/facts"
)

// findUV returns a real uv, or skips.
func findUV(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("IMGSMITH_UV"); p != "" {
		return p
	}
	p, err := exec.LookPath("uv")
	if err != nil {
		t.Skip("no uv: neither IMGSMITH_UV nor PATH names one")
	}
	return p
}

func testResolver(t *testing.T, environ []string) *Resolver {
	t.Helper()
	table, err := facts.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return &Resolver{UV: findUV(t), Facts: table, Settings: HostSettings(environ), Encoders: map[string]string{"zstd": "test-zstd/1", "gzip": "test-gzip/1"}}
}
