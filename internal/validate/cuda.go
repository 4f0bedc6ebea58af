package validate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"imgsmith/internal/validate/probe"
)

// cuda judges L3: every library of the set opens and comes from the image's one CUDA directory; the runtime
// really allocates and copies; cuDNN and cuBLAS give a handle.
func cuda(ev Evidence, ex Expect) []Finding {
	o := ev.Observation
	if o == nil {
		return []Finding{unclear("cuda.libraries", "probe", "nothing was reported", "see the transcript")}
	}
	fs := libraries(o, ex)
	fs = append(fs, runtime(o, ex)...)
	fs = append(fs, cudnn(o, ex)...)
	return append(fs, cublas(o))
}

func libraries(o *probe.Observation, ex Expect) []Finding {
	const id = "cuda.libraries"
	if o.Libraries == nil {
		return []Finding{unclear(id, "dlopen", "the step reported nothing: "+stepReason(o.Step(probe.StepLibraries)), "see the step's stderr")}
	}
	if len(ex.DlopenSet) == 0 {
		return []Finding{unclear(id, "dlopen", "the set of this release is not known", "add the release to the facts")}
	}
	var fs []Finding
	for _, name := range ex.DlopenSet {
		i := slices.IndexFunc(o.Libraries.Opened, func(l probe.Library) bool { return l.Name == name })
		switch {
		case i < 0:
			fs = append(fs, unclear(id, name, "the probe did not try it", "report this"))
		case !o.Libraries.Opened[i].Opened:
			fs = append(fs, fail(id, name, "TensorFlow finds no GPU without it", "opens", o.Libraries.Opened[i].Error, "the library or one that it needs is missing or unreadable"))
		default:
			fs = append(fs, from(id, name, o.Libraries.Opened[i].Path, ex))
		}
	}
	return fs
}

// from demands that a library was mapped from the image's CUDA directory: a pass for the wrong reason fails.
func from(id, name, file string, ex Expect) Finding {
	if file == "" {
		return unclear(id, name, "which file was mapped is not known", "see the step's mapped files")
	}
	if !strings.HasPrefix(file, ex.CUDARoot+"/") {
		return fail(id, name, "another file than predicted was mapped", ex.CUDARoot+"/…", file, "remove the second provider of this library from the image")
	}
	return pass(id, name, file)
}

func runtime(o *probe.Observation, ex Expect) []Finding {
	const id = "cuda.runtime"
	r := o.Runtime
	if r == nil {
		return []Finding{unclear(id, "libcudart", "the step reported nothing: "+stepReason(o.Step(probe.StepRuntime)), "see the step's stderr")}
	}
	if !r.Library.Opened {
		return []Finding{fail(id, r.Library.Name, "the CUDA runtime cannot be opened", "opens", r.Library.Error, "")}
	}
	fs := []Finding{from(id, r.Library.Name, r.Library.Path, ex)}
	got := cudaNumber(r.RuntimeVersion.Value)
	if !r.RuntimeVersion.OK() || got != prefix(ex.CUDA, 2) {
		fs = append(fs, fail(id, "cudaRuntimeGetVersion", "not the CUDA of this entry", prefix(ex.CUDA, 2), fmt.Sprintf("%s, %s", rc(r.RuntimeVersion.Call), got), "rebuild the image: another libcudart is in front"))
	} else {
		fs = append(fs, pass(id, "cudaRuntimeGetVersion", got))
	}
	if !r.DeviceCount.OK() || r.DeviceCount.Value < 1 {
		fs = append(fs, fail(id, "cudaGetDeviceCount", "the runtime finds no device", ">= 1", fmt.Sprintf("%s, %d", rc(r.DeviceCount.Call), r.DeviceCount.Value), "code 35 means that the driver is older than the runtime"))
		return fs
	}
	fs = append(fs, call(id, "cudaMalloc", r.Malloc), call(id, "cudaMemset", r.Memset), call(id, "cudaMemcpy to the device", r.CopyToDevice), call(id, "cudaMemcpy to the host", r.CopyToHost))
	return append(fs, equal(id, "copied bytes", r.CopyEqual), equal(id, "bytes set by cudaMemset", r.MemsetEqual))
}

