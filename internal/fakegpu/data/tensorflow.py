"""imgsmith fake, for tests: just enough of TensorFlow's interface for imgsmith's probe. It computes nothing."""
import cmath
import ctypes
import json
import math
import os
import time
import types

__imgsmith_fake__ = True
_here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(_here, "imgsmith_fake.json")) as _f:
    _fake = json.load(_f)
__version__ = _fake["version"]
_behaviour = _fake["behaviour"]
_lib = ctypes.CDLL(os.path.join(_here, "libtensorflow_framework.so.2"))
_gpus = None
_soft = True
_devices = []
_used = {"current": 0, "peak": 0}
_JOB = "/job:localhost/replica:0/task:0/device:"
float32 = types.SimpleNamespace(name="float32")
complex64 = types.SimpleNamespace(name="complex64")


class InvalidArgumentError(Exception):
    pass


class NotFoundError(Exception):
    pass


class FailedPreconditionError(Exception):
    pass


errors = types.SimpleNamespace(InvalidArgumentError=InvalidArgumentError, NotFoundError=NotFoundError,
                               FailedPreconditionError=FailedPreconditionError)
version = types.SimpleNamespace(VERSION=__version__, GIT_VERSION="imgsmith-fake")
sysconfig = types.SimpleNamespace(get_build_info=lambda: dict(_fake["build_info"]))
test = types.SimpleNamespace(is_built_with_cuda=lambda: True)


def _gpu_count():
    global _gpus
    if _gpus is None:
        _gpus = 0 if _behaviour == "no-gpu" else _lib.imgsmith_tf_gpus()
    return _gpus


def _list(kind=None):
    n = _gpu_count() if kind == "GPU" else 1
    return [types.SimpleNamespace(name="/physical_device:%s:%d" % (kind, i), device_type=kind) for i in range(n)]


def _details(gpu):
    return {"device_name": "imgsmith fake GPU", "compute_capability": (_lib.imgsmith_tf_capability(75), _lib.imgsmith_tf_capability(76))}


def _soft_placement(on):
    global _soft
    _soft = on


config = types.SimpleNamespace(
    list_physical_devices=_list, set_soft_device_placement=_soft_placement,
    experimental=types.SimpleNamespace(set_memory_growth=lambda gpu, on: None, get_device_details=_details,
                                       get_memory_info=lambda d: dict(_used),
                                       tensor_float_32_execution_enabled=lambda: True))


class device:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        _devices.append(self.name)

    def __exit__(self, *a):
        _devices.pop()


def _where():
    want = (_devices or ["/GPU:0" if _gpu_count() else "/CPU:0"])[-1].lstrip("/")
    if want.startswith("GPU") and not _gpu_count():
        if not _soft:
            raise InvalidArgumentError("Could not satisfy device specification '%s'. imgsmith fake" % want)
        want = "CPU:0"
    return _JOB + want


def _on_gpu():
    return "GPU" in _where()


class Tensor:
    def __init__(self, data, shape, dtype=float32, where=None):
        self.data, self.shape, self.dtype = data, list(shape), dtype
        self.device = self.backing_device = where or _where()
        if "GPU" in self.device:
            _used["current"] += 4 * len(data)
            _used["peak"] = max(_used["peak"], _used["current"])

    def numpy(self):
        return types.SimpleNamespace(tolist=lambda: list(self.data))

    def _map(self, fn, other=None):
        pairs = zip(self.data, other.data) if other is not None else ((x,) for x in self.data)
        return Tensor([fn(*p) for p in pairs], self.shape, self.dtype)

    def __add__(self, other):
        return self._map(lambda a, b: a + b, other)

    def __mul__(self, other):
        return self._map(lambda a, b: a * b, other)

    def __neg__(self):
        return self._map(lambda a: -a)


def constant(values, dtype=float32, shape=None):
    return Tensor(list(values), shape or [len(values)], dtype)


def complex(re, im):
    return re._map(lambda a, b: a + 1j * b, im)


def tanh(x):
    return x._map(math.tanh)


def exp(x):
    return x._map(math.exp)


def _need(name):
    if _on_gpu() and _lib.imgsmith_tf_open(name.encode()):
        raise FailedPreconditionError("%s cannot be opened. imgsmith fake" % name)


def _noise():
    """What a GPU's TF32 does to a result, and what a broken one does."""
    if not _on_gpu():
        return 1.0
    return 1.5 if _behaviour == "wrong-result" else 1.0001


def _matmul(a, b):
    if _behaviour == "hang" and _on_gpu():
        time.sleep(1e6)
    _need("libcublas.so.12")
    m, k, n, f = a.shape[0], a.shape[1], b.shape[1], _noise()
    return Tensor([a.data[i * k + (i + j) % k] * b.data[((i + j) % k) * n + j] * f for i in range(m) for j in range(n)], [m, n])


def _conv2d(x, k, strides=1, padding="SAME"):
    if _behaviour == "crash" and _on_gpu():
        os.abort()
    where = _where()
    if _behaviour == "conv-on-cpu":
        where = _JOB + "CPU:0"
    elif _on_gpu() and _lib.imgsmith_tf_convolution():
        raise FailedPreconditionError("DNN library initialization failed. imgsmith fake")
    out, f = k.shape[-1], 1.0 if where.endswith("CPU:0") else _noise()
    cells = len(x.data) // x.shape[-1]
    return Tensor([x.data[i * x.shape[-1]] * k.data[c] * f for i in range(cells) for c in range(out)], x.shape[:-1] + [out], where=where)


def _solver(a, b=None):
    _need("libcusolver.so.11")
    src = b if b is not None else a
    return Tensor([v * _noise() for v in src.data], src.shape)


def _fft(x):
    _need("libcufft.so.11")
    return Tensor([v * cmath.exp(1j) * _noise() for v in x.data], x.shape, complex64)


def _xla_tools():
    for d in (os.path.join(_here, "..", "nvidia", "cuda_nvcc"), "/usr/local/cuda"):
        p = os.path.join(d, "bin", "ptxas")
        ok = os.path.isfile(p) and os.access(p, os.X_OK)
        if ok and os.path.isfile(os.path.join(d, "nvvm", "libdevice", "libdevice.10.bc")):
            return
    raise NotFoundError("ptxas or libdevice.10.bc cannot be used. imgsmith fake")


def function(fn, jit_compile=False):
    def run(*args):
        if jit_compile and _on_gpu():
            _xla_tools()
        return fn(*args)
    return run


linalg = types.SimpleNamespace(matmul=_matmul, cholesky=_solver, solve=_solver)
nn = types.SimpleNamespace(conv2d=_conv2d)
signal = types.SimpleNamespace(fft=_fft)


def main():
    print("imgsmith fake, for tests: tensorflow", __version__)
    return 0
