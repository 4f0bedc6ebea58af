package fakegpu

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

// Entries of the matrix that Matrix writes, in order: the first works, the others must not get a tag.
const (
	EntryGood       = "good"
	EntryBrokenLink = "broken-cudnn-link" // a test layout bends the link of a cuDNN sub-library
	EntryConvOnCPU  = "conv-on-cpu"       // the convolution falls back to the CPU
)

// Matrix writes a recipe with the three entries, and the layout of the second, into the directory of a kit.
// Proved images go to repository, each under its entry's name. It returns the path of the recipe, matrix.yaml.
func Matrix(dir, repository string) (string, error) {
	v := struct{ Repository, Good, GoodSum, Conv, ConvSum string }{Repository: repository}
	var err error
	if v.Good, v.GoodSum, err = ownWheel(dir, Good); err != nil {
		return "", err
	}
	if v.Conv, v.ConvSum, err = ownWheel(dir, ConvOnCPU); err != nil {
		return "", err
	}
	tmpl, err := template.ParseFS(data, "data/matrix.yaml", "data/broken-cudnn-link.yaml")
	if err != nil {
		return "", fmt.Errorf("writing the fake matrix: %w", err)
	}
	for _, name := range []string{"broken-cudnn-link.yaml", "matrix.yaml"} {
		var out bytes.Buffer
		if err := tmpl.ExecuteTemplate(&out, name, v); err != nil {
			return "", fmt.Errorf("writing the fake matrix: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o644); err != nil {
			return "", fmt.Errorf("writing the fake matrix: %w", err)
		}
	}
	return filepath.Join(dir, "matrix.yaml"), nil
}

// ownWheel returns the stub tensorflow of a behaviour: its path relative to dir and its sha256 in hex.
func ownWheel(dir string, b Behaviour) (path, sum string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "tensorflow", string(b), "*.whl"))
	if err != nil || len(found) != 1 {
		return "", "", fmt.Errorf("writing the fake matrix: %s has %d wheels of behaviour %s, want one; make the kit first", dir, len(found), b)
	}
	content, err := os.ReadFile(found[0])
	if err != nil {
		return "", "", fmt.Errorf("writing the fake matrix: %w", err)
	}
	if path, err = filepath.Rel(dir, found[0]); err != nil {
		return "", "", fmt.Errorf("writing the fake matrix: %w", err)
	}
	return path, fmt.Sprintf("%x", sha256.Sum256(content)), nil
}
