package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
)

// lockFlags are the flags of lock.
type lockFlags struct {
	bases   []string
	upgrade []string
	fetch   bool
}

func (a *app) lock() *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "lock FILE",
		Short: "Resolves every entry and pins everything that a build installs",
		Long: `Resolves every entry of a recipe with uv for its Python and glibc, wheels only, asks
the base's own package manager for its OS packages, and writes FILE's lock (x.yaml:
x.lock.yaml): base by digest, OS packages and wheels by version and sha256, layout,
encoder, tools, checksum of the recipe. It holds no address. An entry that is refused
is an error.

What an older lock has is kept where the recipe allows it. --upgrade NAME lets one
package move, --upgrade os the OS packages, --upgrade all everything. The changes are
printed.

With --fetch every locked file is also put into the store, so that this lock stays
buildable when an index no longer has one.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, file []string) error {
			return a.runLock(cmd.Context(), file[0], f)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.bases, "base", nil, "use another image for a base: NAME=oci-layout:DIR (recorded as local; repeatable)")
	fl.StringArrayVar(&f.upgrade, "upgrade", nil, "let this package leave its locked version; os, all (repeatable)")
	fl.BoolVar(&f.fetch, "fetch", false, "also put every locked wheel into the store")
	return cmd
}

func (a *app) runLock(ctx context.Context, file string, f lockFlags) (err error) {
	replaced, err := replacements(f.bases)
	if err != nil {
		return err
	}
	table, err := a.facts()
	if err != nil {
		return err
	}
	r, findings, err := loadRecipe(file, table)
	if err != nil {
		return err
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.override(findings)
	t, err := s.loadTargets(r, false, false)
	if err != nil {
		return err
	}
	t.lock, t.upgrade = nil, f.upgrade
	d := report.Document{Command: "lock", Recipe: file, Entries: linted(r, findings)}
	ok := len(d.Entries) == len(r.Entries) || !matrix.Refused(findings)
	for i := range r.Entries {
		ok = s.lockEntry(ctx, t, r.Entries[i], replaced, f.fetch, &d.Entries[i]) && ok
	}
	if ok {
		if err := t.save(ctx); err != nil {
			return err
		}
		d.Changes = t.changes
	}
	return a.write(d)
}

// lockEntry resolves one entry; false when it could not be.
func (s *session) lockEntry(ctx context.Context, t *targets, e matrix.Entry, replaced map[string]string, fetch bool, re *report.Entry) bool {
	if re.Result == report.ResultRefused {
		return false
	}
	fail := func(err error) bool {
		stop(re, report.StageLock, report.ResultError, err)
		return false
	}
	if err := e.Buildable(); err != nil {
		return fail(err)
	}
	b, err := s.base(ctx, e.Base, e.Platform, replaced)
	if err != nil {
		return fail(err)
	}
	got, err := t.target(ctx, e, b)
	if err != nil {
		return fail(err)
	}
	if fetch {
		if err := t.wheels(e, got).need(ctx, got.Wheels); err != nil {
			return fail(err)
		}
		if err := s.needDebs(ctx, got, b.image(), false); err != nil {
			return fail(err)
		}
	}
	re.Versions = versions(got)
	return true
}
