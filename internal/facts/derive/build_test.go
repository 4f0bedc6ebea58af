package derive_test

import (
	"bytes"
	stdelf "debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"imgsmith/internal/elf"
	"imgsmith/internal/wheel/wheeltest"
)

// entrySpec is one entry of a fat binary.
type entrySpec struct {
	kind uint16 // 1 PTX, 2 machine code
	arch uint32
	isa  [2]uint16 // minor, major
	text string
}

// fatbin writes one module.
func fatbin(entries ...entrySpec) []byte {
	var body bytes.Buffer
	for _, e := range entries {
		text := []byte(e.text)
		for len(text)%8 != 0 || len(text) == 0 {
			text = append(text, 0)
		}
		head := make([]byte, 64)
		binary.LittleEndian.PutUint16(head[0:], e.kind)
		binary.LittleEndian.PutUint16(head[2:], 0x101)
		binary.LittleEndian.PutUint32(head[4:], 64)
		binary.LittleEndian.PutUint64(head[8:], uint64(len(text)))
		binary.LittleEndian.PutUint16(head[24:], e.isa[0])
		binary.LittleEndian.PutUint16(head[26:], e.isa[1])
		binary.LittleEndian.PutUint32(head[28:], e.arch)
		body.Write(head)
		body.Write(text)
	}
	out := binary.LittleEndian.AppendUint32(nil, 0xBA55ED50)
	out = binary.LittleEndian.AppendUint16(out, 1)
	out = binary.LittleEndian.AppendUint16(out, 16)
	out = binary.LittleEndian.AppendUint64(out, uint64(body.Len()))
	return append(out, body.Bytes()...)
}

// withSections appends sections to a library without section headers.
func withSections(lib []byte, sections map[string][]byte) []byte {
	for len(lib)%16 != 0 {
		lib = append(lib, 0)
	}
	names := []byte{0}
	headers := []stdelf.Section64{{}}
	for _, name := range []string{".nv_fatbin", "__nv_relfatbin", ".rodata"} {
		data, ok := sections[name]
		if !ok {
			continue
		}
		headers = append(headers, stdelf.Section64{Name: uint32(len(names)), Type: uint32(stdelf.SHT_PROGBITS), Flags: uint64(stdelf.SHF_ALLOC), Off: uint64(len(lib)), Size: uint64(len(data)), Addralign: 8})
		names = append(append(names, name...), 0)
		lib = append(lib, data...)
		for len(lib)%16 != 0 {
			lib = append(lib, 0)
		}
	}
	headers = append(headers, stdelf.Section64{Name: uint32(len(names)), Type: uint32(stdelf.SHT_STRTAB), Off: uint64(len(lib)), Size: uint64(len(names) + len(".shstrtab") + 1)})
	lib = append(append(append(lib, names...), ".shstrtab"...), 0)
	for len(lib)%16 != 0 {
		lib = append(lib, 0)
	}
	off := len(lib)
	var table bytes.Buffer
	_ = binary.Write(&table, binary.LittleEndian, headers)
	lib = append(lib, table.Bytes()...)
	binary.LittleEndian.PutUint64(lib[40:], uint64(off))
	binary.LittleEndian.PutUint16(lib[58:], 64)
	binary.LittleEndian.PutUint16(lib[60:], uint16(len(headers)))
	binary.LittleEndian.PutUint16(lib[62:], uint16(len(headers)-1))
	return lib
}

const cudaConfig = `#ifndef CUDA_CUDA_CONFIG_H_
#define TF_CUDA_VERSION "12.5.1"
#define TF_CUDART_VERSION "12"
#define TF_CUPTI_VERSION "12"
#define TF_CUBLAS_VERSION "12"
#define TF_CUSOLVER_VERSION "11"
#define TF_CURAND_VERSION "10"
#define TF_CUFFT_VERSION "11"
#define TF_CUSPARSE_VERSION "12"
#define TF_CUDNN_VERSION "9"
#define TF_CUDA_TOOLKIT_PATH ""
#define TF_CUDA_COMPUTE_CAPABILITIES 80, 90
#endif
`

