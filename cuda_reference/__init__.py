"""The CUDA C++ twins of :mod:`triton_kernels`: same names, same arguments, plain kernels.

    >>> import cuda_reference
    >>> cuda_reference.add(x, y, alpha=2, variant="f32x4")

CUDA tensors run kernels that nvcc builds on first use; CPU tensors run the very same sources,
compiled by the host's C++ compiler against a header that stands in for the GPU. load_inline does
the same for a kernel in a string.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from cuda_reference._compilers import BuildError
from cuda_reference._inline import load_inline
from cuda_reference.ops import elementwise as _elementwise
from cuda_reference.ops import gemm as _gemm
from cuda_reference.ops.elementwise import (
    add,
    relu_scale,
    relu_scale_add,
    relu_scale_backward,
    square,
    square_backward,
)
from cuda_reference.ops.gemm import act_backward, gemm_bias_act, linear_gelu
from cuda_reference.ops.sums import sum_to

__all__ = [
    "BuildError",
    "act_backward",
    "add",
    "gemm_bias_act",
    "linear_gelu",
    "load_inline",
    "relu_scale",
    "relu_scale_add",
    "relu_scale_backward",
    "square",
    "square_backward",
    "sum_to",
    "variants",
]
OPS = tuple(name for name in __all__ if name not in ("BuildError", "load_inline", "variants"))
_VARIANTS = {
    **_elementwise.VARIANTS,
    **dict.fromkeys(("gemm_bias_act", "linear_gelu"), _gemm.VARIANTS),
}


def variants(op: str) -> dict[str, Callable[..., Tensor]]:
    """The variants of ``op`` beside its default kernel: name → callable with op's signature.

    Raises:
        ValueError: there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"variants(): no op {op!r}; the ops are {', '.join(OPS)}")
    names = _VARIANTS.get(op, ())
    return {name: partial(globals()[op], variant=name) for name in names}
