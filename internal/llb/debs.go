package llb

import (
	"strconv"
	"strings"

	"github.com/moby/buildkit/client/llb"

	"imgsmith/internal/matrix"
)

// Where the packages of an OS step lie: in the layer that brings them, and in the step.
const (
	DebsDir  = "debs" // relative to the root of the layer
	debsPath = "/run/imgsmith-debs"
	// DebsIndex is the file of a DebsStep that lists name, version, file and the sha256 of the signed index,
	// one package a line. DebsMissing lists what the index no longer has.
	DebsIndex   = "index"
	DebsMissing = "missing"
)

// aptOptions is the part that every script with a network begins with.
const aptOptions = `set -eu
export DEBIAN_FRONTEND=noninteractive
ca=` + caFile + `
options="-o APT::Sandbox::User=root -o Acquire::Retries=3"
if [ -s "$ca" ]; then options="$options -o Acquire::https::CAInfo=$ca"; fi
out=$1
shift
mkdir -p "$out/partial"
apt-get $options -qq update
`

// debsIndexScript writes the list. The sum is that of the signed index; the package manager has compared the
// file with it, and imgsmith does so again.
const debsIndexScript = `for f in "$out"/*.deb; do
  [ -e "$f" ] || continue
  n=$(dpkg-deb -f "$f" Package)
  v=$(dpkg-deb -f "$f" Version)
  sum=$(apt-cache show "$n=$v" | sed -n 's/^SHA256: //p' | head -n 1)
  printf '%s %s %s %s\n' "$n" "$v" "${f##*/}" "$sum"
done >"$out/` + DebsIndex + `"
rm -rf "$out/partial" "$out/lock"
`

// resolveDebsScript downloads what the package manager would install, and installs nothing.
const resolveDebsScript = aptOptions + `apt-get $options -qq -y --no-install-recommends --download-only -o Dir::Cache::archives="$out" install "$@" </dev/null
` + debsIndexScript

// fetchDebsScript downloads packages by exact version; one that the index no longer has is listed, not an error.
const fetchDebsScript = aptOptions + `for p in "$@"; do
  if apt-cache madison "${p%%=*}" | sed 's/^[^|]*| *\([^ |]*\) *|.*$/\1/' | grep -qxF "${p#*=}"; then
    (cd "$out" && apt-get $options -qq download "$p")
  else
    printf '%s\n' "$p" >>"$out/` + DebsMissing + `"
  fi
done
` + debsIndexScript

// installDebsScript installs files without a network. $1 is the number of packages that were asked for; those
// come first, the rest is marked as installed for them.
const installDebsScript = `set -eu
export DEBIAN_FRONTEND=noninteractive
asked=$1
shift
apt-get -o APT::Sandbox::User=root -qq -y --no-install-recommends install ` + debsPath + "/" + DebsDir + `/*.deb </dev/null
while [ "$asked" -gt 0 ]; do shift; asked=$((asked - 1)); done
if [ "$#" -gt 0 ]; then apt-mark auto "$@" >/dev/null; fi
` + cleanScript

// ResolveDebsStep asks the base's own package manager which package files it would install, and brings them with
// the list DebsIndex as the step's result.
func ResolveDebsStep(t matrix.Target, base BaseImage, packages []string) (Program, error) {
	return debsStep(t, "os-package files", base, resolveDebsScript, packages)
}

// FetchDebsStep brings locked package files by NAME=VERSION; the result also has DebsMissing when the index no
// longer has some.
func FetchDebsStep(t matrix.Target, base BaseImage, debs []matrix.Deb) (Program, error) {
	var packages []string
	for _, d := range debs {
		packages = append(packages, d.Name+"="+d.Version)
	}
	return debsStep(t, "locked os-package files", base, fetchDebsScript, packages)
}

func debsStep(t matrix.Target, name string, base BaseImage, script string, packages []string) (Program, error) {
	if err := checkPackages(t, packages); err != nil {
		return Program{}, err
	}
	if err := checkInput(t, base, nil); err != nil {
		return Program{}, err
	}
	opts := append(networkOptions(), llb.IgnoreCache) // the world outside may answer differently now
	run := runScript(stack(base, nil), name, script, append([]string{resultDir}, packages...), opts...)
	return stepProgram(t, name, run.AddMount(resultDir, llb.Scratch()))
}

// LockedOSStep installs the files of a layer (DebsDir) without a network: exactly the locked packages. Its result
// is the change on top of the base.
func LockedOSStep(t matrix.Target, base BaseImage, debs LayerRef) (Program, error) {
	if len(t.Debs) == 0 {
		return Program{}, invalid(t, "os packages", "the lock has no package files", "make the lock again with imgsmith lock")
	}
	if err := checkInput(t, base, []LayerRef{debs}); err != nil {
		return Program{}, err
	}
	asked, rest := splitDebs(t)
	lower := stack(base, nil)
	args := append([]string{strconv.Itoa(len(asked))}, append(asked, rest...)...)
	run := runScript(lower, "os packages", installDebsScript, args, append(stepClock(t), llb.Network(llb.NetModeNone),
		llb.AddMount(debsPath, llb.Image(debs.Ref, llb.WithCustomName("layer "+debs.Name)), llb.Readonly))...)
	return stepProgram(t, "os packages", llb.Diff(lower, run.Root(), llb.WithCustomName("changes of os packages")))
}

// splitDebs gives the names that were asked for, and those that came with them.
func splitDebs(t matrix.Target) (asked, rest []string) {
	want := map[string]bool{}
	for _, p := range t.OSPackages {
		name, _, _ := strings.Cut(p, "=")
		want[name] = true
	}
	for _, d := range t.Debs {
		if want[d.Name] {
			asked = append(asked, d.Name)
		} else {
			rest = append(rest, d.Name)
		}
	}
	return asked, rest
}
