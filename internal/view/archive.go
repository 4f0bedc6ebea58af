package view

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"imgsmith/internal/rootfs"
)

// Bounds of what an archive may hold besides layers.
const (
	maxDocument  = 8 << 20 // bytes of one JSON document
	maxDocuments = 10_000
	maxAliases   = 10_000
)

// Archive reads an image from one tar stream: what `docker save` writes, in its old and new form, or an OCI
// layout in a tar. The layers are read as they pass, so the stream is needed once; open is called again only for
// an image with a library that cannot be read in passing. Errors wrap ErrFormat when it is something else.
func Archive(ctx context.Context, ref string, open func(context.Context) (io.ReadCloser, error), opt Options) (Image, error) {
	var err error
	for _, window := range []bool{true, false} {
		var img Image
		img, err = archiveOnce(ctx, ref, open, opt, window)
		if err == nil {
			return img, nil
		}
		if !errors.Is(err, rootfs.ErrWindow) {
			break
		}
	}
	return Image{}, fmt.Errorf("reading the archive of %s: %w", ref, err)
}

func archiveOnce(ctx context.Context, ref string, open func(context.Context) (io.ReadCloser, error), opt Options, window bool) (Image, error) {
	raw, err := open(ctx)
	if err != nil {
		return Image{}, err
	}
	defer raw.Close()
	r, err := decompress(raw)
	if err != nil {
		return Image{}, err
	}
	defer r.Close()
	a := archive{budget: newBudget(opt), window: window, docs: map[string][]byte{}, layers: map[string]Layer{}, alias: map[string]string{}}
	if err := a.read(ctx, r); err != nil {
		return Image{}, err
	}
	img, err := a.image(opt)
	if err != nil {
		return Image{}, err
	}
	img.Ref = ref
	return img.finish()
}

// archive collects what passes. Names are clean paths in the archive.
type archive struct {
	budget *budget
	window bool
	docs   map[string][]byte
	layers map[string]Layer
	alias  map[string]string
}

func (a *archive) read(ctx context.Context, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFormat, err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		switch h.Typeflag {
		case tar.TypeSymlink:
			a.alias[name] = strings.TrimPrefix(path.Clean("/"+path.Join(path.Dir(name), h.Linkname)), "/")
		case tar.TypeLink:
			a.alias[name] = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		case tar.TypeReg:
			err = a.file(ctx, name, h.Size, tr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(a.alias) > maxAliases || len(a.docs) > maxDocuments {
			return fmt.Errorf("%w: more than %d documents", ErrFormat, maxDocuments)
		}
	}
}

// file keeps a document or reads a layer.
func (a *archive) file(ctx context.Context, name string, size int64, r io.Reader) error {
	b := bufio.NewReaderSize(r, 64<<10)
	first, err := b.Peek(1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	if first[0] == '{' || first[0] == '[' {
		if size <= maxDocument {
			a.docs[name], err = io.ReadAll(b)
		}
		return err
	}
	if !strings.HasPrefix(name, "blobs/") && !strings.Contains(path.Base(name), ".tar") {
		return nil
	}
	sum := sha256.New()
	raw := io.TeeReader(b, sum)
	z, err := decompress(raw)
	if err != nil {
		return err
	}
	defer z.Close()
	nodes, unpacked, err := a.budget.layer(ctx, z, a.window)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(z, maxPadding)); err != nil {
		return err
	}
	z.Close()
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return err
	}
	a.layers[name] = Layer{Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: size, Unpacked: unpacked, Nodes: nodes}
	return nil
}

// resolve follows aliases of the archive.
func (a *archive) resolve(name string) string {
	for range 8 {
		to, ok := a.alias[name]
		if !ok {
			break
		}
		name = to
	}
	return name
}

// image puts together what the archive's own documents name.
func (a *archive) image(opt Options) (Image, error) {
	if doc, ok := a.docs["manifest.json"]; ok {
		return a.saved(doc)
	}
	if doc, ok := a.docs["index.json"]; ok {
		return a.oci(doc, opt.Platform, 0)
	}
	return Image{}, fmt.Errorf("%w: the archive has neither manifest.json nor index.json", ErrFormat)
}

// saved reads the list that docker save writes; the first image of it counts.
func (a *archive) saved(doc []byte) (Image, error) {
	var list []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(doc, &list); err != nil {
		return Image{}, fmt.Errorf("%w: manifest.json: %w", ErrFormat, err)
	}
	if len(list) != 1 {
		return Image{}, fmt.Errorf("%w: manifest.json lists %d images, one can be checked", ErrFormat, len(list))
	}
	config, ok := a.docs[a.resolve(path.Clean(list[0].Config))]
	if !ok {
		return Image{}, fmt.Errorf("%w: the image config %q is missing", ErrFormat, list[0].Config)
	}
	img := Image{Config: config, ConfigDigest: digestOf(config)}
	for _, name := range list[0].Layers {
		l, ok := a.layers[a.resolve(path.Clean(name))]
		if !ok {
			return Image{}, fmt.Errorf("%w: layer %q is missing", ErrFormat, name)
		}
		img.Layers = append(img.Layers, l)
	}
	return img, nil
}

type ociDescriptor struct {
	Digest   string `json:"digest"`
	Platform *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// oci follows an index to the manifest of the platform.
func (a *archive) oci(doc []byte, platform string, depth int) (Image, error) {
	var m struct {
		Manifests []ociDescriptor `json:"manifests"`
		Config    *ociDescriptor  `json:"config"`
		Layers    []ociDescriptor `json:"layers"`
	}
	if err := json.Unmarshal(doc, &m); err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if platform == "" {
		platform = "linux/amd64"
	}
	if m.Config == nil {
		for _, d := range m.Manifests {
			if d.Platform != nil && d.Platform.OS+"/"+d.Platform.Architecture != platform || depth > 2 {
				continue
			}
			next, err := a.blob(d.Digest)
			if err != nil {
				return Image{}, err
			}
			return a.oci(next, platform, depth+1)
		}
		return Image{}, fmt.Errorf("%w: the index has no image for %s", ErrFormat, platform)
	}
	config, err := a.blob(m.Config.Digest)
	if err != nil {
		return Image{}, err
	}
	img := Image{Digest: digestOf(doc), Config: config, ConfigDigest: m.Config.Digest}
	for _, d := range m.Layers {
		l, ok := a.layers[blobName(d.Digest)]
		if !ok || l.Digest != d.Digest {
			return Image{}, fmt.Errorf("%w: layer %s is missing or has other content", ErrFormat, d.Digest)
		}
		img.Layers = append(img.Layers, l)
	}
	return img, nil
}

// blob returns a document by its digest, checked.
func (a *archive) blob(digest string) ([]byte, error) {
	doc, ok := a.docs[blobName(digest)]
	if !ok || digestOf(doc) != digest {
		return nil, fmt.Errorf("%w: %s is missing or has other content", ErrFormat, digest)
	}
	return doc, nil
}

func blobName(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
