"""Every public function of both sides and every variant of it, with arguments that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import cuda_reference
import triton_kernels
from compare.checking.implementations import MODES

MATRIX, ROW = (4, 4), (4,)
# op → the shapes of its tensors, its other arguments, the shapes of its results
ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[Any, ...]]] = {
    "add": ({"x": MATRIX, "y": MATRIX}, {}, (MATRIX,)),
    "square": ({"x": MATRIX}, {}, (MATRIX,)),
    "relu_scale": ({"x": MATRIX}, {"scale": 2.0}, (MATRIX,)),
    "relu_scale_add": ({"x": MATRIX, "y": MATRIX}, {"scale": 2.0}, (MATRIX,)),
    "square_backward": ({"grad": MATRIX, "x": MATRIX}, {}, (MATRIX,)),
    "relu_scale_backward": ({"grad": MATRIX, "x": MATRIX}, {"scale": 2.0}, (MATRIX,)),
    "sum_to": ({"x": (3, *MATRIX)}, {"shape": MATRIX}, (MATRIX,)),
    "linear_gelu": ({"x": MATRIX, "weight": MATRIX, "bias": ROW}, {}, (MATRIX,)),
    "gemm_bias_act": ({"a": MATRIX, "b": MATRIX, "bias": ROW, "c": MATRIX}, {}, (MATRIX,)),
    "act_backward": ({"grad": MATRIX, "saved": MATRIX}, {"act": "relu"}, (MATRIX, ROW)),
}
IN_PLACE = tuple(op for op in ARGUMENTS if op not in ("sum_to", "linear_gelu", "gemm_bias_act"))


@dataclass(frozen=True)
class Function:
    """A public function, perhaps in a variant."""

    op: str
    variant: str | None
    call: Callable[..., Any] = field(repr=False)

    @property
    def dtype(self) -> torch.dtype:
        """One that it takes."""
        name = self.variant or ""
        if name.startswith("bf16"):
            return torch.bfloat16
        return torch.float16 if name.startswith("f16") or name == "wmma" else torch.float32

    def inputs(self, device: torch.device) -> dict[str, Tensor]:
        shapes = ARGUMENTS[self.op][0]
        return {n: torch.ones(s, dtype=self.dtype, device=device) for n, s in shapes.items()}

    def results(self, device: torch.device) -> list[Tensor]:
        """What can be given as ``out``."""
        shapes = ARGUMENTS[self.op][2]
        return [torch.full(s, torch.nan, dtype=self.dtype, device=device) for s in shapes]

    def __call__(self, inputs: dict[str, Any], out: list[Any] | None = None) -> list[Tensor]:
        options = dict(ARGUMENTS[self.op][1])
        if out is not None:
            options["out"] = out[0] if len(out) == 1 else tuple(out)
        result = self.call(**inputs, **options)
        return [result] if isinstance(result, Tensor) else list(result)


def functions(mode: str) -> list[Function]:
    """Those of a mode's side."""
    package = triton_kernels if MODES[mode][0] == "triton" else cuda_reference
    assert set(ARGUMENTS) == set(package.OPS)
    found = [Function(op, None, getattr(package, op)) for op in ARGUMENTS]
    for op in ARGUMENTS:
        found += [Function(op, name, call) for name, call in package.variants(op).items()]
    return found
