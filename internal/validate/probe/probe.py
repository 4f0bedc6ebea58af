"""imgsmith's probe: looks around inside an image and prints one JSON document of raw facts, never a verdict.

Standard library only, Python 3.8 or newer. Every step is a process of its own with its own deadline, because
a missing part of CUDA can abort the process; what such a process had reported until then is kept. Source of
the C interfaces: NVIDIA's public headers nvml.h, cuda.h, cuda_runtime_api.h, cudnn.h, cublas_v2.h.
"""
import ctypes
import hashlib
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

SCHEMA_VERSION = 1
BOOT = ("import sys; s = sys.stdin.buffer.read(); "
        "exec(compile(s, 'probe.py', 'exec'), {'__name__': '__main__', 'PROBE_SOURCE': s})")
STEPS = ["system", "nvml", "driver", "libraries", "runtime", "cudnn", "cublas", "tensorflow",
         "op.matmul", "op.convolution", "op.xla", "op.fft", "op.solver"]
TAIL = 16 << 10          # bytes kept of each output stream
REPORT_MAX = 1 << 20     # bytes read of one step's report
TEXT_MAX = 4000          # characters of one exception's text
EVIDENCE_MAX = 60        # lines
NO_CALL = -1
SAFE_ENV = re.compile(r"^(NVIDIA_.*|CUDA_.*|CUDNN_.*|TF_(CPP|FORCE|GPU|XLA|ENABLE|USE|CUDNN|DETERMINISTIC)_.*|XLA_FLAGS|LD_LIBRARY_PATH|LD_PRELOAD|LD_AUDIT|PATH|"
                      r"PYTHON.*|HOME|USER|LANG|LC_ALL|TMPDIR|VIRTUAL_ENV|CONDA_PREFIX|IMGSMITH_.*)$")
GPU_FILE = re.compile(r"/lib(cu|nv|nccl|tensorflow|OpenCL)[^/]*\.so|/(ptxas|libdevice)[^/]*$|_pywrap_tensorflow")
EVIDENCE = re.compile(r"dlopen|dlerror|could not|cannot|cuda|cudnn|cublas|cufft|cusolver|ptxas|libdevice|error|"
                      r"fail|abort|check failed|not found|no such|GLIBC", re.I)


class Report:
    """The child's way to say facts: one JSON object per line on its own pipe."""

    def __init__(self, fd):
        self.file = os.fdopen(fd, "w", buffering=1, encoding="ascii")

    def put(self, **facts):
        self._line({"set": facts})

    def add(self, key, value):
        self._line({"add": [key, value]})

    def done(self, **how):
        self._line({"done": how})

    def _line(self, obj):
        self.file.write(json.dumps(clean(obj), allow_nan=False) + "\n")
        self.file.flush()


