//go:build cgo

// Command imgsmith-nvml reads the GPUs of this host through NVML and prints JSON: `inventory` once, `watch
// INTERVAL` one line per interval until standard input ends. It is a process of its own because a driver that
// lacks a symbol ends its caller. A host without a driver is an answer, exit 0; exit 2 is wrong usage.
//
// It is linked lazily: -ldflags '-extldflags=-Wl,-z,lazy'.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"imgsmith/internal/gpu"
	"imgsmith/internal/gpu/nvml"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, in io.Reader, out, errOut io.Writer) int {
	var err error
	switch {
	case len(args) == 1 && args[0] == "inventory":
		err = inventory(json.NewEncoder(out))
	case len(args) == 2 && args[0] == "watch":
		var every time.Duration
		if every, err = time.ParseDuration(args[1]); err != nil || every < 10*time.Millisecond {
			fmt.Fprintf(errOut, "imgsmith-nvml: interval %q: want 10ms or more\n", args[1])
			return 2
		}
		err = watch(json.NewEncoder(out), in, every)
	default:
		fmt.Fprintln(errOut, "usage: imgsmith-nvml inventory | imgsmith-nvml watch INTERVAL")
		return 2
	}
	if err != nil {
		fmt.Fprintln(errOut, "imgsmith-nvml:", err)
		return 1
	}
	return 0
}

func inventory(e *json.Encoder) error {
	s, err := nvml.Open()
	if err != nil {
		return failed(e, err)
	}
	defer s.Close()
	inv, err := s.Inventory()
	if err != nil {
		return failed(e, err)
	}
	return e.Encode(gpu.Reading{Inventory: &inv})
}

// failed prints a refusal of NVML as an answer.
func failed(e *json.Encoder, err error) error {
	var f *gpu.Failure
	if errors.As(err, &f) {
		return e.Encode(gpu.Reading{Failure: f})
	}
	return err
}

func watch(e *json.Encoder, in io.Reader, every time.Duration) error {
	s, err := nvml.Open()
	if err != nil {
		return failed(e, err)
	}
	defer s.Close()
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(end)
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		sample, err := s.Sample()
		if err != nil {
			return failed(e, err)
		}
		if err := e.Encode(sample); err != nil {
			return fmt.Errorf("printing a sample: %w", err)
		}
		select {
		case <-end:
			return nil
		case <-tick.C:
		}
	}
}
