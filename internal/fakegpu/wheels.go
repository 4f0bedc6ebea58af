package fakegpu

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	watermark = "imgsmith fake, for tests"
	buildTag  = "0imgsmithfake" // stands in every wheel's file name
)

// member is one file of a wheel.
type member struct {
	name string
	mode os.FileMode
	data []byte
}

// wheel is one distribution to be written.
type wheel struct {
	name, version, tag string
	pure               bool
	requires           []string
	extras             []string // metadata lines
	scripts            string   // entry_points.txt
	topLevel           string
	files              []member
}

// wheels writes the stub of every package, of pip, and one tensorflow per behaviour.
func (c compiler) wheels(ctx context.Context, k *Kit) error {
	for _, p := range c.spec.Packages {
		w, err := c.nvidia(ctx, p)
		if err != nil {
			return err
		}
		if _, err := w.write(k.FindLinks); err != nil {
			return err
		}
	}
	pip := wheel{name: "pip", version: c.spec.Pip, tag: "py3-none-any", pure: true, topLevel: "pip",
		scripts: "[console_scripts]\npip = pip:main\n",
		files:   []member{{"pip/__init__.py", 0o644, []byte("\"\"\"" + watermark + "\"\"\"\n\n\ndef main():\n    print(__doc__)\n    return 0\n")}}}
	if _, err := pip.write(k.FindLinks); err != nil {
		return err
	}
	framework, err := c.shared(ctx, lib{File: "libtensorflow_framework.so.2", Source: "framework.c", RunPath: c.spec.TensorFlow.RunPath})
	if err != nil {
		return err
	}
	so, err := os.ReadFile(framework)
	if err != nil {
		return fmt.Errorf("reading a compiled stub: %w", err)
	}
	for _, b := range c.spec.Behaviours {
		if err := c.tensorflow(k, b, so); err != nil {
			return err
		}
	}
	return nil
}

func (c compiler) nvidia(ctx context.Context, p pkg) (wheel, error) {
	w := wheel{name: p.Name, version: p.Version, tag: "py3-none-manylinux2014_x86_64", pure: true, requires: p.Requires, topLevel: "nvidia"}
	root := "nvidia/" + p.Dir + "/"
	w.files = []member{{"nvidia/__init__.py", 0o644, nil}, {root + "__init__.py", 0o644, nil}, {root + "lib/__init__.py", 0o644, nil}}
	add := func(name string, mode os.FileMode, from string) error {
		b, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("reading a compiled stub: %w", err)
		}
		w.files = append(w.files, member{root + name, mode, b})
		return nil
	}
	for _, l := range p.Libs {
		path, err := c.shared(ctx, l)
		if err != nil {
			return w, err
		}
		where := l.Path
		if where == "" {
			where = "lib"
		}
		if err := add(where+"/"+l.File, 0o644, path); err != nil {
			return w, err
		}
	}
	if p.PTXAS {
		if err := c.gcc(ctx, "-o", "ptxas", "ptxas.c"); err != nil {
			return w, err
		}
		// real compiler wheels store it with this mode: not everybody may execute it
		if err := add("bin/ptxas", 0o744, filepath.Join(c.dir, "ptxas")); err != nil {
			return w, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		w.files = append(w.files, member{root + name, 0o644, []byte(p.Files[name])})
	}
	return w, nil
}

func (c compiler) tensorflow(k *Kit, b Behaviour, framework []byte) error {
	t := c.spec.TensorFlow
	code, err := data.ReadFile("data/tensorflow.py")
	if err != nil {
		return fmt.Errorf("reading the stub tensorflow: %w", err)
	}
	how, err := json.Marshal(map[string]any{"behaviour": b, "version": t.Version, "build_info": t.BuildInfo})
	if err != nil {
		return fmt.Errorf("writing the stub tensorflow: %w", err)
	}
	w := wheel{name: "tensorflow", version: t.Version, tag: "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", topLevel: "tensorflow",
		scripts: "[console_scripts]\nsaved_model_cli = tensorflow:main\n", extras: []string{"Provides-Extra: and-cuda"},
		files: []member{
			{"tensorflow/__init__.py", 0o644, code},
			{"tensorflow/imgsmith_fake.json", 0o644, how},
			{"tensorflow/libtensorflow_framework.so.2", 0o644, framework},
		}}
	for _, p := range c.spec.Packages {
		w.extras = append(w.extras, fmt.Sprintf("Requires-Dist: %s ==%s ; extra == 'and-cuda'", p.Name, p.Version))
	}
	for _, n := range slices.Sorted(maps.Keys(t.Headers)) {
		w.files = append(w.files, member{n, 0o644, []byte(t.Headers[n])})
	}
	dir := filepath.Join(k.Dir, "tensorflow", string(b))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("writing the stub tensorflow: %w", err)
	}
	if k.TensorFlow[b], err = w.write(dir); err != nil || b != Good {
		return err
	}
	_, err = w.write(k.FindLinks)
	return err
}

// write writes the wheel file with its dist-info and RECORD and returns its path.
func (w wheel) write(dir string) (string, error) {
	base := strings.ReplaceAll(w.name, "-", "_") + "-" + w.version
	info := base + ".dist-info/"
	meta := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: %s\nRequires-Python: >=3.8\nLicense-File: License.txt\n", w.name, w.version, watermark)
	for _, r := range w.requires {
		meta += "Requires-Dist: " + r + "\n"
	}
	for _, e := range w.extras {
		meta += e + "\n"
	}
	kind := fmt.Sprintf("Wheel-Version: 1.0\nGenerator: imgsmith fake\nRoot-Is-Purelib: %t\nBuild: %s\n", w.pure, buildTag)
	py, plats, _ := strings.Cut(w.tag, "-none-")
	for p := range strings.SplitSeq(plats, ".") {
		kind += "Tag: " + py + "-none-" + p + "\n"
	}
	files := append(slices.Clone(w.files),
		member{info + "License.txt", 0o644, []byte(watermark + "\n")},
		member{info + "METADATA", 0o644, []byte(meta)},
		member{info + "WHEEL", 0o644, []byte(kind)},
		member{info + "top_level.txt", 0o644, []byte(w.topLevel + "\n")})
	if w.scripts != "" {
		files = append(files, member{info + "entry_points.txt", 0o644, []byte(w.scripts)})
	}
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	record.WriteString(info + "RECORD,,\n")
	files = append(files, member{info + "RECORD", 0o664, []byte(record.String())})
	out, err := pack(files)
	if err != nil {
		return "", fmt.Errorf("writing the wheel of %s: %w", w.name, err)
	}
	path := filepath.Join(dir, base+"-"+buildTag+"-"+w.tag+".whl")
	if err := os.WriteFile(path, out, 0o644); err != nil {
		return "", fmt.Errorf("writing the wheel of %s: %w", w.name, err)
	}
	return path, nil
}

func pack(files []member) ([]byte, error) {
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
		h.SetMode(f.mode)
		w, err := z.CreateHeader(h)
		if err == nil {
			_, err = w.Write(f.data)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
