package static

import (
	"cmp"
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	pep440 "github.com/aquasecurity/go-pep440-version"

	"imgsmith/internal/facts"
	"imgsmith/internal/rootfs"
	"imgsmith/internal/validate"
)

// distribution is one installed Python package, known by its metadata directory.
type distribution struct {
	name, version string
	dir           string
}

var nameRuns = regexp.MustCompile(`[-_.]+`)

// normalize writes a distribution name in the form that indexes compare (PEP 503).
func normalize(name string) string { return strings.ToLower(nameRuns.ReplaceAllString(name, "-")) }

// sameVersion compares as Python does: 2021.05.30 and 2021.5.30 are one version.
func sameVersion(a, b string) bool {
	va, errA := pep440.Parse(a)
	vb, errB := pep440.Parse(b)
	if errA != nil || errB != nil {
		return a == b
	}
	return va.Equal(vb)
}

// distributions lists what is installed in site-packages, sorted by directory name.
func (c *checker) distributions() ([]distribution, error) {
	nodes, err := c.Tree.ReadDir(c.Expect.SitePackages)
	if err != nil {
		return nil, err
	}
	return distributionsIn(nodes), nil
}

func distributionsIn(nodes []rootfs.Node) []distribution {
	var out []distribution
	for _, n := range nodes {
		stem, ok := strings.CutSuffix(base(n.Path), ".dist-info")
		if !ok || n.Type != rootfs.Dir {
			continue
		}
		name, version, _ := strings.Cut(stem, "-")
		out = append(out, distribution{normalize(name), version, n.Path})
	}
	return out
}

// packages compares what is installed with what the entry pins, and what RECORD names with what is there.
func (c *checker) packages() {
	dists, err := c.distributions()
	if err != nil || len(dists) == 0 {
		c.report("static.packages", "", []validate.Finding{{Subject: "/" + c.Expect.SitePackages, Message: "no installed Python package is found", Remedy: "give the right site-packages directory"}})
		return
	}
	var found []validate.Finding
	have := map[string][]distribution{}
	for _, d := range dists {
		have[d.name] = append(have[d.name], d)
	}
	for _, name := range sortedKeys(have) {
		list := have[name]
		want, pinned := c.Expect.Packages[name]
		if len(list) > 1 {
			f := validate.Finding{Subject: name, Message: fmt.Sprintf("%d versions of one package are installed", len(list)), Expected: cmp.Or(want, "one"), Remedy: "remove all but one metadata directory, or install into an empty environment"}
			for _, d := range list {
				f.Evidence = append(f.Evidence, "/"+d.dir)
			}
			found = append(found, f)
		}
		switch {
		case c.Expect.Packages == nil:
		case !pinned && matchAny(c.rules.NVIDIADistributions, name):
			found = append(found, validate.Finding{Subject: name, Message: "a package of NVIDIA's is installed that the entry does not pin", Observed: list[0].version, Remedy: "remove it, or lock again with it"})
		case pinned && !slices.ContainsFunc(list, func(d distribution) bool { return sameVersion(d.version, want) }):
			found = append(found, validate.Finding{Subject: name, Message: "the package has another version than the entry pins", Expected: want, Observed: list[0].version, Remedy: "build again from the lock"})
		}
	}
	for _, name := range sortedKeys(c.Expect.Packages) {
		if len(have[name]) == 0 {
			found = append(found, validate.Finding{Subject: name, Message: "a package that the entry pins is not installed", Expected: c.Expect.Packages[name], Observed: "no metadata directory", Remedy: "build again from the lock"})
		}
	}
	passed := plural(len(dists), "Python packages are installed once each")
	if c.Expect.Packages != nil {
		passed += ", as pinned"
	}
	c.report("static.packages", passed, found)
	c.records(dists)
}

