package static

import (
	"fmt"
	"path"
	"strings"

	"imgsmith/internal/facts"
	"imgsmith/internal/validate"
)

// gpuCode compares the code for GPUs in TensorFlow with the declared fleet: what the files hold when they were
// read whole, else what the facts say of the release.
func (c *checker) gpuCode() {
	tf := c.Expect.TensorFlow
	sass, ptx, from := tf.SASS, tf.PTX, "facts of TensorFlow "+tf.Minor
	var found []validate.Finding
	if c.Deep {
		var ok bool
		if sass, ptx, from, ok = c.codeOfFiles(); !ok && c.caller != nil {
			c.report("static.gpucode", "", []validate.Finding{{Subject: "/" + c.caller.node.Path, Message: "TensorFlow's libraries hold no code for any GPU: this is a build for the CPU",
				Expected: strings.Join(tf.SASS, " "), Observed: "none", Remedy: "install tensorflow, not tensorflow-cpu"}})
			return
		}
		if c.caller == nil {
			return // told by static.tensorflow
		}
	}
	observed := fmt.Sprintf("machine code for %s, PTX for %s (%s)", strings.Join(sass, " "), strings.Join(ptx, " "), from)
	for _, g := range c.Fleet {
		if !c.runs(g, sass, ptx, observed, &found) {
			found = append(found, validate.Finding{Subject: g.Name, Message: fmt.Sprintf("TensorFlow has no code that a GPU of compute capability %s can run", g.Capability), Expected: "machine code of the same major, or older PTX",
				Observed: observed, Remedy: "choose a TensorFlow release that has it, or leave this GPU out of the fleet"})
		}
	}
	c.report("static.gpucode", observed, found)
}

// runs tells whether a GPU runs the code; that it has to compile first is added as a note.
func (c *checker) runs(g GPU, sass, ptx []string, observed string, found *[]validate.Finding) bool {
	for _, s := range sass {
		if facts.Major(s) == facts.Major(g.Capability) && facts.Compare(s, g.Capability) <= 0 {
			return true
		}
	}
	for _, p := range ptx {
		if facts.Compare(p, g.Capability) <= 0 {
			*found = append(*found, validate.Finding{Outcome: validate.OutcomePassed, Note: true, Subject: g.Name, Observed: observed,
				Message: fmt.Sprintf("compute capability %s has no machine code: the driver compiles PTX at the first start, which can take half an hour", g.Capability)})
			return true
		}
	}
	return false
}

// codeOfFiles unites the code of TensorFlow's own libraries.
func (c *checker) codeOfFiles() (sass, ptx []string, from string, ok bool) {
	if c.caller == nil {
		return nil, nil, "", false
	}
	nodes, err := c.Tree.ReadDir(path.Dir(c.caller.node.Path))
	if err != nil {
		return nil, nil, "", false
	}
	all := [2]map[string]bool{{}, {}}
	for _, n := range nodes {
		if n.GPU == nil {
			continue
		}
		ok = true
		for _, s := range n.GPU.SASS {
			all[0][s] = true
		}
		for _, s := range n.GPU.PTX {
			all[1][s] = true
		}
	}
	return sortedKeys(all[0]), sortedKeys(all[1]), "the files' own", ok
}
