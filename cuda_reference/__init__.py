"""The CUDA C++ twins of :mod:`triton_kernels`: same names, same arguments, plain kernels.

    >>> import cuda_reference
    >>> cuda_reference.add(x, y, alpha=2, variant="auto")

CUDA tensors run kernels that nvcc builds on first use. CPU tensors run the same sources, compiled
by the host's C++ compiler with a header that emulates the GPU. load and load_inline do the same for
your own kernels, in files and in strings.

The ops are the files csrc/*.cu, with their host code in :mod:`cuda_reference.ops`;
``__init__.pyi``, which ``make stubs`` writes, lists them for editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from cuda_reference import ops
from cuda_reference._activations import register_activation
from cuda_reference._capabilities import capabilities
from cuda_reference._compilers import BuildError
from cuda_reference._loading import load, load_inline

OPS = tuple(sorted(ops.FUNCTIONS))
for _name, _function in ops.FUNCTIONS.items():
    if globals().setdefault(_name, _function) is not _function:
        raise ImportError(f"an op cannot be called {_name!r}: cuda_reference has that already")
__all__ = [
    "BuildError",
    "capabilities",
    "load",
    "load_inline",
    "register_activation",
    "variants",
    *OPS,
]


def variants(op: str) -> dict[str, Callable[..., Tensor]]:
    """The variants of ``op`` beside its default kernel: name → callable with op's signature. "auto"
    is left out, since it selects one of them, and "cublaslt", since it is no kernel of ours.

    Raises:
        ValueError: there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"variants(): no op {op!r}; the ops are {', '.join(OPS)}")
    return {name: partial(globals()[op], variant=name) for name in ops.VARIANTS.get(op, ())}
