package resolve

import (
	"fmt"
	"strconv"
	"strings"

	"imgsmith/internal/facts"
)

// tagOrder ranks wheel tags for one interpreter, as the compatibility tags standard (PEP 425, with perennial
// manylinux names of PEP 600) orders them: the lower the better.
type tagOrder struct {
	python, glibc string
	ranks         map[string]int
}

func newTagOrder(python, glibc string) (*tagOrder, error) {
	major, minor := facts.Major(python), 0
	if _, m, ok := strings.Cut(python, "."); ok {
		minor, _ = strconv.Atoi(m)
	}
	g := strings.SplitN(glibc, ".", 3)
	if major != 3 || minor == 0 || len(g) < 2 || g[0] != "2" {
		return nil, fmt.Errorf("tags of CPython %q with glibc %q are not known", python, glibc)
	}
	top, err := strconv.Atoi(g[1])
	if err != nil {
		return nil, fmt.Errorf("glibc %q is no version", glibc)
	}
	t := &tagOrder{python: python, glibc: glibc, ranks: map[string]int{}}
	add := func(tag string) {
		if _, ok := t.ranks[tag]; !ok {
			t.ranks[tag] = len(t.ranks)
		}
	}
	platforms := linuxPlatforms(top)
	each := func(prefix string) {
		for _, p := range platforms {
			add(prefix + "-" + p)
		}
	}
	cp := func(m int) string { return fmt.Sprintf("cp%d%d", major, m) }
	py := func(m int) string { return fmt.Sprintf("py%d%d", major, m) }
	each(cp(minor) + "-" + cp(minor) + abiFlags(minor))
	each(cp(minor) + "-abi3")
	each(cp(minor) + "-none")
	for m := minor - 1; m >= 2; m-- {
		each(cp(m) + "-abi3")
	}
	generic := []string{py(minor), "py3"}
	for m := minor - 1; m >= 0; m-- {
		generic = append(generic, py(m))
	}
	for _, v := range generic {
		each(v + "-none")
	}
	add(cp(minor) + "-none-any")
	for _, v := range generic {
		add(v + "-none-any")
	}
	return t, nil
}

// abiFlags is the m of CPython before 3.8.
func abiFlags(minor int) string {
	if minor < 8 {
		return "m"
	}
	return ""
}

// linuxPlatforms lists what a host with glibc 2.top accepts, newest first, with the old names of three of them.
func linuxPlatforms(top int) []string {
	legacy := map[int]string{17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
	var out []string
	for m := top; m >= 5; m-- {
		out = append(out, fmt.Sprintf("manylinux_2_%d_x86_64", m))
		if l := legacy[m]; l != "" {
			out = append(out, l+"_x86_64")
		}
	}
	return append(out, "linux_x86_64")
}

// rank returns the best rank of a wheel's tags and its build tag, or false when none is compatible.
func (t *tagOrder) rank(file string) (int, string, bool) {
	parts := strings.Split(strings.TrimSuffix(file, ".whl"), "-")
	if len(parts) != 5 && len(parts) != 6 {
		return 0, "", false
	}
	build := ""
	if len(parts) == 6 {
		build = parts[2]
	}
	n := len(parts)
	best, ok := 0, false
	for _, py := range strings.Split(parts[n-3], ".") {
		for _, abi := range strings.Split(parts[n-2], ".") {
			for _, plat := range strings.Split(parts[n-1], ".") {
				if r, known := t.ranks[py+"-"+abi+"-"+plat]; known && (!ok || r < best) {
					best, ok = r, true
				}
			}
		}
	}
	return best, build, ok
}

// compareBuild orders build tags: by the number they begin with, then by the rest; none comes first.
func compareBuild(a, b string) int {
	na, ra := splitBuild(a)
	nb, rb := splitBuild(b)
	if na != nb {
		return na - nb
	}
	return strings.Compare(ra, rb)
}

func splitBuild(s string) (int, string) {
	i := 0
	for i < len(s) && i < 9 && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	n, err := strconv.Atoi(s[:i])
	if err != nil {
		n = -1
	}
	return n, s[i:]
}
