package rootfs

import "io"

// Entry is a node together with a way to read its content: what a layer writer takes.
type Entry struct {
	Node
	// Open returns the content of a regular file, exactly Size bytes. It is nil for every other type, and for
	// a regular file whose content is Data.
	Open func() (io.ReadCloser, error)
}
