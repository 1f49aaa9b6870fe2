"""Products by cublasLt: variant "cublaslt" of the matrix products.

A product is computed in one of two ways. *Fused*: one call with one of the library's epilogues,
which adds the bias and applies relu or gelu_tanh. *Fallback*: if the library has no such epilogue
(:func:`misfit`), it writes the product in the compute type, and a kernel of ours does the rest
(gemm_bias_act_epilogue in csrc/gemm_bias_act.cu). In both ways the result is rounded once. In both,
operands that do not suit the library's fast kernels are copied first (_cublaslt_copies.py).

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _activations, _compilers, _launch
from cuda_reference import _cublaslt_choices as _choices
from cuda_reference import _cublaslt_library as lt
from cuda_reference._cublaslt_copies import Copies, copies, round_up
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
_SCRATCH_ALIGNMENT = 256  # bytes
_NO_ACT = 0  # enum Act in csrc/activations.cuh


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


class _Scratch:
    """Matrices that a call needs beside its tensors, in one piece of memory. They are described
    once, since a call's time on the host counts.

    Args:
        matrices: how they lie; None for one that is not needed.
    """

    def __init__(self, matrices: Sequence[Tensor | None]) -> None:
        self.bytes = 0
        self._forms: list[Any] = []
        for t in matrices:
            if t is None:
                self._forms.append(None)
                continue
            self._forms.append(_launch.described(self.bytes, t.dtype, t.shape, t.stride())._obj)
            size = t.untyped_storage().nbytes()
            self.bytes += -(-size // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT

    def at(self, address: int) -> list[Any]:
        """The matrices in memory of this address, as arguments of a launcher."""
        made: list[Any] = []
        for form in self._forms:
            if form is None:
                made.append(None)
                continue
            each = _launch.CTensor.from_buffer_copy(form)
            each.data = address + (form.data or 0)
            made.append(ctypes.byref(each))
        return made


class _Product:
    """A reusable call. It has the form of a library with one launcher, "cublaslt", which takes
    descriptions of a, b, bias, c, out and pre, and a stream."""

    name = ""

    def __init__(
        self,
        plan: Plan,
        algorithm: lt.Candidate,
        call: Call,
        copied: Copies | None,
        total: Tensor | None = None,
    ) -> None:
        self.plan, self.library, self.algorithm = plan, plan.library, algorithm
        self._device, self._act = call.a.device, call.act
        copies = [None if each is None else each.empty(call.a.dtype) for each in copied or ()]
        self._scratch = _Scratch([*(copies or (None, None)), total])
        self.way = f"{self.name} of copies" if copied else self.name
        self.range = f"cuda_reference cublaslt {self.way} {call.act}"

    def cublaslt(self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any) -> int:
        """Multiply. Returns the library's status, or a CUDA error as a negative number."""
        self.library.push(self.range)
        try:
            if not self._scratch.bytes:
                return self.run(a, b, bias, c, out, pre, stream, None)
            # The memory returns to torch at once, which is safe: its next user on this stream runs
            # after the product.
            memory = torch.empty(self._scratch.bytes, dtype=torch.uint8, device=self._device)
            a_copy, b_copy, total = self._scratch.at(memory.data_ptr())
            if a_copy is not None or b_copy is not None:
                launcher = self._kernels.gemm_bias_act_copies
                if status := launcher(a, a_copy, b, b_copy, stream):
                    return -int(status)
            return self.run(a_copy or a, b_copy or b, bias, c, out, pre, stream, total)
        finally:
            self.library.pop()

    @functools.cached_property
    def _kernels(self) -> Any:
        return _activations.library("gemm_bias_act", self._act, _target(self._device))

    def run(
        self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any, total: Any
    ) -> int:
        """The same without the NVTX range and copies. Matrices are ctypes.byref of CTensors, or
        None; ``total`` is memory for the sum."""
        raise NotImplementedError

    def multiply(
        self, scalars: tuple[Any, Any], addresses: tuple[Any, ...], pointers: Pointers, stream: Any
    ) -> int:
        """Multiply by the plan. The workspace returns to torch at once."""
        size = self.algorithm.workspace
        workspace = torch.empty(size, dtype=torch.uint8, device=self._device) if size else None
        at = None if workspace is None else workspace.data_ptr()
        return self.plan.multiply(self.algorithm, scalars, addresses, pointers, at, stream)

    def crosscheck_error_string(self, status: int) -> bytes:
        """The meaning of a status of the launcher."""
        if status < 0:
            return bytes(self._kernels.crosscheck_error_string(-status))
        return f"cublasLt: {self.library.words(status)}".encode()


