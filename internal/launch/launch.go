// Package launch says how a probe is run in an image with a GPU and what comes back. It never judges.
package launch

import (
	"context"
	"time"
)

// Launcher runs one probe in one image. Run returns an error only when no transcript could be had; a
// container that failed is a transcript.
type Launcher interface {
	Run(ctx context.Context, s Spec) (Transcript, error)
	Info(ctx context.Context) (Info, error)
	Close() error
}

// Spec is one launch.
type Spec struct {
	Image     Image
	GPUs      string        // as after --gpus: "all", "0", "device=GPU-…"; empty: none
	Script    []byte        // Python source, handed over on standard input and run by python -I
	Python    string        // interpreter path in the image, for example /opt/venv/bin/python
	Args      []string      // arguments after the script
	Nonce     string        // echoed by the probe, ties output to this run
	Caged     bool          // entrypoint replaced, environment scrubbed; false: as shipped
	Timeout   time.Duration // wall clock; the container is killed after it
	KillGrace time.Duration // how long the daemon may take to kill before the host is called stuck
	MaxOutput int64         // bytes of stdout and stderr each
	Memory    int64         // bytes, 0: no limit
	Pids      int64         // at least 1024 for TensorFlow
	ShmSize   int64         // bytes
	TmpSize   int64         // bytes of the tmpfs at /tmp when Caged
	User      string        // uid:gid when Caged, empty: 65534:65534
	ScrubEnv  []string      // variables removed from the image's environment when Caged
	Env       map[string]string
	Labels    map[string]string // added to imgsmith's own
}

// Image is what the daemon must run, and what it must be equal to.
type Image struct {
	Ref          string   // how this daemon is asked for it
	Digest       string   // manifest digest the verdict is about
	ConfigDigest string   // what a daemon with the graphdriver store knows
	DiffIDs      []string // compared with what the daemon has
}

// Transcript is everything one launch returned.
type Transcript struct {
	SchemaVersion int           `json:"schema_version"`
	Launcher      string        `json:"launcher"` // "docker", "replay"
	Engine        Info          `json:"engine"`
	Command       string        `json:"command"`   // the docker run line a user would type
	Injection     string        `json:"injection"` // cdi | hook | none | unknown
	Caged         bool          `json:"caged"`
	Nonce         string        `json:"nonce"`
	ImageDigest   string        `json:"image_digest"`
	ExitCode      int           `json:"exit_code"`
	TimedOut      bool          `json:"timed_out,omitempty"`
	OOMKilled     bool          `json:"oom_killed,omitempty"`
	Truncated     bool          `json:"truncated,omitempty"` // output passed MaxOutput
	HostStuck     bool          `json:"host_stuck,omitempty"`
	StartError    string        `json:"start_error,omitempty"` // the daemon refused to start it
	Stdout        string        `json:"stdout"`
	Stderr        string        `json:"stderr"`
	Duration      time.Duration `json:"duration"` // nanoseconds
}

// Info describes a launcher's engine for the record.
type Info struct {
	Kind       string   `json:"kind"`    // docker
	Version    string   `json:"version"` // engine version
	API        string   `json:"api"`
	Store      string   `json:"store"` // containerd | graphdriver
	CDIDevices []string `json:"cdi_devices,omitempty"`
	Remote     bool     `json:"remote,omitempty"` // not on this host's socket
}

// DefaultSpec returns a caged Spec with limits that TensorFlow needs: hundreds of threads on many cores
// (with 64 processes it aborts), shared memory for NCCL, a first XLA step of up to 80 s in each of several
// processes. Image, Script, Python, Args, Nonce and GPUs are left to the caller.
func DefaultSpec() Spec {
	return Spec{
		Caged:     true,
		Timeout:   30 * time.Minute,
		KillGrace: 30 * time.Second,
		MaxOutput: 8 << 20,
		Pids:      4096,
		ShmSize:   1 << 30,
		TmpSize:   1 << 30,
		ScrubEnv: []string{"LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP",
			"PYTHONUSERBASE", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONWARNINGS", "GCONV_PATH", "LOCPATH"},
	}
}
