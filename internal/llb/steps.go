package llb

import (
	"regexp"
	"strconv"

	"github.com/moby/buildkit/client/llb"

	"imgsmith/internal/matrix"
)

// stepPath is the search path inside steps: a program has no view of the base's environment.
const stepPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Where a step finds its secrets and puts an explicit result.
const (
	caFile    = "/run/secrets/imgsmith-ca.pem"
	resultDir = "/run/imgsmith-result"
)

// osScript installs packages and removes what depends on time or host. Bytecode of the interpreter's own
// library is made again after the times of its sources were set, since the layer writer sets them too and
// bytecode is checked against them.
const osScript = `set -eu
export DEBIAN_FRONTEND=noninteractive
ca=` + caFile + `
options="-o APT::Sandbox::User=root -o Acquire::Retries=3"
if [ -s "$ca" ]; then options="$options -o Acquire::https::CAInfo=$ca"; fi
apt-get $options -qq update
apt-get $options -qq -y --no-install-recommends install "$@" </dev/null
` + cleanScript

// cleanScript removes what depends on time or host after an installation.
const cleanScript = `apt-get clean
for d in /usr/lib/python3 /usr/lib/python3.* /usr/share/python3; do
  [ -d "$d" ] || continue
  find "$d" -depth -type d -name __pycache__ -exec rm -rf {} +
  find "$d" -type f -name '*.py' -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
done
for p in /usr/bin/python3.[0-9] /usr/bin/python3.[0-9][0-9]; do
  [ -x "$p" ] || continue
  rc=0
  "$p" -m compileall -q -j 1 --invalidation-mode timestamp /usr/lib/python3 "/usr/lib/${p##*/}" /usr/share/python3 >/dev/null || rc=$?
  [ "$rc" -le 1 ]
done
for d in /var/lib/apt/lists /var/cache/apt /var/log/apt /tmp /var/tmp; do
  [ ! -d "$d" ] || find "$d" -xdev -type f ! -name lock -delete
done
rm -f /var/log/*.log /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/cache/debconf/*-old /etc/*-
if [ -e /etc/machine-id ]; then : >/etc/machine-id; fi
`

// venvScript makes the environment; links, because a copied interpreter would not follow the OS package.
const venvScript = `set -eu
"$1" -B -m venv --without-pip --symlinks "$2"
`

const ldconfigScript = `set -eu
mkdir -p "$1/etc"
ldconfig -X -C "$1/etc/ld.so.cache"
`

// bytecodeScript compiles serially, so that the order and content of the result are fixed. Status 1 means
// that some file is not valid for this Python (packages ship such templates); it then has no bytecode.
const bytecodeScript = `set -eu
python=$1
shift
rc=0
"$python" -B -m compileall -q -q -j 1 --invalidation-mode timestamp "$@" || rc=$?
[ "$rc" -le 1 ]
`

var packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?$`)

// OSStep installs packages with the base's own package manager. Its result is the change on top of the base.
// Only this step has a network, and only it may read the CA bundle and the proxy values, all by id.
func OSStep(t matrix.Target, base BaseImage, packages []string) (Program, error) {
	if len(packages) == 0 {
		return Program{}, invalid(t, "os packages", "there are none", "leave the step out")
	}
	if err := checkPackages(t, packages); err != nil {
		return Program{}, err
	}
	return diffStep(t, "os packages", base, nil, osScript, packages, append(stepClock(t), networkOptions()...)...)
}

func checkPackages(t matrix.Target, packages []string) error {
	for _, p := range packages {
		if !packagePattern.MatchString(p) {
			return invalid(t, "os packages", "'"+p+"' is not a package name", "write NAME or NAME=VERSION")
		}
	}
	return nil
}

// stepClock fixes what scripts of packages read of time and chance.
func stepClock(t matrix.Target) []llb.RunOption {
	return []llb.RunOption{llb.AddEnv("SOURCE_DATE_EPOCH", strconv.FormatInt(t.Epoch, 10)), llb.AddEnv("PYTHONHASHSEED", "0")}
}

// networkOptions give a step the host's CA bundle and proxy values, by id.
func networkOptions() []llb.RunOption {
	opts := []llb.RunOption{llb.AddSecret(caFile, llb.SecretID(SecretCA), llb.SecretOptional, llb.SecretFileOpt(0, 0, 0o444))}
	for _, s := range []struct{ env, id string }{
		{"http_proxy", SecretHTTPProxy}, {"https_proxy", SecretHTTPSProxy}, {"no_proxy", SecretNoProxy},
	} {
		opts = append(opts, llb.AddSecret(s.env, llb.SecretID(s.id), llb.SecretOptional, llb.SecretAsEnv(true)))
	}
	return opts
}

// VenvStep makes the virtual environment without pip at VenvDir. below are the layers that hold the
// interpreter when it is not in the base.
func VenvStep(t matrix.Target, base BaseImage, below []LayerRef) (Program, error) {
	python, err := interpreter(t)
	if err != nil {
		return Program{}, err
	}
	return diffStep(t, "venv", base, below, venvScript, []string{python, VenvDir}, llb.Network(llb.NetModeNone))
}

// LdconfigStep runs the base's own ldconfig over a tree that looks like the image to it: twin holds stub
// libraries, links and configuration. The result is /etc/ld.so.cache and nothing else. ldconfig makes no
// links (-X), so a link that the image lacks is never hidden here.
func LdconfigStep(t matrix.Target, base BaseImage, below []LayerRef, twin LayerRef) (Program, error) {
	below = append(append([]LayerRef{}, below...), twin)
	if err := checkInput(t, base, below); err != nil {
		return Program{}, err
	}
	run := runScript(stack(base, below), "ld.so.cache", ldconfigScript, []string{resultDir}, llb.Network(llb.NetModeNone))
	return stepProgram(t, "ld.so.cache", run.AddMount(resultDir, llb.Scratch()))
}

// BytecodeStep compiles the .py files of twin below dirs (absolute; none means the environment's
// site-packages). twin holds sources only, at their final paths and times. The result is the __pycache__
// directories with their files.
func BytecodeStep(t matrix.Target, base BaseImage, below []LayerRef, twin LayerRef, dirs []string) (Program, error) {
	python, err := interpreter(t)
	if err != nil {
		return Program{}, err
	}
	if len(dirs) == 0 {
		dirs = []string{VenvDir + "/lib/" + python + "/site-packages"}
	}
	below = append(append([]LayerRef{}, below...), twin)
	args := append([]string{VenvDir + "/bin/" + python}, dirs...)
	return diffStep(t, "bytecode "+twin.Name, base, below, bytecodeScript, args,
		llb.AddEnv("PYTHONHASHSEED", "0"), llb.Network(llb.NetModeNone))
}

func interpreter(t matrix.Target) (string, error) {
	if !versionPattern.MatchString(t.Python.Version) {
		return "", invalid(t, "python", "'"+t.Python.Version+"' is not MAJOR.MINOR", "write it like \"3.11\"")
	}
	return "python" + t.Python.Version, nil
}

// diffStep runs a script on base and layers; the result is what it changed.
func diffStep(t matrix.Target, name string, base BaseImage, below []LayerRef, script string, args []string, opts ...llb.RunOption) (Program, error) {
	if err := checkInput(t, base, below); err != nil {
		return Program{}, err
	}
	lower := stack(base, below)
	upper := runScript(lower, name, script, args, opts...).Root()
	return stepProgram(t, name, llb.Diff(lower, upper, llb.WithCustomName("changes of "+name)))
}

func runScript(s llb.State, name, script string, args []string, opts ...llb.RunOption) llb.ExecState {
	all := append([]llb.RunOption{
		llb.Args(append([]string{"/bin/sh", "-c", script, "imgsmith"}, args...)),
		llb.Dir("/"),
		llb.AddEnv("PATH", stepPath),
		llb.AddEnv("LC_ALL", "C.UTF-8"),
		llb.AddEnv("TZ", "UTC"),
		llb.WithCustomName(name),
	}, opts...)
	return s.Run(all...)
}

func stepProgram(t matrix.Target, name string, s llb.State) (Program, error) {
	def, err := marshal(t, s)
	if err != nil {
		return Program{}, err
	}
	return Program{Name: t.Entry + ": " + name, Def: def}, nil
}
