"""Triton kernels for models, with torch's conventions.

    >>> import triton_kernels as tk
    >>> y = tk.relu_scale(x, 0.5)

CUDA tensors run compiled. On a machine without a GPU, ``with tk.interpret():`` (or
``TRITON_INTERPRET=1``) runs the same kernels in Triton's interpreter on CPU tensors.

For whole models: the modules of :mod:`triton_kernels.nn`, :func:`replace_modules`, :func:`fuse`,
and ``torch.compile(model, backend="triton_kernels")``. Their choices rest on measurements of an
H200; on another GPU call :func:`tune` once. :func:`capabilities` shows the figures in use.

The ops are the files of :mod:`triton_kernels.ops`; ``__init__.pyi``, which ``make stubs`` writes,
lists them for editors and type checkers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch.fx
from torch import Tensor

from triton_kernels import nn, ops
from triton_kernels._launch import interpret
from triton_kernels._version import __version__
from triton_kernels.graph import explain, fuse, replace_modules, restore_modules
from triton_kernels.own_activations import register_activation
from triton_kernels.tuning import capabilities, tune

OPS = tuple(sorted(ops.FUNCTIONS))
for _name, _function in ops.FUNCTIONS.items():
    if globals().setdefault(_name, _function) is not _function:
        raise ImportError(f"an op cannot be called {_name!r}: triton_kernels has that already")
    torch.fx.wrap(_name)  # symbolic_trace records the call
__all__ = [
    "__version__",
    "capabilities",
    "explain",
    "fuse",
    "interpret",
    "nn",
    "register_activation",
    "replace_modules",
    "restore_modules",
    "tune",
    "variants",
    *OPS,
]


def variants(op: str) -> dict[str, Callable[..., Tensor]]:
    """The pinned variants of ``op`` beside its default kernel: name → callable with op's signature.

    A variant refuses arguments that it does not support. Variants have the same names as on the
    CUDA side. An op without variants returns an empty dict.

    Raises:
        ValueError: there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"variants(): no op {op!r}; the ops are {', '.join(OPS)}")
    return dict(ops.VARIANTS.get(op, {}))


if os.environ.get("TRITON_KERNELS_PROFILE") == "1":
    from triton_kernels import annotating

    annotating.start()
