// Package fakegpu makes the fake-GPU kit for tests: an NVML and a CUDA driver library that know one made-up
// GPU, device nodes, a CDI specification that uses the real nvidia-cdi-hook, wheels with the names of
// NVIDIA's but stub libraries inside, and a stub tensorflow of a chosen behaviour. Everything carries a
// watermark; nothing of it is in a release and nothing proved with it may be signed.
package fakegpu

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/goccy/go-yaml"
)

//go:embed data
var data embed.FS

// Behaviour is what the stub tensorflow does wrong.
type Behaviour string

// The behaviours. Each is a wheel of its own.
const (
	Good        Behaviour = "good"
	ConvOnCPU   Behaviour = "conv-on-cpu"  // the convolution's result is on the CPU
	NoGPU       Behaviour = "no-gpu"       // no GPU is listed
	WrongResult Behaviour = "wrong-result" // results on the GPU are half as large again
	Hang        Behaviour = "hang"         // matmul on the GPU does not return
	Crash       Behaviour = "crash"        // the convolution on the GPU aborts
)

// Options say what the kit shall be like.
type Options struct {
	CDIHook string            // path of the real nvidia-cdi-hook, empty: no CDI specification
	Env     map[string]string // into every container: IMGSMITH_FAKE_CUINIT=802 and the like, see data/*.c
}

// Kit is a finished kit. All paths are absolute.
type Kit struct {
	Dir        string               `json:"dir"`
	DriverDir  string               `json:"driver_dir"`           // for LD_LIBRARY_PATH of the NVML helper on the host
	CDIDir     string               `json:"cdi_dir"`              // for the engine's --cdi-spec-dir, empty without hook or root
	FindLinks  string               `json:"find_links"`           // wheels of every stub package, the good tensorflow among them
	TensorFlow map[Behaviour]string `json:"tensorflow"`           // wheel by behaviour
	NoDevices  string               `json:"no_devices,omitempty"` // why there are no device nodes and no CDI specification
}

// spec is data/kit.yaml.
type spec struct {
	Driver struct {
		Version           string `yaml:"version"`
		CUDA              int    `yaml:"cuda"`
		ComputeCapability string `yaml:"compute_capability"`
		Memory            int64  `yaml:"memory"`
	} `yaml:"driver"`
	Runtime    int         `yaml:"runtime"`
	CuDNN      int         `yaml:"cudnn"`
	TensorFlow tensorflow  `yaml:"tensorflow"`
	Behaviours []Behaviour `yaml:"behaviours"`
	Pip        string      `yaml:"pip"`
	Packages   []pkg       `yaml:"packages"`
}

type tensorflow struct {
	Version   string            `yaml:"version"`
	BuildInfo map[string]any    `yaml:"build_info"`
	Dlopen    []string          `yaml:"dlopen"`
	RunPath   string            `yaml:"runpath"`
	Headers   map[string]string `yaml:"headers"`
}

type pkg struct {
	Name     string            `yaml:"name"`
	Version  string            `yaml:"version"`
	Dir      string            `yaml:"dir"`
	Requires []string          `yaml:"requires"`
	Libs     []lib             `yaml:"libs"`
	PTXAS    bool              `yaml:"ptxas"`
	Files    map[string]string `yaml:"files"`
}

type lib struct {
	File    string   `yaml:"file"`
	Soname  string   `yaml:"soname"` // empty: File
	Path    string   `yaml:"path"`   // below the package, empty: lib
	Source  string   `yaml:"source"` // empty: plain.c
	Needed  []string `yaml:"needed"`
	RunPath string   `yaml:"runpath"`
}

// ErrNoCompiler says that this host has no C compiler.
var ErrNoCompiler = errors.New("making the fake GPU kit: no gcc on this host (install gcc and libc headers)")

// Build writes the kit into dir, which is made when absent. Twice the same bytes.
func Build(ctx context.Context, dir string, opt Options) (Kit, error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return Kit{}, ErrNoCompiler
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Kit{}, fmt.Errorf("making the fake GPU kit: %w", err)
	}
	var s spec
	raw, err := data.ReadFile("data/kit.yaml")
	if err != nil {
		return Kit{}, fmt.Errorf("making the fake GPU kit: %w", err)
	}
	if err := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict()).Decode(&s); err != nil {
		return Kit{}, fmt.Errorf("reading the fake GPU kit's list: %w", err)
	}
	k := Kit{Dir: dir, DriverDir: filepath.Join(dir, "driver"), FindLinks: filepath.Join(dir, "wheels"), TensorFlow: map[Behaviour]string{}}
	for _, d := range []string{k.DriverDir, k.FindLinks, filepath.Join(dir, "tensorflow"), filepath.Join(dir, "build")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return Kit{}, fmt.Errorf("making the fake GPU kit: %w", err)
		}
	}
	c := compiler{dir: filepath.Join(dir, "build"), spec: s}
	if err := c.sources(); err != nil {
		return Kit{}, err
	}
	if err := c.driver(ctx, k.DriverDir); err != nil {
		return Kit{}, err
	}
	if err := c.wheels(ctx, &k); err != nil {
		return Kit{}, err
	}
	return k, devices(&k, s, opt)
}
