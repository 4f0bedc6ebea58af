package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"imgsmith/internal/matrix"
)

// pkg is one package of uv's answer with every file the index has for it.
type pkg struct {
	name, version string
	candidates    []candidate
	sdist         bool // the index has a source archive
}

// candidate is one wheel file.
type candidate struct {
	file, url, sha256 string
	size              int64 // 0: the index does not say
}

// pylock is the part of PEP 751 that is read here.
type pylock struct {
	LockVersion string `toml:"lock-version"`
	Packages    []struct {
		Name    string       `toml:"name"`
		Version string       `toml:"version"`
		Wheels  []pylockFile `toml:"wheels"`
		Archive *pylockFile  `toml:"archive"`
		Sdist   *pylockFile  `toml:"sdist"`
	} `toml:"packages"`
}

type pylockFile struct {
	Name   string            `toml:"name"`
	URL    string            `toml:"url"`
	Path   string            `toml:"path"`
	Size   int64             `toml:"size"`
	Hashes map[string]string `toml:"hashes"`
}

// parsePylock reads uv's answer; dir is what relative paths in it are relative to.
func parsePylock(data []byte, dir string) ([]pkg, error) {
	var l pylock
	if err := toml.Unmarshal(data, &l); err != nil {
		return nil, fmt.Errorf("reading uv's pylock: %w", err)
	}
	if l.LockVersion != "1.0" {
		return nil, fmt.Errorf("reading uv's pylock: version %q is not 1.0", l.LockVersion)
	}
	var out []pkg
	for _, p := range l.Packages {
		k := pkg{name: matrix.NormalizeName(p.Name), version: p.Version, sdist: p.Sdist != nil}
		files := p.Wheels
		if p.Archive != nil {
			files = append(files, *p.Archive)
		}
		for _, f := range files {
			c, err := f.candidate(dir)
			if err != nil {
				return nil, fmt.Errorf("reading uv's pylock: package %s: %w", p.Name, err)
			}
			if strings.HasSuffix(c.file, ".whl") {
				k.candidates = append(k.candidates, c)
			}
		}
		out = append(out, k)
	}
	if len(out) == 0 {
		return nil, errors.New("reading uv's pylock: it has no packages")
	}
	return out, nil
}

func (f pylockFile) candidate(dir string) (candidate, error) {
	c := candidate{file: f.Name, url: f.URL, sha256: strings.ToLower(f.Hashes["sha256"]), size: f.Size}
	if c.url == "" && f.Path != "" {
		p := f.Path
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		c.url = fileURL(p)
	}
	u, err := url.Parse(c.url)
	if err != nil || u.Scheme == "" {
		return candidate{}, fmt.Errorf("it has a file without a usable address")
	}
	if c.file == "" {
		c.file = path.Base(u.Path)
	}
	if strings.ContainsAny(c.file, `/\`) || strings.HasPrefix(c.file, ".") {
		return candidate{}, fmt.Errorf("file name %q is refused", c.file)
	}
	return c, nil
}

// choose takes the best wheel of every package and completes size and hash where the index does not say them.
func (r *Resolver) choose(ctx context.Context, found []pkg, python, glibc string) ([]matrix.Wheel, URLs, error) {
	tags, err := newTagOrder(python, glibc)
	if err != nil {
		return nil, nil, err
	}
	var wheels []matrix.Wheel
	urls := URLs{}
	for _, p := range found {
		c, err := p.best(tags)
		if err != nil {
			return nil, nil, err
		}
		if err := r.complete(ctx, &c); err != nil {
			return nil, nil, fmt.Errorf("package %s: %w", p.name, err)
		}
		wheels = append(wheels, matrix.Wheel{Name: p.name, Version: p.version, File: c.file, SHA256: c.sha256, Size: c.size})
		urls[c.sha256] = c.url
	}
	slices.SortFunc(wheels, func(a, b matrix.Wheel) int { return strings.Compare(a.Name, b.Name) })
	return wheels, urls, nil
}

// best returns the wheel with the most specific compatible tag; of equal ones the one with the higher build.
func (p pkg) best(tags *tagOrder) (candidate, error) {
	var best candidate
	bestRank, bestBuild, found := 0, "", false
	for _, c := range p.candidates {
		rank, build, ok := tags.rank(c.file)
		if !ok {
			continue
		}
		if !found || rank < bestRank || (rank == bestRank && (compareBuild(build, bestBuild) > 0 ||
			(compareBuild(build, bestBuild) == 0 && c.file < best.file))) {
			best, bestRank, bestBuild, found = c, rank, build, true
		}
	}
	switch {
	case found:
		return best, nil
	case len(p.candidates) > 0:
		return candidate{}, &NoWheelError{p.name, p.version, fmt.Sprintf("none of its %d wheels fits CPython %s with glibc %s on x86_64 (for example %s)",
			len(p.candidates), tags.python, tags.glibc, p.candidates[0].file)}
	case p.sdist:
		return candidate{}, &NoWheelError{p.name, p.version, "it has a source archive but no wheel, and building it is not supported"}
	}
	return candidate{}, &NoWheelError{p.name, p.version, "the index has no wheel for it"}
}

// complete fills in size and hash that the index leaves out: from the file when it is local, from the headers
// when it is not. A remote file without a hash is refused: there would be nothing to check it by.
func (r *Resolver) complete(ctx context.Context, c *candidate) error {
	if local, ok := localPath(c.url); ok {
		fi, err := os.Stat(local)
		if err != nil {
			return err
		}
		c.size = fi.Size()
		if c.sha256 == "" {
			if c.sha256, err = hashFile(local); err != nil {
				return err
			}
		}
		return nil
	}
	if c.sha256 == "" {
		return fmt.Errorf("the index gives no sha256 for %s; use an index that does, or put the file into a find-links directory", c.file)
	}
	if c.size > 0 {
		return nil
	}
	client, err := r.Settings.client()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, c.url, nil)
	if err != nil {
		return err
	}
	r.Settings.authorize(req)
	resp, err := client.Do(req)
	if err != nil {
		return netError("asking for the size of "+c.file, c.url, err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ContentLength <= 0 {
		return fmt.Errorf("the index gives no size for %s (status %d)", c.file, resp.StatusCode)
	}
	c.size = resp.ContentLength
	return nil
}
