package component

import (
	"io"
	"sync"
)

// async hands copies of what is written to another goroutine, so that hashing, encoding and inflating run side
// by side. The bytes that arrive do not depend on timing.
type async struct {
	ch   chan []byte
	free chan []byte
	done chan struct{}
	mu   sync.Mutex
	err  error
}

const (
	asyncChunk = 256 << 10
	asyncDepth = 8
)

func newAsync(w io.Writer) *async {
	a := &async{ch: make(chan []byte, asyncDepth), free: make(chan []byte, asyncDepth+2), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for b := range a.ch {
			if a.failure() == nil {
				if _, err := w.Write(b); err != nil {
					a.mu.Lock()
					a.err = err
					a.mu.Unlock()
				}
			}
			select {
			case a.free <- b[:cap(b)]:
			default:
			}
		}
	}()
	return a
}

func (a *async) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Write implements io.Writer; it reports an error of the other side at the latest on Close.
func (a *async) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		var b []byte
		select {
		case b = <-a.free:
		default:
			b = make([]byte, asyncChunk)
		}
		c := copy(b, p)
		p = p[c:]
		a.ch <- b[:c]
	}
	return n, a.failure()
}

// Close waits until everything has arrived.
func (a *async) Close() error {
	close(a.ch)
	<-a.done
	return a.failure()
}
