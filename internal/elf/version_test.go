package elf

import (
	"encoding/binary"
	"testing"
)

func TestNumbersTable(t *testing.T) {
	if len(numbers()) < 10 {
		t.Fatal("the table of numbers cannot be read")
	}
	for _, n := range numbers() {
		if n.Library == "" || n.Symbol == "" || n.Low >= n.High || n.Major <= n.Minor || n.Minor == 0 || n.Source == "" {
			t.Errorf("%+v", n)
		}
	}
}

func TestImmediate(t *testing.T) {
	imm := binary.LittleEndian.AppendUint32(nil, 90300)
	for name, c := range map[string]struct {
		code []byte
		want uint32
	}{
		"mov to eax":             {append([]byte{0x90, 0xb8}, imm...), 90300},
		"mov to (rdi)":           {append([]byte{0xc7, 0x07}, imm...), 90300},
		"mov to the frame, near": {append([]byte{0xc7, 0x45, 0xcc}, imm...), 90300},
		"mov to the frame, far":  {append([]byte{0xc7, 0x85, 0x50, 0xff, 0xfe, 0xff}, imm...), 90300},
		"cmp with edi":           {append([]byte{0x81, 0xff}, imm...), 90300},
		"cmp with eax":           {append([]byte{0x90, 0x90, 0x3d}, imm...), 90300},
		"call":                   {append([]byte{0x90, 0xe8}, imm...), 0},
		"address of a lea":       {append([]byte{0x48, 0x8d, 0x3d}, imm...), 0},
		"out of range":           {[]byte{0xb8, 1, 0, 0, 0}, 0},
		"cut off":                {append([]byte{0xb8}, imm[:3]...), 0},
		"nothing":                {nil, 0},
	} {
		if got, ok := immediate(c.code, 90000, 99999); got != c.want || ok != (c.want != 0) {
			t.Errorf("%s: %d %v", name, got, ok)
		}
	}
}

// TestParts names the segments that a reader in passing must keep.
func TestParts(t *testing.T) {
	b := stubOf(t, full())
	parts := Parts(b, int64(len(b)))
	if len(parts) != 1 || parts[0].Start != 0 || parts[0].End != int64(len(b)) {
		t.Errorf("parts %+v of %d bytes", parts, len(b))
	}
	if got := Parts([]byte("text"), 4); got != nil {
		t.Errorf("parts %+v of a text", got)
	}
}
