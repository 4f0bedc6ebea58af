package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"imgsmith/internal/engine"
	"imgsmith/internal/gpu"
	"imgsmith/internal/launch"
	"imgsmith/internal/launch/docker"
	"imgsmith/internal/report"
	"imgsmith/internal/validate"
	"imgsmith/internal/validate/probe"
)

// verifyFlags say how an image is launched.
type verifyFlags struct {
	gpus    string
	timeout time.Duration
	fakeGPU string
}

func (f *verifyFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.gpus, "gpus", "all", "as for docker run: all, a number, or device=UUID")
	fl.DurationVar(&f.timeout, "timeout", 15*time.Minute, "wall clock for one verification run")
	fl.StringVar(&f.fakeGPU, "fake-gpu", "", "directory of the fake-GPU kit: tests the pipeline, never proves an image")
}

// Limits of the caged run. TensorFlow starts a thread pool as wide as the machine; its output is small.
const (
	maxOutput = 8 << 20 // bytes of each stream
	maxPids   = 4096
	shmSize   = 1 << 30 // bytes
	tmpSize   = 1 << 30 // bytes
	killGrace = 30 * time.Second
	sampling  = 100 * time.Millisecond
)

// prover launches images on this host and judges what comes back.
type prover struct {
	helper    string   // path of the NVML helper
	env       []string // added to its environment
	s         *session
	f         verifyFlags
	launcher  launch.Launcher // nil: none, see why
	why       string          // why nothing can be launched
	host      *gpu.Inventory
	keepGoing bool
	hostErr   string
}

// newProver looks at the host. What is missing is not an error here: the image is then not proved.
func (s *session) newProver(ctx context.Context, f verifyFlags) *prover {
	p := &prover{s: s, f: f}
	helper, err := engine.Lookup("imgsmith-nvml", s.app.flags.engineDir)
	if err != nil {
		p.hostErr, p.why = err.Error(), "the NVML helper is missing"
		return p
	}
	var env []string
	if f.fakeGPU != "" {
		env = append(env, "LD_LIBRARY_PATH="+filepath.Join(f.fakeGPU, "driver"))
	}
	p.helper, p.env = helper, env
	inv, err := gpu.ReadHelper(ctx, helper, env...)
	var failure *gpu.Failure
	switch {
	case errors.As(err, &failure) && failure.Kind == gpu.NoDriver:
		p.hostErr, p.why = err.Error(), "no NVIDIA GPU on this host"
		return p
	case err != nil:
		p.hostErr, p.why = err.Error(), "the host's GPUs cannot be read: "+err.Error()
		return p
	case len(inv.Devices) == 0:
		p.hostErr, p.why = "NVML reports no device", "no NVIDIA GPU on this host"
		return p
	}
	if inv.Fake && f.fakeGPU == "" {
		p.hostErr, p.why = "NVML is the fake kit's", "this host's GPU is a fake; --fake-gpu KIT says that this is meant"
		return p
	}
	inv.Fake = inv.Fake || f.fakeGPU != ""
	p.host = &inv
	l, err := docker.New(ctx, docker.Options{RunID: nonce(), RemovePulled: true})
	if err != nil {
		p.why = err.Error()
		return p
	}
	p.launcher = l
	return p
}

func (p *prover) close() error {
	if p == nil || p.launcher == nil {
		return nil
	}
	return p.launcher.Close()
}

// judge launches an image, judges it, and writes into re what was found.
func (p *prover) judge(ctx context.Context, img image, static validate.LayerResult, ex validate.Expect, re *report.Entry) (validate.Clearance, bool) {
	re.Stage = report.StageVerify
	ev := validate.Evidence{Digest: img.digest, Static: static, Host: p.host, HostErr: p.hostErr, NotLaunched: p.why, KeepGoing: p.keepGoing}
	if p.launcher != nil {
		t, activity, err := p.watched(ctx, img, ex)
		if err != nil {
			ev.NotLaunched = err.Error()
		} else {
			ev.Transcript, ev.Activity = &t, activity
			decode(&ev)
		}
	}
	return conclude(ev, ex, re)
}

