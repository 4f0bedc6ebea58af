// Command imgsmith builds GPU base images from a version matrix, proves them, and pushes only what passed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"imgsmith/internal/engine/child"
)

// version is stamped at link time.
var version = "unknown"

func main() { os.Exit(run()) }

func run() int {
	if ran, code := child.RunInitIfRequested(); ran {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := &app{stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv}
	cmd := app.root()
	cmd.SetArgs(os.Args[1:])
	err := cmd.ExecuteContext(ctx)
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "imgsmith: interrupted; containers, engine and temporary files were cleaned up, no tag was set after the signal")
		return exitInterrupted
	}
	return app.finish(err)
}

// app holds what every command shares.
type app struct {
	stdout, stderr io.Writer
	env            func(string) string
	code           int // what the command's document says
	flags          globalFlags
}

// finish turns a command's end into the exit code and prints what an error says.
func (a *app) finish(err error) int {
	if err == nil {
		return a.code
	}
	fmt.Fprintln(a.stderr, "imgsmith:", err)
	var r remedied
	if errors.As(err, &r) && r.Remedy() != "" {
		fmt.Fprintln(a.stderr, "remedy:", r.Remedy())
	}
	return codeOf(err)
}

// remedied is an error that knows what to do about it.
type remedied interface{ Remedy() string }
