package fakegpu

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// compiler builds the stub libraries in one folder, so that what is needed is found when linking.
type compiler struct {
	dir  string
	spec spec
}

// sources writes the C files out.
func (c compiler) sources() error {
	names, err := fs.Glob(data, "data/*.c")
	if err != nil {
		return fmt.Errorf("listing the fake GPU's sources: %w", err)
	}
	for _, n := range names {
		b, err := data.ReadFile(n)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.dir, filepath.Base(n)), b, 0o644)
		}
		if err != nil {
			return fmt.Errorf("writing the fake GPU's sources: %w", err)
		}
	}
	return nil
}

func (c compiler) defines() []string {
	var set []string
	for _, d := range c.spec.TensorFlow.Dlopen {
		set = append(set, `"`+d+`"`)
	}
	d := c.spec.Driver
	return []string{
		fmt.Sprintf(`-DFAKE_DRIVER="%s"`, d.Version), fmt.Sprintf("-DFAKE_CUDA=%d", d.CUDA),
		fmt.Sprintf(`-DFAKE_CC="%s"`, d.ComputeCapability), fmt.Sprintf("-DFAKE_MEMORY=%dull", d.Memory),
		fmt.Sprintf("-DFAKE_RUNTIME=%d", c.spec.Runtime), fmt.Sprintf("-DFAKE_CUDNN=%d", c.spec.CuDNN),
		"-DFAKE_DLOPEN=" + strings.Join(set, ","),
	}
}

// gcc runs in the build folder, with relative names only: the folder must not be in the result.
func (c compiler) gcc(ctx context.Context, args ...string) error {
	args = append([]string{"-O1", "-s", "-Wl,--build-id=none", "-fvisibility=hidden"}, args...)
	cmd := exec.CommandContext(ctx, "gcc", args...)
	cmd.Dir = c.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling the fake GPU: gcc %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// shared builds one library and returns its path.
func (c compiler) shared(ctx context.Context, l lib) (string, error) {
	soname, source := l.Soname, l.Source
	if soname == "" {
		soname = l.File
	}
	if source == "" {
		source = "plain.c"
	}
	args := append(c.defines(), "-shared", "-fPIC", "-o", l.File, source, "-Wl,-soname,"+soname, "-Wl,--no-as-needed", "-L.")
	for _, n := range l.Needed {
		args = append(args, "-l:"+n)
	}
	if l.RunPath != "" {
		args = append(args, "-Wl,--enable-new-dtags,-rpath,"+l.RunPath, "-Wl,-rpath-link,.")
	}
	return filepath.Join(c.dir, l.File), c.gcc(ctx, args...)
}

// driver builds the two driver libraries under the names that a real driver package gives them.
func (c compiler) driver(ctx context.Context, dir string) error {
	for _, d := range []struct{ source, soname string }{{"nvml.c", "libnvidia-ml.so.1"}, {"cuda.c", "libcuda.so.1"}} {
		file := strings.TrimSuffix(d.soname, "1") + c.spec.Driver.Version
		p, err := c.shared(ctx, lib{File: file, Soname: d.soname, Source: d.source})
		if err != nil {
			return err
		}
		if err := os.Rename(p, filepath.Join(dir, file)); err != nil {
			return fmt.Errorf("placing the fake driver: %w", err)
		}
		link := filepath.Join(dir, d.soname)
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("placing the fake driver: %w", err)
		}
		if err := os.Symlink(file, link); err != nil {
			return fmt.Errorf("placing the fake driver: %w", err)
		}
	}
	return nil
}
