package resolve

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTagOrder(t *testing.T) {
	tags, err := newTagOrder("3.11", "2.31")
	if err != nil {
		t.Fatal(err)
	}
	ordered := []string{ // best first
		"p-1-cp311-cp311-manylinux_2_31_x86_64.whl",
		"p-1-cp311-cp311-manylinux_2_17_x86_64.whl",
		"p-1-cp311-cp311-manylinux2014_x86_64.whl",
		"p-1-cp311-cp311-manylinux1_x86_64.whl",
		"p-1-cp311-cp311-linux_x86_64.whl",
		"p-1-cp311-abi3-manylinux_2_17_x86_64.whl",
		"p-1-cp311-none-manylinux_2_17_x86_64.whl",
		"p-1-cp310-abi3-manylinux_2_17_x86_64.whl",
		"p-1-cp37-abi3-manylinux_2_17_x86_64.whl",
		"p-1-py3-none-manylinux_2_17_x86_64.whl",
		"p-1-cp311-none-any.whl",
		"p-1-py311-none-any.whl",
		"p-1-py2.py3-none-any.whl",
		"p-1-py310-none-any.whl",
	}
	last := -1
	for _, f := range ordered {
		r, _, ok := tags.rank(f)
		if !ok || r <= last {
			t.Errorf("%s: rank %d after %d, %v", f, r, last, ok)
		}
		last = r
	}
	for _, f := range []string{"p-1-cp312-cp312-manylinux_2_17_x86_64.whl", "p-1-cp311-cp311-manylinux_2_32_x86_64.whl", "p-1-cp311-cp311-musllinux_1_2_x86_64.whl",
		"p-1-cp311-cp311-manylinux_2_17_aarch64.whl", "p-1-cp312-abi3-manylinux_2_17_x86_64.whl", "p-1-py2-none-any.whl", "p-1-cp311-cp311-win_amd64.whl", "p.whl", "", "a-b-c-d-e-f-g-h.whl"} {
		if r, _, ok := tags.rank(f); ok {
			t.Errorf("%s is accepted with rank %d", f, r)
		}
	}
	p := pkg{name: "p", version: "1", candidates: []candidate{{file: "p-1-py3-none-any.whl"}, {file: "p-1-10b-py3-none-any.whl"}, {file: "p-1-9-py3-none-any.whl"}}}
	for range 6 {
		if c, err := p.best(tags); err != nil || c.file != "p-1-10b-py3-none-any.whl" {
			t.Errorf("%v %v", c, err)
		}
		p.candidates = append(p.candidates[1:], p.candidates[0])
	}
	for _, bad := range [][2]string{{"2.7", "2.31"}, {"3", "2.31"}, {"3.11", "3.1"}, {"3.11", ""}, {"x", "2.x"}} {
		if _, err := newTagOrder(bad[0], bad[1]); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

func TestBestRefused(t *testing.T) {
	tags, err := newTagOrder("3.11", "2.36")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		p    pkg
		want string
	}{
		{pkg{name: "a", version: "1", sdist: true}, "package a 1: it has a source archive but no wheel"},
		{pkg{name: "a", version: "1"}, "the index has no wheel for it"},
		{pkg{name: "a", version: "1", candidates: []candidate{{file: "a-1-cp39-cp39-win32.whl"}}}, "none of its 1 wheels fits CPython 3.11 with glibc 2.36 on x86_64 (for example a-1-cp39-cp39-win32.whl)"},
	} {
		_, err := tc.p.best(tags)
		var no *NoWheelError
		if !errors.As(err, &no) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, expected %s", err, tc.want)
		}
	}
}

func TestParsePylock(t *testing.T) {
	good := `lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "A_B"
version = "1"
wheels = [{ url = "https://files.invalid/x/a_b-1-py3-none-any.whl", size = 5, hashes = { sha256 = "AA" } }, { name = "a_b-1-cp311-none-any.whl", path = "w/other.whl", hashes = { sha256 = "bb" } }]
sdist = { url = "https://files.invalid/x/a_b-1.tar.gz", hashes = {} }
`
	got, err := parsePylock([]byte(good), "/dir")
	if err != nil {
		t.Fatal(err)
	}
	want := []pkg{{name: "a-b", version: "1", sdist: true, candidates: []candidate{
		{file: "a_b-1-py3-none-any.whl", url: "https://files.invalid/x/a_b-1-py3-none-any.whl", sha256: "aa", size: 5},
		{file: "a_b-1-cp311-none-any.whl", url: "file:///dir/w/other.whl", sha256: "bb"},
	}}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(pkg{}, candidate{})); d != "" {
		t.Error(d)
	}
	for _, m := range [][2]string{{`"1.0"`, `"2.0"`}, {`url = "https://files.invalid/x/a_b-1-py3`, `url = "a_b-1-py3`},
		{`name = "a_b-1-cp311`, `name = "../a_b-1-cp311`}, {"size = 5", `size = "5"`}, {"version", "= version"}} {
		if got, err := parsePylock([]byte(strings.Replace(good, m[0], m[1], 1)), "/dir"); err == nil {
			t.Errorf("%v: got %+v", m, got)
		}
	}
	if _, err := parsePylock([]byte("lock-version = \"1.0\"\n"), ""); err == nil {
		t.Error("an empty answer is accepted")
	}
}

