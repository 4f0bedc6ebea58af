package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// layoutPrefix marks a base in a directory: oci-layout:DIR, oci-layout:DIR:TAG or oci-layout:DIR@DIGEST.
const layoutPrefix = "oci-layout:"

// BaseImage is a base whose blobs are all in a store.
type BaseImage struct {
	Name           string // the reference as given
	Local          bool   // from a layout on disk
	ManifestDigest string // of the platform's manifest, not of an index
	MediaType      string // of that manifest
	ConfigDigest   string
	Config         []byte       // image config, JSON
	Layers         []Descriptor // bottom first
}

// source is where an import reads from.
type source interface {
	// root returns the top descriptor's document.
	root(ctx context.Context) (Descriptor, []byte, error)
	// open returns a blob or manifest; the reader's content is not checked yet.
	open(ctx context.Context, d Descriptor) (io.ReadCloser, error)
}

// ImportBase copies manifest, config and layers of one platform ("os/arch") of an image into the store in dir,
// so that a loopback registry can serve it and a later build needs no network for it. ref is a registry
// reference or oci-layout:DIR[:TAG|@DIGEST]. Errors are *Error.
func ImportBase(ctx context.Context, ref, platform, dir string) (BaseImage, error) {
	base, err := importBase(ctx, ref, platform, dir)
	if err != nil {
		return BaseImage{}, classify("importing base", ref, err)
	}
	return base, nil
}

func importBase(ctx context.Context, ref, platform, dir string) (BaseImage, error) {
	s, err := openStore(dir)
	if err != nil {
		return BaseImage{}, err
	}
	local := strings.HasPrefix(ref, layoutPrefix)
	src, err := sourceOf(ref, platform)
	if err != nil {
		return BaseImage{}, err
	}
	d, m, data, err := choose(ctx, src, platform)
	if err != nil {
		return BaseImage{}, err
	}
	for _, b := range m.references() {
		if err := copyBlob(ctx, s, src, b); err != nil {
			return BaseImage{}, err
		}
	}
	if err := writeAtomic(s.blob(d.Digest), data); err != nil {
		return BaseImage{}, err
	}
	config, err := s.readSmall(m.Config.Digest)
	if err != nil {
		return BaseImage{}, err
	}
	if err := checkPlatform(config, platform); err != nil {
		return BaseImage{}, err
	}
	return BaseImage{Name: ref, Local: local, ManifestDigest: d.Digest, MediaType: m.mediaType(),
		ConfigDigest: m.Config.Digest, Config: config, Layers: m.Layers}, nil
}

// sourceOf tells a layout on disk from a registry.
func sourceOf(ref, platform string) (source, error) {
	if layout, local := strings.CutPrefix(ref, layoutPrefix); local {
		return openLayout(layout, platform)
	}
	return openRemote(ref)
}

// choose follows an index to the manifest of the platform.
func choose(ctx context.Context, src source, platform string) (Descriptor, Manifest, []byte, error) {
	d, data, err := src.root(ctx)
	if err != nil {
		return d, Manifest{}, nil, err
	}
	for depth := 0; depth < 3; depth++ {
		if got := digestOf(data); got != d.Digest {
			return d, Manifest{}, nil, &mismatchError{fmt.Sprintf("manifest %s has content of digest %s", d.Digest, got)}
		}
		m, err := parseManifest(data)
		if err != nil {
			return d, m, nil, &mismatchError{err.Error()}
		}
		if !isIndex(m.mediaType()) {
			return d, m, data, checkMedia(m)
		}
		next, err := pick(m.Manifests, platform)
		if err != nil {
			return d, m, nil, err
		}
		r, err := src.open(ctx, next)
		if err != nil {
			return d, m, nil, err
		}
		data, err = io.ReadAll(io.LimitReader(r, maxManifest))
		r.Close()
		if err != nil {
			return d, m, nil, err
		}
		d = next
	}
	return d, Manifest{}, nil, &mismatchError{"the index is nested too deeply"}
}

// checkMedia refuses layers that lie elsewhere and artifacts that are no images.
func checkMedia(m Manifest) error {
	if !strings.Contains(m.Config.MediaType, "image") {
		return &mismatchError{"it is an artifact, not an image: config of type " + m.Config.MediaType}
	}
	for _, l := range m.Layers {
		if strings.Contains(l.MediaType, "foreign") || strings.Contains(l.MediaType, "nondistributable") {
			return &mismatchError{"layer " + l.Digest + " is not in the registry (" + l.MediaType + ")"}
		}
	}
	return nil
}

