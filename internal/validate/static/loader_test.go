package static

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/elf"
	"imgsmith/internal/rootfs"
)

// so is a stub library: the paths may hold $ORIGIN; rpath starting with "!" is a RUNPATH.
func so(p, soname, search string, needed ...string) rootfs.Node {
	f := elf.Facts{Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Dynamic: true, Soname: soname, Needed: needed}
	switch list, isRun := strings.CutPrefix(search, "!"); {
	case isRun:
		f.RunPath = strings.Split(list, ":")
	case search != "":
		f.RPath = strings.Split(search, ":")
	}
	return rootfs.Node{Path: p, Type: rootfs.Regular, Mode: 0o755, Size: 1, ELF: &f}
}

// loaderCase is one program with the libraries around it.
type loaderCase struct {
	name    string
	nodes   rootfs.Layer
	libPath string
	conf    []string // directories that go into ld.so.cache
	want    map[string]string
	missing []string
}

func loaderCases() []loaderCase {
	main := func(search string, needed ...string) rootfs.Node { return so("opt/app/main.so", "", search, needed...) }
	return []loaderCase{
		{name: "nowhere", nodes: rootfs.Layer{main("", "liba.so"), so("opt/app/liba.so", "liba.so", "")}, want: map[string]string{}, missing: []string{"liba.so"}},
		{name: "RUNPATH with origin", nodes: rootfs.Layer{main("!$ORIGIN/lib", "liba.so"), so("opt/app/lib/liba.so", "liba.so", "")}, want: map[string]string{"liba.so": "/opt/app/lib/liba.so"}},
		{name: "dots stay in the path", nodes: rootfs.Layer{main("!$ORIGIN/../x/", "liba.so"), so("opt/x/liba.so", "liba.so", "!${ORIGIN}/../y", "libb.so"), so("opt/y/libb.so", "libb.so", "")},
			want: map[string]string{"liba.so": "/opt/app/../x/liba.so", "libb.so": "/opt/app/../x/../y/libb.so"}},
		{name: "origin is the path as opened, dots after the link", nodes: rootfs.Layer{main("!$ORIGIN/link", "liba.so"), linkNode("opt/app/link", "/real/deep/dir"),
			so("real/deep/dir/liba.so", "liba.so", "!$ORIGIN/../side", "libb.so"), so("real/deep/side/libb.so", "libb.so", ""), so("opt/app/side/libb.so", "libb.so", "")},
			want: map[string]string{"liba.so": "/opt/app/link/liba.so", "libb.so": "/opt/app/link/../side/libb.so"}},
		{name: "RUNPATH is not inherited", nodes: rootfs.Layer{main("!/one", "liba.so"), so("one/liba.so", "liba.so", "", "libb.so"), so("one/libb.so", "libb.so", "")},
			want: map[string]string{"liba.so": "/one/liba.so"}, missing: []string{"libb.so"}},
		{name: "RPATH is inherited", nodes: rootfs.Layer{main("/one", "liba.so"), so("one/liba.so", "liba.so", "", "libb.so"), so("one/libb.so", "libb.so", "")},
			want: map[string]string{"liba.so": "/one/liba.so", "libb.so": "/one/libb.so"}},
		{name: "RUNPATH of the caller ends inheritance", nodes: rootfs.Layer{main("/one", "liba.so"), so("one/liba.so", "liba.so", "!/two", "libb.so"), so("one/libb.so", "libb.so", "")},
			want: map[string]string{"liba.so": "/one/liba.so"}, missing: []string{"libb.so"}},
		{name: "environment before RUNPATH", libPath: "/env", nodes: rootfs.Layer{main("!/one", "liba.so"), so("one/liba.so", "liba.so", ""), so("env/liba.so", "liba.so", "")}, want: map[string]string{"liba.so": "/env/liba.so"}},
		{name: "RPATH before environment", libPath: "/env", nodes: rootfs.Layer{main("/one", "liba.so"), so("one/liba.so", "liba.so", ""), so("env/liba.so", "liba.so", "")}, want: map[string]string{"liba.so": "/one/liba.so"}},
		{name: "cache before default directory", conf: []string{"/cached"}, nodes: rootfs.Layer{main("", "liba.so"), so("cached/liba.so", "liba.so", ""), so("usr/lib/x86_64-linux-gnu/liba.so", "liba.so", "")},
			want: map[string]string{"liba.so": "/cached/liba.so"}},
		{name: "default directory", nodes: rootfs.Layer{main("", "liba.so"), so("usr/lib/x86_64-linux-gnu/liba.so", "liba.so", "")}, want: map[string]string{"liba.so": "/lib/x86_64-linux-gnu/liba.so"}},
		{name: "loaded once by soname", nodes: rootfs.Layer{main("!/one:/two", "libx.so", "libb.so"), so("one/libx.so", "liba.so.1", ""), so("two/libb.so", "libb.so", "!/two", "liba.so.1"), so("two/liba.so.1", "liba.so.1", "")},
			want: map[string]string{"libx.so": "/one/libx.so", "libb.so": "/two/libb.so"}},
		{name: "same file by two names", nodes: rootfs.Layer{main("!/one", "liba.so", "libother.so"), so("one/liba.so", "liba.so", ""), linkNode("one/libother.so", "liba.so")}, want: map[string]string{"liba.so": "/one/liba.so"}},
		{name: "dangling link is passed over", nodes: rootfs.Layer{main("!/one:/two", "liba.so"), linkNode("one/liba.so", "gone"), so("two/liba.so", "liba.so", "")}, want: map[string]string{"liba.so": "/two/liba.so"}},
		{name: "needed by path", nodes: rootfs.Layer{main("", "/one/liba.so"), so("one/liba.so", "liba.so", "")}, want: map[string]string{"/one/liba.so": "/one/liba.so"}},
		{name: "empty element is no directory of the image", nodes: rootfs.Layer{main("!:/one", "liba.so"), so("one/liba.so", "liba.so", "")}, want: map[string]string{"liba.so": "/one/liba.so"}},
	}
}

