"""Products by cublasLt: variant "cublaslt" of the matrix products.

A product is computed in one of two ways. *Fused*: one call with one of the library's epilogues,
which adds the bias and applies relu or gelu_tanh. *Fallback*: if the library has no such epilogue
(:func:`misfit`), it writes the product in the compute type, and a kernel of ours does the rest
(gemm_bias_act_epilogue in csrc/gemm_bias_act.cu). In both ways the result is rounded once.

Environment variables, read once per process:

``CUDA_REFERENCE_NO_EPILOGUE``
    1: always use the fallback
``CUDA_REFERENCE_CUBLASLT_TUNE``
    the number of the library's candidates that are timed for a new problem, both fused and
    fallback; the choice is kept for the user (_cublaslt_choices.py). By default the first candidate
    is used
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _activations, _compilers, _launch
from cuda_reference import _cublaslt_choices as _choices
from cuda_reference import _cublaslt_library as lt
from cuda_reference._cublaslt_plans import (
    ALIGNED,
    Matrix,
    Plan,
    Pointers,
    Problem,
    alignment,
    matrix,
    plan,
)

NAME = "cublaslt"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Activation → epilogue. The library's GELU is accurate to 16 bits, too coarse for float32.
EPILOGUES = {"none": 0, "relu": lt.RELU, "gelu_tanh": lt.GELU}
_BIAS_ALIGNMENT = _ROWS = 16  # bytes
_AUX_ROWS = 8  # elements
_NO_ACT = 0  # enum Act in csrc/activations.cuh
_PADDED = 8  # elements; rows of a sum start at multiples of this


class Settings(NamedTuple):
    """The environment variables."""

    no_epilogue: bool
    tune: int


@functools.cache
def settings() -> Settings:
    """The environment variables at the first call.

    Raises:
        ValueError: CUDA_REFERENCE_CUBLASLT_TUNE is no number.
    """
    tune = os.environ.get("CUDA_REFERENCE_CUBLASLT_TUNE", "0")
    if not tune.isdecimal():
        raise ValueError(f"CUDA_REFERENCE_CUBLASLT_TUNE must be a count, but is {tune!r}")
    return Settings(os.environ.get("CUDA_REFERENCE_NO_EPILOGUE") == "1", int(tune))


class Call(NamedTuple):
    """The arguments of a product: out = act(alpha·(a@b) + beta·c + bias), [M, N]. If there is
    ``pre``, it gets the pre-activation."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    c: Tensor | None
    out: Tensor
    alpha: float
    beta: float
    act: str
    precision: str
    pre: Tensor | None = None

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype of the sums of products."""
        return torch.float64 if self.a.dtype == torch.float64 else torch.float32


def check_device(op: str, device: torch.device) -> None:
    """Raise ValueError unless the device is a GPU."""
    if device.type != "cuda":
        raise ValueError(
            f"{op}(): variant '{NAME}' is a library for GPUs, but the tensors are on {device}"
        )


def misfit(call: Call) -> str:
    """Why the library has no epilogue for a call, or ""."""
    dtype, out = call.a.dtype, call.out
    if settings().no_epilogue:
        return "CUDA_REFERENCE_NO_EPILOGUE is 1"
    if call.act not in EPILOGUES or (call.act == "gelu_tanh" and dtype.itemsize > 2):
        return f"there is no epilogue '{call.act}' for {dtype}"
    if not _by_rows(out) or (call.c is not None and not _by_rows(call.c)):
        return "'out' and 'c' must lie by rows"
    if dtype == torch.float64 and (call.bias is not None or call.act != "none"):
        return "float64 has no epilogue"
    plain = call.bias is None and call.c is None and call.act == "none"
    if out.dtype != dtype and not (plain and out.dtype == torch.float32 and dtype.itemsize == 2):
        return f"{dtype} makes no {out.dtype} there"
    if dtype.itemsize == 2 and not plain and (reason := _unaligned(call)):
        return reason
    if call.bias is not None:
        if call.bias.stride(0) != 1 and call.bias.numel() > 1:
            return "'bias' must be contiguous"
        if _launch.address(call.bias) % _BIAS_ALIGNMENT:
            return f"'bias' is not at a multiple of {_BIAS_ALIGNMENT} bytes"
    if call.pre is not None and (call.act != "gelu_tanh" or call.out.shape[1] % _AUX_ROWS):
        return f"'pre' is for gelu_tanh, with rows of multiples of {_AUX_ROWS}"
    return ""


def _unaligned(call: Call) -> str:
    """Which matrix has unaligned rows, or "". For these the library may run its epilogue as another
    kernel, after rounding the product to 16 bits: that rounds twice, and relu of NaN is 0. Seen
    with 33×65×70 on an H200, cuBLAS 13."""
    for name in ("a", "b", "c", "out"):
        t = getattr(call, name)
        lies = None if t is None else matrix(t)
        if lies is not None and (lies.ld * t.element_size() % _ROWS or _launch.address(t) % _ROWS):
            return f"rows of '{name}' do not begin at multiples of {_ROWS} bytes"
    return ""


def _by_rows(t: Tensor) -> bool:
    lies = matrix(t)
    return lies is not None and not lies.transposed


class _Product:
    """A reusable call. It has the form of a library with one launcher, "cublaslt", which takes
    descriptions of a, b, bias, c, out and pre, and a stream."""

    range = ""

    def __init__(self, plan: Plan, algorithm: lt.Candidate, device: torch.device) -> None:
        self.plan, self.library, self.algorithm = plan, plan.library, algorithm
        self._device = device

    def cublaslt(self, *arguments: Any) -> int:
        """Multiply. Returns the library's status, or a CUDA error as a negative number."""
        self.library.push(self.range)
        try:
            return self.run(*arguments)
        finally:
            self.library.pop()

    def run(self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any) -> int:
        """The same without the NVTX range. Arguments are ctypes.byref of CTensors, or None."""
        raise NotImplementedError

    def multiply(
        self, scalars: tuple[Any, Any], addresses: tuple[Any, ...], pointers: Pointers, stream: Any
    ) -> int:
        """Multiply by the plan. The workspace is returned to torch at once, which is safe: its next
        user on this stream runs after the product."""
        size = self.algorithm.workspace
        workspace = torch.empty(size, dtype=torch.uint8, device=self._device) if size else None
        at = None if workspace is None else workspace.data_ptr()
        return self.plan.multiply(self.algorithm, scalars, addresses, pointers, at, stream)

    def crosscheck_error_string(self, status: int) -> bytes:
        """The meaning of a status of the launcher."""
        if status < 0:
            library = _activations.library("gemm_bias_act", "none", _target(self._device))
            return bytes(library.crosscheck_error_string(-status))
        return f"cublasLt: {self.library.words(status)}".encode()


