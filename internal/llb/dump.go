package llb

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/encoding/protojson"
)

// dumpDocument is what Dump writes.
type dumpDocument struct {
	Name   string          `json:"name"`
	Ops    []dumpOp        `json:"ops"`
	Result string          `json:"result"`
	Config json.RawMessage `json:"config,omitempty"`
}

type dumpOp struct {
	ID          string            `json:"id"`
	Description map[string]string `json:"description,omitempty"`
	Op          any               `json:"op"`
}

// Dump returns a program as indented JSON for people and goldens. Operations stand in the order of the
// definition and refer to each other as op0, op1, …; the same program always gives the same bytes.
func Dump(p Program) ([]byte, error) {
	doc := dumpDocument{Name: p.Name, Config: p.Config}
	ids := map[string]string{}
	for i, raw := range p.Def.GetDef() {
		var op pb.Op
		if err := op.UnmarshalVT(raw); err != nil {
			return nil, fmt.Errorf("dumping %s: operation %d: %w", p.Name, i, err)
		}
		for _, in := range op.Inputs {
			id, ok := ids[in.Digest]
			if !ok {
				return nil, fmt.Errorf("dumping %s: operation %d: unknown input %s", p.Name, i, in.Digest)
			}
			in.Digest = id
		}
		if op.Op == nil {
			if len(op.Inputs) == 1 {
				doc.Result = op.Inputs[0].Digest
			}
			continue
		}
		d := digest.FromBytes(raw).String()
		ids[d] = fmt.Sprintf("op%d", i)
		view, err := generic(&op)
		if err != nil {
			return nil, fmt.Errorf("dumping %s: operation %d: %w", p.Name, i, err)
		}
		doc.Ops = append(doc.Ops, dumpOp{ID: ids[d], Description: p.Def.Metadata[d].GetDescription(), Op: view})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return nil, fmt.Errorf("dumping %s: %w", p.Name, err)
	}
	return out.Bytes(), nil
}

// generic turns a message into plain maps, whose JSON form is stable; that of protojson is not.
func generic(op *pb.Op) (any, error) {
	data, err := protojson.Marshal(op)
	if err != nil {
		return nil, err
	}
	var v any
	return v, json.Unmarshal(data, &v)
}
