package probe

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// MaxDocument bounds the document that Decode reads, in bytes.
const MaxDocument = 4 << 20

// The frame: a line "@@imgsmith-probe begin NONCE BYTES SHA256", the document on one line, and a line
// "@@imgsmith-probe end NONCE". Whatever else the image prints is ignored.
const (
	frameBegin = "@@imgsmith-probe begin "
	frameEnd   = "@@imgsmith-probe end "
)

// Why a document could not be had. All mean "could not tell", never "the image is bad".
var (
	// ErrNoDocument: no frame at all; the probe never came to its end, or something swallowed its output.
	ErrNoDocument = errors.New("the probe printed no document")
	// ErrNonce: frames, but of another run.
	ErrNonce = errors.New("the document is of another run")
	// ErrTruncated: a frame that does not end.
	ErrTruncated = errors.New("the document is cut off")
	// ErrTwoDocuments: more than one frame of this run.
	ErrTwoDocuments = errors.New("more than one document")
	// ErrGarbled: a frame whose content is not what its header says, or not the JSON we know.
	ErrGarbled = errors.New("the document is damaged")
	// ErrSchema: a document of a version that this build does not know.
	ErrSchema = errors.New("unknown document version")
	// ErrTooLarge: the document passes MaxDocument.
	ErrTooLarge = errors.New("the document is too large")
)

// Decode finds the one document of this run in everything that the container printed and reads it strictly:
// unknown keys, a second document and trailing data are errors. Errors are one of the Err values, wrapped.
func Decode(stdout []byte, nonce string) (Observation, error) {
	doc, err := unframe(stdout, nonce)
	if err != nil {
		return Observation{}, fmt.Errorf("reading the probe's output: %w", err)
	}
	var head struct {
		SchemaVersion int    `json:"schema_version"`
		Nonce         string `json:"nonce"`
	}
	if err := json.Unmarshal(doc, &head); err != nil {
		return Observation{}, fmt.Errorf("reading the probe's output: %w: %w", ErrGarbled, err)
	}
	if head.SchemaVersion != SchemaVersion {
		return Observation{}, fmt.Errorf("reading the probe's output: %w: got %d, want %d", ErrSchema, head.SchemaVersion, SchemaVersion)
	}
	if head.Nonce != nonce {
		return Observation{}, fmt.Errorf("reading the probe's output: %w", ErrNonce)
	}
	var o Observation
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return Observation{}, fmt.Errorf("reading the probe's output: %w: %w", ErrGarbled, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Observation{}, fmt.Errorf("reading the probe's output: %w: data after the document", ErrGarbled)
	}
	if err := o.consistent(); err != nil {
		return Observation{}, fmt.Errorf("reading the probe's output: %w: %w", ErrGarbled, err)
	}
	return o, nil
}

// unframe returns the document's bytes.
func unframe(out []byte, nonce string) ([]byte, error) {
	if nonce == "" {
		return nil, fmt.Errorf("%w: no nonce was given", ErrNonce)
	}
	var doc []byte
	var foreign bool
	for rest := out; ; {
		i := lineIndex(rest, frameBegin)
		if i < 0 {
			break
		}
		rest = rest[i+len(frameBegin):]
		header, body, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			return nil, ErrTruncated
		}
		f := strings.Fields(string(header[:min(len(header), 512)]))
		if len(f) != 3 || f[0] != nonce {
			foreign = true
			continue
		}
		if doc != nil {
			return nil, ErrTwoDocuments
		}
		d, after, err := frameBody(body, f[1], f[2], nonce)
		if err != nil {
			return nil, err
		}
		doc, rest = d, after
	}
	switch {
	case doc != nil:
		return doc, nil
	case foreign:
		return nil, ErrNonce
	}
	return nil, ErrNoDocument
}

// frameBody checks one frame against its header and returns the document and what follows the frame.
func frameBody(body []byte, size, sum, nonce string) (doc, after []byte, err error) {
	n, err := strconv.Atoi(size)
	if err != nil || n <= 0 {
		return nil, nil, fmt.Errorf("%w: length %q", ErrGarbled, size)
	}
	if n > MaxDocument {
		return nil, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, MaxDocument)
	}
	tail := []byte("\n" + frameEnd + nonce + "\n")
	if len(body) < n+len(tail) {
		return nil, nil, ErrTruncated
	}
	doc = body[:n]
	if !bytes.Equal(body[n:n+len(tail)], tail) {
		return nil, nil, fmt.Errorf("%w: no end mark after %d bytes", ErrGarbled, n)
	}
	got := sha256.Sum256(doc)
	if hex.EncodeToString(got[:]) != sum {
		return nil, nil, fmt.Errorf("%w: the checksum differs", ErrGarbled)
	}
	return doc, body[n+len(tail)-1:], nil
}

// lineIndex finds prefix at the start of a line.
func lineIndex(b []byte, prefix string) int {
	if bytes.HasPrefix(b, []byte(prefix)) {
		return 0
	}
	i := bytes.Index(b, []byte("\n"+prefix))
	if i < 0 {
		return -1
	}
	return i + 1
}

// consistent refuses documents in which a name stands twice: a second entry could hide the first.
func (o Observation) consistent() error {
	seen := map[string]bool{}
	for _, s := range o.Steps {
		if seen[s.Name] {
			return fmt.Errorf("step %q stands twice", s.Name)
		}
		seen[s.Name] = true
	}
	ops := map[string]bool{}
	for _, p := range o.Ops {
		if ops[p.Name] {
			return fmt.Errorf("operation %q stands twice", p.Name)
		}
		ops[p.Name] = true
		if !seen[p.Name] {
			return fmt.Errorf("operation %q has no step", p.Name)
		}
	}
	return nil
}
