package static

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// bytecode compares the header of every .pyc with the source beside it: modification time and size, as the
// interpreter does. Bytecode that is checked by hash, or not checked at all, says nothing here. Source of the
// header: PEP 552.
func (c *checker) bytecode() {
	var found []validate.Finding
	count := 0
	c.walk(func(n rootfs.Node) {
		dir, name := path.Split(n.Path)
		if n.Head == nil || path.Base(path.Clean(dir)) != "__pycache__" || binary.LittleEndian.Uint32(n.Head[4:]) != 0 {
			return
		}
		stem, _, _ := strings.Cut(name, ".cpython-")
		source, ok := c.Tree.Lstat(path.Join(path.Dir(path.Clean(dir)), stem+".py"))
		if !ok || source.Type != rootfs.Regular {
			return // not imported: the interpreter wants the source there
		}
		count++
		when, size := binary.LittleEndian.Uint32(n.Head[8:]), binary.LittleEndian.Uint32(n.Head[12:])
		if when == uint32(source.MTime) && size == uint32(source.Size) {
			return
		}
		f := validate.Finding{Subject: "/" + n.Path, Message: "the bytecode does not belong to the source beside it: every process compiles the module again",
			Expected: fmt.Sprintf("%d bytes of time %d", uint32(source.Size), uint32(source.MTime)), Observed: fmt.Sprintf("%d bytes of time %d", size, when),
			Remedy: "compile again as the last step that changes the source"}
		if size == uint32(source.Size) && !c.Expect.Complete {
			f.Outcome, f.Note = validate.OutcomePassed, true // slow, never wrong
		}
		found = append(found, f)
	})
	if count > 0 {
		c.report("static.bytecode", fmt.Sprintf("%d files of bytecode belong to their source", count), found)
	}
}
