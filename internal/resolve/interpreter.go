package resolve

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeInterpreter writes a stand-in for a Python interpreter into dir and returns its path. uv asks an
// interpreter once, by running it, what it is; the stand-in prints the answer of a plain CPython of that
// version on linux/amd64. It runs no Python.
func writeInterpreter(dir, python string) (string, error) {
	path := filepath.Join(dir, "python"+python)
	prefix := filepath.Join(dir, "prefix")
	lib := filepath.Join(prefix, "lib", "python"+python)
	site := filepath.Join(lib, "site-packages")
	full := python + ".0"
	scheme := map[string]string{"platlib": site, "purelib": site, "include": filepath.Join(prefix, "include"),
		"scripts": filepath.Join(prefix, "bin"), "data": prefix}
	answer, err := json.Marshal(map[string]any{
		"result": "success",
		"markers": map[string]string{
			"implementation_name": "cpython", "implementation_version": full, "os_name": "posix",
			"platform_machine": "x86_64", "platform_python_implementation": "CPython", "platform_release": "",
			"platform_system": "Linux", "platform_version": "", "python_full_version": full,
			"python_version": python, "sys_platform": "linux",
		},
		"sys_base_prefix": prefix, "sys_base_exec_prefix": prefix, "sys_prefix": prefix,
		"sys_base_executable": path, "sys_executable": path, "sys_path": []string{lib}, "site_packages": []string{site},
		"stdlib": lib, "extension_suffixes": []string{".so"}, "standalone": false, "scheme": scheme,
		"virtualenv": map[string]string{"purelib": "lib/python" + python + "/site-packages", "platlib": "lib/python" + python + "/site-packages",
			"include": "include", "scripts": "bin", "data": ""},
		"os":   map[string]any{"name": "manylinux", "major": 2, "minor": 17},
		"arch": "x86_64", "cpu_info": map[string]any{"detected": map[string]string{"kind": "flags", "flags": ""}}, "manylinux_compatible": true, "gil_disabled": false,
		"debug_enabled": false, "pointer_size": "64",
	})
	if err != nil {
		return "", err
	}
	script := fmt.Sprintf("#!/bin/sh\nprintf '%%s\\n' '%s'\n", strings.ReplaceAll(string(answer), "'", `'\''`))
	return path, os.WriteFile(path, []byte(script), 0o700)
}
