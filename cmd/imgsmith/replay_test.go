package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"imgsmith/internal/report"
	"imgsmith/internal/validate"
)

// recording reads a document that a run on a real GPU wrote.
func recording(t *testing.T, name string) report.Document {
	t.Helper()
	f, err := os.Open("../../testdata/recordings/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := report.ReadJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Entries) != 1 || d.Host == nil || d.Fake {
		t.Fatalf("the recording is not one entry on a real host: %+v", d.Host)
	}
	return d
}

// TestReplay judges the recordings of an H200 as they are: what was proved there must still be judged so, and a
// recording must never prove an image again.
func TestReplay(t *testing.T) {
	for name, result := range map[string]report.Result{"h200-tensorflow-2.19.1": report.ResultPublished, "h200-tensorflow-2.21.0": report.ResultProved} {
		t.Run(name, func(t *testing.T) {
			d := recording(t, name)
			if d.Entries[0].Result != result {
				t.Fatalf("recorded result %q", d.Entries[0].Result)
			}
			replayed(&d, &d.Entries[0], false)
			e := d.Entries[0]
			if e.Verdict.Outcome != validate.OutcomePassed || !e.Verdict.Grade.Replayed {
				t.Errorf("verdict %+v", e.Verdict)
			}
			for _, l := range e.Verdict.Layers {
				if l.Outcome != validate.OutcomePassed || len(l.Findings) < 6 {
					t.Errorf("layer %s: %s with %d findings", l.Layer, l.Outcome, len(l.Findings))
				}
			}
			if len(e.Published) > 0 || e.Result != report.ResultNotProved || !strings.Contains(e.Reason, "recording") {
				t.Errorf("result %s (%s): a recording proved an image", e.Result, e.Reason)
			}
		})
	}
}

// TestReplay_Faults are child images that lack one library, run with --keep-going: each must fail at the static
// stage, and at the layers where the fault really shows.
func TestReplay_Faults(t *testing.T) {
	for _, c := range []struct {
		file   string
		failed map[validate.Layer]string // a check and subject that must have failed
	}{
		{"h200-tensorflow-2.19.1-without-libcufft", map[validate.Layer]string{
			validate.LayerStatic: "static.dlopen libcufft.so.11", validate.LayerCUDA: "cuda.libraries libcufft.so.11",
			validate.LayerTensorFlow: "tensorflow.devices tf.config.list_physical_devices"}},
		{"h200-tensorflow-2.19.1-without-libcudnn_engines_precompiled", map[validate.Layer]string{
			validate.LayerStatic: "static.cudnn.family libcudnn_engines_precompiled.so.9", validate.LayerCUDA: "cuda.cudnn libcudnn_engines_precompiled.so.9",
			validate.LayerTensorFlow: "tensorflow.op.convolution cuDNN"}},
		// this cuDNN computes the convolution without that file: only the static stage can tell
		{"h200-tensorflow-2.19.1-without-libcudnn_cnn", map[validate.Layer]string{validate.LayerStatic: "static.cudnn.family libcudnn_cnn.so.9"}},
	} {
		t.Run(c.file, func(t *testing.T) {
			d := recording(t, c.file)
			replayed(&d, &d.Entries[0], true)
			e := d.Entries[0]
			if e.Result != report.ResultFailed || e.Verdict.Outcome != validate.OutcomeFailed {
				t.Fatalf("result %s, outcome %s", e.Result, e.Verdict.Outcome)
			}
			for _, l := range e.Verdict.Layers {
				var failed []string
				for _, f := range l.Findings {
					if f.Outcome == validate.OutcomeFailed {
						failed = append(failed, f.Check+" "+f.Subject)
					}
				}
				want, ok := c.failed[l.Layer]
				if ok != (l.Outcome == validate.OutcomeFailed) || ok && !slices.Contains(failed, want) {
					t.Errorf("layer %s: %s, failed checks %v, want %q", l.Layer, l.Outcome, failed, want)
				}
			}
		})
	}
}

// TestReplay_Changed breaks one thing in a real recording at a time.
func TestReplay_Changed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*report.Document)
		layer  validate.Layer
		want   validate.Outcome
	}{
		"another nonce":       {func(d *report.Document) { d.Entries[0].Transcript.Nonce = "x" }, validate.LayerHardware, validate.OutcomeInconclusive},
		"cut in the middle":   {func(d *report.Document) { tr := d.Entries[0].Transcript; tr.Stdout = tr.Stdout[:len(tr.Stdout)/2] }, validate.LayerHardware, validate.OutcomeInconclusive},
		"printed twice":       {func(d *report.Document) { tr := d.Entries[0].Transcript; tr.Stdout += tr.Stdout }, validate.LayerHardware, validate.OutcomeInconclusive},
		"another image":       {func(d *report.Document) { d.Entries[0].Transcript.ImageDigest = "sha256:0" }, validate.LayerHardware, validate.OutcomeFailed},
		"another host":        {func(d *report.Document) { d.Host.Devices[0].UUID = "GPU-1" }, validate.LayerHardware, validate.OutcomeFailed},
		"no host view":        {func(d *report.Document) { d.Host, d.HostError = nil, "none" }, validate.LayerHardware, validate.OutcomeInconclusive},
		"old host driver":     {func(d *report.Document) { d.Host.DriverVersion = "470.57.02" }, validate.LayerHardware, validate.OutcomeInconclusive},
		"other CUDA":          {func(d *report.Document) { d.Entries[0].Prediction.CUDA = "12.3" }, validate.LayerCUDA, validate.OutcomeFailed},
		"newer cuDNN wanted":  {func(d *report.Document) { d.Entries[0].Prediction.CuDNN = "9.8.0.87" }, validate.LayerCUDA, validate.OutcomeFailed},
		"libraries elsewhere": {func(d *report.Document) { d.Entries[0].Prediction.CUDARoot = "/usr/local/cuda-12.3" }, validate.LayerCUDA, validate.OutcomeFailed},
		"other TensorFlow":    {func(d *report.Document) { d.Entries[0].Prediction.TensorFlow = "2.18.0" }, validate.LayerTensorFlow, validate.OutcomeFailed},
		"tighter limit": {func(d *report.Document) { d.Entries[0].Prediction.Thresholds.MaxRelativeTF["op.matmul"] = 1e-9 },
			validate.LayerTensorFlow, validate.OutcomeFailed},
		"host saw no activity": {func(d *report.Document) { d.Entries[0].Activity[0].MemoryMax = 0 }, validate.LayerTensorFlow, validate.OutcomeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := recording(t, "h200-tensorflow-2.19.1")
			c.change(&d)
			replayed(&d, &d.Entries[0], false)
			for _, l := range d.Entries[0].Verdict.Layers {
				if l.Layer == c.layer && l.Outcome != c.want {
					t.Errorf("layer %s: %s, want %s", l.Layer, l.Outcome, c.want)
				}
			}
			if r := d.Entries[0].Result; r == report.ResultProved || r == report.ResultPublished {
				t.Errorf("result %s", r)
			}
		})
	}
}