class Fused(_Product):
    """A product by one call of the library."""

    def __init__(self, plan: Plan, algorithm: lt.Candidate, call: Call) -> None:
        super().__init__(plan, algorithm, call.a.device)
        self.range = f"cuda_reference cublaslt fused {call.act}"
        number = _number(call)
        self._scalars = number(call.alpha), number(call.beta)

    def run(self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any) -> int:
        """As there."""
        addresses = (a._obj.data, b._obj.data, c and c._obj.data, out._obj.data)
        pointers = bias and bias._obj.data, pre and pre._obj.data
        return self.multiply(self._scalars, addresses, pointers, stream)


class Fallback(_Product):
    """A product by the library into a sum, and the epilogue by our kernel."""

    def __init__(self, plan: Plan, algorithm: lt.Candidate, call: Call, act: int) -> None:
        super().__init__(plan, algorithm, call.a.device)
        self.range = f"cuda_reference cublaslt fallback {call.act}"
        self._dtype = call.sum_dtype
        number = _number(call)
        self._scalars = number(1.0), number(0.0)
        self._factors = _launch.scalar(float(call.alpha)), _launch.scalar(float(call.beta))
        self._act = act
        library = _activations.library("gemm_bias_act", call.act, _target(self._device))
        self._launcher = library.gemm_bias_act_epilogue

    def run(self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any) -> int:
        """As there."""
        M, N, _ = self.plan.problem.shape
        total = new_sum(M, N, self._dtype, self._device)
        addresses = (a._obj.data, b._obj.data, None, total.data_ptr())
        if status := self.multiply(self._scalars, addresses, (None, None), stream):
            return status
        for result, act in ((out, self._act), (pre, _NO_ACT)):
            if result is not None:
                told = (_launch.tensor(total), bias, c, result, *self._factors, act, stream)
                if status := self._launcher(*told):
                    return -int(status)
        return 0


def _number(call: Call) -> Any:
    """The C type of alpha and beta."""
    return ctypes.c_double if call.sum_dtype == torch.float64 else ctypes.c_float


