package wheel

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"hash"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Row is one line of RECORD.
type Row struct {
	Path      string
	Algorithm string // "sha256", "sha384", "sha512"; empty for RECORD itself and signatures
	Hash      string // URL-safe base64 without padding
	Size      string // as written, may be empty
}

// SHA256 returns "sha256:<hex>" when the row has that hash, else "".
func (r Row) SHA256() string {
	sum, err := base64.RawURLEncoding.DecodeString(r.Hash)
	if err != nil || r.Algorithm != "sha256" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sum)
}

func encodeHash(sum []byte) string { return base64.RawURLEncoding.EncodeToString(sum) }

func (r Row) newHash() (hash.Hash, error) {
	switch r.Algorithm {
	case "sha256":
		return sha256.New(), nil
	case "sha384":
		return sha512.New384(), nil
	case "sha512":
		return sha512.New(), nil
	}
	return nil, fmt.Errorf("hash algorithm %q; the standard demands sha256 or better", r.Algorithm)
}

// readRecord parses RECORD and demands a hash for every file and a file for every row.
func (w *Wheel) readRecord() error {
	name := w.DistInfo + "/RECORD"
	m, ok := w.Lookup(name)
	if !ok {
		return w.refuse(name, ErrRecord, "missing")
	}
	data, err := w.read(m)
	if err != nil {
		return err
	}
	cr := csv.NewReader(bytes.NewReader(data))
	cr.FieldsPerRecord = -1
	w.hashes = map[string]Row{}
	seen := map[string]bool{}
	for {
		fields, err := cr.Read()
		if err == io.EOF {
			break
		}
		if err != nil || len(fields) != 3 {
			return w.refuse(name, ErrRecord, "line %d is not path,hash,size", len(w.rows)+1)
		}
		if err := w.addRow(fields, seen); err != nil {
			return err
		}
	}
	for _, m := range w.Members {
		if _, ok := w.hashes[m.Name]; !ok && !w.isUnhashed(m.Name) {
			return w.refuse(m.Name, ErrRecord, "no row with a hash")
		}
	}
	return nil
}

func (w *Wheel) addRow(fields []string, seen map[string]bool) error {
	row := Row{Path: fields[0], Size: fields[2]}
	if seen[row.Path] {
		return w.refuse(row.Path, ErrRecord, "two rows")
	}
	seen[row.Path] = true
	m, ok := w.Lookup(row.Path)
	if !ok {
		return w.refuse(row.Path, ErrRecord, "a row without a file")
	}
	if fields[1] != "" {
		var found bool
		row.Algorithm, row.Hash, found = strings.Cut(fields[1], "=")
		row.Hash = strings.TrimRight(row.Hash, "=")
		h, err := row.newHash()
		if err != nil {
			return w.refuse(row.Path, ErrRecord, "%v", err)
		}
		sum, err := base64.RawURLEncoding.DecodeString(row.Hash)
		if !found || err != nil || len(sum) != h.Size() {
			return w.refuse(row.Path, ErrRecord, "malformed hash %q", fields[1])
		}
		w.hashes[row.Path] = row
	}
	if row.Size != "" {
		if n, err := strconv.ParseInt(row.Size, 10, 64); err != nil || n != m.Size {
			return w.refuse(row.Path, ErrRecord, "size %s where the archive has %d bytes", row.Size, m.Size)
		}
	}
	w.rows = append(w.rows, row)
	return nil
}

// isUnhashed names the files that RECORD cannot or need not hash.
func (w *Wheel) isUnhashed(name string) bool {
	dir, base := path.Split(name)
	return dir == w.DistInfo+"/" && slices.Contains([]string{"RECORD", "RECORD.jws", "RECORD.p7s"}, base)
}

// rowOf makes the row of bytes that the installer writes itself.
func rowOf(p string, data []byte) Row {
	sum := sha256.Sum256(data)
	return Row{Path: p, Algorithm: "sha256", Hash: encodeHash(sum[:]), Size: strconv.Itoa(len(data))}
}

// formatRecord writes rows as pip does: sorted, Python's CSV quoting, CRLF.
func formatRecord(rows []Row) []byte {
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Path, b.Path) })
	var buf bytes.Buffer
	for _, r := range rows {
		hash := ""
		if r.Algorithm != "" {
			hash = r.Algorithm + "=" + r.Hash
		}
		fmt.Fprintf(&buf, "%s,%s,%s\r\n", quoteCSV(r.Path), hash, r.Size)
	}
	return buf.Bytes()
}

func quoteCSV(s string) string {
	if !strings.ContainsAny(s, ",\"\r\n") {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}
