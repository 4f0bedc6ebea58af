package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"imgsmith/internal/explain"
)

func (a *app) explain() *cobra.Command {
	return &cobra.Command{
		Use:   "explain KEY=VALUE...",
		Short: "Says which versions fit together and why, with sources",
		Long: `Answers from the version facts, in every direction. Keys: tensorflow, cuda, cudnn,
python, gpu, compute_capability, class, driver, base. Examples:

  imgsmith explain gpu="RTX 4090" driver=535.104.05
  imgsmith explain tensorflow=2.21 gpu="RTX 5090"
  imgsmith explain base=nvidia/cuda:12.5.1-cudnn-runtime-ubuntu22.04 driver=550.54 class=geforce

Exit code 0 for every answer, also for one that refuses; 2 for a value that the facts
do not know.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, words []string) error {
			q, err := query(words)
			if err != nil {
				return &usageError{err}
			}
			table, err := a.facts()
			if err != nil {
				return err
			}
			answer, err := explain.Explain(table, q)
			var unknown *explain.UnknownError
			switch {
			case errors.Is(err, explain.ErrEmpty), errors.As(err, &unknown):
				return &usageError{err}
			case err != nil:
				return err
			}
			if a.flags.json {
				e := json.NewEncoder(a.stdout)
				e.SetIndent("", "  ")
				return e.Encode(answer)
			}
			return explain.WriteText(a.stdout, answer)
		},
	}
}

// query reads KEY=VALUE arguments; a "tensorflow==2.19" is read as well.
func query(words []string) (explain.Query, error) {
	var q explain.Query
	into := map[string]*string{
		"tensorflow": &q.TensorFlow, "cuda": &q.CUDA, "cudnn": &q.CuDNN, "python": &q.Python, "gpu": &q.GPU,
		"compute_capability": &q.ComputeCapability, "class": &q.Class, "driver": &q.Driver, "base": &q.Base,
	}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		v = strings.TrimSpace(strings.TrimPrefix(v, "="))
		to := into[k]
		switch {
		case !ok || v == "":
			return q, fmt.Errorf("%q is not KEY=VALUE", w)
		case to == nil:
			return q, fmt.Errorf("unknown key %q; keys are tensorflow, cuda, cudnn, python, gpu, compute_capability, class, driver, base", k)
		case *to != "":
			return q, fmt.Errorf("%s is given twice", k)
		}
		*to = v
	}
	return q, nil
}
