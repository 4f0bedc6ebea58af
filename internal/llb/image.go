package llb

import (
	"context"
	"regexp"
	"strings"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/solver/pb"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/matrix"
)

// Options are the parts of an image that the target does not hold.
type Options struct {
	// Labels are added to those that Compile writes from the target (lock checksum, component versions).
	Labels map[string]string
}

// Compile returns the program of the image: base and layers merged in order, with the config. Layers are by
// digest, each the one layer of its image. The error is an *InvalidError when the input cannot give an image.
func Compile(t matrix.Target, base BaseImage, layers []LayerRef, opt Options) (Program, error) {
	if err := checkInput(t, base, layers); err != nil {
		return Program{}, err
	}
	if len(layers) == 0 {
		return Program{}, invalid(t, "layers", "there are none", "make the components first")
	}
	for _, l := range layers {
		if !digestPattern.MatchString(l.Digest) || !digestPattern.MatchString(l.DiffID) {
			return Program{}, invalid(t, "layer "+l.Name, "its digest or diffID is not known", "make the component again")
		}
	}
	config, err := imageConfig(t, base, layers, opt)
	if err != nil {
		return Program{}, err
	}
	def, err := marshal(t, stack(base, layers))
	if err != nil {
		return Program{}, err
	}
	return Program{Name: t.Entry, Def: def, Config: config, Layers: layers}, nil
}

var (
	digestPattern  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	refPattern     = regexp.MustCompile(`^[a-zA-Z0-9.:-]+/[a-z0-9._/-]+@sha256:[0-9a-f]{64}$`)
	versionPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
)

func invalid(t matrix.Target, what, reason, remedy string) error {
	return &InvalidError{Entry: t.Entry, What: what, Reason: reason, Remedy: remedy}
}

// checkInput refuses what would only fail inside the engine, with a worse message.
func checkInput(t matrix.Target, base BaseImage, layers []LayerRef) error {
	if _, err := platform(t); err != nil {
		return err
	}
	if !refPattern.MatchString(base.Ref) {
		return invalid(t, "base", "reference "+base.Ref+" is not by digest", "import the base first")
	}
	for _, l := range layers {
		if !refPattern.MatchString(l.Ref) {
			return invalid(t, "layer "+l.Name, "reference "+l.Ref+" is not by digest", "make the component first")
		}
	}
	return nil
}

func platform(t matrix.Target) (ocispecs.Platform, error) {
	parts := strings.Split(t.Platform, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "linux" || parts[1] == "" {
		return ocispecs.Platform{}, invalid(t, "platform", "'"+t.Platform+"' is not linux/ARCH", "write linux/amd64")
	}
	p := ocispecs.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// stack merges base and layers in order.
func stack(base BaseImage, layers []LayerRef) llb.State {
	states := []llb.State{llb.Image(base.Ref, llb.WithCustomName("base"))}
	for _, l := range layers {
		states = append(states, llb.Image(l.Ref, llb.WithCustomName("layer "+l.Name)))
	}
	if len(states) == 1 {
		return states[0]
	}
	return llb.Merge(states, llb.WithCustomName("merge"))
}

func marshal(t matrix.Target, s llb.State) (*pb.Definition, error) {
	p, err := platform(t)
	if err != nil {
		return nil, err
	}
	def, err := s.Marshal(context.Background(), llb.Platform(p))
	if err != nil {
		return nil, invalid(t, "graph", err.Error(), "report this as a fault of imgsmith")
	}
	return def.ToPB(), nil
}
