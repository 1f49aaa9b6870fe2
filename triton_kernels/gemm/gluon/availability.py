"""Whether gemm_gluon_kernel can run, and if not, why.

Gluon is experimental: a version of Triton may lack it or differ. Without it nothing fails: products
run in the kernels of gemm.kernels, which are slower.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Callable, Iterator

import torch
import triton

from triton_kernels import _known_calls, _launch, _modes
from triton_kernels._gpu import Gpu
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import Configuration
from triton_kernels.gemm.gluon.forms import CAPABILITY, CLUSTERS, FMA_FORMS, FORMS, WIDE
from triton_kernels.gemm.kernels import gemm_bias_act_kernel

_wanted: contextvars.ContextVar[str] = contextvars.ContextVar("kernels", default="any")
# (Device, whether multiply-adds multiply) → what went wrong there, or "" if the self-test passed.
_tested: dict[tuple[torch.device, bool], str] = {}


@contextlib.contextmanager
def only(kernels: str) -> Iterator[None]:
    """Inside this context products run only in these kernels, "tl" or "gluon", so that the two can
    be compared. With "gluon" a product raises RuntimeError if the kernel does not support it, or
    cannot run here."""
    token = _wanted.set(kernels)
    try:
        with _known_calls.suspended():
            yield
    finally:
        _wanted.reset(token)


def kernels(gpu: Gpu, device: torch.device, multiply_adds: bool = False) -> str:
    """The kernels that may be chosen for a product on a device, which tensor cores or multiply-adds
    compute, for Problem.kernels.

    Raises:
        RuntimeError: only Gluon is allowed, and it cannot run here.
    """
    wanted = _wanted.get()
    if wanted == "tl":
        return wanted
    reason = unavailable(gpu, device, multiply_adds)
    if reason and wanted == "gluon":
        raise RuntimeError(f"gemm_gluon_kernel cannot run: {reason}")
    return "tl" if reason else wanted


def expected(gpu: Gpu, device: torch.device) -> str:
    """The same for a plan, which may be made without the GPU or for tensors without memory. Nothing
    is tried: a kernel that has not failed yet is assumed to run."""
    wanted = _wanted.get()
    if gpu.capability != CAPABILITY or lacking() or _tested.get((device, False)):
        return "tl"
    return wanted


def unavailable(gpu: Gpu, device: torch.device, multiply_adds: bool = False) -> str:
    """Why gemm_gluon_kernel, or gemm_gluon_fma_kernel for multiply-adds, cannot run on a device, or
    "". The first call on a device tests it."""
    if gpu.capability != CAPABILITY:
        return f"it is for compute capability 9.0, not {gpu.capability // 10}.{gpu.capability % 10}"
    if _modes.compiling():
        return lacking()
    if _launch.interpreted(gemm_bias_act_kernel):
        return "kernels are interpreted"
    if device.type != "cuda":
        return "there is no GPU"
    reason = _tested.get((device, multiply_adds))
    if reason is None:
        if torch.cuda.is_current_stream_capturing():  # the test would wait for the GPU
            return "a CUDA graph is being captured, and it has not been tried before"
        reason = lacking() or _self_test(device, multiply_adds)
        _tested[device, multiply_adds] = reason
    return reason


def here(multiply_adds: bool = False) -> str:
    """Why gemm_gluon_kernel, or gemm_gluon_fma_kernel for multiply-adds, cannot run on the current
    GPU, or inside compiling() on the target; or ""."""
    device = torch.device("meta")
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return unavailable(_launch.gpu(gemm_bias_act_kernel, device), device, multiply_adds)


@functools.cache
def lacking() -> str:
    """Why this version of Triton cannot import the kernel, or ""."""
    try:
        import triton_kernels.gemm.gluon.launch  # noqa: F401
    except Exception as error:  # noqa: BLE001 - decorators of another version may raise anything
        return f"triton {triton.__version__} cannot import the kernel: {_words(error)}"
    return ""


def give_up(device: torch.device, error: Exception) -> None:
    """Stop using the kernels in Gluon on a device after a failure, and warn."""
    _known_calls.forget()
    reason = f"with triton {triton.__version__} it fails: {_words(error)}"
    _tested[device, False] = _tested[device, True] = reason
    warnings.warn(
        f"gemm_gluon_kernel is not used from now on, and products take longer; please report "
        f"it: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def give_up_clusters(error: Exception) -> None:
    """Stop using gemm_gluon_cluster_kernel after a failure, and warn. All other forms remain."""
    _give_up(CLUSTERS, "gemm_gluon_cluster_kernel is not used", error)


def _give_up_wide(error: Exception) -> None:
    """The same of gemm_gluon_kernel's forms in forms.WIDE."""
    _give_up(WIDE, "gemm_gluon_kernel is not used in tiles of any width", error)


