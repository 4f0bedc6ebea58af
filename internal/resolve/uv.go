package resolve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"imgsmith/internal/facts"
)

const maxUVOutput = 64 << 20 // bytes of a pylock; that of a hundred packages has well under 1 MiB

// compile runs uv pip compile on a plan and returns the packages it chose.
func (r *Resolver) compile(ctx context.Context, p *plan, python, glibc string) ([]pkg, error) {
	if r.UV == "" {
		return nil, &MissingUVError{}
	}
	dir, err := os.MkdirTemp("", "imgsmith-resolve-")
	if err != nil {
		return nil, fmt.Errorf("resolving packages: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	platform, err := uvPlatform(glibc)
	if err != nil {
		return nil, err
	}
	args := []string{"pip", "compile", "requirements.in", "--format", "pylock.toml", "--output-file", "pylock.toml",
		"--python-version", python, "--python-platform", platform, "--only-binary", ":all:",
		"--no-header", "--no-annotate", "--quiet", "--no-progress", "--color", "never"}
	if p.noDeps {
		args = append(args, "--no-deps")
	}
	if err := writeLines(dir, "requirements.in", p.requirements); err != nil {
		return nil, err
	}
	if len(p.prefer) > 0 {
		if err := writeLines(dir, "pylock.toml", preferences(p.prefer)); err != nil {
			return nil, err
		}
	}
	if len(p.constraints) > 0 {
		if err := writeLines(dir, "constraints.txt", p.constraints); err != nil {
			return nil, err
		}
		args = append(args, "--constraints", "constraints.txt")
	}
	if r.Cache != "" {
		args = append(args, "--cache-dir", r.Cache)
	}
	if r.Offline {
		args = append(args, "--offline")
	}
	more, env := r.Settings.forUV()
	if err := r.runUV(ctx, dir, append(args, more...), env, python); err != nil {
		return nil, err
	}
	out, err := os.ReadFile(filepath.Join(dir, "pylock.toml"))
	if err != nil {
		return nil, fmt.Errorf("resolving packages: %w", err)
	}
	if len(out) > maxUVOutput {
		return nil, fmt.Errorf("resolving packages: uv's answer has %d bytes", len(out))
	}
	return parsePylock(out, dir)
}

func (r *Resolver) runUV(ctx context.Context, dir string, args, env []string, python string) error {
	stderr, err := r.startUV(ctx, dir, args, env)
	if err != nil && strings.Contains(stderr, "No interpreter found") {
		// uv asks an interpreter for its markers. Without one on the host a stand-in answers for the entry's.
		stub, werr := writeInterpreter(dir, python)
		if werr != nil {
			return fmt.Errorf("resolving packages: %w", werr)
		}
		stderr, err = r.startUV(ctx, dir, append(args, "--python", stub), env)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return uvError(stderr, err)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, exec.ErrNotFound) {
		return &MissingUVError{Path: r.UV, Cause: err}
	}
	return fmt.Errorf("resolving packages: running uv: %w", err)
}

func (r *Resolver) startUV(ctx context.Context, dir string, args, env []string) (string, error) {
	cmd := exec.CommandContext(ctx, r.UV, args...)
	cmd.Dir, cmd.Env = dir, env
	var stderr bytes.Buffer
	cmd.Stderr = &limitWriter{w: &stderr, left: 1 << 20}
	err := cmd.Run()
	if r.Log != nil {
		r.Log.DebugContext(ctx, "uv", "args", args, "err", err)
	}
	return stderr.String(), err
}

// preferences writes pins in the form of uv's own output: what it finds there it keeps where the requirements
// allow it.
func preferences(pins []pin) []string {
	out := []string{`lock-version = "1.0"`, `created-by = "imgsmith"`}
	for _, p := range pins {
		out = append(out, "", "[[packages]]", fmt.Sprintf("name = %q", p.name), fmt.Sprintf("version = %q", p.version))
	}
	return out
}

// Version returns the version of uv.
func (r *Resolver) Version(ctx context.Context) (string, error) {
	if r.UV == "" {
		return "", &MissingUVError{}
	}
	out, err := exec.CommandContext(ctx, r.UV, "--version").Output()
	if err != nil {
		return "", &MissingUVError{Path: r.UV, Cause: err}
	}
	f := strings.Fields(string(out))
	if len(f) < 2 {
		return "", fmt.Errorf("reading uv's version: %q", out)
	}
	return f[1], nil
}

func writeLines(dir, name string, lines []string) error {
	err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
	if err != nil {
		return fmt.Errorf("resolving packages: %w", err)
	}
	return nil
}

// uvPlatform returns uv's name for the newest platform that is not above a glibc. uv knows 2.17, 2.28 and
// 2.31 to 2.40 (uv pip compile --help).
func uvPlatform(glibc string) (string, error) {
	if !facts.Dotted(glibc) {
		return "", fmt.Errorf("glibc %q is no version", glibc)
	}
	best := 0
	for _, minor := range []int{17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40} {
		if facts.Compare(glibc, "2."+strconv.Itoa(minor)) >= 0 {
			best = minor
		}
	}
	if best == 0 {
		return "", fmt.Errorf("glibc %s is older than 2.17, which every wheel of TensorFlow needs; use a newer base", glibc)
	}
	return "x86_64-manylinux_2_" + strconv.Itoa(best), nil
}

// uvError turns uv's message into an Error.
func uvError(stderr string, cause error) error {
	e := &Error{Class: Other, Doing: "resolving packages", Reason: "uv failed", Cause: cause, Detail: shorten(redact(stderr))}
	low := strings.ToLower(stderr)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(low, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("407 proxy", "proxy authentication required"):
		e.Class, e.Reason = ProxyAuth, "the proxy wants a user and a password"
	case has("401 unauthorized", "403 forbidden", "missing credentials", "invalid credentials"):
		e.Class, e.Reason = Auth, "the package index refused access"
	case has("invalid peer certificate", "unknownissuer", "certificate verify", "self-signed", "badsignature"):
		e.Class, e.Reason = TLS, "the certificate of the package index is not trusted"
	case has("dns error", "failed to lookup address", "name or service not known", "name resolution"):
		e.Class, e.Reason = DNS, "the name of the package index could not be resolved"
	case has("network connectivity is disabled", "network was disabled", "offline mode"):
		e.Class, e.Reason, e.Remedy = Offline, "offline, and the cache does not hold all that is needed", "run it once without --offline"
	case has("connection refused", "connection reset", "timed out", "error sending request", "failed to fetch"):
		e.Class, e.Reason = Network, "the package index could not be read"
	case has("no space left on device"):
		e.Class, e.Reason = DiskFull, "the disk is full"
	case has("requirements are unsatisfiable", "no solution found"):
		e.Class, e.Reason = Unsatisfiable, "no set of packages satisfies this entry"
		e.Remedy = "change the versions that uv names"
		if e.Conflict = conflictIn(redact(stderr)); e.Conflict != nil {
			e.Remedy = "change one of the two, or leave " + e.Conflict.Package + " out of packages; --verbose shows uv's own words"
		}
		if has("was not found in the package registry", "was not found in the provided package locations") {
			e.Reason = "a package is in none of the indexes"
			e.Remedy = "check its name, and the index and find-links settings of pip or uv"
		}
	}
	if e.Remedy == "" {
		e.Remedy = e.Class.remedy()
	}
	return e
}

func redact(s string) string {
	return regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/@\s]+@`).ReplaceAllString(s, "$1***@")
}

func shorten(s string) string {
	const most = 1200
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = s[:most] + " …"
	}
	return s
}

// limitWriter keeps the first left bytes and drops the rest.
type limitWriter struct {
	w    *bytes.Buffer
	left int
}

func (l *limitWriter) Write(p []byte) (int, error) {
	keep := min(len(p), l.left)
	l.left -= keep
	l.w.Write(p[:keep])
	return len(p), nil
}
