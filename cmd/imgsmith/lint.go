package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"imgsmith/internal/facts"
	"imgsmith/internal/matrix"
	"imgsmith/internal/registry"
	"imgsmith/internal/report"
	"imgsmith/internal/resolve"
)

// lintFlags are the flags of lint.
type lintFlags struct {
	online bool
	sarif  bool
	schema bool
}

func (a *app) lint() *cobra.Command {
	var f lintFlags
	cmd := &cobra.Command{
		Use:   "lint FILE",
		Short: "Compares a matrix with the version facts; needs no network and no daemon",
		Long: `Reads a recipe strictly and compares every entry with the version facts. Everything
that is wrong is reported at once, with line, rule, reason, remedy and source.

Exit code 0 when every entry can be built, also with notes, with warnings and for
what is unproved; 2 when an entry is refused or the file is not valid.

With --online the registries are asked too whether bases exist and whether tags
that would be published are there already.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, file []string) error {
			if f.schema {
				_, err := a.stdout.Write(matrix.Schema())
				return err
			}
			if len(file) != 1 {
				return &usageError{errors.New("FILE is missing; see imgsmith lint --help")}
			}
			return a.runLint(cmd.Context(), file[0], f)
		},
	}
	cmd.Flags().BoolVar(&f.online, "online", false, "also ask the registries for bases and tags")
	cmd.Flags().BoolVar(&f.sarif, "sarif", false, "write the findings as SARIF 2.1.0")
	cmd.Flags().BoolVar(&f.schema, "schema", false, "write the JSON Schema of recipes and do nothing else")
	return cmd
}

func (a *app) runLint(ctx context.Context, file string, f lintFlags) error {
	table, err := a.facts()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return &usageError{fmt.Errorf("reading recipe: %w", err)}
	}
	r, problems := matrix.Read(file, data)
	findings := matrix.Findings(r, problems, table, layouts())
	if r == nil {
		r = &matrix.Recipe{File: file, Name: "recipe"}
	}
	if f.online {
		findings = append(findings, online(ctx, r, table)...)
	}
	d := report.Document{Command: "lint", Recipe: file, Entries: linted(r, findings)}
	for _, x := range r.Dropped {
		d.Dropped = append(d.Dropped, report.Dropped(x))
	}
	if !f.sarif {
		return a.write(d)
	}
	a.decide(&d)
	return report.WriteSARIF(a.stdout, d, rules())
}

// rules describes every rule for SARIF.
func rules() []report.SARIFRule {
	var out []report.SARIFRule
	for _, r := range matrix.Rules() {
		out = append(out, report.SARIFRule{ID: r.ID, Title: r.Title, Remedy: r.Remedy})
	}
	return out
}

// layouts are the names of the shipped image layouts; a recipe may name a file instead.
func layouts() []string { return []string{matrix.DefaultLayout} }

// verbose writes another program's own words about an error.
func (a *app) verbose(err error) {
	var e *resolve.Error
	if a.flags.verbose && errors.As(err, &e) && e.Detail != "" {
		a.note("%s", e.Detail)
	}
}

// loadRecipe reads a recipe file, settles its entries and judges them; what is wrong with the file itself is a
// usage error.
func loadRecipe(file string, table *facts.Table) (*matrix.Recipe, []matrix.Finding, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, &usageError{fmt.Errorf("reading recipe: %w", err)}
	}
	r, err := matrix.Load(file, data)
	if err != nil {
		return nil, nil, &usageError{err}
	}
	return r, r.Lint(table, layouts()), nil
}

// linted gives one report entry per recipe entry, refused or nothing to refuse, and one more for what belongs to no
// entry.
func linted(r *matrix.Recipe, findings []matrix.Finding) []report.Entry {
	byEntry := map[string][]matrix.Finding{}
	for _, f := range findings {
		byEntry[f.Entry] = append(byEntry[f.Entry], f)
	}
	var out []report.Entry
	for _, e := range r.Entries {
		out = append(out, lintEntry(e.Name, byEntry[e.Name]))
		delete(byEntry, e.Name)
	}
	rest := slices.DeleteFunc(findings, func(f matrix.Finding) bool { return byEntry[f.Entry] == nil })
	if len(rest) > 0 {
		out = append(out, lintEntry(r.Name, rest))
	}
	return out
}

func lintEntry(name string, findings []matrix.Finding) report.Entry {
	re := report.Entry{Name: name, Stage: report.StageLint, Result: report.ResultOK}
	for _, f := range findings {
		place := f.File
		if f.Line > 0 {
			place = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
		}
		re.Lint = append(re.Lint, report.LintFinding{Rule: f.Rule, Severity: string(f.Severity), Message: f.Message, Remedy: f.Remedy,
			Nearest: f.Nearest, Source: f.Source, Confidence: f.Confidence, Allowed: f.Allowed, Place: place, Excerpt: f.Excerpt})
	}
	if matrix.Refused(findings) {
		re.Result = report.ResultRefused
	}
	return re
}

// override remembers what the recipe overrides, for locks and labels.
func (s *session) override(findings []matrix.Finding) {
	s.overrides = map[string][]matrix.Override{}
	for _, f := range findings {
		if f.Allowed != "" {
			s.overrides[f.Entry] = matrix.Overrides(f.Entry, findings)
		}
	}
}

// labels are the image's labels beside those of the versions: the recipe's own, and what was overridden.
func labels(t matrix.Target) map[string]string {
	out := map[string]string{}
	for k, v := range t.Labels {
		out[k] = v
	}
	var rules []string
	for _, o := range t.Overrides {
		rules = append(rules, o.Rule+": "+o.Reason)
	}
	if len(rules) > 0 {
		out["imgsmith.overrides"] = strings.Join(rules, "; ")
	}
	if t.Flavor != "" {
		out["imgsmith.flavor"] = t.Flavor
	}
	return out
}

// online asks the registries about bases and tags, each once.
func online(ctx context.Context, r *matrix.Recipe, table *facts.Table) []matrix.Finding {
	var out []matrix.Finding
	asked := map[string]error{}
	resolved := func(ref string) error {
		if err, ok := asked[ref]; ok {
			return err
		}
		_, err := registry.Resolve(ctx, ref)
		asked[ref] = err
		return err
	}
	seen := map[string]bool{}
	for _, e := range r.Entries {
		if e.Base != "" && !strings.HasPrefix(e.Base, "oci-layout:") && !seen[e.Base] {
			seen[e.Base] = true
			if err := resolved(e.Base); err != nil {
				out = append(out, e.BaseFinding(table, err, registry.KindOf(err) == registry.NotFound))
			}
		}
		for _, ref := range e.TagReferences(table) {
			if resolved(ref) == nil {
				out = append(out, e.TagFinding(ref))
			}
		}
	}
	return out
}
