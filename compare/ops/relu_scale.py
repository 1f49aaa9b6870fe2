"""relu_scale, relu_scale_add and relu_scale_backward; scale is a number or a tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from compare import cases, numerics
from compare.case_options import FLOAT_DTYPE, NUMBER, Option
from compare.cases import CPU, Arguments, Case, Level
from compare.specs.elementwise import Elementwise, compute_dtype, relu
from compare.specs.spec import cuda_type

# The shape of a tensor scale relative to x, or its layout if it has x's shape.
KINDS = ("0-d", "row", "column", "channel", "batch", *cases.LAYOUTS, *cases.OF_MODELS)


def _scale(text: str) -> str | int | float:
    return text if text in KINDS else NUMBER.read(text)


class Scaled(Elementwise):
    """An op with a scale. Option scale is a number, or the kind of tensor."""

    def __init__(self, name: str, summary: str, formula: Callable[..., Tensor], **more: Any):
        super().__init__(name, summary, formula, numbers={"scale": (0.1, -2)}, **more)
        scale = Option(f"{NUMBER.allowed}, or one of {', '.join(KINDS)}", _scale)
        self.options = {**self.options, "scale": scale, "scale_dtype": FLOAT_DTYPE}

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """The inputs of an elementwise op; a tensor scale has the case's values."""
        options = dict(case.options)
        kind, dtype = options.get("scale"), options.pop("scale_dtype", case.dtype)
        args, options = super().inputs(dataclasses.replace(case, options=options), device)
        if kind in KINDS:
            values = "shuffled" if case.values == "every" else case.values
            # With this seed no integer scale starts with 0, so a double write in place shows.
            generator = torch.Generator().manual_seed(case.seed + 2)
            scale = cases.random_values(
                self.scale_shape(case), cases.DTYPES[dtype], values, generator, device
            )
            options["scale"] = cases.arrange(scale, kind)
        return args, options

    def scale_shape(self, case: Case) -> tuple[int, ...]:
        """The shape of a tensor scale."""
        shape = case.shape
        others = {"0-d": (), "row": shape[-1:], "column": (*shape[:-1], 1), "batch": (3, *shape)}
        return {**others, "channel": (*shape[-3:-2], 1, 1)}.get(case.options["scale"], shape)

    def refuses(self, case: Case) -> str:
        """A reason for a tensor scale with cancelling values, and for a number with a dtype."""
        if case.options.get("scale") in KINDS:
            alone = case.values == "cancelling"
            return "what cancels needs a number for scale" if alone else super().refuses(case)
        return (
            "a number has no scale_dtype"
            if "scale_dtype" in case.options
            else super().refuses(case)
        )

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """Rungs take a number scale only."""
        number = case.options.get("scale") not in KINDS
        return super().takes(side, variant, case) and (number or variant is None)

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """A tensor scale is one more operand."""
        usual = super().work(case, dtype, read, written)
        if case.options.get("scale") not in KINDS:
            return usual
        more = min(written, math.prod(self.scale_shape(case)))
        return usual + more * (compute_dtype(dtype).itemsize + 2)

    def cuda_kernels(self, dtype: str, variant: str | None) -> dict[str, str]:
        """A tensor scale has a plain kernel of its own."""
        kernels = super().cuda_kernels(dtype, variant)
        if variant is None:
            kernels["tensor"] = f"{self.name}_tensor_kernel<{cuda_type(dtype)}>"
        return kernels

    def cost(self, case: Case) -> tuple[int, int]:
        """Every tensor is moved once."""
        flops, moved = super().cost(case)
        if case.options.get("scale") in KINDS:
            moved += math.prod(self.scale_shape(case)) * case.torch_dtype.itemsize
        return flops, moved

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The usual cases, and tensor scales in flat kernels, in tiles and in rows that repeat."""
        yield from super().cases(dtype, level)

        def case(
            shape: tuple[int, ...],
            scale: str,
            layout: str = "contiguous",
            values: str = "normal",
            **options: Any,
        ) -> Case:
            options = {"scale": scale, **options}
            return Case(self.name, dtype, shape, layout, values, options=options)

        other = "float16" if dtype == "float32" else "float32"
        yield case((33, 129), "row", values="special")
        yield case((33, 129), "contiguous", "transposed")
        yield case((33, 129), "0-d", "inplace", scale_dtype="float64")
        yield case((33, 129), "0-d", "transposed", scale_dtype="float64")
        yield case((33, 48), "column", scale_dtype=other)
        yield case((3, 4112), "row", "padded")
        yield case((2, 70, 3, 5), "channel")
        yield case((2, 3, 16, 257), "channel", "channels_last")
        yield case((7, 13), "batch", values="special")
        yield case((67, 133), "transposed")
        yield case((1043,), "misaligned", "inplace", "integers")
        if level == "full" and torch.cuda.is_available() and dtype == "float16":
            yield case((2**31 + 17,), "contiguous")
        if not self.unary:  # alone it would be a row that repeats
            yield case((33, 48), "column", y="row")


SPECS = [
    Scaled(
        "relu_scale",
        "relu(x)·scale",
        lambda x, *, scale: relu(x) * scale,
        flops=2,
        eager=lambda x, *, scale: torch.relu(x) * scale,
    ),
    Scaled(
        "relu_scale_add",
        "relu(x)·scale + y",
        lambda x, y, *, scale: numerics.fma(relu(x), scale, y),
        flops=3,
        cancelling=True,
        eager=lambda x, y, *, scale: torch.relu(x) * scale + y,
    ),
    Scaled(
        "relu_scale_backward",
        "0 where x <= 0, else grad·scale",
        lambda grad, x, *, scale: torch.where(x <= 0, torch.zeros_like(x), grad * scale),
        flops=2,
        every="every x",
        sizes_timed=(1024, 4096),
    ),
]
