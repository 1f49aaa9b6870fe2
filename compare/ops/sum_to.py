"""sum_to: oracle, derived bound, cases.

The bound holds for any order of summation, since each side has its own. Sums of integers are not
rounded, so they must have the oracle's bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import FLOAT_DTYPE, LYING, NUMBER, choice
from compare.cases import CPU, FLOATS, META, Arguments, Case, Guarded, Level
from compare.specs import sums
from compare.specs.drawn import elements, equal, log_uniform, matrix, odd_matrix
from compare.specs.spec import Spec
from compare.specs.sums import any_order

LAYOUTS = (*cases.LAYOUTS, "expanded_columns", "functional", *cases.OF_MODELS, *cases.DISTANT)
VALUES = ("normal", "special", "integers")


def _compute(*dtypes: torch.dtype) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


TARGETS = ("row", "column", "scalar", "same", "gaps")
OPTIONS = {
    "to": choice(*TARGETS),
    "factor": NUMBER,
    "out_dtype": FLOAT_DTYPE,
    "out": LYING,
}


def target(case: Case) -> tuple[int, ...]:
    """The shape that option ``to`` names; "gaps" sums every second dimension."""
    shape, to = case.shape, case.options.get("to", "row")
    if to == "gaps":
        return tuple(n if d % 2 else 1 for d, n in enumerate(shape))
    named = {"row": shape[-1:], "column": (*shape[:-1], 1), "scalar": (), "same": shape}
    return named[to] if shape else ()


# Empty shapes and single elements; partial tiles both ways; sums tall enough for two passes, with
# few results and with many.
SHAPES = [(), (0,), (3, 0), (0, 3), (1, 1), (7, 13), (33, 129)]
# More dimensions than merge. Smaller where the last is summed: then each result is a program.
MANY = dict.fromkeys(TARGETS, (2, 3, 5, 2, 3, 2, 2)) | {"column": (2, 3, 1, 2, 3, 2, 7)}
TALL = [(70001, 3), (3, 70001)]
TWO_PASSES = (1, 3, 9000, 2)  # few results of many addends; two of its dimensions do not merge
ROWS_FIRST = (49, 321, 4, 68)  # whole rows are added first, if nothing lies within them
# Rows of whole vectors, which the Triton side cuts differently: few addends of few and of many
# results; long rows and columns; dimensions that do not merge. LARGE is too much to interpret.
VECTORS = [
    ((3, 2048), "row"),
    ((6, 65536), "row"),
    ((5, 8192), "column"),
    ((160, 64), "row"),
    ((1, 16, 6, 4096), "gaps"),
    ((4, 5, 2048), "gaps"),
    ((1, 4, 160, 64), "gaps"),
    ((70, 24), "row"),  # multiples of 8
    ((70, 136), "column"),
    ((3, 70, 12, 1), "gaps"),  # a few addends in a row
    ((2, 9000), "column"),
    ((1, 16, 6, 40), "gaps"),
    # No whole vectors: many rows are merged into one; with a remainder, and without.
    ((8191, 33), "row"),  # the last tile lacks one row
    ((2112, 65), "row"),
    ((2063, 65), "row"),  # all tiles but one row are whole
    ((280, 2, 60, 1), "gaps"),  # many addends in short rows
    ((1090, 1, 9, 3), "gaps"),
    ((90, 3, 5, 40), "gaps"),  # rows of two dimensions, the inner one shorter than a thread's step
    ((3201, 72), "column"),  # too many rows to cut them for the CUDA side's workspace
    ((1, 2, 9000, 2), "gaps"),  # more parts than results, which have two dimensions
    ((1600, 132), "row"),  # two rows of float16 are merged
    ((400, 256), "column"),  # many rows of as many vectors as a warp has lanes, or twice as many
    ((2, 6400, 1, 1, 16), "gaps"),  # many short rows, of which each result has two
    ((6, 60000), "column"),  # on the CPU two parts of each row
    ((515, 773), "row"),  # merged rows would be too long for the CUDA side's workspace
    ((1, 2, 2103, 33), "gaps"),  # two dense matrices, of which the second begins anywhere
    # Many short rows: of no whole vectors, of three, and the longest that fit shared memory well.
    ((3089, 5), "column"),
    ((3100, 12), "column"),
    ((3080, 97), "column"),
    ((2, 3200, 1, 1, 5), "gaps"),  # of which each result has two
]
BIG = 1 << 18  # elements; only layouts matter here, since roundings are those of smaller cases
LARGE = [
    ((2048, 2048), "row"),
    ((512, 16384), "row"),
    ((9, 262144), "row"),
    ((9, 262147), "row"),
    ((30001, 777), "row"),  # many rows are merged into one
    ((1100001, 3), "column"),  # short rows, read in several ways
    ((100001, 13), "column"),
    ((40001, 96), "column"),
    ((70001, 64), "column"),  # so many rows that several are in flight
    ((140001, 29), "column"),  # so many that each thread has one
    ((4301, 517), "column"),  # rows with any alignment
    ((4301, 1201), "column"),
    ((4301, 2213), "column"),
    ((1201, 8197), "column"),
    (ROWS_FIRST, "gaps"),  # rows of results that are not adjacent
    ((30, 40, 17, 115), "gaps"),
    ((30, 900, 17, 96), "gaps"),
]


class SumTo(Spec):
    """Additions in any order; sums of integers are exact."""

    order = 1
    bounded = True
    layouts = LAYOUTS
    values = VALUES
    options = OPTIONS
    default_options: Mapping[str, Any] = {"to": "row"}

    # ---- rungs of the CUDA side ----

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """A rung takes its dtypes, and few dimensions of each kind."""
        rung = self._rung(side, variant)
        if rung is None:
            return super().takes(side, variant, case)
        (x, shape), _ = self.inputs(case, META)
        where = "contiguous" if case.layout == "functional" else case.out_layout
        out = Guarded(shape, self.out_dtype(case), META, where).out
        return not rung.refuses({"x": x, "out": out})

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """The kernel that adds columns, as the default target does."""
        if variant not in self.rungs():
            return super().cuda_kernel(dtype, variant)
        return self.cuda_kernels(dtype, variant)["by columns"]

    def cuda_kernels(self, dtype: str, variant: str | None) -> dict[str, str]:
        """A rung adds rows or columns, the best one in two passes."""
        if variant not in self.rungs():
            return super().cuda_kernels(dtype, variant)
        kernels = sums.row_kernels(dtype, variant)
        for where, one in (("by columns", "true"), ("by columns in two dimensions", "false")):
            kernels[where] = sums.columns_kernel(f"Addends<{{}}, {one}>", dtype, variant)
        return kernels | (sums.SECOND if variant == "two_pass" else {})

    # ---- what is right ----

    def oracle(
        self,
        x: Tensor,
        shape: Sequence[int],
        *,
        factor: float = 1,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """factor·Σx in float64; factor is rounded to the compute dtype first, as in the kernels."""
        rounded = torch.tensor(factor, dtype=_compute(x.dtype, dtype or x.dtype), device=x.device)
        return x.double().sum_to_size(shape) * rounded.double()

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The bound of n − 1 additions in any order, and one multiplication."""
        (x, shape), options = arguments
        n = max(1, x.numel() // max(1, math.prod(shape)))
        magnitude = x.double().abs().sum_to_size(shape) * abs(options.get("factor", 1))
        return any_order(reference, magnitude, n, _compute(x.dtype, dtype), dtype)

    def result_shape(self, arguments: Arguments) -> tuple[int, ...]:
        """The shape that the call names."""
        return tuple(arguments[0][1])

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """The bytes of x and |x| in float64, the oracle's result, the bound and the errors."""
        if self.exact(case):
            return max(8 * read + 16 * written, 26 * written)
        wide = 8 if case.dtype != "float64" else 0
        return max((wide + 8) * read + 16 * written, 64 * written)

    def cut(self, arguments: Arguments) -> int | None:
        """The longest dimension of the result."""
        shape = self.result_shape(arguments)
        return max(range(len(shape)), key=shape.__getitem__) if math.prod(shape) > 1 else None

    def part(self, arguments: Arguments, along: int, start: int, size: int) -> Arguments:
        """A slice of x and of the shape."""
        (x, shape), options = arguments
        some = (*shape[:along], size, *shape[along + 1 :])
        return (x.narrow(along - len(shape), start, size), some), options

    def exact(self, case: Case) -> bool:
        """Whether no sum of the case rounds: integers, times a power of two."""
        factor = abs(case.options.get("factor", 1))
        return (
            case.values in ("integers", "lattice") and factor > 0 and math.frexp(factor)[0] == 0.5
        )

    def out_dtype(self, case: Case) -> torch.dtype:
        """The result's dtype."""
        return cases.DTYPES[case.options.get("out_dtype", case.dtype)]

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """Every kind of sum, with shapes and layouts that kernels treat differently."""

        def case(
            shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
        ) -> Case:
            return Case(self.name, dtype, shape, layout, values, 0, o)

        for shape in SHAPES:
            for to in TARGETS if len(shape) > 1 else ("scalar", "same"):
                yield case(shape, to=to)
        for to, shape in MANY.items():
            yield case(shape, to=to)
        yield case((2, 3, 2, 3, 2, 3, 2, 3), to="gaps")  # four dimensions of each kind
        for layout in (*cases.LAYOUTS[1:], "functional"):
            for to in ("row", "column", "gaps"):
                yield case((33, 129), layout, to=to)
                yield case(MANY[to], layout, "integers", to=to)
        for to in TARGETS:
            yield case((33, 129), to=to, factor=0.1)
            yield case((33, 129), values="integers", to=to, factor=-2)
            yield case((33, 129), to=to, out_dtype="float32" if dtype == "float16" else "float16")
            if dtype == "float16":  # its largest numbers overflow the result; others' the sum
                yield case((33, 129), values="special", to=to, factor=1e-4)
        for shape in TALL:
            for to in ("row", "column", "scalar"):
                yield case(shape, values="integers", to=to)
        for to in ("row", "column", "scalar"):  # in memory like TALL[1]
            yield case(TALL[0], "transposed", to=to, factor=0.1)
        for other in FLOATS:
            if other != dtype:
                yield case((33, 35), to="row", out_dtype=other)
                yield case(TWO_PASSES, to="gaps", out_dtype=other, factor=0.1)
        for out in ("strided", "transposed"):  # written by the second of two passes
            yield case(TWO_PASSES, to="row", out=out)
            yield case(TWO_PASSES, to="gaps", out=out)
            yield case((1, 16, 6, 40), to="gaps", out=out)
        for shape in ((40, 2045), (515, 301)):  # rows that end within a vector
            yield case(shape, "padded", to="column")
        # Rows that begin anywhere, which are added by whole vectors, and what only resembles them.
        narrow = cases.DTYPES[dtype].itemsize == 2
        rows, addends = 267, 1031 if narrow else 903
        for values in ("normal", "integers"):
            yield case((rows, addends), values=values, to="column")
            yield case((rows, addends), "padded", values, to="column")
        wide = "float32" if narrow else "float64"
        yield case((rows, addends), to="column", factor=0.1, out_dtype=wide)
        yield case((rows, addends), "distant", "integers", to="column")
        yield case((rows, addends), values="integers", to="column", out="strided")
        yield case((addends, rows), values="integers", to="row")
        yield case((1, 19, 2, 14, addends // 2), values="integers", to="gaps")
        yield case((19, 15, addends), "expanded", "integers", to="column")
        # Many short rows of whole vectors, whose results do not lie as they do.
        yield case((2, 3200, 16), values="integers", to="column", out="channels_last")
        yield case((2, 3200, 5), values="integers", to="column", out="channels_last")
        yield case((3089, 5), values="integers", to="column", out="strided")
        for layout in ("padded", "misaligned"):
            yield case((3089, 5), layout, "integers", to="column")
        yield case((2, 2103, 33), "expanded", "integers", to="row")
        if narrow:  # other steps
            yield case((265, 1937), values="integers", to="column")
        for layout in cases.LAYOUTS[1:]:  # rows are mostly not adjacent
            yield case((2103, 65), layout, "integers", to="row")
        # The pitch of a dense matrix, and enough rows to merge dense ones; but x is expanded.
        yield case((16384, 3), "expanded_columns", "integers", to="row")
        for distant in cases.DISTANT:
            for to in ("row", "column", "same"):
                yield case((3, 3), distant, to=to)
                yield case((3, 3), distant, to=to, out="contiguous")
            yield case((3, 3), to="same", out=distant)
        for shape, to in VECTORS:
            if math.prod(shape) < BIG or dtype == "float16":
                yield case(shape, to=to)
            yield case(shape, values="integers", to=to)
        if level != "quick" and torch.cuda.is_available():
            for to in ("row", "column", "scalar"):
                yield case((2048, 2051), to=to)
                yield case((2048, 2051), "transposed", "integers", to=to)
            for layout in cases.LAYOUTS[1:]:
                yield case(ROWS_FIRST, layout, "integers", to="gaps")
            for shape, to in LARGE:
                yield case(shape, to=to)
                yield case(shape, values="integers", to=to)
        if level == "full" and torch.cuda.is_available() and dtype == "float16":
            for to in ("row", "column"):
                yield case((2**15 + 1, 2**16 + 1), values="integers", to=to)
            yield case((2, 2**31 + 8), values="integers", to="row")

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """x in the case's layout, and the shape to sum to."""
        options = {k: v for k, v in case.options.items() if k == "factor"}
        if "out_dtype" in case.options:
            options["dtype"] = self.out_dtype(case)
        x = cases.random_values(case.shape, case.torch_dtype, case.values, case.generator(), device)
        return (cases.arrange(x, case.layout), target(case)), options

    def sample(self) -> dict[str, Any]:
        """A sum of planes."""
        return {"x": (3, 4, 5), "shape": [4, 5]}

    def cost(self, case: Case) -> tuple[int, int]:
        """One addition per element; each tensor is moved once."""
        written = math.prod(target(case)) * self.out_dtype(case).itemsize
        return case.numel, case.numel * case.torch_dtype.itemsize + written

    def eager(
        self,
        x: Tensor,
        shape: Sequence[int],
        *,
        factor: float = 1,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """sum_to_size, then the factor, in torch."""
        total = x.sum_to_size(shape)
        return (total if factor == 1 else total * factor).to(dtype or x.dtype)

    def small(self, dtype: str) -> Iterator[Case]:
        """Small calls: one with one pass, one with two."""
        for rows in (256, 4096):
            yield Case(self.name, dtype, (rows, 256), options=self.default_options)

    def to_compile(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Rows, columns, few addends of many results, a tall sum of two passes, rows of odd length,
        strides, and an index past 2³¹."""
        for to in ("row", "column"):
            yield Case(self.name, dtype, (4096, 4096), options={"to": to})
            yield Case(self.name, dtype, (4096, 4096), "padded", options={"to": to})
        yield Case(self.name, dtype, (8, 1 << 20), options={"to": "row"})
        yield Case(self.name, dtype, (8192, 4095), options={"to": "column"})
        yield Case(self.name, dtype, (4096, 64, 64), options={"to": "gaps"})
        if dtype == "float32":
            yield Case(self.name, dtype, (1 << 16, 1 << 15), "padded", options={"to": "row"})

    @property
    def strata(self) -> Mapping[str, float]:
        """The target of a matrix, with rows of whole vectors or an odd number of elements; or every
        second of four dimensions."""
        kinds = [
            f"{to}, {count}" for to in ("row", "column", "scalar") for count in ("even", "odd")
        ]
        return equal(*kinds, "gaps")

    def draw(self, stratum: str, dtype: str, random: Random) -> Case | None:
        """A drawn case. Its size is that of x."""
        to, _, count = stratum.partition(", ")
        numel = elements(random, cases.DTYPES[dtype].itemsize)
        shape: tuple[int, ...] = (odd_matrix if count == "odd" else matrix)(random, numel)
        if to == "gaps":
            rows, columns = shape
            outer, inner = (log_uniform(random, 1, n) for n in (rows, columns))
            shape = outer, rows // outer, inner, columns // inner
        case = Case(self.name, dtype, shape, options={"to": to})
        return case if math.prod(target(case)) < case.numel else None  # else nothing is summed


SPECS = [SumTo("sum_to", "factor·Σx, to a shape that broadcasts to x's")]
