package probe

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"
)

func frame(nonce, doc string) string {
	sum := sha256.Sum256([]byte(doc))
	return fmt.Sprintf("\n%s%s %d %s\n%s\n%s%s\n", frameBegin, nonce, len(doc), hex.EncodeToString(sum[:]), doc, frameEnd, nonce)
}

func doc(nonce string, more string) string {
	return `{"schema_version":1,"nonce":"` + nonce + `","seconds":1,"steps":[],"ops":[]` + more + `}`
}

func recorded(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/cpu.txt")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodeRecordedCPU(t *testing.T) {
	o, err := Decode(recorded(t), "n0nce")
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Steps) != 13 || len(o.Ops) != 5 {
		t.Fatalf("got %d steps and %d operations, want 13 and 5", len(o.Steps), len(o.Ops))
	}
	for _, s := range o.Steps {
		if !s.Clean() {
			t.Errorf("step %s: %+v", s.Name, s)
		}
	}
	if o.NVML.Library.Opened || o.NVML.Init.OK() || o.NVML.Init.Code() != NoCall {
		t.Errorf("NVML without a driver: %+v", o.NVML)
	}
	if o.TensorFlow.Version != "2.19.1" || o.TensorFlow.GPUs == nil || len(o.TensorFlow.GPUs) != 0 {
		t.Errorf("TensorFlow: version %q, GPUs %v", o.TensorFlow.Version, o.TensorFlow.GPUs)
	}
	if got := string(o.TensorFlow.BuildInfo["cudnn_version"]); got != `"9"` {
		t.Errorf("build info cudnn_version = %s", got)
	}
	op := o.Op(StepConvolution)
	if op == nil || len(op.Results) != 0 || len(op.Errors) != 1 || op.Errors[0].Type != "InvalidArgumentError" {
		t.Errorf("convolution: %+v", op)
	}
	if o.Op("op.none") != nil || o.Step("none").NotRun == "" || o.Step("none").Clean() {
		t.Error("an unknown name must not look like a result")
	}
}

func TestDecodeErrors(t *testing.T) {
	good := frame("a", doc("a", ""))
	huge := strings.Replace(good, fmt.Sprint(len(doc("a", ""))), "99999999", 1)
	for name, tc := range map[string]struct {
		out  string
		want error
	}{
		"empty":              {"", ErrNoDocument},
		"banner only":        {"== CUDA ==\nWARNING\n", ErrNoDocument},
		"mark inside a line": {"x @@imgsmith-probe begin a 1 b\n", ErrNoDocument},
		"other nonce":        {frame("b", doc("b", "")), ErrNonce},
		"nonce inside":       {frame("a", doc("b", "")), ErrNonce},
		"twice":              {good + good, ErrTwoDocuments},
		"cut":                {good[:len(good)-9], ErrTruncated},
		"cut in header":      {"\n@@imgsmith-probe begin a 10", ErrTruncated},
		"length":             {"\n@@imgsmith-probe begin a -1 x\n{}\n", ErrGarbled},
		"too large":          {huge, ErrTooLarge},
		"flipped byte":       {strings.Replace(good, `"seconds":1`, `"seconds":2`, 1), ErrGarbled},
		"schema":             {frame("a", `{"schema_version":2,"nonce":"a"}`), ErrSchema},
		"no schema":          {frame("a", `{"nonce":"a"}`), ErrSchema},
		"unknown key":        {frame("a", doc("a", `,"verdict":"passed"`)), ErrGarbled},
		"not JSON":           {frame("a", "hello"), ErrGarbled},
		"two values":         {frame("a", doc("a", "")+"{}"), ErrGarbled},
		"step twice":         {frame("a", `{"schema_version":1,"nonce":"a","steps":[{"name":"x"},{"name":"x"}]}`), ErrGarbled},
		"operation twice":    {frame("a", `{"schema_version":1,"nonce":"a","steps":[{"name":"x"}],"ops":[{"name":"x"},{"name":"x"}]}`), ErrGarbled},
		"operation, no step": {frame("a", `{"schema_version":1,"nonce":"a","ops":[{"name":"x"}]}`), ErrGarbled},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode([]byte(tc.out), "a"); !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
		})
	}
	if _, err := Decode([]byte(good), ""); !errors.Is(err, ErrNonce) {
		t.Fatalf("an empty nonce: %v", err)
	}
}

func TestDecodeIgnoresStrayOutput(t *testing.T) {
	out := "banner\n" + frame("old", doc("old", "")) + "\xff\xfe\n" + frame("a", doc("a", "")) + "trailer"
	o, err := Decode([]byte(out), "a")
	if err != nil || o.Nonce != "a" {
		t.Fatalf("got %v, %v", o.Nonce, err)
	}
}

// A missing key must never read as a success.
func TestDecodeMissingIsNotSuccess(t *testing.T) {
	o, err := Decode([]byte(frame("a", doc("a", `,"nvml":{},"driver":{"init":{}},"cudnn":{"version":{"value":90300}}`))), "a")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Call{"nvml init": o.NVML.Init, "cuInit": o.Driver.Init, "cudnn": o.CuDNN.Version.Call} {
		if c.OK() || c.Code() != NoCall {
			t.Errorf("%s: %+v reads as a call that was made", name, c)
		}
	}
	if (OpResult{}).Compared || (Step{}).Clean() || (Library{}).Opened {
		t.Error("a zero value reads as success")
	}
}

// Whatever is done to the bytes, Decode returns the same document or a typed error.
func TestDecodeMutations(t *testing.T) {
	base := recorded(t)
	r := rand.New(rand.NewSource(1))
	typed := []error{ErrNoDocument, ErrNonce, ErrTruncated, ErrTwoDocuments, ErrGarbled, ErrSchema, ErrTooLarge}
	for i := range 400 {
		b := bytes.Clone(base)
		switch i % 3 {
		case 0:
			b[r.Intn(len(b))] ^= byte(1 + r.Intn(255))
		case 1:
			b = b[:r.Intn(len(b))]
		case 2:
			at := r.Intn(len(b))
			b = append(b[:at:at], append([]byte("\nnoise\n"), b[at:]...)...)
		}
		o, err := Decode(b, "n0nce")
		if err == nil {
			if o.Nonce != "n0nce" || len(o.Steps) != 13 {
				t.Fatalf("mutation %d gave another document", i)
			}
			continue
		}
		known := false
		for _, e := range typed {
			known = known || errors.Is(err, e)
		}
		if !known {
			t.Fatalf("mutation %d: untyped error %v", i, err)
		}
	}
}
