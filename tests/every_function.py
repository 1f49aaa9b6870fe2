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
from compare.ops import SPECS

# Ops of two results, by the shapes of these in the sample call.
PAIRS = {"act_backward": ((4, 5), (5,)), "act_mul_backward": ((4, 5), (4, 5))}
MORE = {"gemm_bias_act": {"c": (4, 5)}}  # tensors that the op takes beside its sample's


def arguments(op: str) -> tuple[dict[str, Any], dict[str, Any], tuple[Any, ...]]:
    """The shapes of the op's tensors, its other arguments, the shapes of its results."""
    sample = {**SPECS[op].sample(), **MORE.get(op, {})}
    shapes = {name: value for name, value in sample.items() if isinstance(value, tuple)}
    rest = {name: value for name, value in sample.items() if name not in shapes}
    return shapes, rest, PAIRS.get(op, ((4, 5),))


ARGUMENTS = {op: arguments(op) for op in SPECS}
IN_PLACE = tuple(op for op, spec in SPECS.items() if spec.in_place)


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
    """Those of a mode's side; without tile, which takes none of the dense tensors made here."""
    package = triton_kernels if MODES[mode][0] == "triton" else cuda_reference
    assert set(ARGUMENTS) == set(package.OPS)
    found = [Function(op, None, getattr(package, op)) for op in ARGUMENTS]
    for op in ARGUMENTS:
        variants = {name: call for name, call in package.variants(op).items() if name != "tile"}
        found += [Function(op, name, call) for name, call in variants.items()]
    return found
