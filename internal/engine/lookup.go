package engine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// NotFoundError is a program that we need and that is nowhere.
type NotFoundError struct {
	Name     string
	Searched []string // directories, in order
	Remedy   string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("looking for %s: not found in %s; remedy: %s", e.Name, strings.Join(e.Searched, ", "), e.Remedy)
}

// Lookup finds a helper program: in dir (the value of --engine-dir) when that is set, beside the running
// executable (libexec/imgsmith there or next to its bin directory), in PATH. Only dir is searched when it is
// set and has the program; the error is a *NotFoundError.
func Lookup(name, dir string) (path string, err error) {
	var dirs []string
	if dir != "" {
		dirs = append(dirs, dir)
	}
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		here := filepath.Dir(exe)
		dirs = append(dirs, filepath.Join(here, "libexec", "imgsmith"), filepath.Join(here, "..", "libexec", "imgsmith"))
	}
	for _, d := range dirs {
		p := filepath.Join(d, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return filepath.Abs(p)
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return filepath.Abs(p)
	}
	return "", &NotFoundError{Name: name, Searched: append(dirs, "PATH"),
		Remedy: "run 'make engines', or name the directory that has it with --engine-dir"}
}
