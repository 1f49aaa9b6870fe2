"""Whether gemm_gluon_kernel can run, and why not.

Gluon is experimental: a version of Triton may lack it, or have it otherwise. Without it nothing
fails: products run in the kernels of gemm.kernels, slower.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator

import torch
import triton

from triton_kernels import _known_calls, _launch, _modes
from triton_kernels._gpu import Gpu
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.gluon.forms import CAPABILITY, FORMS
from triton_kernels.gemm.kernels import gemm_bias_act_kernel

_wanted: contextvars.ContextVar[str] = contextvars.ContextVar("kernels", default="any")
# What went wrong on a device, or "" where the self-test went well.
_tested: dict[torch.device, str] = {}


@contextlib.contextmanager
def only(kernels: str) -> Iterator[None]:
    """Inside, products run in these kernels, "tl" or "gluon", to compare the two. What Gluon is not
    made for, or cannot run here, then raises RuntimeError."""
    token = _wanted.set(kernels)
    try:
        with _known_calls.suspended():
            yield
    finally:
        _wanted.reset(token)


def kernels(gpu: Gpu, device: torch.device) -> str:
    """Which kernels may be chosen for a product on a device, as a Problem says it."""
    wanted = _wanted.get()
    if wanted == "tl":
        return wanted
    reason = unavailable(gpu, device)
    if reason and wanted == "gluon":
        raise RuntimeError(f"gemm_gluon_kernel cannot run: {reason}")
    return "tl" if reason else wanted


def expected(gpu: Gpu, device: torch.device) -> str:
    """The same for a plan, which may be made without the GPU, or of tensors without memory: nothing
    is tried, and what did not fail yet is taken to run."""
    wanted = _wanted.get()
    if gpu.capability != CAPABILITY or lacking() or _tested.get(device):
        return "tl"
    return wanted


def unavailable(gpu: Gpu, device: torch.device) -> str:
    """Why gemm_gluon_kernel cannot run on a device, or "". The first time it is tried there."""
    if gpu.capability != CAPABILITY:
        return f"it is for compute capability 9.0, not {gpu.capability // 10}.{gpu.capability % 10}"
    if _modes.compiling():
        return lacking()
    if _launch.interpreted(gemm_bias_act_kernel):
        return "kernels are interpreted"
    if device.type != "cuda":
        return "there is no GPU"
    reason = _tested.get(device)
    if reason is None:
        if torch.cuda.is_current_stream_capturing():  # the test would wait for the GPU
            return "a CUDA graph is being captured, and it has not been tried before"
        reason = _tested[device] = lacking() or _self_test(device)
    return reason


def here() -> str:
    """Why gemm_gluon_kernel cannot run on the GPU at hand, or on the one that is compiled for; or
    ""."""
    device = torch.device("meta")
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return unavailable(_launch.gpu(gemm_bias_act_kernel, device), device)


@functools.cache
def lacking() -> str:
    """Why this Triton has not the Gluon that the kernel is written in, or ""."""
    try:
        import triton_kernels.gemm.gluon.launch  # noqa: F401
    except Exception as error:  # noqa: BLE001 - its decorators, too, are another version's
        return f"triton {triton.__version__} lacks what it takes: {_words(error)}"
    return ""


def give_up(device: torch.device, error: Exception) -> None:
    """Use it no longer on a device, since a launch failed; warn."""
    _known_calls.forget()
    _tested[device] = f"with triton {triton.__version__} it fails: {_words(error)}"
    warnings.warn(
        f"gemm_gluon_kernel is not used from now on, so that products take longer; please report "
        f"it: {_tested[device]}",
        RuntimeWarning,
        stacklevel=2,
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _self_test(device: torch.device) -> str:
    """What is wrong with a product of integers, which has no rounding; "" if nothing is."""
    from triton_kernels.gemm.gluon.launch import launch

    form = next(form for form in FORMS if form.ALTERNATE)
    M, N, K = 264, 328, 200  # six tiles, with tails in each dimension, for two programs
    try:
        with torch.no_grad():
            a, b = (_integers(*shape, device) for shape in ((M, K), (N, K)))
            out = torch.full((M, N), torch.nan, dtype=a.dtype, device=device)
            how = False, True, True
            gemm = Gemm("gemm", a, b, None, None, out, "none", 1.0, 0.0, "ieee")
            launch(form, 2, gemm, how)
            right = torch.equal(out.double(), a.double() @ b.t().double())
    except Exception as error:  # noqa: BLE001 - whatever it is, there are other kernels
        give_up(device, error)
        return _tested[device]
    if not right:
        give_up(device, ArithmeticError("its self-test gives a wrong product"))
        return _tested[device]
    return ""


def _integers(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """A matrix of integers from -2 to 2: float16 holds their sums of 200 products."""
    row, column = (torch.arange(n, device=device) for n in (rows, columns))
    return ((7 * row[:, None] + 3 * column) % 5 - 2).half()
