package component

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/wheel"
)

// LayerError means that a layer's bytes are not a layer of ours.
type LayerError struct {
	Path   string // entry near the fault, may be empty
	Reason string
	Err    error // may be nil
}

// Error names entry, reason and cause.
func (e *LayerError) Error() string {
	s := "layer: " + e.Reason
	if e.Path != "" {
		s = fmt.Sprintf("layer: entry %q: %s", e.Path, e.Reason)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *LayerError) Unwrap() error { return e.Err }

// VerifyLayer decodes a compressed layer to its end and returns its digest, diffID and table. It refuses what the
// engine would pass on silently: anything after the one end-of-archive marker or after the compressed stream, a
// missing marker, names and types that decision 5a excludes, a path twice, a path below something that is no
// directory. tempDir is for large ELF files. Errors about the layer are *LayerError.
func VerifyLayer(ctx context.Context, r io.Reader, mediaType, tempDir string) (digest, diffID string, table rootfs.Layer, err error) {
	packed := newCounter(nil)
	src := bufio.NewReaderSize(io.TeeReader(r, packed), asyncChunk)
	if mediaType != MediaTypeGzip && mediaType != MediaTypeZstd {
		return "", "", nil, &LayerError{Reason: fmt.Sprintf("media type %q is not one of ours", mediaType)}
	}
	plain, err := decoder(src, mediaType)
	if err != nil {
		return "", "", nil, &LayerError{Reason: "starting to decode", Err: err}
	}
	defer plain.Close()
	diff := newCounter(nil)
	v := &layerReader{src: io.TeeReader(plain, diff), paths: map[string]rootfs.Type{}, l: &layerWriter{spool: &spool{dir: tempDir}, buf: make([]byte, asyncChunk)}}
	defer v.l.spool.Close()
	if err := v.read(ctx); err != nil {
		return "", "", nil, err
	}
	if n, err := io.Copy(io.Discard, src); err != nil || n > 0 { // the decoders read to the end themselves
		return "", "", nil, &LayerError{Reason: fmt.Sprintf("%d bytes after the compressed stream", n), Err: err}
	}
	return packed.digest(), diff.digest(), v.table, nil
}

// layerReader reads one tar strictly.
type layerReader struct {
	src   io.Reader
	n     int64 // bytes read of src
	paths map[string]rootfs.Type
	table rootfs.Layer
	l     *layerWriter // for spool and buffer
}

// Read counts what the tar reader takes.
func (v *layerReader) Read(p []byte) (int, error) {
	n, err := v.src.Read(p)
	v.n += int64(n)
	return n, err
}

const (
	tarBlock  = 512
	endMarker = 2 * tarBlock
)

func (v *layerReader) read(ctx context.Context) error {
	tr := tar.NewReader(v)
	for {
		content := v.n
		h, err := tr.Next()
		if err == io.EOF {
			return v.end(content)
		}
		if err != nil {
			return &LayerError{Reason: "reading its tar", Err: err}
		}
		if err := v.entry(ctx, h, tr); err != nil {
			return err
		}
	}
}

// end demands that the archive ends with one marker and the stream with the archive. content is where the last
// entry's bytes ended.
func (v *layerReader) end(content int64) error {
	padded := (content + tarBlock - 1) / tarBlock * tarBlock
	if v.n != padded+endMarker {
		return &LayerError{Reason: "no end-of-archive marker"}
	}
	switch n, err := io.Copy(io.Discard, v.src); {
	case err != nil:
		return &LayerError{Reason: "decoding its end", Err: err}
	case n > 0:
		return &LayerError{Reason: fmt.Sprintf("%d bytes after the end-of-archive marker; runtimes would not see them", n)}
	}
	return nil
}

func (v *layerReader) entry(ctx context.Context, h *tar.Header, tr io.Reader) error {
	n, err := stepNode(h)
	if err != nil {
		return &LayerError{Path: h.Name, Reason: "not allowed in a layer of ours", Err: err}
	}
	n.MTime = h.ModTime.Unix()
	if reason := v.judge(n, h); reason != "" {
		return &LayerError{Path: h.Name, Reason: reason}
	}
	if !marker(n) {
		v.paths[n.Path] = n.Type
	}
	if n.Type == rootfs.Regular {
		if err := v.l.scan(ctx, &n, tr, nil); err != nil {
			var le *LayerError
			if errors.As(err, &le) || ctx.Err() != nil {
				return err
			}
			return &LayerError{Path: h.Name, Reason: "reading its content", Err: err}
		}
	}
	v.table = append(v.table, n)
	return nil
}

// judge returns the rule that an entry breaks, or "".
func (v *layerReader) judge(n rootfs.Node, h *tar.Header) string {
	if reason := wheel.BadName(n.Path); reason != "" {
		return reason
	}
	if strings.TrimSuffix(h.Name, "/") != path.Clean(h.Name) || strings.HasPrefix(h.Name, "/") {
		return "not a clean relative path"
	}
	if _, dup := v.paths[n.Path]; dup && !marker(n) {
		return "there twice"
	}
	if t, ok := v.paths[path.Dir(n.Path)]; ok && t != rootfs.Dir {
		return "its directory is a " + string(t)
	}
	if n.Type == rootfs.Hardlink && v.paths[n.Link] != rootfs.Regular {
		return fmt.Sprintf("a hard link to %q, which comes not before it as a file", n.Link)
	}
	if len(h.PAXRecords) > 0 {
		for k := range h.PAXRecords {
			if strings.HasPrefix(k, "SCHILY.xattr.") {
				return "it carries extended attributes"
			}
		}
	}
	return ""
}
