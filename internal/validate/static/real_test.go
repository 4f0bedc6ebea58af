package static

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/view"
)

// TestEveryELFAgainstReal asks the loader of an unpacked image, in that image, about every ELF file of it and
// compares file by file. IMGSMITH_TEST_ROOTS holds directories, separated by colons.
func TestEveryELFAgainstReal(t *testing.T) {
	roots := os.Getenv("IMGSMITH_TEST_ROOTS")
	if roots == "" || os.Getuid() != 0 {
		t.Skip("needs root and IMGSMITH_TEST_ROOTS, directories with unpacked images")
	}
	for dir := range strings.SplitSeq(roots, ":") {
		t.Run(dir, func(t *testing.T) { compareRoot(t, dir) })
	}
}

func compareRoot(t *testing.T, dir string) {
	img, err := view.Directory(t.Context(), dir, view.Options{Keep: Keep})
	if err != nil {
		t.Fatal(err)
	}
	r, err := loadRules()
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{Input: Input{Tree: img.Tree, Expect: Expect{Machine: "EM_X86_64"}}, rules: r}
	c.loaderSetup()
	count, mapped, lost := 0, 0, 0
	_ = img.Tree.Walk("", func(n rootfs.Node) error {
		if n.Type != rootfs.Regular || n.ELF == nil || !n.ELF.Dynamic || n.ELF.Class != 64 || n.ELF.Machine != "EM_X86_64" ||
			n.ELF.Type != "ET_DYN" && n.ELF.Type != "ET_EXEC" || isLoader(n) {
			return nil
		}
		count++
		p := c.ld.process()
		_, miss := p.start("/" + n.Path)
		want := map[string]string{}
		for _, o := range p.order[1:] {
			want[o.opened] = "mapped"
		}
		for _, m := range miss {
			want[m.name] = "not found"
		}
		got := listReal(t, dir, "/"+n.Path)
		for k := range want { // the loader itself is printed by the name in PT_INTERP, and is there in any case
			if strings.HasSuffix(k, "/ld-linux-x86-64.so.2") {
				delete(want, k)
			}
		}
		mapped += len(got)
		for _, v := range got {
			if v == "not found" {
				lost++
			}
		}
		if d := cmp.Diff(got, want); d != "" {
			t.Errorf("/%s: real (-), simulated (+)\n%s", n.Path, d)
		}
		return nil
	})
	t.Logf("%s: %d ELF files, %d predictions compared, %d of them of missing libraries", dir, count, mapped, lost)
	if count < 100 {
		t.Errorf("only %d ELF files were found", count)
	}
}

// isLoader leaves out the loader: it cannot list itself.
func isLoader(n rootfs.Node) bool { return strings.HasPrefix(n.ELF.Soname, "ld-linux") }

// listReal runs the image's own loader in the image.
func listReal(t *testing.T, root, file string) map[string]string {
	t.Helper()
	const ldso = "/lib64/ld-linux-x86-64.so.2"
	ask := func(env []string, args ...string) (string, error) {
		cmd := exec.Command(ldso, args...)
		cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", env, &syscall.SysProcAttr{Chroot: root}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := ask([]string{}, "--list", file)
	if err != nil { // --list ends at the first missing library; tracing names them all
		out, _ = ask([]string{"LD_TRACE_LOADED_OBJECTS=1"}, file)
	}
	paths, miss := parseList(out)
	got := map[string]string{}
	for _, p := range paths {
		if !strings.HasSuffix(p, "/ld-linux-x86-64.so.2") {
			got[p] = "mapped"
		}
	}
	for _, m := range miss {
		got[m] = "not found"
	}
	return got
}