// records demands that every file that an installed package lists is there. Bytecode may be missing: it is made
// again. Only records whose content was kept are read.
func (c *checker) records(dists []distribution) {
	var found []validate.Finding
	read, files := 0, 0
	for _, d := range dists {
		b, err := c.Tree.ReadFile(d.dir + "/RECORD")
		if errors.Is(err, rootfs.ErrNoData) {
			continue
		}
		if err != nil {
			found = append(found, validate.Finding{Subject: "/" + d.dir, Message: "the package has no RECORD: it was removed in part", Observed: err.Error(), Remedy: "install it again"})
			continue
		}
		read++
		r := csv.NewReader(strings.NewReader(string(b)))
		r.FieldsPerRecord = -1
		for {
			row, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				found = append(found, validate.Finding{Subject: "/" + d.dir + "/RECORD", Message: "RECORD is no list of files: " + err.Error(), Remedy: "install the package again"})
				break
			}
			if strings.HasSuffix(row[0], ".pyc") || row[0] == "" {
				continue
			}
			files++
			file := row[0]
			if !path.IsAbs(file) {
				file = c.Expect.SitePackages + "/" + file
			}
			n, _, err := c.Tree.Resolve(file)
			if err != nil {
				found = append(found, validate.Finding{Subject: row[0], Message: d.name + " lists a file that is not there", Expected: "/" + file, Observed: err.Error(), Remedy: "install " + d.name + " again"})
			} else if f, ok := changed(d, row, n); ok {
				found = append(found, f)
			}
		}
	}
	if read > 0 || len(found) > 0 {
		c.report("static.record", fmt.Sprintf("%d files that %d packages list are there", files, read), found)
	}
}

// changed compares a file with the hash in its row of RECORD, where the content was read.
func changed(d distribution, row []string, n rootfs.Node) (validate.Finding, bool) {
	if len(row) < 2 || n.Digest == "" {
		return validate.Finding{}, false
	}
	want, ok := strings.CutPrefix(row[1], "sha256=")
	have, err := hex.DecodeString(strings.TrimPrefix(n.Digest, "sha256:"))
	if got := base64.RawURLEncoding.EncodeToString(have); ok && err == nil && got != strings.TrimRight(want, "=") {
		return validate.Finding{Subject: "/" + n.Path, Message: "the file is not the one that " + d.name + " was installed with", Expected: "sha256=" + want, Observed: "sha256=" + got,
			Remedy: "install " + d.name + " again; two packages may bring the same path"}, true
	}
	return validate.Finding{}, false
}

// cudnnVersion compares the installed cuDNN with what TensorFlow was compiled against: same major, minor not
// below, patch ignored.
func (c *checker) cudnnVersion() {
	tf := c.Expect.TensorFlow
	want := cmp.Or(tf.CuDNNCompiled, tf.CuDNNTested)
	have, from := c.libraryVersion(c.Expect.CuDNN.Soname, "nvidia-cudnn")
	if want == "" || have == "" {
		c.report("static.cudnn.version", "", []validate.Finding{{Outcome: validate.OutcomeInconclusive, Subject: "cuDNN", Expected: want, Observed: have,
			Message: "the version of cuDNN cannot be told", Remedy: "install cuDNN as a Python package or with its versioned file names"}})
		return
	}
	var found []validate.Finding
	if facts.Major(have) != facts.Major(want) || facts.Compare(facts.Minor(have), facts.Minor(want)) < 0 {
		found = append(found, validate.Finding{Subject: subjectOf(from), Message: "cuDNN does not fit this TensorFlow: the first convolution fails", Expected: "major of " + want + ", minor not below",
			Observed: have + " (" + from + ")", Remedy: "install cuDNN " + facts.Minor(want) + " or a newer one of that major"})
	}
	c.report("static.cudnn.version", fmt.Sprintf("cuDNN %s fits a wheel compiled against %s", have, want), found)
}

// subjectOf is the file in the words of libraryVersion.
func subjectOf(from string) string {
	file, _, _ := strings.Cut(from, ", ")
	return file
}
