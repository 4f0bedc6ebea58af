package wheel

import (
	"bufio"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

// Content streams one member and checks it on the way.
type Content struct {
	w       *Wheel
	m       Member
	br      *bufio.Reader
	content io.Reader
	crc     hash.Hash32
	hash    hash.Hash // nil for RECORD and signatures, which have no row hash
	row     Row
	sum     []byte
	n       int64
	err     error
}

// SHA256 returns "sha256:<hex>" of the whole content once the reader has ended, or "" when RECORD made it compute
// another hash.
func (v *Content) SHA256() string {
	if v.err != io.EOF || v.row.Algorithm != "sha256" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", v.sum)
}

// OpenMember returns a reader over the member's uncompressed content. At its end the reader has checked size,
// CRC-32, the hash that RECORD gives, and that the deflate stream ends on its last byte; where one is wrong it
// returns an *Error instead of io.EOF. The archive's own bytes are copied to raw as they are read, all of them
// by the time the reader ends; raw may be nil. Opening another member ends the use of the reader before it.
func (w *Wheel) OpenMember(m Member, raw io.Writer) (*Content, error) {
	var src io.Reader = io.NewSectionReader(w.r, m.Offset, m.Compressed)
	if raw != nil {
		src = io.TeeReader(src, raw)
	}
	if w.buf == nil {
		w.buf = bufio.NewReaderSize(src, 128<<10)
	}
	w.buf.Reset(src)
	v := &Content{w: w, m: m, br: w.buf, crc: crc32.NewIEEE()}
	v.content = v.br
	if m.Deflated {
		v.content = w.inflate(v.br)
	}
	if row, ok := w.hashes[m.Name]; ok {
		h, err := row.newHash()
		if err != nil {
			return nil, w.refuse(m.Name, ErrRecord, "%v", err)
		}
		v.row, v.hash = row, h
	}
	return v, nil
}

// inflate reuses one decoder for all members: a wheel can have twenty thousand.
func (w *Wheel) inflate(r io.Reader) io.Reader {
	if re, ok := w.inflater.(flate.Resetter); ok && re.Reset(r, nil) == nil {
		return w.inflater
	}
	w.inflater = flate.NewReader(r)
	return w.inflater
}

// Read implements io.Reader.
func (v *Content) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.content.Read(p)
	v.n += int64(n)
	if v.n > v.m.Size {
		v.err = v.w.refuse(v.m.Name, ErrContent, "more than the %d bytes that the directory names", v.m.Size)
		return 0, v.err
	}
	v.crc.Write(p[:n])
	if v.hash != nil {
		v.hash.Write(p[:n])
	}
	switch {
	case err == io.EOF:
		v.err = v.finish()
	case err != nil:
		v.err = v.w.refuse(v.m.Name, ErrContent, "inflating at byte %d: %v", v.n, err)
	}
	if n > 0 && v.err == io.EOF {
		return n, nil
	}
	return n, v.err
}

func (v *Content) finish() error {
	if _, err := v.br.ReadByte(); err != io.EOF {
		return v.w.refuse(v.m.Name, ErrContent, "the deflate stream ends before its %d bytes do", v.m.Compressed)
	}
	if v.n != v.m.Size {
		return v.w.refuse(v.m.Name, ErrContent, "%d bytes where the directory names %d", v.n, v.m.Size)
	}
	if got := v.crc.Sum32(); got != v.m.CRC32 {
		return v.w.refuse(v.m.Name, ErrContent, "CRC-32 %08x where the directory names %08x", got, v.m.CRC32)
	}
	if v.hash != nil {
		v.sum = v.hash.Sum(nil)
		if got := encodeHash(v.sum); got != v.row.Hash {
			return v.w.refuse(v.m.Name, ErrContent, "%s %s where RECORD names %s", v.row.Algorithm, got, v.row.Hash)
		}
	}
	return io.EOF
}
