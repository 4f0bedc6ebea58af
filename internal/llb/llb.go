// Package llb compiles a target into BuildKit's low-level build graph. It is pure: the same target and the
// same layer references give the same bytes. It knows layers by reference only and nothing of the host.
//
// Two kinds of program exist. Compile gives the image: a merge of base and finished layers, with its config.
// The step functions give small programs whose result is one file-system change that the component writer
// writes again; no step stands on the merge, because that would unpack it.
package llb

import (
	"fmt"

	"github.com/moby/buildkit/solver/pb"
)

// StoreHost is the registry name under which a program refers to images that imgsmith itself serves. The
// engine maps it to the address of the loopback store, so that no port and no host enters a definition.
// The top-level domain is reserved and never resolves.
const StoreHost = "store.imgsmith.invalid"

// StoreRef returns the reference of an image in the loopback store: repository is a lower-case path such as
// "base/debian" or "component/cudnn", digest the manifest's ("sha256:…").
func StoreRef(repository, digest string) string {
	return StoreHost + "/" + repository + "@" + digest
}

// Ids of the secrets that a step may ask for. All are optional: a step works without them.
const (
	SecretCA         = "imgsmith-ca"          // PEM bundle, mounted as a file
	SecretHTTPProxy  = "imgsmith-http-proxy"  // value of http_proxy
	SecretHTTPSProxy = "imgsmith-https-proxy" // value of https_proxy
	SecretNoProxy    = "imgsmith-no-proxy"    // value of no_proxy
)

// VenvDir is where the virtual environment of every image lives; CUDABinDir is on PATH after its bin.
const (
	VenvDir    = "/opt/venv"
	CUDABinDir = "/usr/local/cuda/bin"
)

// LayerRef is one finished layer as Compile sees it: an image with this one layer, by digest.
type LayerRef struct {
	Name    string // component name, for step names and history
	Ref     string // image reference by manifest digest, normally StoreHost/component/NAME@sha256:…
	Digest  string // digest of the compressed layer
	DiffID  string // digest of the uncompressed layer
	Size    int64  // compressed bytes
	Comment string // history comment, fixed text
}

// BaseImage is the base as a program sees it.
type BaseImage struct {
	Name   string // as the recipe gave it; it may be a path of this host, so no program holds it
	Ref    string // image reference by manifest digest, normally StoreHost/base/…@sha256:…
	Config []byte // the base's image config, JSON
}

// Program is a compiled graph: what an engine runs, and the image config of the result.
type Program struct {
	Name   string         // for progress and errors
	Def    *pb.Definition // the marshalled graph
	Config []byte         // image config JSON (history included), empty for a step whose result is extracted
	Layers []LayerRef     // every layer of the image after those of the base, in order
}

// InvalidError says which part of the input cannot be compiled, and what to do.
type InvalidError struct {
	Entry  string // name of the matrix entry
	What   string // the field or layer
	Reason string
	Remedy string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("compiling entry %q: %s: %s; remedy: %s", e.Entry, e.What, e.Reason, e.Remedy)
}
