// Package probe is what runs inside an image: probe.py (embedded), the configuration it takes, and the
// reading of the one document it prints. It reports and decodes facts; judging them is validate's work.
package probe

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed probe.py
var source []byte

// Source returns a copy of probe.py.
func Source() []byte { return append([]byte(nil), source...) }

// Config is the probe's one argument. Sonames come from the entry's facts: the probe knows none.
type Config struct {
	Nonce     string             `json:"nonce"`
	Sonames   Sonames            `json:"sonames"`
	Dlopen    []string           `json:"dlopen"`        // TensorFlow's dlopen set
	CuDNNSub  []string           `json:"cudnn_sub"`     // cuDNN's sub-libraries of this package
	Steps     []string           `json:"steps"`         // empty: all
	Deadlines map[string]float64 `json:"deadlines"`     // seconds per step name; "default" for the others
	Total     float64            `json:"total_seconds"` // after it no further step starts
	AsShipped bool               `json:"as_shipped"`    // leave the image's environment as it is
}

// Sonames name the libraries that the probe calls itself.
type Sonames struct {
	NVML   string `json:"nvml"`   // libnvidia-ml.so.1
	CUDA   string `json:"cuda"`   // libcuda.so.1
	Cudart string `json:"cudart"` // libcudart.so.12
	CuDNN  string `json:"cudnn"`  // libcudnn.so.9
	CuBLAS string `json:"cublas"` // libcublas.so.12
}

// Args returns the arguments that follow the script.
func (c Config) Args() ([]string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("writing the probe's configuration: %w", err)
	}
	return []string{string(b)}, nil
}
