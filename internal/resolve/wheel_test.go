package resolve

import (
	"archive/zip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"imgsmith/internal/facts"
)

// makeWheel writes a small valid wheel and returns its path. tags is "py3-none-any" or like it.
func makeWheel(t *testing.T, dir, name, version, tags string, metadata ...string) string {
	t.Helper()
	dist := strings.ReplaceAll(name, "-", "_") + "-" + version
	path := filepath.Join(dir, dist+"-"+tags+".whl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for _, e := range []struct{ name, text string }{
		{dist + ".dist-info/METADATA", fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s\n", name, version, strings.Join(metadata, "\n"))},
		{dist + ".dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: " + tags + "\n"},
		{dist + ".dist-info/RECORD", ""},
	} {
		w, err := z.Create(e.name)
		if err == nil {
			_, err = w.Write([]byte(e.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// smallIndex makes a directory with stand-ins of TensorFlow 2.19.1 and of everything it asks for.
func smallIndex(t *testing.T, table *facts.Table) string {
	t.Helper()
	dir := t.TempDir()
	tf, err := table.TensorFlow("2.19.1")
	if err != nil {
		t.Fatal(err)
	}
	meta := []string{"Requires-Dist: numpy<2.2,>=1.26", "Requires-Dist: absl-py>=1", "Provides-Extra: and-cuda"}
	for name, version := range tf.Extra.Packages {
		meta = append(meta, fmt.Sprintf("Requires-Dist: %s==%s; extra == \"and-cuda\"", name, version))
		makeWheel(t, dir, name, version, "py3-none-manylinux2014_x86_64")
	}
	for _, set := range []struct{ cuda, cudnn string }{{"12.8", "9.8"}} {
		wheels, err := table.CUDAWheels(set.cuda, set.cudnn)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range wheels {
			makeWheel(t, dir, w.Distribution, strings.ReplaceAll(w.Version, "*", "0.87"), "py3-none-manylinux_2_27_x86_64")
		}
	}
	makeWheel(t, dir, "nvidia-cudnn-cu12", "9.28.0.42", "py3-none-manylinux_2_27_x86_64")
	makeWheel(t, dir, "tensorflow", "2.19.1", "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", meta...)
	makeWheel(t, dir, "pip", "25.0", "py3-none-any")
	makeWheel(t, dir, "absl-py", "2.5.1", "py3-none-any")
	for _, tags := range []string{"cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", "cp311-cp311-manylinux_2_34_x86_64", "cp312-cp312-manylinux_2_17_x86_64", "cp311-cp311-musllinux_1_2_x86_64", "cp311-cp311-manylinux_2_17_aarch64"} {
		makeWheel(t, dir, "numpy", "2.1.3", tags)
	}
	makeWheel(t, dir, "numpy", "2.3.0", "cp311-cp311-manylinux_2_17_x86_64")
	makeWheel(t, dir, "too-new", "1.0", "cp311-cp311-manylinux_2_39_x86_64")
	if err := os.WriteFile(filepath.Join(dir, "onlysource-1.0.tar.gz"), []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
