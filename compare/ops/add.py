"""add: alpha, numbers for tensors, every pair of dtypes; and its variants on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from compare import cases, numerics
from compare.case_options import ANY_DTYPE, LYING, NUMBER, choice
from compare.cases import FLOATS, Case, Level
from compare.specs.elementwise import ALL, BROADCAST, DENSE, ELEMENT, Elementwise, promoted

COMPILED = (64, 64)  # the shape to compile, except for an index past 2³¹
FEW = 1000  # elements; small blocks make some programs of them, not dozens


class Add(Elementwise):
    """add with every form of promotion."""

    def __init__(self) -> None:
        super().__init__(
            "add",
            "x + alpha·y",
            lambda x, y, *, alpha=1: x + y * alpha,
            dtypes=ALL,
            flops=2,
            cancelling=True,
            eager=torch.add,
        )
        self.options = {
            "x": choice("same", "scalar"),
            "y": choice(*BROADCAST, "scalar", *cases.LAYOUTS, *cases.OF_MODELS, *cases.DISTANT),
            "y_dtype": ANY_DTYPE,
            "alpha": NUMBER,
            "out": LYING,
        }

    def oracle(
        self, x: Tensor | int | float, y: Tensor | int | float, *, alpha: int | float = 1
    ) -> Tensor:
        """fma(alpha, y, x) in the compute dtype, rounded once."""
        result = torch.result_type(x, y)
        like = x if isinstance(x, Tensor) else y
        assert isinstance(like, Tensor)
        a, b = promoted(x, result, like), promoted(y, result, like)
        if not result.is_floating_point:
            return (a + b * alpha).to(result)
        return numerics.fma(torch.tensor(alpha, dtype=a.dtype, device=a.device), b, a).to(result)

    def settings(self, dtype: str) -> list[dict[str, Any]]:
        """Alphas that round or wrap."""
        if dtype in FLOATS:
            return [{}, {"alpha": 0.1}, {"alpha": -3}]
        return [{}, {"alpha": -3}, {"alpha": 2**40 + 7}]

    def kinds(self, dtype: str) -> list[dict[str, Any]]:
        """Broadcast, scalar and promoted."""
        kinds: list[dict[str, Any]] = [
            {"y": kind} for kind in ("row", "column", "0-d", "scalar", "contiguous")
        ]
        kinds.append({"x": "scalar", "alpha": -3})
        others = ("int64", "float16", "float32")
        if dtype not in FLOATS:
            others = ("int32", "uint8", "bfloat16")
        return kinds + [{"y_dtype": other} for other in others if other != dtype]

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The usual cases, and sums and conversions of which only roundings remain."""
        yield from super().cases(dtype, level)
        rounding = self.settings(dtype)[1]

        def case(layout: str = "contiguous", values: str = "normal", **options: Any) -> Case:
            shape = (17, 19) if layout == "transposed" else (139,)
            return Case(self.name, dtype, shape, layout, values, options=options)

        for layout in ("contiguous", "misaligned"):
            yield case(layout, "cancelling", **rounding)
        if dtype in FLOATS:  # 0·∞ is NaN
            yield case(values="special", alpha=0.0)
        scalars = {"y": "scalar", **rounding}
        if dtype == "int64":  # factors of 32 bits with a 64-bit product
            scalars |= {"y_dtype": "int32", "alpha": -7}
            yield case(**{**scalars, "y_dtype": "int64"})
        yield case(**scalars)
        narrow = dtype in ("float16", "bfloat16")
        if narrow:
            yield case(values="cancelling", y_dtype="int16")
            yield case(values="ties", y="0-d", y_dtype="float64")
        if narrow or dtype in ("int32", "int64"):
            other = "int64" if narrow else "bfloat16"
            yield case(values="ties", y_dtype=other)
            yield case("transposed", "ties", y_dtype=other)

    def cancel(self, x: Tensor, y: Tensor, options: Mapping[str, Any]) -> None:
        """Set x so that the sum cancels."""
        x.copy_(-options.get("alpha", 1) * y.double())

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """Inputs that cancel need no more memory."""
        return super().work(replace(case, values="normal"), dtype, read, written)

    def refuses(self, case: Case) -> str:
        """Two numbers; an alpha that integers cannot take."""
        if reason := super().refuses(case):
            return reason
        if case.options.get("x") == "scalar":
            if case.options.get("y") == "scalar":
                return "x or y must be a tensor"
            if case.layout == "inplace":
                return "a number is no place for the result"
        dtypes = {case.dtype, case.options.get("y_dtype", case.dtype)}
        alpha = case.options.get("alpha", 1)
        if not dtypes & set(FLOATS) and (isinstance(alpha, float) or not -(2**63) <= alpha < 2**64):
            return "alpha must be an integer of 64 bits for integers"
        return ""

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """A variant takes its dtype; on the CUDA side only dense tensors of one shape. On the
        Triton side it is the default kernel with other blocks, so that strides and values need not
        both be tried with it."""
        if variant is None or variant in self.rungs():
            return super().takes(side, variant, case)
        prefix = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(case.dtype, "none")
        if variant != prefix and not variant.startswith(prefix + "x"):
            return False
        if "y_dtype" in case.options:
            return False
        few = case.shape in (self.default_shape, COMPILED)
        if side == "triton" and variant.endswith("_pack") and not few:
            return False  # on this side the same kernel as without "_pack"
        if side == "triton" and case.values == "normal" and "out" not in case.options:
            return case.lying <= DENSE or case.numel < FEW
        return case.lying <= DENSE and "x" not in case.options

    def small(self, dtype: str) -> Iterator[Case]:
        """Small calls: plain, with a factor, and with a row."""
        for case in super().small(dtype):
            for options in ({}, {"alpha": 0.5}, {"y": "row"}):
                yield replace(case, options=options)

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """The usual calls, and calls with a number as first or second operand."""
        yield from super().to_compile(dtype, options)
        for operand in ("x", "y"):
            yield Case(self.name, dtype, (64, 64), options={**options, operand: "scalar"})

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """The variants are instances of one kernel, as rungs are."""
        if variant is None or variant in self.rungs():
            return super().cuda_kernel(dtype, variant)
        per_thread = re.search(r"x(\d)", variant)
        element = access = ELEMENT[dtype]
        if variant.endswith(("f32x4", "_pack")):
            access = "float4"
        elif per_thread:
            access = "unsigned"
        return f"pack_kernel<Add, {element}, {access}, {per_thread[1] if per_thread else 1}>"


SPECS = [Add()]