// selfBuilt is a wheel as somebody's own build would make it: version 2.23.0+site7, for 8.0 and 9.0 only.
func selfBuilt(t *testing.T, edit func(*wheeltest.Wheel)) (path string) {
	t.Helper()
	lib, err := elf.StubLibrary(elf.Facts{
		Class: 64, Machine: "EM_X86_64", Type: "ET_DYN", Soname: "libtensorflow_framework.so.2", Needed: []string{"libc.so.6"}, Dynamic: true,
		RunPath:      []string{"$ORIGIN/", "$ORIGIN/../nvidia/cublas/lib", "$ORIGIN/../nvidia/cuda_runtime/lib", "$ORIGIN/../nvidia/cudnn/lib"},
		VersionNeeds: []elf.VersionNeed{{File: "libc.so.6", Versions: []string{"GLIBC_2.2.5", "GLIBC_2.28"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	native := fatbin(entrySpec{2, 80, [2]uint16{7, 1}, "cubin"}, entrySpec{2, 90, [2]uint16{7, 1}, "cubin"}, entrySpec{1, 90, [2]uint16{3, 8}, ".version 8.3\n.target sm_90\n"})
	generated := fatbin(entrySpec{2, 80, [2]uint16{7, 1}, "cubin"}, entrySpec{1, 90, [2]uint16{5, 8}, "\n.version 8.5\n.target sm_90a\n"})
	lib = withSections(lib, map[string][]byte{
		".nv_fatbin":     append(append([]byte(nil), native...), native...),
		"__nv_relfatbin": fatbin(entrySpec{1, 70, [2]uint16{3, 8}, ".target sm_70\n"}),
		".rodata":        append([]byte("constants \x50\xed\x55\xba not a module, then one: 12345678"), generated...),
	})
	w := wheeltest.Wheel{
		Name: "tensorflow", Version: "2.23.0+site7", Tag: "cp311-cp311-linux_x86_64",
		WheelFile: "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
		Metadata: "Requires-Python: >=3.11\nClassifier: Programming Language :: Python :: 3\nClassifier: Programming Language :: Python :: 3.11\n" +
			"Provides-Extra: and-cuda\n" +
			"Requires-Dist: numpy <2.3,>=1.26.0\nRequires-Dist: protobuf !=5.0.0,<8.0.0dev,>=6.31\nRequires-Dist: keras >=3.12.0\n" +
			"Requires-Dist: nvidia-cublas-cu12 ==12.5.3.2 ; extra == 'and-cuda'\nRequires-Dist: nvidia-cudnn-cu12 ==9.3.0.75 ; extra == 'and-cuda'\n" +
			"Requires-Dist: nvidia-nccl-cu12 ==2.23.4 ; extra == 'and-cuda'\n",
		Files: []wheeltest.File{
			{Name: "tensorflow/__init__.py", Data: []byte("__version__ = '2.23.0'\n")},
			{Name: "tensorflow/libtensorflow_framework.so.2", Data: lib},
			{Name: "tensorflow/include/third_party/gpus/cuda/cuda_config.h", Data: []byte(cudaConfig)},
			{Name: "tensorflow/include/third_party/gpus/cuda/include/cuda.h", Data: []byte("#define CUDA_VERSION 12050\n")},
			{Name: "tensorflow/include/external/cuda_cudnn/include/cudnn_version.h", Data: []byte("#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 3\n#define CUDNN_PATCHLEVEL 0\n#define CUDNN_VERSION (CUDNN_MAJOR * 10000)\n")},
			{Name: "tensorflow/include/external/nccl/nccl.h", Data: []byte("#define NCCL_MAJOR 2\n#define NCCL_MINOR 23\n#define NCCL_PATCH 4\n#define NCCL_SUFFIX \"\"\n")},
			{Name: "tensorflow/python/platform/build_info.py", Data: []byte("build_info = collections.OrderedDict([('cuda_compute_capabilities', ['sm_80', 'compute_90']), ('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', True), ('is_tensorrt_build', False)])\n")},
		},
	}
	if edit != nil {
		edit(&w)
	}
	data, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), w.FileName())
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
