package registry

import (
	"bytes"
	"io"
	"os"
	"testing"
)

// TestOpen reads the same image from a registry and from a layout, where it is.
func TestOpen(t *testing.T) {
	noLogin(t)
	s := newTestStore(t)
	s.writeLayout("both", indexOf(s))
	repo := otherRegistry(t, nil) + "/team/app"
	if err := CopyImage(t.Context(), s.dir, s.manifest, repo); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{repo + "@" + s.manifest, "oci-layout:" + s.dir + ":both"} {
		img, err := Open(t.Context(), ref, "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		if img.ManifestDigest != s.manifest || len(img.Layers) != 1 || !bytes.Equal(img.Config, config("amd64")) {
			t.Errorf("%s: %+v", ref, img)
		}
		r, err := img.OpenLayer(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(data, s.data) {
			t.Errorf("%s: %d bytes, %v", ref, len(data), err)
		}
		r.Close()
	}
	if _, err := Open(t.Context(), repo+":none", "linux/amd64"); KindOf(err) != NotFound {
		t.Errorf("an unknown tag: %v", err)
	}
	if _, err := Open(t.Context(), "oci-layout:"+s.dir+":both", "linux/s390x"); KindOf(err) != NoPlatform {
		t.Errorf("an unknown platform: %v", err)
	}
}

// TestOpenedLayerThatLies compares what is read with the digest.
func TestOpenedLayerThatLies(t *testing.T) {
	s := newTestStore(t)
	s.writeLayout("both", indexOf(s))
	bad := bytes.Clone(s.data)
	bad[100] ^= 1
	for name, data := range map[string][]byte{"changed": bad, "longer": append(bytes.Clone(s.data), 1), "shorter": s.data[:10]} {
		if err := os.WriteFile(s.store.blob(s.layer), data, 0o644); err != nil {
			t.Fatal(err)
		}
		img, err := Open(t.Context(), "oci-layout:"+s.dir+":both", "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		r, err := img.OpenLayer(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); err == nil {
			t.Errorf("a %s layer was read without an error", name)
		}
		r.Close()
	}
}
