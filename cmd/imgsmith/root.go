package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"imgsmith/internal/report"
)

// globalFlags are shared by all commands.
type globalFlags struct {
	json      bool
	verbose   bool
	store     string
	engineDir string
	facts     string // overlay directory, empty: none
}

const exitHelp = `Exit codes:
  0    all passed (build --stage-only: all staged)
  1    operational error
  2    fault of usage, recipe or policy file, or an entry refused
  3    an image failed a stage
  4    not proved: a layer did not run, was inconclusive, or the host is at fault
  5    the gate refused
  130  interrupted
When several apply: 130, 2, 1, 3, 5, 4.`

func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "imgsmith",
		Short: "Builds CUDA, cuDNN and TensorFlow images, proves them on a GPU, pushes only what passed",
		Long: `imgsmith reads a version matrix, refuses what cannot work, builds each entry through
BuildKit, checks its files, runs it with --gpus and judges four layers: hardware,
driver, CUDA, TensorFlow. Only an image that passed all of them gets a tag.
What was not proved is never published; a skip is not a pass.

` + exitHelp,
		Version: version,
		Args:    cobra.ArbitraryArgs, // judged below: what is wrong with them is a usage error
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("a command is missing; see imgsmith --help")}
			}
			hint := "see imgsmith --help"
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = fmt.Sprintf("did you mean %q?", near[0])
			}
			return &usageError{fmt.Errorf("unknown command %q; %s", args[0], hint)}
		},
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true,
		SilenceUsage:               true,
	}
	cmd.SetOut(a.stdout)
	cmd.SetErr(a.stderr)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	f := cmd.PersistentFlags()
	f.BoolVar(&a.flags.json, "json", false, "write the versioned document to standard output instead of the summary")
	f.BoolVar(&a.flags.verbose, "verbose", false, "also write what other programs said in their own words")
	f.StringVar(&a.flags.store, "store", a.defaultStore(), "directory of finished layers and staged images")
	f.StringVar(&a.flags.engineDir, "engine-dir", a.env("IMGSMITH_ENGINE_DIR"), "directory with buildkitd, runc, uv and imgsmith-nvml")
	f.StringVar(&a.flags.facts, "facts", "", "directory with facts to lay over the built-in ones (see imgsmith facts derive)")
	cmd.AddCommand(a.factsCommand(), a.explain())
	cmd.AddCommand(a.lint(), a.plan(), a.lock(), a.build(), a.check(), a.verify())
	return cmd
}

// defaultStore follows the XDG rules.
func (a *app) defaultStore() string {
	if d := a.env("IMGSMITH_STORE"); d != "" {
		return d
	}
	if d, err := os.UserCacheDir(); err == nil {
		return filepath.Join(d, "imgsmith", "store")
	}
	return filepath.Join(os.TempDir(), "imgsmith-store")
}

// args wraps cobra's argument checks so that a wrong count is a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return &usageError{fmt.Errorf("%w; see imgsmith %s --help", err, cmd.Name())}
		}
		return nil
	}
}

// write prints the document and sets the exit code it stands for.
func (a *app) write(d report.Document) error {
	if a.flags.json {
		return a.writeWith(d, report.WriteJSON)
	}
	return a.writeWith(d, report.WriteTerminal)
}

func (a *app) writeWith(d report.Document, write func(io.Writer, report.Document) error) error {
	a.decide(&d)
	return write(a.stdout, d)
}

// decide gives a document its exit code.
func (a *app) decide(d *report.Document) {
	codes := []int{}
	for _, e := range d.Entries {
		codes = append(codes, codeOfResult(e.Result))
		d.Fake = d.Fake || e.Verdict != nil && e.Verdict.Grade.FakeGPU
	}
	if len(codes) == 0 {
		codes = append(codes, exitError) // nothing was asked: nothing passed
	}
	d.SchemaVersion, d.Tool, d.ExitCode = report.SchemaVersion, "imgsmith "+version, combine(codes...)
	a.code = d.ExitCode
}

// note tells the person at the terminal what goes on; never part of the answer.
func (a *app) note(format string, v ...any) {
	fmt.Fprintf(a.stderr, format+"\n", v...)
}