def _give_up(forms: dict[Configuration, float], what: str, error: Exception) -> None:
    """Forget some forms, and what was chosen and prepared with them."""
    from triton_kernels.gemm import choice  # which imports this folder's forms
    from triton_kernels.gemm.gluon import launch

    forms.clear()
    _known_calls.forget()
    choice.forget()
    launch._prepared.cache_clear()
    warnings.warn(
        f"{what} from now on, and some products take longer; please report it: with triton "
        f"{triton.__version__} it fails: {_words(error)}",
        RuntimeWarning,
        stacklevel=2,
    )


def _self_test(device: torch.device, multiply_adds: bool) -> str:
    """What is wrong with a test product, or ""."""
    if error := _failure(_test_launch(multiply_adds), device, multiply_adds):
        give_up(device, error)
        return _tested[device, multiply_adds]
    if multiply_adds:
        return ""
    for forms, give_up_these in ((WIDE, _give_up_wide), (CLUSTERS, give_up_clusters)):
        for form in list(forms)[:1]:
            if error := _failure(_launching(form), device, False):
                give_up_these(error)
    return ""


def _failure(
    launch: Callable[[Gemm], None], device: torch.device, multiply_adds: bool
) -> Exception | None:
    """What a launch of a test product raises, or that its result is wrong. Its elements are
    integers, so it is exact."""
    # Several tiles, with tails in each dimension, and for multiply-adds a kept sum.
    M, N, K = 264, 328, 400 if multiply_adds else 200
    try:
        with torch.no_grad():
            a, b = (_integers(*shape, device) for shape in ((M, K), (N, K)))
            if multiply_adds:
                a, b = a.float(), b.float()
            out = torch.full((M, N), torch.nan, dtype=a.dtype, device=device)
            launch(Gemm("gemm", a, b, None, None, out, "none", 1.0, 0.0, "ieee"))
            right = torch.equal(out.double(), a.double() @ b.t().double())
    except Exception as error:  # noqa: BLE001 - after any error other kernels are used
        return error
    return None if right else ArithmeticError("its self-test gives a wrong product")


def _test_launch(multiply_adds: bool) -> Callable[[Gemm], None]:
    """A function that launches a test product of a and of b's transpose: for tensor cores in an
    alternating form."""
    if not multiply_adds:
        return _launching(next(form for form in FORMS if form.ALTERNATE))
    from triton_kernels.gemm.gluon import fma

    form = next(iter(FMA_FORMS))
    return lambda gemm: fma.launch(form, gemm, (gemm.a, gemm.b), (False, True), 2, False)


def _launching(form: Configuration) -> Callable[[Gemm], None]:
    """The same in a form of gemm_gluon_kernel or gemm_gluon_cluster_kernel."""
    from triton_kernels.gemm.gluon import clusters, launch

    how = False, True, True
    if form.cluster[0]:
        return lambda gemm: clusters.launch(form, gemm, (gemm.a, gemm.b), how, False)
    return lambda gemm: launch.launch(form, 2, gemm, (gemm.a, gemm.b), how)


def _integers(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """A matrix of integers from -2 to 2. float16 can hold sums of 200 of their products."""
    row, column = (torch.arange(n, device=device) for n in (rows, columns))
    return ((7 * row[:, None] + 3 * column) % 5 - 2).half()
