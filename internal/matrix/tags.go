package matrix

import (
	"fmt"
	"regexp"
	"strings"

	"imgsmith/internal/facts"
)

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// TagValues are what the names in a tag template stand for. Base is a reference, of which a tag has the part
// that names system and release.
type TagValues struct{ TensorFlow, Python, CUDA, CuDNN, Entry, Base, Flavor string }

// tagNames are the names that a template may use.
func tagNames() []string {
	return []string{"tensorflow", "tensorflow_minor", "python", "cuda", "cuda_major", "cudnn", "cudnn_major", "cudnn_minor", "base", "flavor", "entry"}
}

func (v TagValues) value(name string) string {
	switch name {
	case "tensorflow":
		return v.TensorFlow
	case "tensorflow_minor":
		return facts.Minor(v.TensorFlow)
	case "python":
		return v.Python
	case "cuda":
		return v.CUDA
	case "cuda_major":
		return first(v.CUDA)
	case "cudnn":
		return v.CuDNN
	case "cudnn_major":
		return first(v.CuDNN)
	case "cudnn_minor":
		return facts.Minor(v.CuDNN)
	case "base":
		return word(v.Base)
	case "flavor":
		return v.Flavor
	}
	return v.Entry
}

func first(version string) string {
	major, _, _ := strings.Cut(version, ".")
	return major
}

// word makes one part of a name from any text: lower-case letters and digits with single separators.
func word(s string) string {
	s, _, _ = strings.Cut(s, "@")
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		alnum := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
		last := byte('-')
		if b.Len() > 0 {
			last = b.String()[b.Len()-1]
		}
		separated := last == '-' || last == '.' || last == '_'
		switch {
		case alnum:
			b.WriteRune(r)
		case separated: // one separator is enough
		case r == '.' || r == '_':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-._")
}

// TagValuesOf returns the values of a resolved target.
func TagValuesOf(t Target) TagValues {
	return TagValues{TensorFlow: t.TensorFlow, Python: t.Python.Version, CUDA: t.CUDA, CuDNN: t.CuDNN, Entry: t.Entry, Base: t.Base.Name, Flavor: t.Flavor}
}

func sampleTagValues() TagValues {
	return TagValues{TensorFlow: "2.0.0", Python: "3.11", CUDA: "12.5", CuDNN: "9.3.0.75", Entry: "entry", Base: "debian:12", Flavor: FlavorRuntime}
}

// ExpandTag replaces the names in braces and checks that the result is a valid tag: at most 128 letters, digits,
// dots, dashes and underscores, not beginning with a dot or a dash. A local version's "+" becomes "_".
func ExpandTag(template string, v TagValues) (string, error) {
	out := template
	for _, name := range tagNames() {
		if strings.Contains(out, "{"+name+"}") {
			out = strings.ReplaceAll(out, "{"+name+"}", v.value(name))
		}
	}
	if strings.ContainsAny(out, "{}") {
		return "", fmt.Errorf("tag %q has a name that is not known; known are {%s}", template, strings.Join(tagNames(), "}, {"))
	}
	out = strings.ReplaceAll(out, "+", "_")
	if !tagPattern.MatchString(out) {
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
