package resolve

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Settings are the host's pip, uv, CA and proxy settings.
type Settings struct {
	env map[string]string
	pip map[string][]string // key of pip's configuration, without a leading command, to its values
}

// HostSettings reads settings from an environment (os.Environ form) and from pip's configuration files: the
// global one, the user's, and what PIP_CONFIG_FILE names. A later file wins, the environment wins over all.
func HostSettings(environ []string) *Settings {
	s := &Settings{env: map[string]string{}, pip: map[string][]string{}}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			s.env[k] = v
		}
	}
	for _, file := range s.pipFiles() {
		s.readPip(file)
	}
	for _, key := range pipKeys() {
		if v := s.env["PIP_"+strings.ToUpper(strings.ReplaceAll(key, "-", "_"))]; v != "" {
			s.pip[key] = strings.Fields(v)
		}
	}
	return s
}

func pipKeys() []string {
	return []string{"index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy", "trusted-host"}
}

func (s *Settings) pipFiles() []string {
	files := []string{"/etc/pip.conf"}
	if home := s.env["HOME"]; home != "" {
		config := s.env["XDG_CONFIG_HOME"]
		if config == "" {
			config = filepath.Join(home, ".config")
		}
		files = append(files, filepath.Join(home, ".pip", "pip.conf"), filepath.Join(config, "pip", "pip.conf"))
	}
	switch f := s.env["PIP_CONFIG_FILE"]; f {
	case "":
	case os.DevNull:
		return nil
	default:
		files = append(files, f)
	}
	return files
}

// readPip reads the [global] and [install] sections. A value may go on over indented lines.
func (s *Settings) readPip(file string) {
	f, err := os.Open(file) // a file that is missing or unreadable is one that pip ignores too
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	section, key := "", ""
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#' || text[0] == ';':
		case text[0] == '[':
			section, key = strings.Trim(text, "[]"), ""
		case section != "global" && section != "install" && section != "download":
		case (line[0] == ' ' || line[0] == '\t') && key != "":
			s.pip[key] = append(s.pip[key], strings.Fields(text)...)
		default:
			i := strings.IndexAny(text, "=:")
			if i < 0 {
				continue
			}
			key = strings.ReplaceAll(strings.TrimSpace(text[:i]), "_", "-")
			if !slices.Contains(pipKeys(), key) {
				key = ""
				continue
			}
			s.pip[key] = strings.Fields(text[i+1:])
		}
	}
}

func (s *Settings) get(key string) string { return s.env[key] }

func (s *Settings) firstPip(key string) string {
	if v := s.pip[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// uvHasIndex tells whether uv has index settings of its own; then pip's are left alone.
func (s *Settings) uvHasIndex() bool {
	for _, k := range []string{"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX", "UV_CONFIG_FILE"} {
		if s.env[k] != "" {
			return true
		}
	}
	for _, f := range []string{"/etc/uv/uv.toml", filepath.Join(s.env["HOME"], ".config", "uv", "uv.toml")} {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return false
}

// forUV returns arguments and environment for a run of uv. Values that may hold a password go through the
// environment, which other users cannot read.
func (s *Settings) forUV() (args, environ []string) {
	env := map[string]string{}
	for k, v := range s.env {
		env[k] = v
	}
	env["UV_PYTHON_DOWNLOADS"] = "never"
	env["UV_NO_PROGRESS"] = "1"
	for _, k := range []string{"UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_SYSTEM_PYTHON", "UV_WORKING_DIR", "UV_PROJECT", "UV_PRERELEASE", "UV_RESOLUTION", "VIRTUAL_ENV", "CONDA_PREFIX"} {
		delete(env, k) // they would change what an entry resolves to
	}
	if truthy(env["UV_NO_INDEX"]) {
		args = append(args, "--no-index")
	}
	if !s.uvHasIndex() {
		args = append(args, s.pipIndex(env)...)
	}
	for _, host := range s.pip["trusted-host"] {
		args = append(args, "--allow-insecure-host", host)
	}
	if ca := s.caFile(); ca != "" && env["SSL_CERT_FILE"] == "" {
		env["SSL_CERT_FILE"] = ca
	} else if ca == "" && env["UV_SYSTEM_CERTS"] == "" && env["UV_NATIVE_TLS"] == "" {
		env["UV_SYSTEM_CERTS"] = "true"
	}
	if p := s.firstPip("proxy"); p != "" && !s.hasProxy() {
		env["ALL_PROXY"] = p
	}
	for k, v := range env {
		environ = append(environ, k+"="+v)
	}
	slices.Sort(environ)
	return args, environ
}

// pipIndex hands pip's index settings to uv.
func (s *Settings) pipIndex(env map[string]string) (args []string) {
	if v := s.firstPip("index-url"); v != "" {
		env["UV_DEFAULT_INDEX"] = v
	}
	if v := s.pip["extra-index-url"]; len(v) > 0 {
		env["UV_INDEX"] = strings.Join(v, " ")
	}
	for _, v := range s.pip["find-links"] {
		args = append(args, "--find-links", v)
	}
	if truthy(s.firstPip("no-index")) {
		args = append(args, "--no-index")
	}
	return args
}

func (s *Settings) hasProxy() bool {
	for _, k := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		if s.env[k] != "" {
			return true
		}
	}
	return false
}

// caFile returns the CA bundle that the host names, "" for the system's own.
func (s *Settings) caFile() string {
	for _, v := range []string{s.env["SSL_CERT_FILE"], s.firstPip("cert"), s.env["REQUESTS_CA_BUNDLE"], s.env["CURL_CA_BUNDLE"]} {
		if v == "" {
			continue
		}
		if fi, err := os.Stat(v); err == nil && fi.Mode().IsRegular() {
			return v
		}
	}
	return ""
}

func truthy(v string) bool {
	return slices.Contains([]string{"1", "true", "yes", "on", "y", "t"}, strings.ToLower(v))
}
