package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func parseReference(ref string) (name.Reference, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, &Error{Kind: BadReference, Err: redactedError{err}, Remedy: "write REPOSITORY:TAG or REPOSITORY@sha256:…"}
	}
	return r, nil
}

// options are the same for every call: the user's credentials, the host's certificates and proxies, retries.
func options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(secureTransport{remote.DefaultTransport}),
		remote.WithUserAgent("imgsmith"),
	}
}

// secureTransport refuses plain http to anything but this host, whatever a registry or its token server asks.
type secureTransport struct{ next http.RoundTripper }

type insecureError struct{ host string }

func (e *insecureError) Error() string { return "plain http to " + e.host + " is not allowed" }

func (t secureTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !loopback(r.URL.Hostname()) {
		return nil, &insecureError{r.URL.Host}
	}
	return t.next.RoundTrip(r)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// CopyImage uploads the image with this manifest digest from the store in dir to repository, by digest and
// without a tag. Blobs that are there are not sent again. Errors are *Error.
func CopyImage(ctx context.Context, dir, digest, repository string) error {
	err := copyImage(ctx, store{dir}, digest, repository)
	if err != nil {
		return classify("copying "+digest+" to", repository, err)
	}
	return nil
}

func copyImage(ctx context.Context, s store, digest, repository string) error {
	ref, err := byDigest(repository, digest)
	if err != nil {
		return err
	}
	m, data, err := s.manifest(digest)
	if err != nil {
		return err
	}
	if m.Config == nil {
		return errors.New("it is an index, not an image")
	}
	img, err := partial.CompressedToImage(storedImage{s, m, data})
	if err != nil {
		return err
	}
	if err := remote.Write(ref, img, options(ctx)...); err != nil {
		return err
	}
	got, err := remote.Head(ref, options(ctx)...)
	if err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}
	if got.Digest.String() != digest {
		return &mismatchError{"the registry answers with digest " + got.Digest.String()}
	}
	return nil
}

// Tag makes tag in repository point to an image that is there by digest. It does not ask whether that image
// may have a tag; see the publish package. Errors are *Error.
func Tag(ctx context.Context, repository, digest, tag string) error {
	op := "tagging " + digest + " as"
	ref, err := byDigest(repository, digest)
	if err != nil {
		return classify(op, repository+":"+tag, err)
	}
	if !tagPattern.MatchString(tag) {
		return classify(op, repository+":"+tag, &Error{Kind: BadReference, Err: errors.New("not a tag"),
			Remedy: "use letters, digits, '.', '_' and '-'"})
	}
	d, err := remote.Get(ref, options(ctx)...)
	if err == nil {
		err = remote.Tag(ref.Context().Tag(tag), d, options(ctx)...)
	}
	if err != nil {
		return classify(op, repository+":"+tag, err)
	}
	return nil
}

// Resolve returns the digest that a reference points to now. Errors are *Error, of kind NotFound when there is
// no such image.
func Resolve(ctx context.Context, ref string) (digest string, err error) {
	r, err := parseReference(ref)
	if err != nil {
		return "", classify("resolving", ref, err)
	}
	d, err := remote.Head(r, options(ctx)...)
	if err != nil {
		// Some registries answer HEAD without a digest or not at all.
		full, getErr := remote.Get(r, options(ctx)...)
		if getErr != nil {
			return "", classify("resolving", ref, getErr)
		}
		return full.Digest.String(), nil
	}
	return d.Digest.String(), nil
}

// Tags lists the tags of a repository. Errors are *Error.
func Tags(ctx context.Context, repository string) ([]string, error) {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return nil, classify("listing tags of", repository, &Error{Kind: BadReference, Err: err, Remedy: "name a repository without a tag"})
	}
	tags, err := remote.List(repo, options(ctx)...)
	if err != nil {
		return nil, classify("listing tags of", repository, err)
	}
	return tags, nil
}

func byDigest(repository, digest string) (name.Digest, error) {
	repo, err := name.NewRepository(repository)
	if err != nil || !digestPattern.MatchString(digest) {
		return name.Digest{}, &Error{Kind: BadReference, Err: fmt.Errorf("not a repository and digest: %s@%s", Redact(repository), digest),
			Remedy: "name a repository without a tag"}
	}
	return repo.Digest(digest), nil
}

// storedImage is an image of a store for go-containerregistry.
type storedImage struct {
	s    store
	m    Manifest
	data []byte
}

func (i storedImage) RawConfigFile() ([]byte, error) { return i.s.readSmall(i.m.Config.Digest) }
func (i storedImage) MediaType() (types.MediaType, error) {
	return types.MediaType(i.m.mediaType()), nil
}
func (i storedImage) RawManifest() ([]byte, error) { return i.data, nil }
func (i storedImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range i.m.references() {
		if d.Digest == h.String() {
			return storedLayer{i.s, d}, nil
		}
	}
	return nil, fmt.Errorf("the manifest has no blob %s", h)
}

type storedLayer struct {
	s store
	d Descriptor
}

func (l storedLayer) Digest() (v1.Hash, error)            { return v1.NewHash(l.d.Digest) }
func (l storedLayer) Compressed() (io.ReadCloser, error)  { return os.Open(l.s.blob(l.d.Digest)) }
func (l storedLayer) Size() (int64, error)                { return l.d.Size, nil }
func (l storedLayer) MediaType() (types.MediaType, error) { return types.MediaType(l.d.MediaType), nil }

// classify makes an *Error with a remedy from whatever went wrong.
func classify(op, ref string, err error) error {
	e := &Error{Op: op, Ref: Redact(ref), Err: redactedError{err}}
	var (
		own       *Error
		mismatch  *mismatchError
		insecure  *insecureError
		answer    *transport.Error
		authority x509.UnknownAuthorityError
		verify    *tls.CertificateVerificationError
		network   net.Error
		urlErr    *url.Error
		file      *fs.PathError
	)
	switch {
	case errors.As(err, &own):
		e.Kind, e.Remedy, e.Err = own.Kind, own.Remedy, own.Err
	case errors.Is(err, context.Canceled):
	case errors.As(err, &mismatch):
		e.Kind, e.Remedy = Corrupt, "fetch or make the image again; what lies there is damaged"
	case errors.As(err, &insecure):
		e.Kind, e.Remedy = Insecure, "give the registry a certificate; plain http is for loopback addresses only"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Kind, e.Remedy = DiskFull, "free space there, or name another directory"
	case errors.As(err, &file): // a file of ours, not the network
	case errors.As(err, &authority), errors.As(err, &verify):
		e.Kind, e.Remedy = UnknownAuthority, "add the registry's or proxy's certificate to the host's bundle, or name it in SSL_CERT_FILE"
	case errors.As(err, &answer):
		e.Kind, e.Remedy = answered(answer.StatusCode)
	case errors.As(err, &network), errors.As(err, &urlErr):
		e.Kind, e.Remedy = Unreachable, "check name, network and proxy settings (HTTPS_PROXY, NO_PROXY)"
	}
	return e
}

func answered(status int) (Kind, string) {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return Unauthorized, "log in to the registry with an account that may do this; some registries answer so when the repository does not exist"
	case http.StatusNotFound:
		return NotFound, "check repository, tag and digest"
	case http.StatusTooManyRequests:
		return Limited, "wait, or log in for a higher limit"
	}
	return Unknown, ""
}