func TestPlatform(t *testing.T) {
	for glibc, want := range map[string]string{"2.17": "17", "2.27": "17", "2.28": "28", "2.30": "28", "2.31": "31", "2.36": "36", "2.41": "40"} {
		if got, err := uvPlatform(glibc); err != nil || got != "x86_64-manylinux_2_"+want {
			t.Errorf("%s: %s %v", glibc, got, err)
		}
	}
	for _, bad := range []string{"2.16", "", "x"} {
		if got, err := uvPlatform(bad); err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
}

func TestSettingsForUV(t *testing.T) {
	home := t.TempDir()
	conf := filepath.Join(home, "pip.conf")
	text := "[global]\nindex-url = https://user:pw@index.invalid/simple\nextra_index_url =\n    https://one.invalid/simple\n    https://two.invalid/simple\n# find-links = no\n[install]\nfind-links: /a /b\n[list]\nno-index = true\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(home, "ca.pem")
	if err := os.WriteFile(ca, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		env     []string
		args    []string
		has     []string
		without []string
	}{
		{[]string{"PIP_CONFIG_FILE=" + conf}, []string{"--find-links", "/a", "--find-links", "/b"},
			[]string{"UV_DEFAULT_INDEX=https://user:pw@index.invalid/simple", "UV_INDEX=https://one.invalid/simple https://two.invalid/simple"}, nil},
		{[]string{"PIP_CONFIG_FILE=" + conf, "UV_FIND_LINKS=/c"}, nil, []string{"UV_FIND_LINKS=/c"}, []string{"UV_DEFAULT_INDEX"}},
		{[]string{"PIP_CONFIG_FILE=" + conf, "PIP_INDEX_URL=https://env.invalid/simple", "PIP_FIND_LINKS=/d", "PIP_NO_INDEX=1"}, []string{"--find-links", "/d", "--no-index"},
			[]string{"UV_DEFAULT_INDEX=https://env.invalid/simple"}, nil},
		{[]string{"PIP_CONFIG_FILE=/dev/null", "UV_NO_INDEX=true"}, []string{"--no-index"}, nil, nil},
		{[]string{"PIP_CONFIG_FILE=/dev/null", "UV_CONSTRAINT=/c", "UV_RESOLUTION=lowest", "VIRTUAL_ENV=/v"}, nil, []string{"UV_PYTHON_DOWNLOADS=never"}, []string{"UV_CONSTRAINT", "UV_RESOLUTION", "VIRTUAL_ENV"}},
		{[]string{"PIP_CONFIG_FILE=/dev/null", "PIP_CERT=" + ca}, nil, []string{"SSL_CERT_FILE=" + ca}, []string{"UV_SYSTEM_CERTS"}},
		{[]string{"PIP_CONFIG_FILE=/dev/null", "SSL_CERT_FILE=" + ca, "PIP_CERT=/other"}, nil, []string{"SSL_CERT_FILE=" + ca}, []string{"UV_SYSTEM_CERTS"}},
		{[]string{"PIP_CONFIG_FILE=/dev/null"}, nil, []string{"UV_SYSTEM_CERTS=true"}, nil},
		{[]string{"PIP_CONFIG_FILE=/dev/null", "PIP_PROXY=http://p.invalid:1", "PIP_TRUSTED_HOST=h.invalid"}, []string{"--allow-insecure-host", "h.invalid"}, []string{"ALL_PROXY=http://p.invalid:1"}, nil},
		{[]string{"PIP_CONFIG_FILE=/dev/null", "PIP_PROXY=http://p.invalid:1", "https_proxy=http://q.invalid"}, nil, nil, []string{"ALL_PROXY"}},
	} {
		args, env := HostSettings(append(tc.env, "HOME="+home)).forUV()
		if d := cmp.Diff(tc.args, args); d != "" {
			t.Errorf("%v: %s", tc.env, d)
		}
		for _, want := range tc.has {
			if !slices.Contains(env, want) {
				t.Errorf("%v: no %s in %v", tc.env, want, env)
			}
		}
		for _, no := range tc.without {
			if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, no+"=") }) {
				t.Errorf("%v: %s is in %v", tc.env, no, env)
			}
		}
		for _, a := range args {
			if strings.Contains(a, "pw") {
				t.Errorf("a password is an argument: %v", args)
			}
		}
	}
}

func TestUVError(t *testing.T) {
	for text, want := range map[string]Class{
		"error: No solution found when resolving dependencies\n cause: Because a was not found in the package registry": Unsatisfiable,
		"cause: invalid peer certificate: UnknownIssuer":                                                                TLS,
		"cause: dns error: failed to lookup address information: Name or service not known":                             DNS,
		"HTTP status client error (401 Unauthorized) for url (https://u:secret@h.invalid/x)":                            Auth,
		"407 Proxy Authentication Required":                                                                             ProxyAuth,
		"No space left on device (os error 28)":                                                                         DiskFull,
		"tcp connect error: Connection refused":                                                                         Network,
		"something else " + strings.Repeat("very long ", 1000):                                                          Other,
	} {
		err := uvError(text, errors.New("exit status 1"))
		var e *Error
		if !errors.As(err, &e) || e.Class != want || len(err.Error()) > 2000 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}
