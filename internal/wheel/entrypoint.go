package wheel

import (
	"bytes"
	"regexp"
	"strings"
)

// EntryPoint is one console or GUI script.
type EntryPoint struct {
	Name   string // name of the script
	Module string
	Attr   string // dotted path of the callable inside the module
	GUI    bool
}

// reference is the form module:attr with optional extras, as the entry-points standard gives it.
var reference = regexp.MustCompile(`^([\w.]+)\s*:\s*([\w.]+)\s*(?:\[[^\]]*\])?$`)

func (w *Wheel) readEntryPoints() error {
	data, ok, err := w.Text("entry_points.txt")
	if err != nil || !ok {
		return err
	}
	member := w.DistInfo + "/entry_points.txt"
	seen := map[string]int{}
	section := ""
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		if text[0] == '[' && text[len(text)-1] == ']' {
			section = text[1 : len(text)-1]
			continue
		}
		if section != "console_scripts" && section != "gui_scripts" {
			continue
		}
		name, value, _ := strings.Cut(text, "=")
		e, reason := parseEntryPoint(strings.TrimSpace(name), strings.TrimSpace(value))
		if reason != "" {
			return w.refuse(member, ErrScript, "%q: %s", text, reason)
		}
		e.GUI = section == "gui_scripts"
		if i, dup := seen[e.Name]; dup {
			w.Entries[i] = e // pip lets a later section win
			continue
		}
		seen[e.Name] = len(w.Entries)
		w.Entries = append(w.Entries, e)
	}
	return nil
}

func parseEntryPoint(name, value string) (EntryPoint, string) {
	if reason := BadName(name); reason != "" || strings.Contains(name, "/") {
		return EntryPoint{}, "the name cannot be a file in the scripts directory"
	}
	m := reference.FindStringSubmatch(value)
	if m == nil {
		return EntryPoint{}, "not a reference of the form module:callable"
	}
	return EntryPoint{Name: name, Module: m[1], Attr: m[2]}, ""
}

// versionedPip is the set of names that pip's own wheel may carry for other interpreters.
var versionedPip = regexp.MustCompile(`^pip(\d+(\.\d+)?)?$`)

// scripts returns the entry points to write; pip's own get the names of this interpreter.
func (w *Wheel) scripts(python string) []EntryPoint {
	pip := -1
	for i, e := range w.Entries {
		if e.Name == "pip" && !e.GUI {
			pip = i
		}
	}
	if pip < 0 {
		return w.Entries
	}
	var out []EntryPoint
	for _, e := range w.Entries {
		if e.GUI || !versionedPip.MatchString(e.Name) {
			out = append(out, e)
		}
	}
	major, _, _ := strings.Cut(python, ".")
	for _, name := range []string{"pip", "pip" + major, "pip" + python} {
		e := w.Entries[pip]
		e.Name = name
		out = append(out, e)
	}
	return out
}

// scriptText fills the layout's template.
func scriptText(template, interpreter string, e EntryPoint) []byte {
	name, _, _ := strings.Cut(e.Attr, ".")
	body := strings.NewReplacer("{module}", e.Module, "{name}", name, "{call}", e.Attr).Replace(template)
	return []byte("#!/" + interpreter + "\n" + body)
}
