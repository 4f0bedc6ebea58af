package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
	"imgsmith/internal/resolve"
)

func (a *app) lock() *cobra.Command {
	var bases []string
	cmd := &cobra.Command{
		Use:   "lock FILE",
		Short: "Resolves every entry and pins it by name, version and sha256",
		Long: `Resolves every entry of a recipe with uv for its Python and glibc, wheels only, and
writes FILE's lock (x.yaml: x.lock.yaml). The lock holds file names, sizes and
hashes, never an address. An entry that is refused is an error.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, file []string) error {
			return a.runLock(cmd.Context(), file[0], bases)
		},
	}
	cmd.Flags().StringArrayVar(&bases, "base", nil, "use another image for a base: NAME=oci-layout:DIR (recorded as local; repeatable)")
	return cmd
}

func (a *app) runLock(ctx context.Context, file string, bases []string) (err error) {
	replaced, err := replacements(bases)
	if err != nil {
		return err
	}
	r, err := loadRecipe(file)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d := report.Document{Command: "lock", Recipe: file, Entries: a.linted(r, s.facts)}
	t := &targets{s: s, recipe: r, urls: map[string]resolve.URLs{}}
	ok := true
	for i := range d.Entries {
		ok = s.lockEntry(ctx, t, r.Entries[i], replaced, &d.Entries[i]) && ok
	}
	if ok {
		if err := t.save(); err != nil {
			return err
		}
	}
	return a.write(d)
}

// lockEntry resolves one entry; false when it could not be.
func (s *session) lockEntry(ctx context.Context, t *targets, e matrix.Entry, replaced map[string]string, re *report.Entry) bool {
	if re.Result == report.ResultRefused {
		return false
	}
	b, err := s.base(ctx, e.Base, e.Platform, replaced)
	if err != nil {
		stop(re, report.StageLock, report.ResultError, err)
		return false
	}
	got, err := t.target(ctx, e, b)
	if err != nil {
		stop(re, report.StageLock, report.ResultError, err)
		return false
	}
	re.Versions = versions(got)
	return true
}
