package llb

import (
	"encoding/json"
	"sort"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"imgsmith/internal/matrix"
)

// createdBy is the fixed text of our history entries; the component name follows.
const createdBy = "imgsmith: "

// baseConfig is what we read of a base's config. Config keeps members that the OCI type does not know.
type baseConfig struct {
	Created      *time.Time                 `json:"created"`
	Architecture string                     `json:"architecture"`
	OS           string                     `json:"os"`
	Variant      string                     `json:"variant"`
	Config       map[string]json.RawMessage `json:"config"`
	RootFS       struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []ocispecs.History `json:"history"`
}

// imageDocument is the config that we write. The exporter adds rootfs.
type imageDocument struct {
	Created      time.Time                  `json:"created"`
	Architecture string                     `json:"architecture"`
	OS           string                     `json:"os"`
	Variant      string                     `json:"variant,omitempty"`
	Config       map[string]json.RawMessage `json:"config"`
	RootFS       ocispecs.RootFS            `json:"rootfs"`
	History      []ocispecs.History         `json:"history"`
}

// imageConfig returns the config of the image: the base's with our environment, user, labels and history.
func imageConfig(t matrix.Target, base BaseImage, layers []LayerRef, opt Options) ([]byte, error) {
	var b baseConfig
	if err := json.Unmarshal(base.Config, &b); err != nil {
		return nil, invalid(t, "base config", err.Error(), "use a base whose image config is valid JSON")
	}
	p, err := platform(t)
	if err != nil {
		return nil, err
	}
	if b.OS != p.OS || b.Architecture != p.Architecture {
		return nil, invalid(t, "base config", "it is for '"+b.OS+"/"+b.Architecture+"', the entry for "+t.Platform,
			"use a base of that platform; an image without an architecture cannot be exported")
	}
	config := b.Config
	if config == nil {
		config = map[string]json.RawMessage{}
	}
	var env []string
	labels := map[string]string{}
	if err := unmarshalMembers(config, map[string]any{"Env": &env, "Labels": &labels}); err != nil {
		return nil, invalid(t, "base config", err.Error(), "use a base whose image config is valid")
	}
	members := map[string]any{"Env": environment(t, env), "Labels": imageLabels(t, base, labels, opt.Labels)}
	if t.User != "" {
		members["User"] = t.User
	}
	for name, v := range members {
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, invalid(t, "image config", err.Error(), "report this as a fault of imgsmith")
		}
		config[name] = raw
	}
	doc := imageDocument{Created: t.Time(), Architecture: p.Architecture, OS: p.OS, Variant: b.Variant, Config: config,
		RootFS: ocispecs.RootFS{Type: "layers"}, History: history(t, b, layers)}
	for _, d := range b.RootFS.DiffIDs {
		doc.RootFS.DiffIDs = append(doc.RootFS.DiffIDs, digest.Digest(d))
	}
	for _, l := range layers {
		doc.RootFS.DiffIDs = append(doc.RootFS.DiffIDs, digest.Digest(l.DiffID))
	}
	return json.Marshal(doc)
}

func unmarshalMembers(config map[string]json.RawMessage, into map[string]any) error {
	for name, v := range into {
		raw, ok := config[name]
		if !ok || string(raw) == "null" {
			continue
		}
		if err := json.Unmarshal(raw, v); err != nil {
			return err
		}
	}
	return nil
}

// environment returns the image's variables: those of the base in their order, then ours sorted by name.
// The recipe wins over everything.
func environment(t matrix.Target, base []string) []string {
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	ours := map[string]string{"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
	var out []string
	for _, kv := range base {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "PATH":
			path = value
		// Not inherited: the first would override loader configuration, the second would show every GPU to
		// containers that asked for none, the third is ours to set.
		case "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES":
		default:
			if _, overridden := t.Environment[name]; !overridden {
				out = append(out, kv)
			}
		}
	}
	ours["PATH"] = VenvDir + "/bin:" + CUDABinDir + ":" + path
	for name, value := range t.Environment {
		ours[name] = value
	}
	names := make([]string, 0, len(ours))
	for name := range ours {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		out = append(out, name+"="+ours[name])
	}
	return out
}

// imageLabels names the versions inside. What was proved stands in the evidence, not here.
func imageLabels(t matrix.Target, base BaseImage, labels, extra map[string]string) map[string]string {
	_, dgst, _ := strings.Cut(base.Ref, "@")
	set := map[string]string{
		ocispecs.AnnotationCreated:         t.Time().Format(time.RFC3339),
		ocispecs.AnnotationTitle:           t.Entry,
		ocispecs.AnnotationBaseImageDigest: dgst,
		"imgsmith.entry":                   t.Entry,
		"imgsmith.python":                  t.Python.Version,
		"imgsmith.tensorflow":              t.TensorFlow,
		"imgsmith.cuda":                    t.CUDA,
		"imgsmith.cudnn":                   t.CuDNN,
	}
	// The name of a local base is a path of the build host.
	if !t.Base.Local {
		set[ocispecs.AnnotationBaseImageName] = t.Base.Name
	}
	for k, v := range set {
		if v != "" {
			labels[k] = v
		}
	}
	for k, v := range extra {
		labels[k] = v
	}
	return labels
}

// history keeps the base's entries and adds one per layer. A base whose entries do not match its layers gets
// one fixed entry per layer, because the exporter would invent entries with the time of the export.
func history(t matrix.Target, b baseConfig, layers []LayerRef) []ocispecs.History {
	epoch := t.Time()
	var out []ocispecs.History
	filled := 0
	for _, h := range b.History {
		if h.Created == nil {
			h.Created = &epoch
		}
		if !h.EmptyLayer {
			filled++
		}
		out = append(out, h)
	}
	if filled != len(b.RootFS.DiffIDs) {
		out = nil
		for range b.RootFS.DiffIDs {
			out = append(out, ocispecs.History{Created: &epoch, CreatedBy: createdBy + "base layer"})
		}
	}
	for _, l := range layers {
		out = append(out, ocispecs.History{Created: &epoch, CreatedBy: createdBy + l.Name, Comment: l.Comment})
	}
	return out
}
