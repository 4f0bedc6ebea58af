package elf

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fatEntryOf is one entry of a fat binary.
func fatEntryOf(kind uint16, arch uint32, code []byte) []byte {
	b := make([]byte, fatEntry)
	le := binary.LittleEndian
	le.PutUint16(b, kind)
	le.PutUint32(b[4:], fatEntry)
	le.PutUint64(b[8:], uint64(len(code)))
	le.PutUint32(b[28:], arch)
	return append(b, code...)
}

func fatBinary(entries ...[]byte) []byte {
	body := bytes.Join(entries, nil)
	b := append([]byte(fatMagic), 1, 0, fatHead, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(body)))
	return append(b, body...)
}

func scan(b []byte, step int) *GPUCode {
	var s GPUScanner
	for len(b) > 0 {
		n := min(step, len(b))
		_, _ = s.Write(b[:n])
		b = b[n:]
	}
	return s.Code()
}

func gpuFile() []byte {
	pad := bytes.Repeat([]byte{7}, 24)
	one := fatBinary(fatEntryOf(kindSASS, 90, bytes.Repeat([]byte{1}, 100)), fatEntryOf(kindPTX, 90, []byte(".target sm_90 ..")))
	one = append(one, make([]byte, (8-len(one)%8)%8)...)
	two := fatBinary(fatEntryOf(kindSASS, 60, []byte(fatMagic+"....")), fatEntryOf(99, 70, []byte("?")))
	return bytes.Join([][]byte{pad, one, pad, two, {1, 2, 3}}, nil)
}

func TestGPUScanner(t *testing.T) {
	want := &GPUCode{SASS: []string{"6.0", "9.0"}, PTX: []string{"9.0"}}
	for _, step := range []int{1, 7, 64, 1 << 20} {
		if d := cmp.Diff(want, scan(gpuFile(), step)); d != "" {
			t.Errorf("in steps of %d: %s", step, d)
		}
	}
	if got := scan([]byte("no code"), 3); got != nil {
		t.Errorf("code %+v in a text", got)
	}
}

func FuzzGPUScanner(f *testing.F) {
	f.Add(gpuFile(), uint8(3))
	f.Add([]byte(fatMagic), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		if d := cmp.Diff(scan(b, 1<<20), scan(b, int(step)+1)); d != "" {
			t.Errorf("the parts in which a file comes change what is found: %s", d)
		}
	})
}
