package derive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"imgsmith/internal/elf"
	"imgsmith/internal/facts"
	"imgsmith/internal/wheel"
)

// Libraries is what the shared objects of a wheel show together.
type Libraries struct {
	Count      int       `yaml:"count" json:"count"`
	Caller     string    `yaml:"caller,omitempty" json:"caller,omitempty"`                    // soname of the library that opens CUDA
	RunPath    []string  `yaml:"runpath,omitempty" json:"runpath,omitempty"`                  // of the caller
	RPath      []string  `yaml:"rpath,omitempty" json:"rpath,omitempty"`                      // of the caller
	Named      []string  `yaml:"named,flow,omitempty" json:"named,omitempty"`                 // sonames of NVIDIA's written out in the caller
	Needed     []string  `yaml:"needed_nvidia,flow,omitempty" json:"needed_nvidia,omitempty"` // sonames of NVIDIA's that a library is linked with
	Glibc      string    `yaml:"glibc,omitempty" json:"glibc,omitempty"`                      // highest GLIBC symbol version needed
	GlibcBy    string    `yaml:"glibc_by,omitempty" json:"glibc_by,omitempty"`                // the library that needs it
	CXX        string    `yaml:"glibcxx,omitempty" json:"glibcxx,omitempty"`                  // highest GLIBCXX symbol version needed
	GPUModules []Modules `yaml:"gpu_modules,omitempty" json:"gpu_modules,omitempty"`
}

// framework is the library that makes the dlopen calls in every release of TensorFlow.
const framework = "libtensorflow_framework.so"

// small is the size up to which a library is read into memory; a larger one is unpacked into a temporary file.
const small = 8 << 20

var (
	nvidiaSoname = regexp.MustCompile(`^lib(cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|cudnn|cupti|nccl|nvrtc|nvJitLink|nvinfer|nvinfer_plugin|cuda|nvshmem_host)\.so\.[0-9.]+$`)
	namedSoname  = regexp.MustCompile(`lib(?:cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|cudnn|cupti|nccl|nvrtc|nvJitLink|nvinfer|cuda)\.so\.[0-9]+(?:\.[0-9]+)*`)
	sharedObject = regexp.MustCompile(`\.so(\.[0-9]+)*$`)
)

// scan collects over libraries.
type scan struct {
	out  Libraries
	code GPUCode
}

// library looks into one shared object of the wheel. A file with that name which is no ELF file is passed over.
func (s *scan) library(ctx context.Context, w *wheel.Wheel, m wheel.Member) (err error) {
	rc, err := w.OpenMember(m, nil)
	if err != nil {
		return err
	}
	r, done, err := spool(ctx, rc, m.Size)
	if err != nil {
		return fmt.Errorf("unpacking %s: %w", m.Name, err)
	}
	defer func() { err = errors.Join(err, done()) }()
	f, err := elf.Read(r, m.Size)
	switch {
	case errors.Is(err, elf.ErrNotELF):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	s.out.Count++
	s.loader(m.Name, f)
	if strings.HasPrefix(path.Base(m.Name), framework) {
		s.caller(path.Base(m.Name), f)
		if s.out.Named, err = names(io.NewSectionReader(r, 0, m.Size)); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	if err := s.code.AddGPUCode(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	return nil
}

func (s *scan) loader(name string, f elf.Facts) {
	for _, n := range f.Needed {
		if nvidiaSoname.MatchString(n) && !slices.Contains(s.out.Needed, n) {
			s.out.Needed = append(s.out.Needed, n)
		}
	}
	for _, need := range f.VersionNeeds {
		for _, v := range need.Versions {
			if n, ok := strings.CutPrefix(v, "GLIBC_"); ok && facts.Dotted(n) && facts.Compare(n, s.out.Glibc) > 0 {
				s.out.Glibc, s.out.GlibcBy = n, name
			}
			if n, ok := strings.CutPrefix(v, "GLIBCXX_"); ok && facts.Dotted(n) && facts.Compare(n, s.out.CXX) > 0 {
				s.out.CXX = n
			}
		}
	}
}

func (s *scan) caller(base string, f elf.Facts) {
	if s.out.Caller = f.Soname; f.Soname == "" {
		s.out.Caller = base
	}
	s.out.RunPath, s.out.RPath = f.RunPath, f.RPath
}

// spool gives random access to a member: in memory when it is small, else in an unlinked temporary file.
func spool(ctx context.Context, r io.Reader, size int64) (io.ReaderAt, func() error, error) {
	r = &contextReader{ctx, r}
	if size <= small {
		data, err := io.ReadAll(r)
		return strings.NewReader(string(data)), func() error { return nil }, err
	}
	f, err := os.CreateTemp("", "imgsmith-derive-*")
	if err != nil {
		return nil, nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, 1<<20)); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, f.Close, nil
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// names returns NVIDIA's sonames that are written out in a file, sorted. It reads in portions.
func names(r io.Reader) ([]string, error) {
	const overlap = 128
	br := bufio.NewReaderSize(r, 1<<20)
	buf := make([]byte, 0, 1<<20+overlap)
	var out []string
	for {
		n, err := br.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		for _, m := range namedSoname.FindAll(buf, -1) {
			if s := string(m); !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
		if err == io.EOF {
			slices.Sort(out)
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(buf) > overlap {
			buf = buf[:copy(buf, buf[len(buf)-overlap:])]
		}
	}
}
