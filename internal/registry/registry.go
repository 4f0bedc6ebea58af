// Package registry is the one place that speaks to image registries and that acts as one: a loopback server
// over a store on disk, the import of base images into that store, and copying and tagging for publication.
// It decides nothing about what may be published.
//
// A store is an OCI image layout: DIR/blobs/sha256/HEX for layers, configs and manifests, DIR/index.json for
// the images that were pushed.
package registry

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Media types that we read and write; the Docker forms are what older bases have.
const (
	mediaOCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	mediaOCIIndex       = "application/vnd.oci.image.index.v1+json"
	mediaDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	mediaDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// refNameAnnotation names a pushed image in index.json: REPOSITORY:TAG or REPOSITORY@DIGEST.
const refNameAnnotation = "org.opencontainers.image.ref.name"

// maxManifest bounds what is read as a manifest or image config.
const maxManifest = 8 << 20

var (
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	tagPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	repoPattern   = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
)

// Kind tells callers why an operation with a registry failed.
type Kind string

// The kinds of failure. Unknown is the zero value.
const (
	Unknown          Kind = ""
	NotFound         Kind = "not found"
	Unauthorized     Kind = "unauthorized"
	UnknownAuthority Kind = "unknown certificate authority"
	Unreachable      Kind = "unreachable"
	Insecure         Kind = "insecure"
	BadReference     Kind = "bad reference"
	NoPlatform       Kind = "no such platform"
	Corrupt          Kind = "corrupt"
	Limited          Kind = "rate limited"
	DiskFull         Kind = "disk full"
)

// Error is a failed operation on an image. It never holds credentials.
type Error struct {
	Op     string // what was done, for example "importing base"
	Ref    string // the image
	Kind   Kind
	Remedy string
	Err    error // the cause, its text redacted
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s %s: ", e.Op, e.Ref)
	if e.Kind != Unknown {
		s += string(e.Kind) + ": "
	}
	s += e.Err.Error()
	if e.Remedy != "" {
		s += "; remedy: " + e.Remedy
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the *Error in err's chain, Unknown when there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Unknown
}

var (
	userinfoPattern = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@\s"']+@`)
	bareInfoPattern = regexp.MustCompile(`(^|[\s"'=(])[^\s"'/@:=(]+:[^\s"'/@]+@([A-Za-z0-9])`)
	queryPattern    = regexp.MustCompile(`(?i)([?&](?:[a-z0-9_.-]*(?:token|signature|sig|password|passwd|secret|key|credential)[a-z0-9_.-]*))=[^&\s"']+`)
	headerPattern   = regexp.MustCompile(`(?i)\b(authorization["']?[:=]\s*["']?[a-z]+|bearer|token[:=])\s*["']?[A-Za-z0-9._~+/=-]{8,}`)
	jwtPattern      = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
)

// Redact removes user information, tokens and signed query values from a text meant for people.
func Redact(s string) string {
	s = userinfoPattern.ReplaceAllString(s, "${1}***@")
	s = bareInfoPattern.ReplaceAllStringFunc(s, redactBare)
	s = queryPattern.ReplaceAllString(s, "$1=***")
	s = headerPattern.ReplaceAllString(s, "$1 ***")
	return jwtPattern.ReplaceAllString(s, "***")
}

// redactBare keeps NAME:TAG@sha256:… , which has the same shape as USER:PASSWORD@HOST.
func redactBare(m string) string {
	at := strings.LastIndexByte(m, '@')
	if m[at+1:] == "s" && !strings.Contains(m[:at], "***") {
		return m
	}
	i := strings.IndexAny(m, " \t\n\"'=(")
	if i != 0 {
		return "***" + m[at:]
	}
	return m[:1] + "***" + m[at:]
}

// redactedError shows a redacted text and keeps the cause for errors.Is and errors.As.
type redactedError struct{ err error }

func (e redactedError) Error() string { return Redact(e.err.Error()) }
func (e redactedError) Unwrap() error { return e.err }
