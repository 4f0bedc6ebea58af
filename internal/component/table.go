package component

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"imgsmith/internal/rootfs"
)

// writeTable writes one JSON object per node, zstd-compressed.
func writeTable(w io.Writer, table rootfs.Layer) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	buf := bufio.NewWriter(z)
	enc := json.NewEncoder(buf)
	for i := range table {
		if err := enc.Encode(&table[i]); err != nil {
			return err
		}
	}
	if err := buf.Flush(); err != nil {
		return err
	}
	return z.Close()
}

// packTable and unpackTable are the stored form of a table; equal tables give equal bytes.
func packTable(table rootfs.Layer) ([]byte, error) {
	var buf bytes.Buffer
	err := writeTable(&buf, table)
	return buf.Bytes(), err
}

func unpackTable(packed []byte) (rootfs.Layer, error) { return readTable(bytes.NewReader(packed)) }

func readTable(r io.Reader) (rootfs.Layer, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	dec := json.NewDecoder(z)
	dec.DisallowUnknownFields()
	var table rootfs.Layer
	for {
		var n rootfs.Node
		err := dec.Decode(&n)
		if err == io.EOF {
			return table, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading node %d of a table: %w", len(table)+1, err)
		}
		table = append(table, n)
	}
}
