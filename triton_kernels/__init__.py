"""Triton kernels for models, with torch's conventions.

    >>> import triton_kernels as tk
    >>> y = tk.relu_scale(x, 0.5)

CUDA tensors run compiled. On a machine without a GPU, ``with tk.interpret():`` (or
``TRITON_INTERPRET=1``) runs the same kernels in Triton's interpreter on CPU tensors.

For whole models: the modules of :mod:`triton_kernels.nn`, :func:`replace_modules`, :func:`fuse`,
and ``torch.compile(model, backend="triton_kernels")``.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from triton_kernels import nn
from triton_kernels._launch import interpret
from triton_kernels._version import __version__
from triton_kernels.graph import explain, fuse, replace_modules, restore_modules
from triton_kernels.ops import add as _add
from triton_kernels.ops.act_backward import act_backward
from triton_kernels.ops.add import add
from triton_kernels.ops.gemm_bias_act import gemm_bias_act
from triton_kernels.ops.linear_gelu import linear_gelu
from triton_kernels.ops.relu_scale import relu_scale, relu_scale_add, relu_scale_backward
from triton_kernels.ops.square import square, square_backward
from triton_kernels.ops.sum_to import sum_to

__all__ = [
    "__version__",
    "act_backward",
    "add",
    "explain",
    "fuse",
    "gemm_bias_act",
    "interpret",
    "linear_gelu",
    "nn",
    "relu_scale",
    "relu_scale_add",
    "relu_scale_backward",
    "replace_modules",
    "restore_modules",
    "square",
    "square_backward",
    "sum_to",
    "variants",
]

_MODELS = ("explain", "fuse", "nn", "replace_modules", "restore_modules")
OPS = tuple(n for n in __all__ if n not in ("__version__", "interpret", "variants", *_MODELS))


def variants(op: str) -> dict[str, Callable[..., Tensor]]:
    """The pinned variants of ``op`` beside its default kernel: name → callable with op's signature.

    Each refuses what it is not made for. Only add has variants, named as on the CUDA side; the
    other ops return an empty dict.

    Raises:
        ValueError: there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"variants(): no op {op!r}; the ops are {', '.join(OPS)}")
    return _add.variants() if op == "add" else {}
