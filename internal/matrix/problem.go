package matrix

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong with a recipe or lock file, at a place in it.
type Problem struct {
	File         string
	Line, Column int    // 1-based; 0 when the whole file is meant
	Message      string // what is wrong
	Remedy       string // what to write instead
	Excerpt      string // the line, with a mark below the column
}

// Error gives place, reason, remedy and excerpt.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": " + p.Message)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	if p.Excerpt != "" {
		b.WriteString("\n" + p.Excerpt)
	}
	return b.String()
}

// LoadError is everything wrong with one file, in file order.
type LoadError struct{ Problems []*Problem }

// Error lists the problems, one after the other.
func (e *LoadError) Error() string {
	out := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		out[i] = p.Error()
	}
	return strings.Join(out, "\n")
}

// Unwrap gives the single problems to errors.As.
func (e *LoadError) Unwrap() []error {
	out := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		out[i] = p
	}
	return out
}

// Error names entry, place and the keys to add.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%s:%d: entry %q can be linted but not built: it has no %s; add it",
		e.File, e.Line, e.Entry, strings.Join(e.Keys, ", no "))
}

// excerpt shows a line of a file and marks a column in it.
func excerpt(lines []string, line, column int) string {
	if line < 1 || line > len(lines) {
		return ""
	}
	const widest = 120
	text := []rune(strings.ReplaceAll(lines[line-1], "\t", " "))
	if len(text) > widest {
		text = append(text[:widest], '…')
	}
	if column < 1 || column > len(text)+1 {
		return fmt.Sprintf("  %4d | %s", line, string(text))
	}
	return fmt.Sprintf("  %4d | %s\n       | %s^", line, string(text), strings.Repeat(" ", column-1))
}

// nearest returns the word of known that is close to word, or "".
func nearest(word string, known []string) string {
	best, limit := "", 1+len(word)/3
	for _, k := range known {
		if d := distance(word, k); d <= limit {
			best, limit = k, d-1
		}
	}
	return best
}

// distance counts the edits (insert, delete, replace, swap of neighbours) between two words.
func distance(a, b string) int {
	ra, rb := []rune(a), []rune(b)
	d := make([][]int, len(ra)+1)
	for i := range d {
		d[i] = make([]int, len(rb)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(ra); i++ {
		for j := 1; j <= len(rb); j++ {
			cost := 1
			if ra[i-1] == rb[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && ra[i-1] == rb[j-2] && ra[i-2] == rb[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(ra)][len(rb)]
}
