package main

import (
	"os"
	"testing"

	"imgsmith/internal/facts"
	"imgsmith/internal/validate/static"
)

// BenchmarkOwnImage measures what the stage adds to a build: an image of ours whose layers are all known to the
// store, first the tables and then the checks alone. IMGSMITH_TEST_STORE and IMGSMITH_TEST_IMAGE name both.
func BenchmarkOwnImage(b *testing.B) {
	store, ref := os.Getenv("IMGSMITH_TEST_STORE"), os.Getenv("IMGSMITH_TEST_IMAGE")
	if store == "" || ref == "" {
		b.Skip("needs IMGSMITH_TEST_STORE and IMGSMITH_TEST_IMAGE, a store and an image made from it")
	}
	table, err := facts.Embedded()
	if err != nil {
		b.Fatal(err)
	}
	a := &app{stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, flags: globalFlags{store: store}}
	f := checkFlags{platform: "linux/amd64", maxFiles: defaultFiles}
	b.Run("tables", func(b *testing.B) {
		for b.Loop() {
			if _, err := a.view(b.Context(), ref, f); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("checks", func(b *testing.B) {
		img, err := a.view(b.Context(), ref, f)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			c := checking{table: table, img: img, in: static.Input{}}
			if _, err := c.entry(nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