def clean(v):
    """Replaces what JSON does not have; a number that is not finite becomes null, never zero."""
    if isinstance(v, float) and not math.isfinite(v):
        return None
    if isinstance(v, dict):
        return {str(k): clean(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [clean(x) for x in v]
    if isinstance(v, bytes):
        return v.decode("utf-8", "replace")
    if v is None or isinstance(v, (str, int, float, bool)):
        return v
    return str(v)


def failure(where, e):
    return {"where": where, "type": type(e).__name__, "message": str(e)[:TEXT_MAX]}


def first(path, size=65536):
    try:
        with open(path, "rb") as f:
            return f.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def mapped(pattern=GPU_FILE):
    """Files of this process's memory map that match, sorted."""
    out = set()
    for line in first("/proc/self/maps", 16 << 20).splitlines():
        part = line.split(None, 5)
        if len(part) == 6 and part[5].startswith("/") and pattern.search(part[5]):
            out.add(part[5])
    return sorted(out)[:200]


# ---- native libraries -------------------------------------------------------------------------------

class LinkMap(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class Lib:
    """One dlopen the way TensorFlow does it (lazily bound), and calls into what it gave."""

    def __init__(self, name, error_name=None):
        self.facts = {"name": name, "opened": False}
        self.lib = None
        self.error_name = error_name
        before = set(mapped())
        dl = ctypes.CDLL(None)
        try:
            dl.dlopen.restype = ctypes.c_void_p
            dl.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
            dl.dlerror.restype = ctypes.c_char_p
            handle = dl.dlopen(os.fsencode(name), 1)
            if not handle:
                self.facts["error"] = (dl.dlerror() or b"unknown").decode("utf-8", "replace")[:TEXT_MAX]
                return
            self.lib = ctypes.CDLL(name, handle=handle)
            self.facts["opened"] = True
            self.facts["mapped"] = sorted(set(mapped()) - before)
            self._locate(dl, handle)
        except (OSError, AttributeError, ValueError) as e:
            self.facts["error"] = str(e)[:TEXT_MAX]

    def _locate(self, dl, handle):
        lm = ctypes.POINTER(LinkMap)()
        dl.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        if dl.dlinfo(handle, 2, ctypes.byref(lm)) == 0 and lm and lm.contents.name:
            path = os.path.realpath(os.fsdecode(lm.contents.name))
            self.facts["path"] = path
            self.facts["size"] = os.path.getsize(path)

    def has(self, name):
        return self.lib is not None and hasattr(self.lib, name)

    def call(self, name, *args):
        """Returns {"rc", "name"?, "error"?}."""
        if self.lib is None:
            return {"rc": NO_CALL, "error": "library not opened"}
        try:
            fn = getattr(self.lib, name)
        except AttributeError:
            return {"rc": NO_CALL, "error": "symbol %s is missing" % name}
        fn.restype = ctypes.c_int
        rc = fn(*args)
        out = {"rc": rc}
        if self.error_name:
            text = self.error_name(self, rc)
            if text:
                out["name"] = text
        return out

    def number(self, name, ctype, *before):
        v = ctype(0)
        out = self.call(name, *(list(before) + [ctypes.byref(v)]))
        out["value"] = int(v.value)
        return out

    def text(self, name, *before):
        buf = ctypes.create_string_buffer(256)
        out = self.call(name, *(list(before) + [buf, ctypes.c_uint(256)]))
        out["value"] = buf.value.decode("utf-8", "replace")
        return out


def returned_name(symbol):
    """For libraries whose error-name function returns the string."""
    def name(lib, rc):
        if not lib.has(symbol):
            return ""
        fn = getattr(lib.lib, symbol)
        fn.restype = ctypes.c_char_p
        return (fn(ctypes.c_int(rc)) or b"").decode("utf-8", "replace")[:200]
    return name


def driver_error_name(lib, rc):
    if rc == 0 or not lib.has("cuGetErrorName"):
        return ""
    p = ctypes.c_char_p()
    lib.lib.cuGetErrorName(ctypes.c_int(rc), ctypes.byref(p))
    return (p.value or b"").decode("utf-8", "replace")[:200]


def pair(lib, symbol, ctype, *before):
    a, b = ctype(0), ctype(0)
    out = lib.call(symbol, *(list(before) + [ctypes.byref(a), ctypes.byref(b)]))
    return out, int(a.value), int(b.value)


def step_nvml(r, cfg):
    lib = Lib(cfg["sonames"].get("nvml") or "libnvidia-ml.so.1", returned_name("nvmlErrorString"))
    r.put(library=lib.facts, fake=lib.has("imgsmith_fake_gpu"))
    if lib.lib is None:
        return
    r.put(init=lib.call("nvmlInit_v2"))
    r.put(driver_version=lib.text("nvmlSystemGetDriverVersion"), nvml_version=lib.text("nvmlSystemGetNVMLVersion"),
          cuda_version=lib.number("nvmlSystemGetCudaDriverVersion_v2", ctypes.c_int))
    count = lib.number("nvmlDeviceGetCount_v2", ctypes.c_uint)
    r.put(count=count)
    for i in range(min(count["value"], 64) if count["rc"] == 0 else 0):
        r.add("devices", nvml_device(lib, i))


def nvml_device(lib, i):
    u, q = ctypes.c_uint, ctypes.c_ulonglong
    dev = ctypes.c_void_p()
    d = {"index": i, "handle": lib.call("nvmlDeviceGetHandleByIndex_v2", u(i), ctypes.byref(dev))}
    if d["handle"]["rc"] != 0:
        return d
    d["uuid"] = lib.text("nvmlDeviceGetUUID", dev)
    d["name"] = lib.text("nvmlDeviceGetName", dev)
    mem = (q * 3)()
    call = lib.call("nvmlDeviceGetMemoryInfo", dev, mem)
    d["memory_total"] = dict(call, value=int(mem[0]))
    d["memory_used"] = dict(call, value=int(mem[2]))
    call, a, b = pair(lib, "nvmlDeviceGetCudaComputeCapability", ctypes.c_int, dev)
    d["compute_capability"] = dict(call, value="%d.%d" % (a, b))
    util = (u * 2)()
    call = lib.call("nvmlDeviceGetUtilizationRates", dev, util)
    d["utilization_gpu"] = dict(call, value=int(util[0]))
    d["utilization_memory"] = dict(call, value=int(util[1]))
    d["pstate"] = lib.number("nvmlDeviceGetPerformanceState", ctypes.c_int, dev)
    call, a, b = pair(lib, "nvmlDeviceGetEccMode", u, dev)
    d["ecc_mode"] = dict(call, value=a)
    d["ecc_uncorrected"] = lib.number("nvmlDeviceGetTotalEccErrors", q, dev, u(1), u(0))
    rows = [u(0) for _ in range(4)]
    call = lib.call("nvmlDeviceGetRemappedRows", dev, *[ctypes.byref(x) for x in rows])
    for key, x in zip(("remap_correctable", "remap_uncorrected", "remap_pending", "remap_failed"), rows):
        d[key] = dict(call, value=int(x.value))
    call, a, b = pair(lib, "nvmlDeviceGetMigMode", u, dev)
    d["mig_mode"] = dict(call, value=a)
    d["compute_mode"] = lib.number("nvmlDeviceGetComputeMode", ctypes.c_int, dev)
    d["temperature_c"] = lib.number("nvmlDeviceGetTemperature", u, dev, u(0))
    d["power_milliwatts"] = lib.number("nvmlDeviceGetPowerUsage", u, dev)
    return d


def step_driver(r, cfg):
    lib = Lib(cfg["sonames"].get("cuda") or "libcuda.so.1", driver_error_name)
    r.put(library=lib.facts, fake=lib.has("imgsmith_fake_gpu"))
    if lib.lib is None:
        return
    r.put(init=lib.call("cuInit", ctypes.c_uint(0)), mapped=mapped(re.compile(r"/libcuda\.so")))
    r.put(version=lib.number("cuDriverGetVersion", ctypes.c_int))
    count = lib.call("cuDeviceGetCount", ctypes.byref(n := ctypes.c_int(0)))
    r.put(count=dict(count, value=int(n.value)))
    for i in range(min(n.value, 64) if count["rc"] == 0 else 0):
        r.add("devices", driver_device(lib, i))
    r.put(mapped=mapped(re.compile(r"/libcuda\.so")))


def driver_device(lib, i):
    dev = ctypes.c_int(0)
    d = {"ordinal": i, "get": lib.call("cuDeviceGet", ctypes.byref(dev), ctypes.c_int(i))}
    if d["get"]["rc"] != 0:
        return d
    buf = ctypes.create_string_buffer(256)
    call = lib.call("cuDeviceGetName", buf, ctypes.c_int(256), dev)
    d["name"] = dict(call, value=buf.value.decode("utf-8", "replace"))
    raw = (ctypes.c_ubyte * 16)()
    call = lib.call("cuDeviceGetUuid_v2" if lib.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid", raw, dev)
    h = bytes(raw).hex()
    d["uuid"] = dict(call, value="GPU-%s-%s-%s-%s-%s" % (h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
    a, b = ctypes.c_int(0), ctypes.c_int(0)
    call = lib.call("cuDeviceGetAttribute", ctypes.byref(a), ctypes.c_int(75), dev)
    if call["rc"] == 0:
        call = lib.call("cuDeviceGetAttribute", ctypes.byref(b), ctypes.c_int(76), dev)
    d["compute_capability"] = dict(call, value="%d.%d" % (a.value, b.value))
    total = ctypes.c_size_t(0)
    call = lib.call("cuDeviceTotalMem_v2", ctypes.byref(total), dev)
    d["total_memory"] = dict(call, value=int(total.value))
    ctx = ctypes.c_void_p()
    d["context_retain"] = lib.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), dev)
    if d["context_retain"]["rc"] == 0:
        d["context_release"] = lib.call("cuDevicePrimaryCtxRelease_v2", dev)
    return d


def step_libraries(r, cfg):
    for name in cfg["dlopen"]:
        r.add("opened", Lib(name).facts)


def step_runtime(r, cfg):
    lib = Lib(cfg["sonames"].get("cudart", ""), returned_name("cudaGetErrorName"))
    r.put(library=lib.facts)
    if lib.lib is None:
        return
    r.put(runtime_version=lib.number("cudaRuntimeGetVersion", ctypes.c_int))
    r.put(driver_version=lib.number("cudaDriverGetVersion", ctypes.c_int))
    r.put(device_count=lib.number("cudaGetDeviceCount", ctypes.c_int))
    size = 1 << 20
    sent = (ctypes.c_ubyte * size).from_buffer(bytearray((i * 131 + (i >> 8)) & 255 for i in range(size)))
    back = (ctypes.c_ubyte * size)()
    dev, z = ctypes.c_void_p(), ctypes.c_size_t
    call = lib.call("cudaMalloc", ctypes.byref(dev), z(size))
    r.put(malloc=call, mapped=mapped())
    if call["rc"] != 0:
        return
    r.put(memset=lib.call("cudaMemset", dev, ctypes.c_int(0xA5), z(size)))
    call = lib.call("cudaMemcpy", back, dev, z(size), ctypes.c_int(2))
    r.put(memset_equal=call["rc"] == 0 and bytes(back) == b"\xa5" * size)
    r.put(copy_to_device=lib.call("cudaMemcpy", dev, sent, z(size), ctypes.c_int(1)))
    r.put(copy_to_host=lib.call("cudaMemcpy", back, dev, z(size), ctypes.c_int(2)))
    r.put(copy_equal=bytes(back) == bytes(sent))
    r.put(free=lib.call("cudaFree", dev), mapped=mapped())


def step_cudnn(r, cfg):
    lib = Lib(cfg["sonames"].get("cudnn", ""), returned_name("cudnnGetErrorString"))
    r.put(library=lib.facts)
    if lib.lib is not None:
        for key, symbol in (("version", "cudnnGetVersion"), ("cudart_version", "cudnnGetCudartVersion")):
            if lib.has(symbol):
                fn = getattr(lib.lib, symbol)
                fn.restype = ctypes.c_size_t
                r.put(**{key: {"rc": 0, "value": int(fn())}})
            else:
                r.put(**{key: {"rc": NO_CALL, "error": "symbol %s is missing" % symbol, "value": 0}})
    for name in cfg["cudnn_sub"]:
        r.add("sub_libraries", Lib(name).facts)
    r.put(mapped=mapped())
    if lib.lib is None:
        return
    handle = ctypes.c_void_p()
    call = lib.call("cudnnCreate", ctypes.byref(handle))
    r.put(create=call)
    if call["rc"] == 0:
        r.put(destroy=lib.call("cudnnDestroy", handle))
    r.put(mapped=mapped())


def step_cublas(r, cfg):
    lib = Lib(cfg["sonames"].get("cublas", ""), returned_name("cublasGetStatusName"))
    r.put(library=lib.facts)
    if lib.lib is None:
        return
    handle = ctypes.c_void_p()
    call = lib.call("cublasCreate_v2", ctypes.byref(handle))
    r.put(create=call, mapped=mapped())
    if call["rc"] == 0:
        r.put(version=lib.number("cublasGetVersion_v2", ctypes.c_int, handle))
        r.put(destroy=lib.call("cublasDestroy_v2", handle))


# ---- the container ----------------------------------------------------------------------------------

def device_nodes():
    for name in sorted(os.listdir("/dev")):
        if not (name.startswith("nvidia") or name == "dxg"):
            continue
        path = "/dev/" + name
        try:
            st = os.stat(path)
        except OSError as e:
            yield {"path": path, "open_errno": e.errno, "open_error": e.strerror}
            continue
        if stat.S_ISDIR(st.st_mode):
            continue
        d = {"path": path, "mode": "%04o" % stat.S_IMODE(st.st_mode), "uid": st.st_uid, "gid": st.st_gid,
             "major": os.major(st.st_rdev), "minor": os.minor(st.st_rdev), "open_errno": 0}
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except OSError as e:
            d.update(open_errno=e.errno, open_error=e.strerror)
        yield d


def mounts():
    want = re.compile(r"nvidia|libcuda|cuda|/dev/dxg", re.I)
    for line in first("/proc/self/mountinfo", 1 << 20).splitlines():
        left, _, right = line.partition(" - ")
        f, g = left.split(), right.split()
        if len(f) >= 6 and g and (want.search(f[4]) or f[4] in ("/", "/tmp", "/dev/shm")):
            yield {"target": f[4], "root": f[3], "fstype": g[0], "options": f[5]}


def status_field(name):
    m = re.search(r"^%s:\s*(\S+)" % name, first("/proc/self/status"), re.M)
    return m.group(1) if m else ""


def limits():
    import resource
    out = {}
    for name in ("NPROC", "MEMLOCK", "STACK", "NOFILE", "AS", "CORE"):
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        out[name.lower()] = "%s/%s" % tuple("unlimited" if v == resource.RLIM_INFINITY else v for v in (soft, hard))
    return out


def space(path, total):
    try:
        s = os.statvfs(path)
        return s.f_frsize * (s.f_blocks if total else s.f_bavail)
    except OSError:
        return 0


def root_writable():
    path = "/.imgsmith-probe-%d" % os.getpid()
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(path)
        return True
    except OSError:
        return False


def empty_driver_files():
    for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64"):
        try:
            for e in os.scandir(d):
                if re.match(r"lib(cuda|nvidia-)[^/]*\.so", e.name) and e.is_file() and e.stat().st_size == 0:
                    yield e.path
        except OSError:
            continue


def step_system(r, cfg):
    u = os.uname()
    r.put(python="%d.%d.%d" % sys.version_info[:3], executable=sys.executable, implementation=sys.implementation.name,
          uid=os.getuid(), gid=os.getgid(), groups=os.getgroups(), kernel=u.release, machine=u.machine,
          env_names=sorted(cfg["environment"]),
          env={k: v[:2000] for k, v in sorted(cfg["environment"].items()) if SAFE_ENV.match(k)},
          fake_watermark=cfg["environment"].get("IMGSMITH_FAKE_GPU", ""))
    r.put(devices=list(device_nodes()), mounts=list(mounts())[:200], limits=limits(),
          driver_module=(first("/proc/driver/nvidia/version").splitlines() or [""])[0],
          cap_eff=status_field("CapEff"), no_new_privs=status_field("NoNewPrivs"), seccomp=status_field("Seccomp"))
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        libc = ""
    m = re.search(r'^PRETTY_NAME="?([^"\n]*)', first("/etc/os-release"), re.M)
    pids = first("/sys/fs/cgroup/pids.max") or first("/sys/fs/cgroup/pids/pids.max")
    try:
        nets = sorted(os.listdir("/sys/class/net"))
    except OSError:
        nets = []
    r.put(libc=libc, os_release=m.group(1) if m else "", cpus=len(os.sched_getaffinity(0)), pids_max=pids.strip(),
          shm_bytes=space("/dev/shm", True), tmp_bytes=space(tempfile.gettempdir(), False), interfaces=nets,
          root_writable=root_writable(), driver_files_empty=sorted(empty_driver_files()))


# ---- TensorFlow -------------------------------------------------------------------------------------

def step_tensorflow(r, cfg):
    t = time.monotonic()
    import tensorflow as tf
    r.put(version=str(tf.__version__), file=str(tf.__file__), import_seconds=time.monotonic() - t,
          fake=bool(getattr(tf, "__imgsmith_fake__", False)))
    np = sys.modules.get("numpy")
    if np is not None:
        r.put(numpy=str(np.__version__), numpy_file=str(np.__file__))

    def ask(where, fn):
        try:
            return fn()
        except Exception as e:  # a fact like any other
            r.add("errors", failure(where, e))
            return None
    r.put(git_version=ask("git_version", lambda: str(tf.version.GIT_VERSION)) or "")
    r.put(build_info=ask("build_info", lambda: {str(k): clean(v) for k, v in tf.sysconfig.get_build_info().items()}))
    r.put(built_with_cuda=ask("built_with_cuda", lambda: bool(tf.test.is_built_with_cuda())))
    gpus = ask("gpus", lambda: list(tf.config.list_physical_devices("GPU")))
    r.put(mapped=mapped())
    if gpus is None:
        return
    r.put(gpus=[])
    for g in gpus:
        d = ask("device_details", lambda: dict(tf.config.experimental.get_device_details(g))) or {}
        cc = d.get("compute_capability")
        r.add("gpus", {"name": g.name, "device_name": str(d.get("device_name", "")),
                       "compute_capability": "%s.%s" % tuple(cc) if cc else ""})


def sequence(n, seed):
    """n numbers in [-1, 1), the same everywhere."""
    x, out = seed * 2654435761 % 2**32, []
    for _ in range(n):
        x = (x * 1664525 + 1013904223) % 2**32
        out.append((x >> 8) / float(1 << 23) - 1.0)
    return out


def op_matmul(tf, jit):
    a = tf.constant(sequence(256 * 384, 1), dtype=tf.float32, shape=[256, 384])
    b = tf.constant(sequence(384 * 320, 2), dtype=tf.float32, shape=[384, 320])
    return {"product": tf.linalg.matmul(a, b)}


def op_convolution(tf, jit):
    x = tf.constant(sequence(4 * 32 * 32 * 16, 3), dtype=tf.float32, shape=[4, 32, 32, 16])
    k = tf.constant(sequence(3 * 3 * 16 * 32, 4), dtype=tf.float32, shape=[3, 3, 16, 32])
    return {"convolution": tf.nn.conv2d(x, k, strides=1, padding="SAME")}


def op_xla(tf, jit):
    # tanh and exp need libdevice; a product and a relu alone pass without it
    def step(x, w):
        return tf.tanh(tf.linalg.matmul(x, w)) + tf.exp(-x * x)
    x = tf.constant(sequence(128 * 128, 5), dtype=tf.float32, shape=[128, 128])
    w = tf.constant([v / 8 for v in sequence(128 * 128, 6)], dtype=tf.float32, shape=[128, 128])
    return {"step": (tf.function(step, jit_compile=True) if jit else step)(x, w)}


def op_fft(tf, jit):
    re_ = tf.constant(sequence(16 * 1024, 7), dtype=tf.float32, shape=[16, 1024])
    im = tf.constant(sequence(16 * 1024, 8), dtype=tf.float32, shape=[16, 1024])
    return {"fft": tf.signal.fft(tf.complex(re_, im))}


def op_solver(tf, jit):
    n = 96
    v = sequence(n * n, 9)
    spd = [(v[i * n + j] + v[j * n + i]) / 2 + (n if i == j else 0) for i in range(n) for j in range(n)]
    a = tf.constant(spd, dtype=tf.float32, shape=[n, n])
    b = tf.constant(sequence(n * 8, 10), dtype=tf.float32, shape=[n, 8])
    return {"cholesky": tf.linalg.cholesky(a), "solve": tf.linalg.solve(a, b)}


OPS = {"op.matmul": op_matmul, "op.convolution": op_convolution, "op.xla": op_xla, "op.fft": op_fft,
       "op.solver": op_solver}


def numbers(t):
    """All elements as floats; a complex one gives two."""
    stack, out = [t.numpy().tolist()], []
    while stack:
        v = stack.pop()
        if isinstance(v, list):
            stack.extend(reversed(v))
        elif isinstance(v, complex):
            out += [v.real, v.imag]
        else:
            out.append(float(v))
    return out


def compare(gpu, cpu):
    finite = [(g, c) for g, c in zip(gpu, cpu) if math.isfinite(g) and math.isfinite(c)]
    top = max((abs(c) for _, c in finite), default=0.0)
    worst = max((abs(g - c) for g, c in finite), default=0.0)
    return {"compared": bool(finite), "elements_equal": len(gpu) == len(cpu), "reference_max": top, "max_abs": worst,
            "max_rel": worst / top if top > 0 else worst,
            "non_finite": sum(not math.isfinite(g) for g in gpu), "cpu_non_finite": sum(not math.isfinite(c) for c in cpu)}


def run_on(tf, fn, device, jit):
    t = time.monotonic()
    with tf.device(device):
        results = fn(tf, jit)
    return {k: (v, numbers(v)) for k, v in results.items()}, time.monotonic() - t


def cudnn_log(path):
    text = first(path, 4 << 20)
    calls = {}
    for name in re.findall(r"function (cudnn\w+)\(", text):
        calls[name] = calls.get(name, 0) + 1
    return calls, os.path.getsize(path) if os.path.exists(path) else 0


def step_op(r, cfg):
    name = cfg["step"]
    r.put(name=name)
    import tensorflow as tf
    gpus = tf.config.list_physical_devices("GPU")
    r.put(gpus=len(gpus))
    for g in gpus:
        tf.config.experimental.set_memory_growth(g, True)
    tf.config.set_soft_device_placement(False)
    r.put(memory_growth=True, tf32=bool(tf.config.experimental.tensor_float_32_execution_enabled()))
    try:
        on_gpu, seconds = run_on(tf, OPS[name], "/GPU:0", name == "op.xla")
    except Exception as e:
        r.add("errors", failure("gpu", e))
        return
    finally:
        r.put(mapped=mapped())
        if name == "op.convolution":
            calls, size = cudnn_log(os.environ["CUDNN_LOGDEST_DBG"])
            r.put(cudnn_calls=calls, cudnn_log=size)
    results = {k: {"name": k, "dtype": t.dtype.name, "elements": len(v), "gpu_device": str(t.device),
                   "gpu_backing_device": str(t.backing_device), "gpu_seconds": seconds, "compared": False}
               for k, (t, v) in on_gpu.items()}
    r.put(results=list(results.values()))
    try:
        info = tf.config.experimental.get_memory_info("GPU:0")
        r.put(memory_now=int(info["current"]), memory_peak=int(info["peak"]))
    except Exception as e:
        r.add("errors", failure("memory_info", e))
    try:
        on_cpu, seconds = run_on(tf, OPS[name], "/CPU:0", False)
    except Exception as e:
        r.add("errors", failure("cpu", e))
        return
    for k, (t, v) in on_cpu.items():
        results[k].update(compare(on_gpu[k][1], v), cpu_device=str(t.device), cpu_backing_device=str(t.backing_device),
                          cpu_seconds=seconds)
    r.put(results=list(results.values()))


# ---- processes --------------------------------------------------------------------------------------

class Tail(threading.Thread):
    """Reads a pipe to its end, keeps the last bytes and the telling lines."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe, self.tail, self.total, self.lines, self.rest = pipe, b"", 0, [], b""
        self.start()

    def run(self):
        while True:
            try:
                b = os.read(self.pipe, 65536)
            except OSError:
                break
            if not b:
                break
            self.total += len(b)
            self.tail = (self.tail + b)[-TAIL:]
            parts = (self.rest + b).split(b"\n")
            self.rest = parts.pop()[-4096:]
            for p in parts:
                self.note(p)
        self.note(self.rest)

    def note(self, line):
        text = line[:500].decode("utf-8", "replace").strip()
        if len(self.lines) < EVIDENCE_MAX and text not in self.lines and EVIDENCE.search(text):
            self.lines.append(text)

    def text(self):
        return self.tail.decode("utf-8", "replace")


class Collect(threading.Thread):
    """Reads one step's report up to a bound."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe, self.data, self.over = pipe, [], 0
        self.size = 0
        self.start()

    def run(self):
        while True:
            try:
                b = os.read(self.pipe, 65536)
            except OSError:
                return
            if not b:
                return
            self.size += len(b)
            if self.size <= REPORT_MAX:
                self.data.append(b)

    def merge(self, step):
        facts = {}
        for line in b"".join(self.data).split(b"\n"):
            if not line:
                continue
            try:
                obj = json.loads(line.decode("ascii"))
                if "set" in obj:
                    facts.update(obj["set"])
                elif "add" in obj:
                    key, value = obj["add"]
                    facts.setdefault(key, []).append(value)
                elif "done" in obj:
                    step["finished"] = "exception" not in obj["done"]
                    if not step["finished"]:
                        step["exception"] = str(obj["done"]["exception"])[:TEXT_MAX + 200]
            except (ValueError, TypeError, AttributeError, KeyError):
                step["garbage"] = step.get("garbage", 0) + 1
        if self.size > REPORT_MAX:
            step["garbage"] = step.get("garbage", 0) + 1
        return facts


def child_env(cfg, name, work):
    env = dict(os.environ)
    if not cfg["as_shipped"]:
        env.update(HOME=work, TMPDIR=work, CUDA_CACHE_PATH=work)
        env.setdefault("LANG", "C.UTF-8")
    env.update(TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="dso_loader=1,cudart_stub=1,gpu_device=1")
    if name == "op.convolution":  # cuDNN 8 has one switch per severity, cuDNN 9 one level: 3 is info
        env.update(CUDNN_LOGINFO_DBG="1", CUDNN_LOGLEVEL_DBG="3", CUDNN_LOGDEST_DBG=os.path.join(work, "cudnn.log"))
    return env


def run_step(cfg, name, seconds, work):
    step = {"name": name, "finished": False, "exit_code": None, "seconds": 0.0}
    start = time.monotonic()
    rfd, wfd = os.pipe()
    args = [sys.executable] + ([] if cfg["as_shipped"] else ["-I"]) + ["-c", BOOT, "--step", name, str(wfd)]
    sub = dict(cfg, step=name, environment=dict(os.environ))
    try:
        p = subprocess.Popen(args + [json.dumps(sub)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, pass_fds=(wfd,), env=child_env(cfg, name, work),
                             cwd=None if cfg["as_shipped"] else work, start_new_session=True)
    except OSError as e:
        step["not_run"] = "starting a process: %s" % e
        os.close(rfd)
        os.close(wfd)
        return step, {}
    os.close(wfd)
    out, err, rep = Tail(p.stdout.fileno()), Tail(p.stderr.fileno()), Collect(rfd)
    try:
        p.stdin.write(PROBE_SOURCE)
        p.stdin.close()
    except OSError:
        pass
    try:
        p.wait(seconds)
    except subprocess.TimeoutExpired:
        step["timed_out"] = True
    kill_group(p)
    for t, close in ((out, p.stdout.close), (err, p.stderr.close), (rep, lambda: os.close(rfd))):
        t.join(2)
        if not t.is_alive():  # a process that got away may still hold the other end
            close()
    rc = p.poll()
    if rc is not None and rc >= 0:
        step["exit_code"] = rc
    elif rc is not None:
        step["signal"] = -rc
        step["signal_name"] = signal.Signals(-rc).name if -rc in list(signal.Signals) else str(-rc)
    step.update(seconds=time.monotonic() - start, stdout_tail=out.text()[-2048:], stderr_tail=err.text(),
                stderr_bytes=err.total, evidence=err.lines)
    return step, rep.merge(step)


def kill_group(p):
    """Ends the step and what it started; a process stuck in the driver is left behind after ten seconds."""
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        p.wait(10)
    except subprocess.TimeoutExpired:
        pass


def child(argv):
    name, fd, cfg = argv[0], int(argv[1]), json.loads(argv[2])
    r = Report(fd)
    fn = step_op if name in OPS else globals()["step_" + name]
    try:
        fn(r, cfg)
    except BaseException as e:
        r.done(exception="%s: %s" % (type(e).__name__, str(e)[:TEXT_MAX]))
        raise
    r.done()


def defaults(cfg):
    for key, v in (("sonames", {}), ("dlopen", []), ("cudnn_sub", []), ("steps", []), ("deadlines", {}),
                   ("total_seconds", 0), ("as_shipped", False)):
        cfg[key] = cfg.get(key) or v
    return cfg


def parent(argv):
    cfg = defaults(json.loads(argv[0]))
    start = time.monotonic()
    doc = {"schema_version": SCHEMA_VERSION, "nonce": cfg["nonce"], "steps": [], "ops": []}
    work = tempfile.mkdtemp(prefix="imgsmith-", dir="/tmp")
    try:
        for name in STEPS:
            if cfg["steps"] and name not in cfg["steps"]:
                doc["steps"].append({"name": name, "finished": False, "exit_code": None, "seconds": 0.0, "not_run": "not asked for"})
                continue
            left = cfg["total_seconds"] - (time.monotonic() - start) if cfg["total_seconds"] else 1e9
            if left <= 0:
                doc["steps"].append({"name": name, "finished": False, "exit_code": None, "seconds": 0.0,
                                     "not_run": "the time for all steps was used up"})
                continue
            limit = float(cfg["deadlines"].get(name) or cfg["deadlines"].get("default") or 120)
            step, facts = run_step(cfg, name, min(limit, left), work)
            doc["steps"].append(step)
            if facts and name in OPS:
                doc["ops"].append(dict(facts, name=name))
            elif facts:
                doc[name] = facts
    finally:
        shutil.rmtree(work, ignore_errors=True)
    doc["seconds"] = time.monotonic() - start
    data = json.dumps(clean(doc), allow_nan=False).encode("ascii")
    frame = b"\n@@imgsmith-probe begin %s %d %s\n" % (cfg["nonce"].encode(), len(data), hashlib.sha256(data).hexdigest().encode())
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "wb") as f:
        f.write(frame + data + b"\n@@imgsmith-probe end " + cfg["nonce"].encode() + b"\n")


if __name__ == "__main__":
    if "PROBE_SOURCE" not in globals():
        with open(__file__, "rb") as f:
            PROBE_SOURCE = f.read()
    if sys.argv[1:2] == ["--step"]:
        child(sys.argv[2:])
    else:
        parent(sys.argv[1:])
