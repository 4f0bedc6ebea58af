package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"imgsmith/internal/facts"
	"imgsmith/internal/facts/derive"
)

// facts is the embedded facts with the overlay of --facts on top. A bad overlay is a usage error.
func (a *app) facts() (*facts.Table, error) {
	t, err := facts.Load(a.flags.facts)
	var o *facts.OverlayError
	if errors.As(err, &o) {
		return nil, &usageError{err}
	}
	return t, err
}

func (a *app) factsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "Shows where version facts come from, and derives them from a wheel",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.factsDerive())
	return cmd
}

func (a *app) factsDerive() *cobra.Command {
	return &cobra.Command{
		Use:   "derive WHEEL",
		Short: "Reads version facts from a TensorFlow wheel and prints them as an overlay for --facts",
		Long: `Reads metadata, build_info, headers, shared objects and GPU code of a TensorFlow wheel
and prints a YAML document: what was seen, and the row of facts that follows. Written
to a file in a directory that --facts names, the row is used by every command, so that
a new release or a wheel of one's own needs no new imgsmith. Nothing in the wheel is
run. What a wheel cannot show keeps the source of its minor release.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, file []string) error {
			table, err := a.facts()
			if err != nil {
				return err
			}
			o, err := derive.Wheel(cmd.Context(), file[0])
			if err != nil {
				return err
			}
			doc, err := derive.Make(o, table)
			if err != nil {
				return err
			}
			if a.flags.json {
				e := json.NewEncoder(a.stdout)
				e.SetIndent("", "  ")
				return e.Encode(doc)
			}
			text, err := yaml.MarshalWithOptions(doc, yaml.IndentSequence(true))
			if err != nil {
				return fmt.Errorf("writing facts: %w", err)
			}
			_, err = fmt.Fprintf(a.stdout, "# Facts derived from %s. Use: imgsmith --facts DIR with this file in DIR.\n%s", o.File, text)
			return err
		},
	}
}
