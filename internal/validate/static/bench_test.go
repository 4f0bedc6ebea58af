package static

import (
	"fmt"
	"testing"

	"imgsmith/internal/rootfs"
)

// BenchmarkELFFiles shows that the cost grows with the number of ELF files and no faster.
func BenchmarkELFFiles(b *testing.B) {
	for _, count := range []int{500, 1000, 2000, 4000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			layer := ownTree(readFixture(b))
			for i := range count {
				layer = append(layer, lib(fmt.Sprintf("%s/m%d/x%d.cpython-311-x86_64-linux-gnu.so", site, i%50, i), "", "libc.so.6", "libm.so.6"))
			}
			tree, err := rootfs.Apply(layer)
			if err != nil {
				b.Fatal(err)
			}
			in := input(b, nil)
			in.Tree = tree
			for b.Loop() {
				Check(in)
			}
		})
	}
}
