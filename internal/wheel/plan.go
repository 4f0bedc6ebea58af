package wheel

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/layout"
)

// Item is one file or link of an installed wheel.
type Item struct {
	Path   string // relative to the image's root
	Mode   uint32 // 0644 or 0755; 0777 for a link
	Side   layout.Side
	Member *Member // content from the archive; nil when Data or Link holds it
	Data   []byte
	Link   string // target of a symbolic link
	Digest string // "sha256:<hex>" of a member's content as RECORD promises it, "" when RECORD uses another hash
}

// planner collects the items of one wheel.
type planner struct {
	w     *Wheel
	r     layout.Resolved
	items []Item
	at    map[string]int    // path -> item
	rows  map[string]string // path in the archive -> path in the installed RECORD
	fresh []Row             // rows of changed and generated files, by installed path
}

// Plan lists what an installation of the wheel puts into an image, sorted by path. requested adds the REQUESTED
// marker. Errors are *Error.
func (w *Wheel) Plan(r layout.Resolved, requested bool) ([]Item, error) {
	p := &planner{w: w, r: r, at: map[string]int{}, rows: map[string]string{}}
	for i := range w.Members {
		if err := p.member(&w.Members[i]); err != nil {
			return nil, err
		}
	}
	for _, e := range w.scripts(r.Vars.Python) {
		if err := p.generated(p.bin()+e.Name, 0o755, scriptText(r.Script, r.Interpreter, e)); err != nil {
			return nil, err
		}
	}
	info := r.Site + "/" + w.DistInfo + "/"
	if err := p.generated(info+"INSTALLER", 0o644, []byte("pip\n")); err != nil {
		return nil, err
	}
	if requested {
		if err := p.generated(info+"REQUESTED", 0o644, nil); err != nil {
			return nil, err
		}
	}
	record := Item{Path: info + "RECORD", Mode: 0o644, Side: layout.SidePython, Data: p.record()}
	if err := p.add("", record); err != nil {
		return nil, err
	}
	slices.SortFunc(p.items, func(a, b Item) int { return strings.Compare(a.Path, b.Path) })
	return p.items, p.checkParents()
}

func (p *planner) bin() string { return path.Dir(p.r.Interpreter) + "/" }

// member places one file of the archive.
func (p *planner) member(m *Member) error {
	if m.Name == p.w.DistInfo+"/RECORD" {
		return nil
	}
	rest, isData := strings.CutPrefix(m.Name, p.w.dataDir+"/")
	if !isData {
		if top, _, _ := strings.Cut(m.Name, "/"); strings.HasSuffix(top, ".data") {
			return p.w.refuse(m.Name, ErrScheme, "a .data directory of another distribution")
		}
		return p.site(m, m.Name)
	}
	key, rel, ok := strings.Cut(rest, "/")
	if !ok {
		return p.w.refuse(m.Name, ErrScheme, "a file directly in the .data directory")
	}
	switch key {
	case "purelib", "platlib":
		return p.site(m, rel)
	case "scripts":
		return p.script(m, rel)
	case "headers":
		return p.place(m, p.r.Headers+"/"+p.w.Name+"/"+rel)
	case "data":
		return p.place(m, p.r.Venv+"/"+rel)
	}
	return p.w.refuse(m.Name, ErrScheme, "%q; known are purelib, platlib, scripts, headers and data", key)
}

// site places a file of site-packages, with the directory link that leads to it.
func (p *planner) site(m *Member, rel string) error {
	at, side := p.r.SitePath(rel)
	if k, ok := p.r.PackageLink(rel); ok {
		if err := p.add(m.Name, Item{Path: k.Path, Mode: 0o777, Side: layout.SideCUDA, Link: k.Target}); err != nil {
			return err
		}
	}
	p.rows[m.Name] = rel
	return p.addMember(m, at, side)
}

// place puts a file anywhere else in the venv; RECORD has it relative to site-packages.
func (p *planner) place(m *Member, at string) error {
	if p.r.IsReserved(at) {
		return p.w.refuse(m.Name, ErrName, "/%s belongs to the interpreter's layer", at)
	}
	if rel, ok := strings.CutPrefix(at, p.r.Site+"/"); ok {
		return p.site(m, rel)
	}
	p.rows[m.Name] = p.recordPath(at)
	return p.addMember(m, at, layout.SidePython)
}