func pick(list []Descriptor, platform string) (Descriptor, error) {
	var have []string
	for _, d := range list {
		if d.Platform == nil {
			if len(list) == 1 {
				return d, nil
			}
			continue
		}
		p := d.Platform.OS + "/" + d.Platform.Architecture
		if p == platform || p+"/"+d.Platform.Variant == platform {
			return d, nil
		}
		if p != "unknown/unknown" {
			have = append(have, p)
		}
	}
	return Descriptor{}, &Error{Kind: NoPlatform, Err: fmt.Errorf("no image for %s, only for: %s", platform, strings.Join(have, ", ")),
		Remedy: "choose a base that has this platform"}
}

func checkPlatform(config []byte, platform string) error {
	var c Platform
	if err := json.Unmarshal(config, &c); err != nil {
		return &mismatchError{"the image config is not valid: " + err.Error()}
	}
	if p := c.OS + "/" + c.Architecture; p != platform && p+"/"+c.Variant != platform {
		return &Error{Kind: NoPlatform, Err: fmt.Errorf("the image is for %q, not for %s", p, platform),
			Remedy: "choose a base of this platform; an image without os and architecture cannot be built on"}
	}
	return nil
}

func copyBlob(ctx context.Context, s store, src source, d Descriptor) error {
	if info, err := os.Stat(s.blob(d.Digest)); err == nil && info.Size() == d.Size {
		return nil
	}
	r, err := src.open(ctx, d)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.write(d.Digest, d.Size, contextReader{ctx, r})
}

// contextReader ends a copy when ctx is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// layoutSource reads an OCI layout.
type layoutSource struct {
	store store
	top   Descriptor
}

func openLayout(spec, platform string) (source, error) {
	dir, tag, digest := spec, "", ""
	if i := strings.LastIndex(spec, "@"); i >= 0 {
		dir, digest = spec[:i], spec[i+1:]
	} else if i := strings.LastIndex(spec, ":"); i > strings.LastIndex(spec, "/") {
		dir, tag = spec[:i], spec[i+1:]
	}
	if dir == "" || (digest != "" && !digestPattern.MatchString(digest)) {
		return nil, &Error{Kind: BadReference, Err: errors.New("not oci-layout:DIR, oci-layout:DIR:TAG or oci-layout:DIR@sha256:…"),
			Remedy: "correct the reference"}
	}
	s := store{dir}
	if _, err := os.Stat(s.dir + "/oci-layout"); err != nil {
		return nil, &Error{Kind: NotFound, Err: err, Remedy: "make the layout first ('make base'), or correct the path"}
	}
	idx, err := s.index()
	if err != nil {
		return nil, &mismatchError{err.Error()}
	}
	var candidates []Descriptor
	for _, d := range idx.Manifests {
		if (tag == "" || d.Annotations[refNameAnnotation] == tag) && (digest == "" || d.Digest == digest) {
			candidates = append(candidates, d)
		}
	}
	if len(candidates) == 0 {
		return nil, &Error{Kind: NotFound, Err: errors.New("the layout has no such image"), Remedy: "name one of its tags or digests"}
	}
	top := candidates[0]
	same := func(d Descriptor) bool { return d.Digest == top.Digest } // one image under several names
	if slices.ContainsFunc(candidates, func(d Descriptor) bool { return !same(d) }) {
		if top, err = pick(candidates, platform); err != nil {
			return nil, err
		}
	}
	if !digestPattern.MatchString(top.Digest) {
		return nil, &mismatchError{"index.json holds a bad digest"}
	}
	return layoutSource{s, top}, nil
}

func (l layoutSource) root(context.Context) (Descriptor, []byte, error) {
	data, err := l.store.readSmall(l.top.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		err = &mismatchError{err.Error()}
	}
	return l.top, data, err
}

func (l layoutSource) open(_ context.Context, d Descriptor) (io.ReadCloser, error) {
	f, err := os.Open(l.store.blob(d.Digest))
	if err != nil {
		return nil, &mismatchError{err.Error()}
	}
	return f, nil
}

// remoteSource reads a registry.
type remoteSource struct{ ref name.Reference }

func openRemote(ref string) (source, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	return remoteSource{r}, nil
}

func (r remoteSource) root(ctx context.Context) (Descriptor, []byte, error) {
	d, err := remote.Get(r.ref, options(ctx)...)
	if err != nil {
		return Descriptor{}, nil, err
	}
	return Descriptor{MediaType: string(d.MediaType), Digest: d.Digest.String(), Size: d.Size}, d.Manifest, nil
}

func (r remoteSource) open(ctx context.Context, d Descriptor) (io.ReadCloser, error) {
	ref := r.ref.Context().Digest(d.Digest)
	if d.MediaType == mediaOCIManifest || d.MediaType == mediaDockerManifest || isIndex(d.MediaType) {
		got, err := remote.Get(ref, options(ctx)...)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(strings.NewReader(string(got.Manifest))), nil
	}
	layer, err := remote.Layer(ref, options(ctx)...)
	if err != nil {
		return nil, err
	}
	return layer.Compressed()
}
