package derive

import (
	"bytes"
	"io"
	"regexp"
)

// PTX text begins with its language version and target. A target with the letter a ("sm_90a") is for that one
// architecture: no later GPU compiles it. The entry's header does not tell, so the beginning of the text is read.
const (
	offsetCompressed = 16 // of the entry header: bytes of compressed text, when it is compressed
	offsetFlags      = 40
	headerWithFlags  = 48
	flagLZ4          = 0x2000
	ptxPrefix        = 512 // bytes of text looked at
	ptxInput         = 4096
)

var ptxTarget = regexp.MustCompile(`\.target\s+sm_(\d+)([a-z]?)`)

// target returns the letter behind the target of a PTX entry, or "" when there is none. Text that is stored in a way
// that is not known counts as having none: then the facts say more than was seen, and the verification decides.
func target(r io.ReaderAt, off, size int64, flags uint64) string {
	in := make([]byte, min(size, ptxInput))
	n, err := r.ReadAt(in, off)
	if n == 0 && err != nil {
		return ""
	}
	text := in[:n]
	if flags&flagLZ4 != 0 {
		text = lz4Prefix(text, ptxPrefix)
	}
	if m := ptxTarget.FindSubmatch(text); m != nil && !bytes.Equal(m[2], nil) {
		return string(m[2])
	}
	return ""
}

// lz4Prefix decodes the beginning of an LZ4 block: up to limit bytes, or what comes before the first thing that
// is not valid.
func lz4Prefix(in []byte, limit int) []byte {
	var out []byte
	length := func(n int) (int, bool) {
		if n != 15 {
			return n, true
		}
		for len(in) > 0 {
			b := in[0]
			in, n = in[1:], n+int(b)
			if b != 255 {
				return n, true
			}
			if n > limit+len(in) {
				return n, true // longer than anything that is looked at
			}
		}
		return 0, false
	}
	for len(in) > 0 && len(out) < limit {
		token := in[0]
		in = in[1:]
		n, ok := length(int(token >> 4))
		if !ok {
			break
		}
		take := min(n, len(in))
		out, in = append(out, in[:take]...), in[take:]
		if take < n || len(in) < 2 {
			break
		}
		back := int(in[0]) | int(in[1])<<8
		in = in[2:]
		n, ok = length(int(token & 15))
		if !ok || back == 0 || back > len(out) {
			break
		}
		for range min(n+4, limit) {
			out = append(out, out[len(out)-back])
		}
	}
	return out[:min(len(out), limit)]
}
