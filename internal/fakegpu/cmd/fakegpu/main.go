// Command fakegpu makes the fake-GPU kit and a matrix for it, and starts a Docker engine that offers it, for tests and for the
// demonstration. It is no part of a release.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"imgsmith/internal/fakegpu"
	"imgsmith/internal/launch/launchtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakegpu:", err)
		os.Exit(1)
	}
}

const usage = "usage: fakegpu kit [-engines DIR] DIR | fakegpu matrix KIT REPOSITORY | fakegpu dockerd [-engines DIR] [-store containerd|graphdriver] [-cdi DIR] DIR"

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	engines := f.String("engines", launchtest.Engines(), "folder with dockerd, containerd, its shim, runc and nvidia-cdi-hook")
	store := f.String("store", "containerd", "image store: containerd or graphdriver")
	cdi := f.String("cdi", "", "folder with CDI specifications")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] == "matrix" && f.NArg() == 2 {
		file, err := fakegpu.Matrix(f.Arg(0), f.Arg(1))
		if err == nil {
			fmt.Println(file)
		}
		return err
	}
	if f.NArg() != 1 {
		return fmt.Errorf("one folder is needed\n%s", usage)
	}
	switch args[0] {
	case "kit":
		return kit(ctx, f.Arg(0), *engines)
	case "dockerd":
		return dockerd(ctx, launchtest.Config{Engines: *engines, Dir: f.Arg(0), Store: *store, CDIDir: *cdi})
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}

// kit prints the finished kit as JSON.
func kit(ctx context.Context, dir, engines string) error {
	opt := fakegpu.Options{CDIHook: filepath.Join(engines, "nvidia-cdi-hook")}
	if _, err := os.Stat(opt.CDIHook); err != nil {
		opt.CDIHook = ""
	}
	k, err := fakegpu.Build(ctx, dir, opt)
	if err != nil {
		return err
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(k)
}

// dockerd runs until it is interrupted and prints the address when the engine answers.
func dockerd(ctx context.Context, c launchtest.Config) error {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return fmt.Errorf("finding the engine's folder: %w", err)
	}
	c.Dir = dir
	if why := launchtest.Missing(c.Engines); why != "" {
		return fmt.Errorf("starting a Docker engine: %s", why)
	}
	d, err := launchtest.Start(ctx, c)
	if err != nil {
		return err
	}
	fmt.Println(d.Host)
	gone := make(chan struct{})
	go func() { d.Wait(); close(gone) }()
	select {
	case <-ctx.Done():
		return d.Stop()
	case <-gone:
		return fmt.Errorf("the Docker engine ended by itself, see %s", d.Log)
	}
}
