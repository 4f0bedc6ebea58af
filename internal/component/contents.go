package component

import (
	"context"
	"fmt"
	"io"

	"imgsmith/internal/wheel"
)

// Contents returns the content of the files of a component that wanted picks, by final path. A step's twin is
// made from it; the caller picks small files only.
func Contents(ctx context.Context, s Spec, open OpenWheel, wanted func(path string) bool) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, lw := range s.Wheels {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		a, err := open(lw)
		if err != nil {
			return nil, fmt.Errorf("opening wheel %s: %w", lw.File, err)
		}
		err = s.contents(lw.File, a, lw.Size, wanted, out)
		_ = a.Close() // only read from
		if err != nil {
			return nil, fmt.Errorf("reading wheel %s: %w", lw.File, err)
		}
	}
	return out, nil
}

func (s Spec) contents(file string, a Archive, size int64, wanted func(string) bool, out map[string][]byte) error {
	w, err := wheel.Open(file, a, size)
	if err != nil {
		return err
	}
	items, err := s.place(w)
	if err != nil {
		return err
	}
	if items, err = s.settle(items); err != nil {
		return err
	}
	for _, it := range items {
		if it.Link != "" || !wanted(it.Path) {
			continue
		}
		data := it.Data
		if it.Member != nil {
			r, err := w.OpenMember(*it.Member, nil)
			if err != nil {
				return err
			}
			if data, err = io.ReadAll(r); err != nil {
				return err
			}
		}
		out[it.Path] = data
	}
	return nil
}