func equal(id, what string, same *bool) Finding {
	switch {
	case same == nil:
		return unclear(id, what, "not compared", "see the step's stderr")
	case !*same:
		return fail(id, what, "memory came back different", "equal", "different", "test the card's memory")
	}
	return pass(id, what, "equal")
}

func cudnn(o *probe.Observation, ex Expect) []Finding {
	const id = "cuda.cudnn"
	c := o.CuDNN
	if c == nil {
		return []Finding{unclear(id, "libcudnn", "the step reported nothing: "+stepReason(o.Step(probe.StepCuDNN)), "see the step's stderr")}
	}
	if !c.Library.Opened {
		return []Finding{fail(id, c.Library.Name, "cuDNN cannot be opened", "opens", c.Library.Error, "")}
	}
	fs := []Finding{from(id, c.Library.Name, c.Library.Path, ex), cudnnVersion(c, ex), call(id, "cudnnCreate", c.Create)}
	if len(ex.CuDNNFamily) == 0 {
		fs = append(fs, unclear(id, "cuDNN family", "the sub-libraries of this package are not known", "the image lacks the RECORD of its cuDNN package"))
	}
	for _, name := range ex.CuDNNFamily {
		i := slices.IndexFunc(c.SubLibraries, func(l probe.Library) bool { return l.Name == name })
		switch {
		case i < 0:
			fs = append(fs, unclear(id, name, "the probe did not try it", "report this"))
		case !c.SubLibraries[i].Opened:
			fs = append(fs, fail(id, name, "a sub-library of cuDNN cannot be opened", "opens", c.SubLibraries[i].Error, "copy or link the whole cuDNN family"))
		default:
			fs = append(fs, from(id, name, c.SubLibraries[i].Path, ex))
		}
	}
	return fs
}

// cudnnVersion demands the version of the entry and at least the compiled minor of the same major.
func cudnnVersion(c *probe.CuDNN, ex Expect) Finding {
	const id = "cuda.cudnn"
	got := cudnnNumber(c.Version.Value)
	if !c.Version.OK() || got != prefix(ex.CuDNN, 3) {
		return fail(id, "cudnnGetVersion", "not the cuDNN of this entry", prefix(ex.CuDNN, 3), got, "another cuDNN is in front of the image's own")
	}
	if ex.CuDNNCompiled != "" {
		if yes, ok := atLeast(prefix(got, 2), prefix(ex.CuDNNCompiled, 2)); !ok || !yes || prefix(got, 1) != prefix(ex.CuDNNCompiled, 1) {
			return fail(id, "cudnnGetVersion", "older than what TensorFlow was compiled with", ">= "+prefix(ex.CuDNNCompiled, 2), got, "raise cudnn in the recipe")
		}
	}
	return pass(id, "cudnnGetVersion", got)
}

func cublas(o *probe.Observation) Finding {
	const id = "cuda.cublas"
	switch {
	case o.CuBLAS == nil:
		return unclear(id, "libcublas", "the step reported nothing: "+stepReason(o.Step(probe.StepCuBLAS)), "see the step's stderr")
	case !o.CuBLAS.Library.Opened:
		return fail(id, o.CuBLAS.Library.Name, "cuBLAS cannot be opened", "opens", o.CuBLAS.Library.Error, "")
	}
	return call(id, "cublasCreate_v2", o.CuBLAS.Create)
}

// isMember tells whether a mapped file is one of the libraries that the prediction covers.
func isMember(file string, ex Expect) bool {
	b := path.Base(file)
	for _, s := range slices.Concat(ex.DlopenSet, ex.CuDNNFamily) {
		if b == s || strings.HasPrefix(b, s+".") {
			return true
		}
	}
	return false
}
