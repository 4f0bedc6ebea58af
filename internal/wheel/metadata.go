package wheel

import (
	"bytes"
	"strings"
)

// header returns the values of one field of an RFC 822 style file up to the first blank line; continuation
// lines are joined with a newline.
func header(data []byte) map[string][]string {
	fields := map[string][]string{}
	last := ""
	for line := range bytes.Lines(data) {
		text := strings.TrimRight(string(line), "\r\n")
		if text == "" {
			break
		}
		if text[0] == ' ' || text[0] == '\t' {
			if v := fields[last]; len(v) > 0 {
				v[len(v)-1] += "\n" + strings.TrimSpace(text)
			}
			continue
		}
		key, value, _ := strings.Cut(text, ":")
		last = strings.ToLower(key)
		fields[last] = append(fields[last], strings.TrimSpace(value))
	}
	return fields
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func (w *Wheel) readMetadata() error {
	data, ok, err := w.Text("METADATA")
	if err != nil {
		return err
	}
	member := w.DistInfo + "/METADATA"
	if !ok {
		return w.refuse(member, ErrFormat, "missing")
	}
	f := header(data)
	w.Name, w.Version = first(f["name"]), first(f["version"])
	if w.Name == "" || w.Version == "" {
		return w.refuse(member, ErrFormat, "no Name or no Version")
	}
	stem := strings.TrimSuffix(w.DistInfo, ".dist-info")
	name, _, _ := strings.Cut(stem, "-")
	if NormalizeName(name) != NormalizeName(w.Name) {
		return w.refuse(member, ErrFormat, "Name %s does not belong to %s", w.Name, w.DistInfo)
	}
	w.Meta.RequiresDist = f["requires-dist"]
	w.Meta.RequiresPython = first(f["requires-python"])
	for _, c := range f["classifier"] {
		if v, ok := strings.CutPrefix(c, "Programming Language :: Python :: "); ok && strings.Contains(v, ".") {
			w.Meta.Pythons = append(w.Meta.Pythons, v)
		}
	}
	w.Meta.LicenseFiles = f["license-file"]
	if w.Meta.License = first(f["license-expression"]); w.Meta.License == "" {
		w.Meta.License = first(f["license"])
	}
	return nil
}

func (w *Wheel) readWheelFile() error {
	data, ok, err := w.Text("WHEEL")
	if err != nil {
		return err
	}
	member := w.DistInfo + "/WHEEL"
	if !ok {
		return w.refuse(member, ErrFormat, "missing")
	}
	f := header(data)
	if v := first(f["wheel-version"]); !strings.HasPrefix(v, "1.") {
		return w.refuse(member, ErrVersion, "Wheel-Version %q; this build installs 1.x", v)
	}
	w.Meta.Tags = f["tag"]
	w.Meta.Build = first(f["build"])
	w.Meta.RootIsPurelib = strings.EqualFold(first(f["root-is-purelib"]), "true")
	return nil
}
