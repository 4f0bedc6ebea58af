package resolve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"imgsmith/internal/matrix"
)

const maxRetryAfter = 2 * time.Minute // a server that asks for more is treated as down

type fetcher struct {
	FetchOptions
	dir    string
	client *http.Client
}

// attempt is what one try of a download came to.
type attempt struct {
	err       error
	transient bool
	gained    int64         // new bytes
	wait      time.Duration // that the server asked for
	restart   bool          // what is there cannot be continued
}

// download tries until the wheel is complete, a fault is final, or several tries in a row brought nothing.
func (f *fetcher) download(ctx context.Context, w matrix.Wheel, address string) error {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.MaxInterval = f.Backoff, 2, 30*time.Second
	restarted := false
	for fruitless := 0; ; {
		a := f.try(ctx, w, address)
		if a.err == nil {
			return f.finish(w)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if a.restart {
			f.discard(w)
			if restarted {
				return a.err
			}
			restarted = true
			continue
		}
		if !a.transient {
			return a.err
		}
		if fruitless++; a.gained > 0 {
			fruitless = 0
			b.Reset()
		}
		if fruitless >= f.Tries {
			return fmt.Errorf("%w (%d tries)", a.err, f.Tries)
		}
		if err := sleep(ctx, max(b.NextBackOff(), a.wait)); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

func (f *fetcher) discard(w matrix.Wheel) {
	_ = os.Remove(f.part(w))
	_ = os.Remove(f.part(w) + ".etag")
}

// try makes one request, continuing what is there.
func (f *fetcher) try(ctx context.Context, w matrix.Wheel, address string) attempt {
	doing := "fetching " + w.File
	out, err := os.OpenFile(f.part(w), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return attempt{err: diskError(w, err)}
	}
	defer func() { _ = out.Close() }()
	h := sha256.New()
	have, err := io.Copy(h, io.LimitReader(out, w.Size+1))
	if err != nil {
		return attempt{err: diskError(w, err)}
	}
	if have >= w.Size {
		return f.verify(w, h, have)
	}
	before := have
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := f.request(ctx, w, address, have)
	if err != nil {
		return attempt{err: netError(doing, address, err), transient: transientNet(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusPartialContent && rangeStart(resp) == have:
	case resp.StatusCode == http.StatusOK:
		if err := rewind(out); err != nil {
			return attempt{err: diskError(w, err)}
		}
		h.Reset()
		have = 0
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable || resp.StatusCode == http.StatusPartialContent:
		return attempt{err: &Error{Class: Server, Doing: doing, Reason: "the server sent another range than asked for", Detail: safeURL(address), Remedy: Server.remedy()}, restart: true}
	default:
		err, transient := statusError(doing, address, resp.StatusCode)
		return attempt{err: err, transient: transient, wait: retryAfter(resp)}
	}
	f.remember(w, resp)
	a := f.receive(ctx, cancel, w, address, resp.Body, out, h, have)
	a.gained -= before - have // an answer from the start brings again what was there
	return a
}

func (f *fetcher) receive(ctx context.Context, cancel context.CancelCauseFunc, w matrix.Wheel, address string, body io.Reader, out *os.File, h hash.Hash, have int64) attempt {
	watch := time.AfterFunc(f.Stall, func() { cancel(context.DeadlineExceeded) })
	defer watch.Stop()
	buf := make([]byte, 256<<10)
	gained := int64(0)
	for {
		n, rerr := body.Read(buf)
		if n > 0 {
			watch.Reset(f.Stall)
			if have+gained+int64(n) > w.Size {
				return attempt{err: tooLong(w), restart: true}
			}
			if _, err := out.Write(buf[:n]); err != nil {
				return attempt{err: diskError(w, err), gained: gained}
			}
			h.Write(buf[:n])
			gained += int64(n)
			f.report(Progress{Wheel: w, Done: have + gained})
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			if c := context.Cause(ctx); c != nil {
				rerr = c
			}
			return attempt{err: netError("fetching "+w.File, address, rerr), transient: true, gained: gained}
		}
	}
	if err := out.Sync(); err != nil {
		return attempt{err: diskError(w, err), gained: gained}
	}
	if have+gained < w.Size {
		return attempt{err: netError("fetching "+w.File, address, io.ErrUnexpectedEOF), transient: true, gained: gained}
	}
	return f.verify(w, h, have+gained)
}

// verify compares a complete file with the lock. Bytes that do not match are thrown away and asked for once
// more from the start: a continued file may mix two versions.
func (f *fetcher) verify(w matrix.Wheel, h hash.Hash, size int64) attempt {
	if size > w.Size {
		return attempt{err: tooLong(w), restart: true}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != w.SHA256 {
		return attempt{restart: true, err: &Error{Class: HashMismatch, Doing: "fetching " + w.File,
			Reason: fmt.Sprintf("its sha256 is %s, the lock says %s", got, w.SHA256),
			Remedy: "the server or a proxy sends another file: check the index settings, or make the lock again with imgsmith lock"}}
	}
	return attempt{}
}

func tooLong(w matrix.Wheel) error {
	return &Error{Class: HashMismatch, Doing: "fetching " + w.File, Reason: fmt.Sprintf("the server sends more than the %d bytes that the lock says", w.Size),
		Remedy: "check the index settings, or make the lock again with imgsmith lock"}
}

func (f *fetcher) request(ctx context.Context, w matrix.Wheel, address string, have int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	f.Settings.authorize(req)
	req.Header.Set("Accept-Encoding", "identity")
	if have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(have, 10)+"-")
		if tag, err := os.ReadFile(f.part(w) + ".etag"); err == nil && len(tag) > 0 {
			req.Header.Set("If-Range", string(tag))
		}
	}
	return f.client.Do(req)
}

// remember keeps a strong ETag, so that a later try continues the same file or gets it anew.
func (f *fetcher) remember(w matrix.Wheel, resp *http.Response) {
	tag := resp.Header.Get("ETag")
	if tag == "" || strings.HasPrefix(tag, "W/") || len(tag) > 512 {
		_ = os.Remove(f.part(w) + ".etag")
		return
	}
	_ = os.WriteFile(f.part(w)+".etag", []byte(tag), 0o644)
}

func rewind(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// rangeStart returns the first byte of a partial answer, or -1.
func rangeStart(resp *http.Response) int64 {
	rest, ok := strings.CutPrefix(resp.Header.Get("Content-Range"), "bytes ")
	if !ok {
		return -1
	}
	first, _, _ := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(strings.TrimSpace(first), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func retryAfter(resp *http.Response) time.Duration {
	v := resp.Header.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil && n >= 0 {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if t, err := http.ParseTime(v); err == nil {
		return min(max(time.Until(t), 0), maxRetryAfter)
	}
	return 0
}

// transientNet tells whether a request that got no answer may succeed later. Certificates, unknown names and
// refused redirects do not change by waiting.
func transientNet(err error) bool {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsTimeout || dns.IsTemporary
	}
	var e *Error
	if errors.As(netError("", "", err), &e) && e.Class != Network {
		return false
	}
	return !strings.Contains(err.Error(), "redirect") && !errors.Is(err, syscall.EPROTONOSUPPORT) &&
		!strings.Contains(err.Error(), "unsupported protocol scheme")
}