// decode reads the probe's document out of the transcript.
func decode(ev *validate.Evidence) {
	o, err := probe.Decode([]byte(ev.Transcript.Stdout), ev.Transcript.Nonce)
	if err != nil {
		ev.ObservationErr = err.Error()
		return
	}
	ev.Observation = &o
}

// conclude judges evidence and turns the verdict into the entry's result.
func conclude(ev validate.Evidence, ex validate.Expect, re *report.Entry) (validate.Clearance, bool) {
	j := validate.Judge(ev, ex)
	v := j.Verdict()
	re.Verdict, re.Transcript, re.Activity, re.Static, re.Reason = &v, ev.Transcript, ev.Activity, nil, ""
	switch {
	case v.Outcome == validate.OutcomePassed:
		c, err := j.Clearance()
		if err != nil {
			re.Result, re.Reason = report.ResultNotProved, err.Error()
			return c, false
		}
		re.Result = report.ResultProved
		return c, true
	case v.Outcome == validate.OutcomeFailed:
		re.Result, re.Reason = report.ResultFailed, v.Reason
	default:
		re.Result, re.Reason = report.ResultNotProved, v.Reason
		if ev.Transcript == nil && ev.NotLaunched != "" {
			re.Reason = ev.NotLaunched
		}
	}
	return validate.Clearance{}, false
}

// watched launches while the host's NVML is sampled. A watcher that fails is told by the judge, not here.
func (p *prover) watched(ctx context.Context, img image, ex validate.Expect) (launch.Transcript, []gpu.Activity, error) {
	w, err := gpu.Watch(ctx, p.helper, sampling, p.env...)
	if err != nil {
		return launch.Transcript{}, nil, err
	}
	t, err := p.launch(ctx, img, ex)
	activity, werr := w.Stop()
	if werr != nil {
		p.s.app.note("warning: watching the GPU: %v", werr)
	}
	return t, activity, err
}

// launch runs the probe in the image.
func (p *prover) launch(ctx context.Context, img image, ex validate.Expect) (launch.Transcript, error) {
	n := nonce()
	cfg := probe.Config{Nonce: n, Dlopen: ex.DlopenSet, CuDNNSub: ex.CuDNNFamily,
		Sonames:   sonames(ex),
		Deadlines: map[string]float64{"default": 120, probe.StepXLA: 300, probe.StepConvolution: 300},
		Total:     p.f.timeout.Seconds() - killGrace.Seconds()}
	a, err := cfg.Args()
	if err != nil {
		return launch.Transcript{}, err
	}
	return p.launcher.Run(ctx, launch.Spec{
		Image: launch.Image{Ref: p.s.loop.Addr() + "/" + img.repo + "@" + img.digest, Digest: img.digest, ConfigDigest: img.configDigest, DiffIDs: img.diffIDs},
		GPUs:  p.f.gpus, Script: probe.Source(), Python: "/opt/venv/bin/python", Args: a, Nonce: n, Caged: true,
		Timeout: p.f.timeout, KillGrace: killGrace, MaxOutput: maxOutput, Pids: maxPids, ShmSize: shmSize, TmpSize: tmpSize, ScrubEnv: scrubbed(),
	})
}

// sonames picks the libraries that the probe calls out of the dlopen set.
func sonames(ex validate.Expect) probe.Sonames {
	out := probe.Sonames{NVML: "libnvidia-ml.so.1", CUDA: "libcuda.so.1"}
	for stem, at := range map[string]*string{"libcudart.so.": &out.Cudart, "libcudnn.so.": &out.CuDNN, "libcublas.so.": &out.CuBLAS} {
		for _, s := range ex.DlopenSet {
			if len(s) > len(stem) && s[:len(stem)] == stem {
				*at = s
			}
		}
	}
	return out
}

// scrubbed are variables through which an image could change what the caged run sees.
func scrubbed() []string {
	return []string{"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONUSERBASE", "BASH_ENV", "ENV"}
}

func nonce() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// errNoImage tells apart what verify cannot take.
var errNoImage = errors.New("not an image reference with a digest")

// wantDigest is the message for a reference without digest.
func wantDigest(ref string) error {
	return &usageError{fmt.Errorf("%s: %w; name it as REPOSITORY@sha256:… or oci-layout:DIR@sha256:…", ref, errNoImage)}
}
