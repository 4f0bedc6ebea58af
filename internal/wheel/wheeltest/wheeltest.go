// Package wheeltest builds small wheels in memory for tests and demonstrations: well-formed by default, broken
// where a test says so. Nothing that makes real images uses it.
package wheeltest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// File is one member of the archive.
type File struct {
	Name   string
	Data   []byte
	Mode   uint32 // Unix mode with file type bits; 0 is 0100644
	Stored bool   // not deflated
}

// Wheel says what to build. Zero fields get sensible values.
type Wheel struct {
	Name        string
	Version     string
	Tag         string // default "py3-none-any"
	Metadata    string // further header lines of METADATA
	WheelFile   string // whole text of WHEEL; default: version 1.0, purelib
	EntryPoints string // text of entry_points.txt
	Files       []File
	EditRecord  func(string) string // changes RECORD before it is written
}

// DistInfo returns the name of the .dist-info directory.
func (w Wheel) DistInfo() string {
	return strings.ReplaceAll(w.Name, "-", "_") + "-" + w.Version + ".dist-info"
}

// FileName returns the wheel's file name.
func (w Wheel) FileName() string {
	return strings.TrimSuffix(w.DistInfo(), ".dist-info") + "-" + w.tag() + ".whl"
}

func (w Wheel) tag() string {
	if w.Tag == "" {
		return "py3-none-any"
	}
	return w.Tag
}

// Build returns the archive. The same wheel gives the same bytes.
func (w Wheel) Build() ([]byte, error) {
	info := w.DistInfo() + "/"
	files := append([]File(nil), w.Files...)
	files = append(files, File{Name: info + "METADATA", Data: []byte("Metadata-Version: 2.1\nName: " + w.Name + "\nVersion: " + w.Version + "\n" + w.Metadata + "\n")})
	text := w.WheelFile
	if text == "" {
		text = "Wheel-Version: 1.0\nGenerator: wheeltest\nRoot-Is-Purelib: true\nTag: " + w.tag() + "\n"
	}
	files = append(files, File{Name: info + "WHEEL", Data: []byte(text)})
	if w.EntryPoints != "" {
		files = append(files, File{Name: info + "entry_points.txt", Data: []byte(w.EntryPoints)})
	}
	var record strings.Builder
	for _, f := range files {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		sum := sha256.Sum256(f.Data)
		name := f.Name
		if strings.ContainsAny(name, ",\"") {
			name = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.Data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	text = record.String()
	if w.EditRecord != nil {
		text = w.EditRecord(text)
	}
	files = append(files, File{Name: info + "RECORD", Data: []byte(text)})
	return pack(files)
}

func pack(files []File) ([]byte, error) {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o100644
		}
		h := &zip.FileHeader{Name: f.Name, Method: zip.Deflate, CreatorVersion: 3 << 8, ExternalAttrs: mode << 16,
			Modified: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
		if f.Stored || strings.HasSuffix(f.Name, "/") {
			h.Method = zip.Store
		}
		w, err := zw.CreateHeader(h)
		if err != nil {
			return nil, fmt.Errorf("building a wheel: %s: %w", f.Name, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, fmt.Errorf("building a wheel: %s: %w", f.Name, err)
		}
	}
	if err := zw.Close(); err != nil {
		return nil, fmt.Errorf("building a wheel: %w", err)
	}
	return buf.Bytes(), nil
}
