package matrix

import (
	"fmt"
	"regexp"
	"strings"
)

// TagValues are what the names in a tag template stand for.
type TagValues struct{ TensorFlow, Python, CUDA, CuDNN, Entry string }

// TagValuesOf returns the values of a resolved target.
func TagValuesOf(t Target) TagValues {
	return TagValues{TensorFlow: t.TensorFlow, Python: t.Python.Version, CUDA: t.CUDA, CuDNN: t.CuDNN, Entry: t.Entry}
}

func sampleTagValues() TagValues {
	return TagValues{TensorFlow: "2.0.0", Python: "3.11", CUDA: "12.5", CuDNN: "9.3.0.75", Entry: "entry"}
}

// ExpandTag replaces {tensorflow}, {python}, {cuda}, {cudnn} and {entry} in a template and checks that the
// result is a valid tag: at most 128 letters, digits, dots, dashes and underscores, not beginning with a dot
// or a dash. A local version's "+" becomes "_".
func ExpandTag(template string, v TagValues) (string, error) {
	out := strings.NewReplacer("{tensorflow}", v.TensorFlow, "{python}", v.Python, "{cuda}", v.CUDA,
		"{cudnn}", v.CuDNN, "{entry}", v.Entry).Replace(template)
	if i := strings.IndexAny(out, "{}"); i >= 0 {
		return "", fmt.Errorf("tag %q has a name that is not known; known are {tensorflow}, {python}, {cuda}, {cudnn}, {entry}", template)
	}
	out = strings.ReplaceAll(out, "+", "_")
	if !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`).MatchString(out) {
		return "", fmt.Errorf("tag %q becomes %q, which is no valid tag", template, out)
	}
	return out, nil
}

// ExpandTags expands every tag of an entry for its target. Nil when the entry publishes nowhere.
func (e Entry) ExpandTags(t Target) ([]string, error) {
	if e.Publish == nil {
		return nil, nil
	}
	var out []string
	for _, template := range e.Publish.Tags {
		tag, err := ExpandTag(template, TagValuesOf(t))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: entry %q: %w", e.File, e.Line("publish"), e.Name, err)
		}
		out = append(out, tag)
	}
	return out, nil
}
