// Package facts is the embedded version knowledge: which TensorFlow release needs which Python, CUDA, cuDNN,
// driver and GPU, with a source and a confidence for every row, and typed questions to it. It is pure: it
// reads only the embedded data files, decides nothing about a matrix entry (that is internal/matrix) and
// asks no network.
package facts

import (
	"embed"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
)

//go:embed data/*.yaml
var data embed.FS

// ErrUnknown says that the table has no row for the question. It does not say that the answer is no.
var ErrUnknown = errors.New("not in the facts table")

// Evidence says where a fact was read and how far it can be relied on.
type Evidence struct {
	Source     string `yaml:"source" json:"source"`
	Confidence string `yaml:"confidence" json:"confidence"` // verified | reported | unknown
}

// Table is the whole version knowledge, immutable after Embedded.
type Table struct {
	tensorflow tensorflowFile
	cuda       cudaFile
	gpu        gpuFile
	os         osFile
	recipe     recipeFile
	driver     driverFile
	image      imageFile
}

// Embedded returns the table that is built into the program. It parses on every call: load it once and pass
// it on. An error means that the program itself is broken.
func Embedded() (*Table, error) {
	t := &Table{}
	for name, into := range t.files() {
		raw, err := data.ReadFile("data/" + name + ".yaml")
		if err != nil {
			return nil, fmt.Errorf("reading facts: %w", err)
		}
		if err := yaml.UnmarshalWithOptions(raw, into, yaml.Strict()); err != nil {
			return nil, fmt.Errorf("parsing facts %s: %w", name, err)
		}
	}
	return t, nil
}

// files returns the parts of the table by the name of their file.
func (t *Table) files() map[string]any {
	return map[string]any{
		"tensorflow": &t.tensorflow, "cuda": &t.cuda, "gpu": &t.gpu, "os": &t.os, "recipe": &t.recipe, "driver": &t.driver, "image": &t.image,
	}
}

func unknown(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrUnknown)
}