// predict runs the simulation over a case.
func predict(t *testing.T, c loaderCase) (map[string]string, []string) {
	t.Helper()
	nodes := append(rootfs.Layer{dirNode("usr"), dirNode("usr/lib"), linkNode("lib", "usr/lib")}, c.nodes...)
	tree, err := rootfs.Apply(nodes)
	if err != nil {
		t.Fatal(err)
	}
	r, err := loadRules()
	if err != nil {
		t.Fatal(err)
	}
	rule := r.loader([]string{"debian"})
	ld := &loader{tree: tree, dirs: rule.Directories, lib: rule.Lib, machine: "EM_X86_64", cache: map[string][]string{}}
	if c.libPath != "" {
		ld.libPath = strings.Split(c.libPath, ":")
	}
	for _, dir := range c.conf {
		inDir, err := tree.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range inDir {
			ld.cache[n.ELF.Soname] = append(ld.cache[n.ELF.Soname], dir+"/"+base(n.Path))
		}
	}
	p := ld.process()
	_, miss := p.start("/opt/app/main.so")
	got := map[string]string{}
	for _, o := range p.order[1:] {
		got[o.name] = o.opened
	}
	var names []string
	for _, m := range miss {
		names = append(names, m.name)
	}
	return got, names
}

func TestLoader(t *testing.T) {
	for _, c := range loaderCases() {
		t.Run(c.name, func(t *testing.T) {
			got, miss := predict(t, c)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("mapped: -want +got\n%s", d)
			}
			if d := cmp.Diff(c.missing, miss); d != "" {
				t.Errorf("missing: -want +got\n%s", d)
			}
		})
	}
}

// TestLoaderAgainstReal asks the host's own loader the same questions, in a root made of stubs.
func TestLoaderAgainstReal(t *testing.T) {
	const ldso = "/lib64/ld-linux-x86-64.so.2"
	if os.Getuid() != 0 {
		t.Skip("changing the root directory needs root")
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		t.Skip("the default directories of these cases are Debian's")
	}
	loader, err := os.ReadFile(ldso)
	if err != nil {
		t.Skip("no x86-64 glibc loader on this host")
	}
	for _, c := range loaderCases() {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, append(rootfs.Layer{dirNode("usr/lib"), linkNode("lib", "usr/lib")}, c.nodes...))
			for _, d := range []string{"lib64", "etc"} {
				if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(root, ldso), loader, 0o755); err != nil {
				t.Fatal(err)
			}
			if c.conf != nil {
				runLdconfig(t, root, c.conf)
			}
			cmd := exec.Command(ldso, "/opt/app/main.so")
			cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
			cmd.Env = []string{"LD_TRACE_LOADED_OBJECTS=1"}
			if c.libPath != "" {
				cmd.Args = []string{ldso, "--library-path", c.libPath, "/opt/app/main.so"}
			}
			out, _ := cmd.CombinedOutput() // a missing library is an answer too
			got, miss := parseList(string(out))
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("the real loader maps: -want +got\n%s\n%s", d, out)
			}
			if d := cmp.Diff(c.missing, miss); d != "" {
				t.Errorf("the real loader misses: -want +got\n%s\n%s", d, out)
			}
		})
	}
}

