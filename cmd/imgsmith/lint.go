package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"imgsmith/internal/facts"
	"imgsmith/internal/matrix"
	"imgsmith/internal/report"
)

func (a *app) lint() *cobra.Command {
	return &cobra.Command{
		Use:   "lint FILE",
		Short: "Compares a matrix with the version facts; needs no network and no daemon",
		Long: `Reads a recipe strictly and compares every entry with the version facts.

Exit code 0 when every entry can be built, also with warnings and for what is
unproved; 2 when an entry is refused or the file is not valid.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, file []string) error {
			table, err := facts.Embedded()
			if err != nil {
				return err
			}
			r, err := loadRecipe(file[0])
			if err != nil {
				return err
			}
			d := report.Document{Command: "lint", Recipe: file[0]}
			for _, e := range a.linted(r, table) {
				d.Entries = append(d.Entries, e)
			}
			return a.write(d)
		},
	}
}

// loadRecipe reads a recipe file; what is wrong with it is a usage error.
func loadRecipe(file string) (*matrix.Recipe, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, &usageError{fmt.Errorf("reading recipe: %w", err)}
	}
	r, err := matrix.Load(file, data)
	if err != nil {
		return nil, &usageError{err}
	}
	return r, nil
}

// linted gives one report entry per recipe entry, refused or nothing to refuse.
func (a *app) linted(r *matrix.Recipe, table *facts.Table) []report.Entry {
	findings := matrix.Lint(r.Entries, table, nil)
	var out []report.Entry
	for _, e := range r.Entries {
		re := report.Entry{Name: e.Name, Stage: report.StageLint, Result: report.ResultOK}
		for _, f := range findings {
			if f.Entry != e.Name {
				continue
			}
			re.Lint = append(re.Lint, report.LintFinding{Rule: f.Rule, Severity: string(f.Severity), Message: f.Message,
				Remedy: f.Remedy, Nearest: f.Nearest, Source: f.Source, Place: fmt.Sprintf("%s:%d:%d", e.File, f.Line, f.Column)})
			if matrix.Refused([]matrix.Finding{f}) {
				re.Result = report.ResultRefused
			}
		}
		out = append(out, re)
	}
	return out
}
