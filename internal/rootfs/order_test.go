package rootfs

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckLayerOrder(t *testing.T) {
	base := Layer{dir("."), dir("usr"), dir("usr/lib"), link("lib", "usr/lib"), file("etc-file", "x"), dir("etc"), file("etc/ld.so.cache", "old")}
	comp := func(l ...Node) []Part { return []Part{{Name: "c", Layer: l, Component: true}} }
	step := func(l ...Node) []Part { return []Part{{Name: "s", Layer: l}} }
	mode := func(n Node, m uint32) Node { n.Mode = m; return n }
	owner := func(n Node, uid int) Node { n.UID = uid; return n }
	type hit struct {
		Kind ViolationKind
		Path string
	}
	for name, c := range map[string]struct {
		parts []Part
		want  []hit
	}{
		"good":                        {comp(dir("usr"), dir("usr/local"), file("usr/local/f", "1"), link("usr/local/l", "f")), nil},
		"parent below":                {comp(file("usr/lib/f", "1")), nil},
		"file of the base replaced":   {comp(file("etc/ld.so.cache", "new")), nil},
		"directory over link":         {comp(dir("lib")), []hit{{DirOverLink, "lib"}}},
		"directory over file":         {comp(dir("etc-file")), []hit{{DirOverLink, "etc-file"}}},
		"through a link":              {comp(file("lib/f", "1")), []hit{{DirOverLink, "lib"}}},
		"through its own link":        {comp(dir("usr"), link("usr/l", "lib"), file("usr/l/f", "1")), []hit{{DirOverLink, "usr/l"}}},
		"directory over link, step":   {step(dir("lib")), []hit{{DirOverLink, "lib"}}},
		"link over directory":         {comp(link("usr/lib", "/x")), []hit{{LinkOverDir, "usr/lib"}}},
		"link not new":                {comp(link("lib", "/x")), []hit{{LinkNotNew, "lib"}}},
		"link not new, step":          {step(link("lib", "/x"), gone("etc-file")), nil},
		"file over link":              {comp(file("lib", "1")), []hit{{FileOverOther, "lib"}}},
		"parent missing":              {comp(file("opt/f", "1")), []hit{{ParentMissing, "opt"}}},
		"parent missing, step":        {step(file("opt/f", "1")), nil},
		"parent's mode":               {comp(mode(dir("usr"), 0o700)), []hit{{ParentChanged, "usr"}}},
		"parent's owner":              {comp(owner(dir("usr"), 7)), []hit{{ParentChanged, "usr"}}},
		"whiteout":                    {comp(gone("etc-file")), []hit{{Forbidden, "etc-file"}}},
		"opaque":                      {comp(opaque("usr")), []hit{{Forbidden, "usr"}}},
		"marker name":                 {comp(file("usr/.wh.x", "")), []hit{{Forbidden, "usr/.wh.x"}}},
		"absolute":                    {comp(file("/usr/x", "")), []hit{{Forbidden, "usr/x"}}},
		"climbs":                      {comp(file("usr/../usr/x", "")), []hit{{Forbidden, "usr/x"}}},
		"device":                      {comp(Node{Path: "usr/d", Type: Device}), []hit{{Forbidden, "usr/d"}}},
		"twice":                       {comp(file("usr/x", "1"), file("usr/x", "2")), []hit{{Duplicate, "usr/x"}}},
		"link of an earlier part":     {append(comp(link("usr/new", "lib")), comp(dir("usr/new"))...), []hit{{DirOverLink, "usr/new"}}},
		"directory of a removed path": {append(step(gone("usr/lib")), comp(file("usr/lib/f", "1"))...), []hit{{ParentMissing, "usr/lib"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []hit
			for _, v := range CheckLayerOrder(base, c.parts) {
				got = append(got, hit{v.Kind, v.Path})
				if v.Error() == "" || v.Name != c.parts[v.Layer].Name {
					t.Errorf("violation without its layer: %+v", v)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestCompose(t *testing.T) {
	tree, v, err := Compose(Layer{dir("usr"), link("lib", "usr")}, []Part{{Name: "c", Layer: Layer{dir("lib"), file("lib/f", "1")}, Component: true}})
	if err != nil || len(v) != 1 || v[0].Kind != DirOverLink || len(tree.Violations()) != 1 {
		t.Errorf("violations %v, tree's own %v, error %v", v, tree.Violations(), err)
	}
}

// big is a layer of 100,000 files.
func big() Layer {
	var l Layer
	for d := range 1000 {
		l = append(l, dir(fmt.Sprintf("d%d", d)))
		for f := range 100 {
			l = append(l, file(fmt.Sprintf("d%d/f%d", d, f), ""))
		}
	}
	return l
}

func BenchmarkCompose(b *testing.B) {
	l := big()
	for b.Loop() {
		if _, v, err := Compose(l, []Part{{Name: "c", Layer: l, Component: true}}); err != nil || len(v) > 0 {
			b.Fatal(v, err)
		}
	}
}
