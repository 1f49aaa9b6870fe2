"""The meaning of precision=None: the precision of torch's own float32 products at the call.

torch has an old and a new way to set it:

    torch.set_float32_matmul_precision("high"), torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.fp32_precision = "tf32", torch.backends.fp32_precision = "tf32"

The new setting's getter also sees the old ones. The old getters raise once the new one was set.
"""

from __future__ import annotations

from typing import Any

import torch

from triton_kernels._arguments import one_of

PRECISIONS = ("ieee", "tf32", "tf32x3", "f16x3")


def resolved(precision: str | None, operand: Any) -> str:
    """``precision``, or if that is None torch's for a product with ``operand``. Only float32 has
    a choice. Under autocast it becomes a 16-bit dtype, which has none."""
    if precision is not None:
        return precision
    if getattr(operand, "dtype", None) != torch.float32 or _of_torch() != "tf32":
        return "ieee"
    device = operand.device.type
    lowered = device in ("cuda", "cpu") and torch.is_autocast_enabled(device)
    return "ieee" if lowered else "tf32"


def _of_torch() -> str:
    precision: str = torch.backends.cuda.matmul.fp32_precision  # "none" if nothing was set
    return precision


# torch.compile calls it while tracing. Every graph is guarded by the setting, so a change of it
# compiles again. This is torch.compiler.assume_constant_result without its imports.
_of_torch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def checked(function: str, precision: str | None) -> str | None:
    """``precision`` if it is None or a known name.

    Raises:
        ValueError: it is neither.
    """
    return precision if precision is None else one_of(function, "precision", precision, PRECISIONS)
