// Package derive reads version facts from a TensorFlow wheel: its metadata, the headers it brings, build_info,
// and its shared objects with their GPU code. It runs nothing of the wheel and asks no network. What a wheel
// cannot show stays empty; Row fills that from the facts of the same minor release and names them as source.
package derive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"imgsmith/internal/wheel"
)

// Observed is what one wheel shows.
type Observed struct {
	File           string    `yaml:"file" json:"file"` // name without directory
	SHA256         string    `yaml:"sha256" json:"sha256"`
	Size           int64     `yaml:"size" json:"size"`
	Name           string    `yaml:"name" json:"name"`
	Version        string    `yaml:"version" json:"version"`
	Tags           []string  `yaml:"tags,flow" json:"tags"`
	RequiresPython string    `yaml:"requires_python,omitempty" json:"requires_python,omitempty"`
	Classified     []string  `yaml:"python_classifiers,flow,omitempty" json:"python_classifiers,omitempty"`
	Requires       []string  `yaml:"requires,omitempty" json:"requires,omitempty"` // raw requirement lines
	BuildInfo      BuildInfo `yaml:"build_info" json:"build_info"`
	Headers        Headers   `yaml:"headers" json:"headers"`
	Libraries      Libraries `yaml:"libraries" json:"libraries"`
}

// ErrNotTensorFlow says that a wheel is no TensorFlow wheel.
var ErrNotTensorFlow = errors.New("not a TensorFlow wheel: it holds no libtensorflow_framework")

// maxHeader bounds a header or script that is read whole; cuda.h is the largest with about 1 MB.
const maxHeader = 8 << 20

// Wheel opens a wheel file and looks at everything in it that tells versions. It needs memory for the largest
// small member only; large libraries are unpacked, one at a time, into an unlinked temporary file.
func Wheel(ctx context.Context, file string) (*Observed, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("opening wheel: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("opening wheel: %w", err)
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, &contextReader{ctx, f}, make([]byte, 1<<20)); err != nil {
		return nil, fmt.Errorf("reading wheel: %w", err)
	}
	w, err := wheel.Open(filepath.Base(file), f, info.Size())
	if err != nil {
		return nil, err
	}
	o := &Observed{
		File: filepath.Base(file), SHA256: hex.EncodeToString(h.Sum(nil)), Size: info.Size(), Name: w.Name, Version: w.Version,
		Tags: fileTags(filepath.Base(file)), RequiresPython: w.Meta.RequiresPython, Requires: w.Meta.RequiresDist, Classified: w.Meta.Pythons,
	}
	if err := o.members(ctx, w); err != nil {
		return nil, fmt.Errorf("deriving facts from %s: %w", o.File, err)
	}
	return o, nil
}

func (o *Observed) members(ctx context.Context, w *wheel.Wheel) error {
	s := scan{code: GPUCode{}}
	for _, m := range w.Members {
		base := path.Base(m.Name)
		var err error
		switch {
		case base == "build_info.py", strings.HasSuffix(base, ".h") && wanted(m.Name):
			err = o.text(w, m, base)
		case sharedObject.MatchString(base):
			err = s.library(ctx, w, m)
		}
		if err != nil {
			return err
		}
	}
	if s.out.Caller == "" {
		return ErrNotTensorFlow
	}
	s.out.GPUModules = s.code.List()
	o.Libraries = s.out
	return nil
}

// wanted tells the headers that the build's configuration and NVIDIA's own packages brought from others of the
// same name.
func wanted(name string) bool {
	switch path.Base(name) {
	case "cuda_config.h", "cudnn_version.h", "nccl.h":
		return true
	case "cuda.h", "cudnn.h":
		dir := path.Dir(name)
		return strings.HasSuffix(dir, "gpus/cuda/include") || strings.HasSuffix(dir, "cudnn/include") || strings.Contains(dir, "external/cuda_cudart/include") || strings.Contains(dir, "external/cuda_cudnn/include") || strings.HasSuffix(dir, "gpus/cudnn")
	}
	return false
}

func (o *Observed) text(w *wheel.Wheel, m wheel.Member, base string) error {
	if m.Size > maxHeader {
		return fmt.Errorf("%s: %d bytes; such a file is far smaller", m.Name, m.Size)
	}
	rc, err := w.OpenMember(m, nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(rc)
	if err != nil {
		return err
	}
	if base == "build_info.py" {
		o.BuildInfo = parseBuildInfo(text)
		return nil
	}
	o.Headers.read(base, text)
	return nil
}

// fileTags returns the tags of the file name, python-abi-platform, one for each combination.
func fileTags(file string) []string {
	p := strings.Split(strings.TrimSuffix(file, ".whl"), "-")
	if len(p) < 5 {
		return nil
	}
	p = p[len(p)-3:]
	var out []string
	for _, py := range strings.Split(p[0], ".") {
		for _, abi := range strings.Split(p[1], ".") {
			for _, plat := range strings.Split(p[2], ".") {
				out = append(out, py+"-"+abi+"-"+plat)
			}
		}
	}
	return out
}