func runLdconfig(t *testing.T, root string, dirs []string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, "etc/ld.so.conf"), []byte(strings.Join(dirs, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ldconfig", "-r", root).CombinedOutput(); err != nil {
		t.Skipf("ldconfig does not run: %v %s", err, out)
	}
}

// write puts nodes on disk, libraries as stubs.
func write(t *testing.T, root string, nodes rootfs.Layer) {
	t.Helper()
	for _, n := range nodes {
		p := filepath.Join(root, n.Path)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		switch {
		case err != nil:
		case n.Type == rootfs.Dir:
			err = os.MkdirAll(p, 0o755)
		case n.Type == rootfs.Symlink:
			err = os.Symlink(n.Link, p)
		default:
			var b []byte
			if b, err = elf.StubLibrary(*n.ELF); err == nil {
				err = os.WriteFile(p, b, 0o755)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var (
	listed  = regexp.MustCompile(`(?m)^\t(\S+) => (\S+) \(0x`)
	byPath  = regexp.MustCompile(`(?m)^\t(/\S+) \(0x`)
	notHere = regexp.MustCompile(`(?m)^\t?(\S+) => not found$|^\S*: error while loading shared libraries: (\S+): cannot open`)
)

// parseList reads what the loader prints when it traces.
func parseList(out string) (map[string]string, []string) {
	got := map[string]string{}
	for _, m := range listed.FindAllStringSubmatch(out, -1) {
		got[m[1]] = m[2]
	}
	for _, m := range byPath.FindAllStringSubmatch(out, -1) {
		got[m[1]] = m[1]
	}
	delete(got, "/lib64/ld-linux-x86-64.so.2")
	var miss []string
	for _, m := range notHere.FindAllStringSubmatch(out, -1) {
		miss = append(miss, m[1]+m[2])
	}
	return got, miss
}

func TestParseCache(t *testing.T) {
	pairs := []string{"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9", "libz.so.1", "/lib/libz.so.1"}
	good := cacheOf(pairs...)
	want := []CacheEntry{{Soname: pairs[0], Path: pairs[1], Flags: 0x0303}, {Soname: pairs[2], Path: pairs[3], Flags: 0x0303}}
	old := "ld.so-1.7.0\x00\x01\x00\x00\x00" + strings.Repeat("\x00", 12) + strings.Repeat("\x00", 4) + good
	for name, in := range map[string]string{"new": good, "old in front": old} {
		got, err := ParseCache([]byte(in))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	for n := range len(good) {
		if _, err := ParseCache([]byte(good[:n])); err == nil {
			t.Fatalf("a cache of %d of %d bytes was read", n, len(good))
		}
	}
}

// TestParseCacheOfHost reads what the host's ldconfig wrote.
func TestParseCacheOfHost(t *testing.T) {
	b, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skip("this host has no ld.so.cache")
	}
	entries, err := ParseCache(b)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(entries, func(e CacheEntry) bool { return e.Soname == "libc.so.6" && e.X8664() })
	if i < 0 || !filepath.IsAbs(entries[i].Path) {
		t.Errorf("no C library among %d entries", len(entries))
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add([]byte(cacheOf("liba.so", "/lib/liba.so")))
	f.Add([]byte("ld.so-1.7.0\x00\xff\xff\xff\xff"))
	f.Add([]byte(cacheMagicNew))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := ParseCache(b)
		if err == nil && len(entries)*cacheEntry > len(b) {
			t.Errorf("%d entries from %d bytes", len(entries), len(b))
		}
	})
}

func TestConfDirs(t *testing.T) {
	tree, err := rootfs.Apply(rootfs.Layer{
		fileNode("etc/ld.so.conf", "# first\n/one /not-read\ninclude ld.so.conf.d/*.conf\ninclude /etc/extra\nhwcap 1 nosegneg\n/last # end\n"),
		fileNode("etc/ld.so.conf.d/b.conf", "/b\n"), fileNode("etc/ld.so.conf.d/a.conf", "/a=libc6\ninclude /etc/ld.so.conf\n"), fileNode("etc/ld.so.conf.d/skip.txt", "/no\n"),
		fileNode("etc/extra", "/extra"),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(set(confDirs(tree, "etc/ld.so.conf"))))
	if d := cmp.Diff([]string{"/a", "/b", "/extra", "/last", "/one"}, got); d != "" {
		t.Error(d)
	}
}

func set(list []string) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		out[s] = true
	}
	return out
}
