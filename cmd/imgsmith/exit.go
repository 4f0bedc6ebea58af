package main

import (
	"context"
	"errors"

	"imgsmith/internal/publish"
	"imgsmith/internal/report"
)

// Exit codes; the help text of the root command lists them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitFailed      = 3
	exitNotProved   = 4
	exitGate        = 5
	exitInterrupted = 130
)

// usageError marks a fault of the command line, the recipe or a policy file.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// codeOf is the exit code of an error that ended a command.
func codeOf(err error) int {
	var u *usageError
	var p *publish.RefusedError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &u):
		return exitUsage
	case errors.As(err, &p):
		return exitError
	}
	return exitError
}

// codeOfResult is the exit code of one entry's result.
func codeOfResult(r report.Result) int {
	switch r {
	case report.ResultOK, report.ResultStaged, report.ResultProved, report.ResultPublished:
		return exitOK
	case report.ResultRefused:
		return exitUsage
	case report.ResultFailed:
		return exitFailed
	case report.ResultNotProved:
		return exitNotProved
	}
	return exitError
}

// combine picks the code of a whole run. The order says what a caller must look at first.
func combine(codes ...int) int {
	for _, c := range []int{exitInterrupted, exitUsage, exitError, exitFailed, exitGate, exitNotProved} {
		for _, have := range codes {
			if have == c {
				return c
			}
		}
	}
	return exitOK
}
