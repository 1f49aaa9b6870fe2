"""What precision=None means: that of torch's own float32 products, as it is set at the call.

torch has two settings of it, an old one and a new one:

    torch.set_float32_matmul_precision("high"), torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.fp32_precision = "tf32", torch.backends.fp32_precision = "tf32"

The new one's getter knows both; the old ones' raise once the new one has been set.
"""

from __future__ import annotations

from typing import Any

import torch

from triton_kernels._arguments import one_of

PRECISIONS = ("ieee", "tf32", "tf32x3", "f16x3")


def resolved(precision: str | None, operand: Any) -> str:
    """``precision``, or torch's for a product with ``operand`` where that is None. Only float32 has
    a choice; autocast lowers it to 16 bits."""
    if precision is not None:
        return precision
    if getattr(operand, "dtype", None) != torch.float32 or _of_torch() != "tf32":
        return "ieee"
    device = operand.device.type
    lowered = device in ("cuda", "cpu") and torch.is_autocast_enabled(device)
    return "ieee" if lowered else "tf32"


def _of_torch() -> str:
    precision: str = torch.backends.cuda.matmul.fp32_precision  # "none" where nothing was set
    return precision


# torch.compile runs it while it traces, and compiles anew when the setting changes, which every
# graph is guarded by. As torch.compiler.assume_constant_result, without its imports.
_of_torch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def checked(function: str, precision: str | None) -> str | None:
    """``precision``, if there is one of that name."""
    return precision if precision is None else one_of(function, "precision", precision, PRECISIONS)
