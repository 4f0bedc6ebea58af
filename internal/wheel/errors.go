package wheel

import (
	"errors"
	"fmt"
)

// Kinds of refusal; errors.Is tells them apart.
var (
	ErrFormat   = errors.New("not a well-formed wheel")             // zip or metadata cannot be read as the standard says
	ErrName     = errors.New("refused name")                        // absolute, "..", backslash, NUL, whiteout, duplicate, reserved
	ErrRecord   = errors.New("RECORD disagrees with the archive")   // missing row, missing file, no usable hash
	ErrContent  = errors.New("content is not what was promised")    // wrong CRC, hash, size, or end of a deflate stream
	ErrConflict = errors.New("two files want the same path")        // inside one wheel
	ErrScheme   = errors.New("unknown directory of the wheel")      // .data/KEY with an unknown KEY
	ErrScript   = errors.New("entry point that makes no script")    // malformed reference
	ErrVersion  = errors.New("wheel version that is not supported") // Wheel-Version other than 1.x
)

// Error is a refusal of one wheel.
type Error struct {
	Wheel  string // file name
	Member string // name in the archive, may be empty
	Kind   error  // one of the kinds above
	Reason string
}

// Error names wheel, member, kind and reason.
func (e *Error) Error() string {
	if e.Member == "" {
		return fmt.Sprintf("wheel %s: %v: %s", e.Wheel, e.Kind, e.Reason)
	}
	return fmt.Sprintf("wheel %s: member %q: %v: %s", e.Wheel, e.Member, e.Kind, e.Reason)
}

// Unwrap gives the kind to errors.Is.
func (e *Error) Unwrap() error { return e.Kind }

func (w *Wheel) refuse(member string, kind error, format string, args ...any) error {
	return &Error{Wheel: w.File, Member: member, Kind: kind, Reason: fmt.Sprintf(format, args...)}
}
