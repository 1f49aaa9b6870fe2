"""Common parts of the matrix products: precisions, variants and their checks.

The kernels are in csrc/gemm.cuh and csrc/gemm_wmma.cuh. All take any strides. naive and tiled take
every floating dtype in precision "ieee"; wmma takes what tensor cores multiply: float16, bfloat16,
and float32 as "tf32", "tf32x3" or "f16x3". cublaslt calls a library (_cublaslt.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _cublaslt, _launch
from cuda_reference._activations import BY_RESULT
from cuda_reference._registered import autocasts

VARIANTS = ("naive", "tiled", "wmma")
# In the order of enum Precision in csrc/gemm_wmma.cuh.
PRECISIONS = ("ieee", "tf32", "tf32x3", "f16x3")


def variant_for(op: str, variant: str | None, dtype: torch.dtype, precision: str) -> str:
    """The name of the variant, checked to support the dtype and precision."""
    _arguments.check_choice(op, "precision", precision, PRECISIONS)
    if precision != "ieee" and dtype != torch.float32:
        raise ValueError(
            f"{op}(): precision '{precision}' is for float32, but the inputs are {dtype}"
        )
    if variant is None:
        return "naive" if precision == "ieee" else "wmma"
    _arguments.check_choice(op, "variant", variant, (*VARIANTS, _cublaslt.NAME))
    if not takes(variant, dtype, precision):
        raise ValueError(
            f"{op}(): variant '{variant}' does not multiply {dtype} in precision '{precision}'"
        )
    return variant


# The largest dimensions of a product. Indices of Triton's kernels have 32 bits, also those past the
# end of a matrix up to the end of a tile; in precision "f16x3" an operand's two parts are one
# matrix. The kernels here have no such limit, but both sides shall refuse the same.
MOST, MOST_IN_PARTS = 2**31 - 1024, 2**30 - 1024


def check_sizes(op: str, precision: str, *sizes: int) -> None:
    """Raise RuntimeError for M, N and K of which one is too large."""
    most = MOST_IN_PARTS if precision == "f16x3" else MOST
    if max(sizes) > most:
        raise RuntimeError(
            f"{op}(): M, N and K are {', '.join(map(str, sizes))}, but may be up to {most} in "
            f"precision '{precision}'"
        )


def writes_pre(variant: str | None, act: str, tensors: tuple[Any, ...]) -> bool:
    """Whether a call also writes the pre-activation: in variant cublaslt, if a gradient is needed
    and the activation's derivative reads the pre-activation."""
    if variant != _cublaslt.NAME or act in BY_RESULT or act == "none":
        return False
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def precision_of(precision: str | None, operand: Any) -> str:
    """The precision's name. None stands for the precision of torch's float32 products, whichever of
    torch's settings was used; under autocast, which lowers float32, for "ieee"."""
    if precision is not None:
        return precision
    if getattr(operand, "dtype", None) != torch.float32 or _of_torch() != "tf32":
        return "ieee"
    return "ieee" if autocasts(operand.device.type) else "tf32"


def _of_torch() -> str:
    precision: str = torch.backends.cuda.matmul.fp32_precision
    return precision


# torch.compile calls it while tracing; graphs are guarded by the setting.
_of_torch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def takes(variant: str, dtype: torch.dtype, precision: str) -> bool:
    """Whether a variant supports a dtype and precision."""
    if variant == "wmma":
        return dtype in (torch.float16, torch.bfloat16) or precision != "ieee"
    if variant == _cublaslt.NAME:
        return precision in ("ieee", "tf32")
    return precision == "ieee"


def check_bias(op: str, bias: Any, dtype: torch.dtype, N: int) -> Tensor:
    """``bias`` if it is [N] with the inputs' dtype."""
    bias = _arguments.check_tensor(op, "bias", bias, (dtype,))
    if list(bias.shape) != [N]:
        raise RuntimeError(f"{op}(): 'bias' must have shape [{N}], but has {list(bias.shape)}")
    return bias


def launch(
    stem: str, symbol: str, inputs: dict[str, Tensor], out: Tensor, *arguments: Any, act: str
) -> None:
    """Call the launcher, unless there is nothing to compute."""
    if out.numel():
        _launch.launch(stem, symbol, inputs, (out,), *arguments, act=act)