class Fused(_Product):
    """A product by one call of the library."""

    name = "fused"

    def __init__(
        self, plan: Plan, algorithm: lt.Candidate, call: Call, copied: Copies | None
    ) -> None:
        super().__init__(plan, algorithm, call, copied)
        number = _number(call)
        self._scalars = number(call.alpha), number(call.beta)

    def run(
        self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any, total: Any
    ) -> int:
        """As there."""
        addresses = (a._obj.data, b._obj.data, c and c._obj.data, out._obj.data)
        pointers = bias and bias._obj.data, pre and pre._obj.data
        return self.multiply(self._scalars, addresses, pointers, stream)


class Fallback(_Product):
    """A product by the library into a sum, and the epilogue by our kernel."""

    name = "fallback"

    def __init__(
        self, plan: Plan, algorithm: lt.Candidate, call: Call, copied: Copies | None, act: int
    ) -> None:
        M, N, _ = plan.problem.shape
        total = torch.empty((M, round_up(N)), dtype=call.sum_dtype, device="meta")[:, :N]
        super().__init__(plan, algorithm, call, copied, total)
        number = _number(call)
        self._scalars = number(1.0), number(0.0)
        self._factors = _launch.scalar(float(call.alpha)), _launch.scalar(float(call.beta))
        self._number = act
        self._launcher = self._kernels.gemm_bias_act_epilogue

    def run(
        self, a: Any, b: Any, bias: Any, c: Any, out: Any, pre: Any, stream: Any, total: Any
    ) -> int:
        """As there."""
        addresses = (a._obj.data, b._obj.data, None, total._obj.data)
        if status := self.multiply(self._scalars, addresses, (None, None), stream):
            return status
        for result, act in ((out, self._number), (pre, _NO_ACT)):
            if result is not None:
                told = (total, bias, c, result, *self._factors, act, stream)
                if status := self._launcher(*told):
                    return -int(status)
        return 0


def _number(call: Call) -> Any:
    """The C type of alpha and beta."""
    return ctypes.c_double if call.sum_dtype == torch.float64 else ctypes.c_float


def _target(device: torch.device) -> _compilers.Target:
    return "cuda" if device.type == "cuda" else "host"


# ---- The choice of the way ----


def _problem(call: Call, fused: bool) -> Problem:
    """The problem for the library: the whole call if ``fused``, else only the product, into a
    sum."""
    (M, K), N = call.a.shape, call.b.shape[1]
    a, b = matrix(call.a), matrix(call.b)
    out = matrix(call.out) if fused else Matrix(False, round_up(N))
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
    """The ways that the library proposes, the best first: of copies, where these pay, and of the
    operands themselves at most ``count`` fused ones, then at most ``count`` fallbacks."""
    if copied := copies(call.a, call.b, call.precision):
        a, b = (
            t if copy is None else copy.empty(t.dtype, t.device)
            for t, copy in zip((call.a, call.b), copied)
        )
        yield from _ways_of(call._replace(a=a, b=b), act, count, copied)
    yield from _ways_of(call, act, count, None)


def _ways_of(call: Call, act: int, count: int, copied: Copies | None) -> Iterator[_Product]:
    library = lt.library()
    if call.out.shape == (call.a.shape[0], call.b.shape[1]) and not misfit(call):
        bias, pre = (None if t is None else _launch.address(t) for t in (call.bias, call.pre))
        fused = plan(library, _problem(call, True), (bias, pre), count)
        yield from (Fused(fused, algorithm, call, copied) for algorithm in fused.candidates)
    product = plan(library, _problem(call, False), (None, None), count)
    yield from (Fallback(product, algorithm, call, copied, act) for algorithm in product.candidates)


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
    key = f"{first.way} {first.plan.problem.key}"
    known = _choices.kept(gpu, first.library.version, key)
    if known is not None:
        return _again(known, call, act) or first
    if not count or _capturing():
        return first
    ways = list(_ways(call, act, count))
    launches = [functools.partial(way.cublaslt, *(*arguments, stream)) for way in ways]
    best = ways[_choices.fastest(launches)]
    algorithm = bytes(best.algorithm.algorithm).hex()
    choice = {"way": best.way, "algorithm": algorithm}
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
        if way.way == choice["way"]:
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
