package component

import (
	"bytes"
	"io"
	"os"
)

// spool keeps one file's bytes for random access: in memory when small, else in an unnamed temporary file.
type spool struct {
	dir  string
	on   bool
	mem  bytes.Buffer
	file *os.File
	disk bool
	n    int64
}

// spoolMemory is the largest file in bytes that is held in memory.
const spoolMemory = 4 << 20

func (s *spool) reset() { s.on, s.n = false, 0; s.mem.Reset() }

func (s *spool) start(size int64) { s.on, s.disk = true, size > spoolMemory }

func (s *spool) write(p []byte) error {
	if !s.on {
		return nil
	}
	if !s.disk {
		s.mem.Write(p)
		s.n += int64(len(p))
		return nil
	}
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "spool-")
		if err != nil {
			return err
		}
		s.file = f
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
	}
	_, err := s.file.WriteAt(p, s.n)
	s.n += int64(len(p))
	return err
}

func (s *spool) reader() (io.ReaderAt, int64) {
	switch {
	case !s.on:
		return nil, 0
	case s.disk:
		return s.file, s.n
	}
	return bytes.NewReader(s.mem.Bytes()), s.n
}

// Close removes the temporary file.
func (s *spool) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
