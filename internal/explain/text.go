package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"imgsmith/internal/facts"
)

// WriteText writes an answer for a terminal: the sentence that answers, the verdicts, the reasons, and the
// sources as numbered notes.
func WriteText(w io.Writer, a *Answer) error {
	n := notes{}
	var b strings.Builder
	b.WriteString(a.Summary + "\n")
	for _, s := range a.Sections {
		if len(s.Lines) == 0 {
			continue
		}
		b.WriteString("\n" + s.Title + "\n")
		for _, l := range s.Lines {
			fmt.Fprintf(&b, "  %s %s\n", l.Text, n.marks(l.Sources))
		}
	}
	if len(a.Releases) > 0 {
		b.WriteString("\nTensorFlow releases\n")
	}
	for _, r := range a.Releases {
		fmt.Fprintf(&b, "  %-8s CUDA %-5s cuDNN %-9s %s\n", r.TensorFlow, r.CUDA, r.CuDNN, r.Verdict)
		for _, l := range r.Reasons {
			fmt.Fprintf(&b, "           %s %s\n", l.Text, n.marks(l.Sources))
		}
		if len(r.Remedies) > 0 && r.Verdict != Works {
			fmt.Fprintf(&b, "           nearest that works: %s\n", strings.Join(r.Remedies, "; "))
		}
	}
	b.WriteString("\nSources\n")
	for i, e := range n.list {
		confidence := ""
		if e.Confidence != "" {
			confidence = " (" + e.Confidence + ")"
		}
		fmt.Fprintf(&b, "  [%d] %s%s\n", i+1, e.Source, confidence)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// notes numbers sources in the order in which they are first named.
type notes struct{ list []facts.Evidence }

func (n *notes) marks(sources []facts.Evidence) string {
	var out []string
	for _, e := range sources {
		if e.Source == "" {
			continue
		}
		i := slices.IndexFunc(n.list, func(have facts.Evidence) bool { return have.Source == e.Source })
		if i < 0 {
			n.list = append(n.list, e)
			i = len(n.list) - 1
		}
		out = append(out, fmt.Sprintf("[%d]", i+1))
	}
	return strings.Join(out, "")
}
