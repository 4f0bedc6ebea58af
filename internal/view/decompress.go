package view

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// zstdWindow bounds in bytes what a foreign frame may make us allocate.
const zstdWindow = 128 << 20

// decompress undoes gzip or zstd, which it knows by the first bytes, and reads ahead of its reader.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		return readAhead(z, func() { _ = z.Close() }), nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return readAhead(z, z.Close), nil
	}
	return io.NopCloser(b), nil
}

// Blocks of the reader ahead.
const (
	blockSize  = 1 << 20
	blockCount = 4
)

// ahead passes blocks from a goroutine that reads to the one that looks at what was read.
type ahead struct {
	full  chan block
	empty chan []byte
	stop  chan struct{}
	once  sync.Once
	done  sync.WaitGroup
	free  func()
	cur   block
	rest  []byte
}

type block struct {
	data []byte
	err  error
}

func readAhead(r io.Reader, free func()) io.ReadCloser {
	a := &ahead{full: make(chan block, blockCount), empty: make(chan []byte, blockCount), stop: make(chan struct{}), free: free}
	for range blockCount {
		a.empty <- make([]byte, blockSize)
	}
	a.done.Go(func() {
		for {
			var b []byte
			select {
			case b = <-a.empty:
			case <-a.stop:
				return
			}
			n, err := io.ReadFull(r, b)
			if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
				// The end of the stream and a stream that is cut look alike here: ask again.
				_, err = r.Read(make([]byte, 1))
				if err == nil {
					err = io.ErrUnexpectedEOF
				}
			}
			select {
			case a.full <- block{b[:n], err}:
			case <-a.stop:
				return
			}
			if err != nil {
				return
			}
		}
	})
	return a
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.cur.err != nil {
			return 0, a.cur.err
		}
		if a.cur.data != nil {
			a.empty <- a.cur.data[:cap(a.cur.data)]
		}
		a.cur = <-a.full
		a.rest = a.cur.data
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close stops the goroutine; it may be called twice.
func (a *ahead) Close() error {
	a.once.Do(func() {
		close(a.stop)
		a.done.Wait()
		a.free()
	})
	return nil
}