def new_sum(M: int, N: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An empty matrix for a sum; all its rows are aligned."""
    return torch.empty((M, _padded(N)), dtype=dtype, device=device)[:, :N]


def _padded(N: int) -> int:
    return -(-N // _PADDED) * _PADDED


def _target(device: torch.device) -> _compilers.Target:
    return "cuda" if device.type == "cuda" else "host"


# ---- The choice of the way ----


def _problem(call: Call, fused: bool) -> Problem:
    """The problem for the library: the whole call if ``fused``, else only the product, into a
    sum."""
    (M, K), N = call.a.shape, call.b.shape[1]
    a, b = matrix(call.a), matrix(call.b)
    out = matrix(call.out) if fused else Matrix(False, _padded(N))
    c = None if call.c is None or not fused else matrix(call.c)
    if a is None or b is None or out is None:
        raise AssertionError("other inputs are copied, other results do not fit")
    compute = lt.COMPUTE_64F if call.a.dtype == torch.float64 else lt.COMPUTE_32F
    aligned = [alignment(call.b), alignment(call.a)]
    if fused:
        epilogue = EPILOGUES[call.act] | (0 if call.bias is None else lt.BIAS)
        epilogue |= 0 if call.pre is None else lt.AUX
        aligned += [alignment(t) for t in (call.c, call.out, call.bias)]
    return Problem(
        (M, N, K),
        (call.a.dtype, call.out.dtype if fused else call.sum_dtype),
        *(a, b, c, out),
        (epilogue if fused else 0) or lt.PLAIN,
        lt.COMPUTE_TF32 if call.precision == "tf32" else compute,
        call.a.device.index,
        tuple(aligned) if fused else (*aligned, *[ALIGNED] * 3),
        matrix(call.pre) if fused and call.pre is not None else None,
    )


def _ways(call: Call, act: int, count: int) -> Iterator[_Product]:
    """The ways that the library proposes, the best first: at most ``count`` fused ones, then at
    most ``count`` fallbacks."""
    library = lt.library()
    if not misfit(call):
        bias, pre = (None if t is None else _launch.address(t) for t in (call.bias, call.pre))
        fused = plan(library, _problem(call, True), (bias, pre), count)
        yield from (Fused(fused, algorithm, call) for algorithm in fused.candidates)
    product = plan(library, _problem(call, False), (None, None), count)
    yield from (Fallback(product, algorithm, call, act) for algorithm in product.candidates)


def _chosen(call: Call, act: int, arguments: tuple[Any, ...], stream: Any) -> _Product:
    """The fastest of the timed ways, or the library's first if none was timed.

    Raises:
        RuntimeError: the library cannot multiply these matrices.
    """
    count = settings().tune
    first = next(_ways(call, act, max(count, 1)), None)
    if first is None:
        raise RuntimeError(f"cublasLt has no algorithm for {_problem(call, False)}")
    gpu = _model(call.a.device)
    key = f"{type(first).__name__} {first.plan.problem.key}"
    known = _choices.kept(gpu, first.library.version, key)
    if known is not None:
        return _again(known, call, act) or first
    if not count or _capturing():
        return first
    ways = list(_ways(call, act, count))
    launches = [functools.partial(way.cublaslt, *arguments, stream) for way in ways]
    best = ways[_choices.fastest(launches)]
    algorithm = bytes(best.algorithm.algorithm).hex()
    choice = {"way": type(best).__name__, "algorithm": algorithm}
    _choices.keep(gpu, first.library.version, key, choice)
    return best


@functools.cache
def _model(device: torch.device) -> str:
    """The name of the GPU's model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"


def _capturing() -> bool:
    """Whether launches are being captured in a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _again(choice: _choices.Choice, call: Call, act: int) -> _Product | None:
    """The way of a kept choice; None if the library refuses it here."""
    for way in _ways(call, act, 1):
        if type(way).__name__ == choice["way"]:
            algorithm = way.plan.checked(bytes.fromhex(choice["algorithm"]))
            if algorithm is not None:
                way.algorithm = algorithm
                return way
    return None


def launch(told: Mapping[str, Tensor], out: Tensor, call: Call, act: int) -> None:
    """Multiply on the current stream of the device of ``out``. Nothing is launched for an empty
    result. The call's ``out`` may be a view of ``out``.

    Args:
        told: the inputs, for errors.
        act: the activation's number in the kernels.

    Raises:
        RuntimeError: torch has loaded no cublasLt, it cannot multiply these matrices, or the launch
            failed.
    """
    lt.library()
    if not out.numel():
        return
    if not call.a.shape[1]:  # K = 0: multiply zeros instead
        a, b = call.a.new_zeros(call.a.shape[0], 1), call.b.new_zeros(1, call.b.shape[1])
        call = call._replace(a=a, b=b)
    a, b = (t if matrix(t) is not None else t.contiguous() for t in (call.a, call.b))
    call = call._replace(a=a, b=b)
    arguments = (
        *(_launch.tensor(a), _launch.tensor(b)),
        *(None if t is None else _launch.tensor(t) for t in (call.bias, call.c)),
        _launch.tensor(call.out),
        None if call.pre is None else _launch.tensor(call.pre),
    )
    device = out.device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        on_gpu = device.type == "cuda"
        stream = ctypes.c_void_p(_launch.current_stream(device.index) if on_gpu else None)
        way = _chosen(call, act, arguments, stream)
        written = (out,) if call.pre is None else (out, call.pre)
        _launch.call(way, NAME, told, written, arguments, stream)