// script places a file of .data/scripts: wrappers of entry points are skipped, "#!python" becomes the venv's
// interpreter, the mode is the archive's.
func (p *planner) script(m *Member, rel string) error {
	name := path.Base(rel)
	for _, suffix := range []string{".exe", "-script.py", ".pya"} {
		if strings.HasSuffix(strings.ToLower(name), suffix) {
			name = name[:len(name)-len(suffix)]
			break
		}
	}
	if slices.ContainsFunc(p.w.Entries, func(e EntryPoint) bool { return e.Name == name }) {
		return nil
	}
	at := p.bin() + rel
	data, err := p.w.read(*m)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(data, []byte("#!python")) {
		return p.place(m, at)
	}
	if p.r.IsReserved(at) {
		return p.w.refuse(m.Name, ErrName, "/%s belongs to the interpreter's layer", at)
	}
	_, rest, _ := bytes.Cut(data, []byte("\n"))
	data = append([]byte("#!/"+p.r.Interpreter+"\n"), rest...)
	p.rows[m.Name] = p.recordPath(at)
	p.fresh = append(p.fresh, rowOf(p.recordPath(at), data))
	return p.add(m.Name, Item{Path: at, Mode: mode(m), Side: layout.SidePython, Data: data})
}

func mode(m *Member) uint32 {
	if m.Executable {
		return 0o755
	}
	return 0o644
}

func (p *planner) addMember(m *Member, at string, side layout.Side) error {
	return p.add(m.Name, Item{Path: at, Mode: mode(m), Side: side, Member: m, Digest: p.w.hashes[m.Name].SHA256()})
}

// generated adds a file that the installer writes itself.
func (p *planner) generated(at string, mode uint32, data []byte) error {
	if p.r.IsReserved(at) {
		return p.w.refuse("", ErrName, "the script /%s belongs to the interpreter's layer", at)
	}
	p.fresh = append(p.fresh, rowOf(p.recordPath(at), data))
	return p.add("", Item{Path: at, Mode: mode, Side: layout.SidePython, Data: data})
}

// add refuses a path that another file of this wheel has, unless both are the same.
func (p *planner) add(member string, it Item) error {
	if reason := BadName(it.Path); reason != "" {
		return p.w.refuse(member, ErrName, "installs as %q: %s", it.Path, reason)
	}
	if i, ok := p.at[it.Path]; ok {
		if it.SameAs(p.items[i]) {
			return nil
		}
		return p.w.refuse(member, ErrConflict, "/%s", it.Path)
	}
	p.at[it.Path] = len(p.items)
	p.items = append(p.items, it)
	return nil
}

// SameAs reports whether two items put provably equal things at one path.
func (it Item) SameAs(o Item) bool {
	if it.Path != o.Path || it.Mode != o.Mode || it.Link != o.Link {
		return false
	}
	if it.Member != nil || o.Member != nil {
		return it.Member != nil && o.Member != nil && it.Digest != "" && it.Digest == o.Digest
	}
	return bytes.Equal(it.Data, o.Data)
}

// checkParents refuses a path that is a file for one member and a directory for another.
func (p *planner) checkParents() error {
	for _, it := range p.items {
		for dir := path.Dir(it.Path); dir != "."; dir = path.Dir(dir) {
			if _, ok := p.at[dir]; ok {
				return p.w.refuse("", ErrConflict, "/%s is a file and, for /%s, a directory", dir, it.Path)
			}
		}
	}
	return nil
}

// recordPath writes a path relative to site-packages, as RECORD does.
func (p *planner) recordPath(at string) string {
	if rel, ok := strings.CutPrefix(at, p.r.Site+"/"); ok {
		return rel
	}
	from, to := strings.Split(p.r.Site, "/"), strings.Split(at, "/")
	for len(from) > 0 && len(to) > 1 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}
	return strings.Repeat("../", len(from)) + strings.Join(to, "/")
}

// record makes the installed RECORD: the wheel's rows under their installed paths, then what was generated.
func (p *planner) record() []byte {
	changed := map[string]Row{}
	for _, r := range p.fresh {
		changed[r.Path] = r
	}
	var rows []Row
	for _, r := range p.w.rows {
		if to, ok := p.rows[r.Path]; ok {
			r.Path = to
		}
		if c, ok := changed[r.Path]; ok {
			r = c
			delete(changed, r.Path)
		}
		rows = append(rows, r)
	}
	for _, r := range p.fresh {
		if _, left := changed[r.Path]; left {
			rows = append(rows, r)
		}
	}
	return formatRecord(rows)
}
