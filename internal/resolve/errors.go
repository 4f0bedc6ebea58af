package resolve

import (
	"fmt"
	"strings"

	"imgsmith/internal/matrix"
)

// MissingUVError says that uv could not be started.
type MissingUVError struct {
	Path  string
	Cause error
}

// Error gives reason and remedy.
func (e *MissingUVError) Error() string {
	if e.Path == "" {
		return "uv was not found; put it into libexec beside imgsmith, name its directory with --engine-dir, or into PATH"
	}
	return fmt.Sprintf("uv could not be started at %s: %v; put a working uv into libexec beside imgsmith, or name its directory with --engine-dir", e.Path, e.Cause)
}

// Unwrap returns why it could not be started.
func (e *MissingUVError) Unwrap() error { return e.Cause }

// Class tells what kind of fault stopped a resolution or a download.
type Class string

// The classes. Unsatisfiable means the recipe asks for the impossible; every other class is a fault of
// network, settings or host.
const (
	Unsatisfiable Class = "unsatisfiable"
	NotFound      Class = "not found"
	Auth          Class = "auth"
	ProxyAuth     Class = "proxy auth"
	TLS           Class = "tls"
	DNS           Class = "dns"
	Network       Class = "network"
	Server        Class = "server"
	DiskFull      Class = "disk full"
	HashMismatch  Class = "hash mismatch"
	Offline       Class = "offline"
	Other         Class = "other"
)

// Error is a fault of resolution or download with its class, its reason in plain words and what to do.
type Error struct {
	Class  Class
	Doing  string // what was being done, for example "resolving packages"
	Reason string
	Remedy string
	Detail string // of a tool or server, shortened, without credentials
	Cause  error
	// Conflict says in two lines who disagrees; Error then leaves the tool's own text to Detail.
	Conflict *Conflict
}

// Error gives what was done, reason, remedy and detail.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", e.Doing, e.Reason)
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	if e.Conflict != nil {
		b.WriteString("\n  " + e.Conflict.Asks + "\n  " + e.Conflict.Needs)
		return b.String()
	}
	if e.Detail != "" {
		b.WriteString("\n  " + strings.ReplaceAll(e.Detail, "\n", "\n  "))
	}
	return b.String()
}

// Unwrap returns the cause, nil when there is none.
func (e *Error) Unwrap() error { return e.Cause }

// remedy returns what a user can do about a class of fault.
func (c Class) remedy() string {
	switch c {
	case Auth:
		return "put the user and password of that host into netrc, or into the index URL of the pip or uv settings"
	case ProxyAuth:
		return "put user and password into HTTPS_PROXY, as http://user:password@host:port"
	case TLS:
		return "if a proxy inspects TLS, name its CA bundle in SSL_CERT_FILE (or PIP_CERT, REQUESTS_CA_BUNDLE)"
	case DNS:
		return "check the network, or set HTTPS_PROXY or an index mirror (PIP_INDEX_URL, UV_DEFAULT_INDEX)"
	case Network, Server:
		return "run it again: what was downloaded is kept and continued"
	case DiskFull:
		return "free some space, or name another store with --store; what was downloaded is kept"
	case NotFound:
		return "the index no longer has that file: make the lock again with imgsmith lock"
	}
	return ""
}

// GoneError lists locked wheels that no index has under their hash.
type GoneError struct {
	Entry  string
	Wheels []matrix.Wheel
}

// Error names the wheels and the remedy.
func (e *GoneError) Error() string {
	return fmt.Sprintf("entry %q: %s locked, but the index has no such file with that sha256: %s; name the store that keeps them with --store, add the index that had them to the pip or uv settings, or make the lock again with imgsmith lock",
		e.Entry, count(len(e.Wheels)), fileNames(e.Wheels))
}

// MissingError lists wheels that offline mode would have to download.
type MissingError struct{ Wheels []matrix.Wheel }

// Error names the wheels, their size and the remedy.
func (e *MissingError) Error() string {
	var size int64
	for _, w := range e.Wheels {
		size += w.Size
	}
	return fmt.Sprintf("offline: %s missing from the store (%.1f MB): %s; run once without --offline, or give their directory as find-links in the pip or uv settings",
		count(len(e.Wheels)), float64(size)/1e6, fileNames(e.Wheels))
}

// NoWheelError says that a package has no wheel that fits, and why.
type NoWheelError struct {
	Package, Version string
	Reason           string
}

// Error gives package, reason and remedy.
func (e *NoWheelError) Error() string {
	return fmt.Sprintf("package %s %s: %s; name another version of it under packages, or another Python or base", e.Package, e.Version, e.Reason)
}

func count(n int) string {
	if n == 1 {
		return "1 wheel is"
	}
	return fmt.Sprintf("%d wheels are", n)
}

func fileNames(wheels []matrix.Wheel) string {
	const most = 10
	var names []string
	for i, w := range wheels {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(wheels)-most))
			break
		}
		names = append(names, w.File)
	}
	return strings.Join(names, ", ")
}
