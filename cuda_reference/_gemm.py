"""What the matrix products share: precisions, variants and their checks.

The products' kernels stand in csrc/gemm.cuh and csrc/gemm_wmma.cuh. All take any strides; naive and
tiled every floating dtype in precision "ieee", wmma what tensor cores multiply: float16, bfloat16,
and float32 as "tf32", "tf32x3" or "f16x3". cublaslt is no kernel of ours (_cublaslt.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _cublaslt, _launch
from cuda_reference._activations import BY_RESULT, STRAIGHT
from cuda_reference._registered import autocasts

VARIANTS = ("naive", "tiled", "wmma")
# In the order of enum Precision in csrc/gemm_wmma.cuh.
PRECISIONS = ("ieee", "tf32", "tf32x3", "f16x3")


def variant_for(op: str, variant: str | None, dtype: torch.dtype, precision: str) -> str:
    """The variant's name, checked against what it is asked to multiply."""
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


def writes_pre(variant: str | None, act: str, tensors: tuple[Any, ...]) -> bool:
    """Whether a call is of a training step that writes what the activation is taken of, too: by
    cublaslt, where its derivative reads that and a gradient is wanted."""
    if variant != _cublaslt.NAME or act in BY_RESULT or act == "none":
        return False
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def refuse_second(op: str, act: str) -> None:
    """Refuse the second derivative of an activation with curves."""
    if act not in STRAIGHT:
        raise NotImplementedError(
            f"{op}(): the second derivative of '{act}' is not there; of {', '.join(STRAIGHT)} it is"
        )


def precision_of(precision: str | None, operand: Any) -> str:
    """The precision by its name; None is torch's own for float32 products, by whichever of its
    settings that was set, unless autocast lowers them."""
    if precision is not None:
        return precision
    if getattr(operand, "dtype", None) != torch.float32 or _of_torch() != "tf32":
        return "ieee"
    return "ieee" if autocasts(operand.device.type) else "tf32"


def _of_torch() -> str:
    precision: str = torch.backends.cuda.matmul.fp32_precision
    return precision


# torch.compile calls it while it traces; a graph is guarded by the setting.
_of_torch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def takes(variant: str, dtype: torch.dtype, precision: str) -> bool:
    """Whether a variant is made for a dtype and precision."""
    if variant == "wmma":
        return dtype in (torch.float16, torch.bfloat16) or precision != "ieee"
    if variant == _cublaslt.NAME:
        return precision in ("ieee", "tf32")
    return precision == "ieee"


def check_bias(op: str, bias: Any, dtype: torch.dtype, N: int) -> Tensor:
    """bias, which must be [N] of the inputs' dtype."""
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
