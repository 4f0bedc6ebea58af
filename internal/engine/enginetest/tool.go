package enginetest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// The tool's path inside test images, and a first argument that no test binary gets by chance.
const (
	toolPath = "/tool"
	toolName = "enginetest-tool"
)

// RunToolIfRequested must be called first in TestMain of a package that uses the suite: the test binary itself
// is the only program of the test images, so that the suite needs no other image and no network.
func RunToolIfRequested() (ran bool, code int) {
	if len(os.Args) < 3 || os.Args[0] != toolPath || os.Args[1] != toolName {
		return false, 0
	}
	for _, command := range os.Args[2:] {
		name, arg, _ := strings.Cut(command, " ")
		if code := runTool(name, arg); code != 0 {
			return true, code
		}
	}
	return true, 0
}

// runTool runs one command; 0 is success.
func runTool(name, arg string) int {
	path, value, _ := strings.Cut(arg, "=")
	var err error
	switch name {
	case "write":
		err = os.WriteFile(path, []byte(value), 0o640)
	case "mkdir":
		err = os.Mkdir(arg, 0o755)
	case "remove":
		err = os.RemoveAll(arg)
	case "print":
		fmt.Println(arg)
	case "sleep":
		seconds, _ := strconv.Atoi(arg)
		time.Sleep(time.Duration(seconds) * time.Second)
	case "exit":
		code, _ := strconv.Atoi(arg)
		return code
	case "copy": // copy TO=FROM; a missing source becomes an empty file
		data, _ := os.ReadFile(value)
		err = os.WriteFile(path, data, 0o644)
	case "environ": // environ TO=NAME
		err = os.WriteFile(path, []byte(os.Getenv(value)), 0o644)
	default:
		err = fmt.Errorf("unknown command %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	return 0
}
