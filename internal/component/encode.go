package component

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"imgsmith/internal/matrix"
)

// encoder compresses a tar stream. Bytes depend on the input and the compression only.
type encoder interface {
	io.Writer
	// passthrough begins a file whose content is written to the result as a ready deflate stream; it returns
	// where the stream goes, or nil when this encoder compresses everything itself. Until endPassthrough,
	// what is written to the encoder is not compressed.
	passthrough() (io.Writer, error)
	endPassthrough(crc uint32, size int64) error
	Close() error
}

func newEncoder(w io.Writer, c matrix.Compression) (encoder, error) {
	if err := CheckCompression(c); err != nil {
		return nil, err
	}
	if c.Algorithm == "gzip" {
		return &gzipEncoder{out: w, through: c.Level == "passthrough"}, nil
	}
	levels := map[string]zstd.EncoderLevel{"fastest": zstd.SpeedFastest, "default": zstd.SpeedDefault, "better": zstd.SpeedBetterCompression}
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(levels[c.Level]), zstd.WithEncoderCRC(true))
	if err != nil {
		return nil, fmt.Errorf("starting zstd: %w", err)
	}
	return &zstdEncoder{async: newAsync(z), z: z}, nil
}

// zstdEncoder writes one frame.
type zstdEncoder struct {
	*async
	z *zstd.Encoder
}

func (e *zstdEncoder) passthrough() (io.Writer, error)        { return nil, nil }
func (e *zstdEncoder) endPassthrough(_ uint32, _ int64) error { return nil }

// Close ends the frame.
func (e *zstdEncoder) Close() error {
	err := e.async.Close()
	if zerr := e.z.Close(); err == nil {
		err = zerr
	}
	return err
}

// gzipEncoder writes several gzip members, which every gzip reader takes as one stream.
type gzipEncoder struct {
	out     io.Writer
	through bool
	z       *gzip.Writer // reused
	open    bool         // a member is being compressed
	raw     bool         // between passthrough and endPassthrough
}

// Write compresses into the open member.
func (e *gzipEncoder) Write(p []byte) (int, error) {
	if e.raw || len(p) == 0 {
		return len(p), nil
	}
	if !e.open {
		if e.z == nil {
			e.z = gzip.NewWriter(e.out)
		} else {
			e.z.Reset(e.out)
		}
		e.open = true
	}
	return e.z.Write(p)
}

func (e *gzipEncoder) endMember() error {
	if !e.open {
		return nil
	}
	e.open = false
	return e.z.Close()
}

// gzipHeader: deflate, no flags, no time, unknown system.
const gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

func (e *gzipEncoder) passthrough() (io.Writer, error) {
	if !e.through {
		return nil, nil
	}
	if err := e.endMember(); err != nil {
		return nil, err
	}
	e.raw = true
	_, err := io.WriteString(e.out, gzipHeader)
	return e.out, err
}

func (e *gzipEncoder) endPassthrough(crc uint32, size int64) error {
	e.raw = false
	trailer := binary.LittleEndian.AppendUint32(nil, crc)
	trailer = binary.LittleEndian.AppendUint32(trailer, uint32(size)) // ISIZE is modulo 2^32
	_, err := e.out.Write(trailer)
	return err
}

// Close ends the last member.
func (e *gzipEncoder) Close() error { return e.endMember() }

// counter hashes and counts what passes on its way to w.
type counter struct {
	w io.Writer // may be nil
	h hash.Hash
	n int64
}

func newCounter(w io.Writer) *counter { return &counter{w: w, h: sha256.New()} }

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	c.h.Write(p)
	c.n += int64(len(p))
	if c.w == nil {
		return len(p), nil
	}
	return c.w.Write(p)
}

func (c *counter) digest() string { return fmt.Sprintf("sha256:%x", c.h.Sum(nil)) }
