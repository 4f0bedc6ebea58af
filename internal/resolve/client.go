package resolve

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// client returns an HTTP client with the host's CA bundles, proxies and pip's trusted hosts.
func (s *Settings) client() (*http.Client, error) {
	pool, err := s.roots()
	if err != nil {
		return nil, err
	}
	proxy, err := s.proxy()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy:                 proxy,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   30 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   4,
		DisableCompression:    true, // a wheel's bytes are hashed as they are
		ForceAttemptHTTP2:     true,
	}
	return &http.Client{Transport: transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return errors.New("more than 10 redirects")
		}
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return errors.New("redirect from https to http refused")
		}
		return nil
	}}, nil
}

// roots are the system's certificates and every bundle that the host names.
func (s *Settings) roots() (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, f := range []string{s.env["SSL_CERT_FILE"], s.firstPip("cert"), s.env["REQUESTS_CA_BUNDLE"], s.env["CURL_CA_BUNDLE"]} {
		if f == "" {
			continue
		}
		fi, err := os.Stat(f)
		if err != nil || !fi.Mode().IsRegular() {
			continue // a directory of certificates is read by the system pool
		}
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("reading CA bundle: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading CA bundle %s: it holds no certificate; correct SSL_CERT_FILE, PIP_CERT or REQUESTS_CA_BUNDLE", f)
		}
	}
	return pool, nil
}

func (s *Settings) proxy() (func(*http.Request) (*url.URL, error), error) {
	first := func(keys ...string) string {
		for _, k := range keys {
			if s.env[k] != "" {
				return s.env[k]
			}
		}
		return ""
	}
	all := first("ALL_PROXY", "all_proxy")
	if all == "" && !s.hasProxy() {
		all = s.firstPip("proxy")
	}
	c := httpproxy.Config{HTTPSProxy: first("HTTPS_PROXY", "https_proxy"), HTTPProxy: first("http_proxy", "HTTP_PROXY"),
		NoProxy: first("NO_PROXY", "no_proxy")}
	if c.HTTPSProxy == "" {
		c.HTTPSProxy = all
	}
	if c.HTTPProxy == "" {
		c.HTTPProxy = all
	}
	for _, p := range []string{c.HTTPSProxy, c.HTTPProxy} {
		if _, err := url.Parse(p); err != nil {
			return nil, errors.New("the proxy setting is no URL; correct HTTPS_PROXY or HTTP_PROXY")
		}
	}
	f := c.ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return f(r.URL) }, nil
}

// authorize adds the credentials that the host keeps for exactly this host: those of an index URL first, then
// netrc. Go drops them when a redirect leaves the host.
func (s *Settings) authorize(req *http.Request) {
	if req.URL.User != nil {
		return // Go sends what the URL holds
	}
	if u := s.indexUser(req.URL); u != nil {
		pw, _ := u.Password()
		req.SetBasicAuth(u.Username(), pw)
		return
	}
	if user, pw, ok := s.netrc(req.URL.Hostname()); ok {
		req.SetBasicAuth(user, pw)
	}
}

func (s *Settings) indexUser(target *url.URL) *url.Userinfo {
	var indexes []string
	for _, k := range []string{"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"} {
		indexes = append(indexes, strings.FieldsFunc(s.env[k], func(r rune) bool { return r == ' ' || r == ',' })...)
	}
	for _, k := range []string{"index-url", "extra-index-url", "find-links"} {
		indexes = append(indexes, s.pip[k]...)
	}
	for _, v := range indexes {
		name, rest, named := strings.Cut(v, "=")
		if named && !strings.Contains(name, ":") {
			v = rest // uv's NAME=URL form
		}
		u, err := url.Parse(v)
		if err == nil && u.User != nil && u.Host == target.Host && u.Scheme == target.Scheme {
			return u.User
		}
		if named && err == nil && u.Host == target.Host && u.Scheme == target.Scheme {
			key := "UV_INDEX_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
			if user := s.env[key+"_USERNAME"]; user != "" {
				return url.UserPassword(user, s.env[key+"_PASSWORD"])
			}
		}
	}
	return nil
}

// netrc looks a host up in the file that NETRC names, or in ~/.netrc.
func (s *Settings) netrc(host string) (user, password string, ok bool) {
	file := s.env["NETRC"]
	if file == "" && s.env["HOME"] != "" {
		file = filepath.Join(s.env["HOME"], ".netrc")
	}
	f, err := os.Open(file)
	if err != nil {
		return "", "", false
	}
	defer func() { _ = f.Close() }()
	var words []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		words = append(words, strings.Fields(line)...)
	}
	in := false
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case w == "machine" && i+1 < len(words):
			if in && ok {
				return user, password, true
			}
			i++
			in = words[i] == host
		case w == "default":
			if in && ok {
				return user, password, true
			}
			in = true
		case in && i+1 < len(words) && slices.Contains([]string{"login", "password", "account"}, w):
			i++
			switch w {
			case "login":
				user, ok = words[i], true
			case "password":
				password, ok = words[i], true
			}
		}
	}
	return user, password, ok
}

// netError classifies a transport fault. The address is shown without credentials and query.
func netError(doing, address string, cause error) error {
	e := &Error{Class: Network, Doing: doing, Reason: "the connection failed", Cause: cause}
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(cause, &unknown) || errors.As(cause, &host) || errors.As(cause, &invalid):
		e.Class, e.Reason = TLS, "the server's certificate is not trusted"
	case errors.As(cause, &dns):
		e.Class, e.Reason = DNS, "the server's name could not be resolved"
	case errors.Is(cause, syscall.ENOSPC) || errors.Is(cause, syscall.EDQUOT):
		e.Class, e.Reason = DiskFull, "the disk is full"
	case errors.Is(cause, context.DeadlineExceeded):
		e.Reason = "the server stopped sending"
	case strings.Contains(cause.Error(), "Proxy Authentication Required"):
		e.Class, e.Reason = ProxyAuth, "the proxy wants a user and a password"
	}
	e.Remedy = e.Class.remedy()
	var ue *url.Error // its text holds the whole address
	if errors.As(cause, &ue) {
		cause = ue.Err
	}
	e.Detail = safeURL(address) + ": " + redact(cause.Error())
	return e
}

// statusError classifies an HTTP answer; transient tells whether another try may help.
func statusError(doing, address string, status int) (err error, transient bool) {
	e := &Error{Class: Server, Doing: doing, Reason: fmt.Sprintf("the server answered %d %s", status, http.StatusText(status)), Detail: safeURL(address)}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.Class = Auth
	case status == http.StatusProxyAuthRequired:
		e.Class = ProxyAuth
	case status == http.StatusNotFound || status == http.StatusGone:
		e.Class = NotFound
	case status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500:
		transient = true
	}
	e.Remedy = e.Class.remedy()
	return e, transient
}

// safeURL drops user, query and fragment.
func safeURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "(address not readable)"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// localPath returns the path of a file:// address.
func localPath(address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return u.Path, true
}
