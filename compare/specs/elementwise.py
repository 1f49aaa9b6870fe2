"""The spec class of elementwise ops, with exact steps in the compute type and shared cases.

Both sides must give the oracle's bits.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.case_options import FLOAT_DTYPE, LYING, NUMBER, choice
from compare.cases import CPU, FLOATS, INTEGERS, META, Arguments, Case, Level, Sized
from compare.specs import drawn_elementwise
from compare.specs.spec import Spec

ALL = FLOATS + INTEGERS


def compute_dtype(result: torch.dtype) -> torch.dtype:
    """The type of the steps: float32 for the 16-bit floats, else the result's dtype."""
    return torch.float32 if result in (torch.float16, torch.bfloat16) else result


def result_type(*operands: Any) -> torch.dtype:
    """The dtype to which torch promotes. With three tensors, which are floating, 0-d tensors count
    only if all are 0-d."""
    if len(operands) == 2:
        return torch.result_type(*operands)
    counting = [t for t in operands if t.dim()] or operands
    return functools.reduce(torch.promote_types, (t.dtype for t in counting))


def promoted(t: Tensor | int | float, result: torch.dtype, like: Tensor) -> Tensor:
    """An operand as the formula gets it: rounded to the result dtype, then in the compute dtype."""
    compute = compute_dtype(result)
    if not isinstance(t, Tensor):
        exact = compute if compute.is_floating_point else torch.int64  # then narrowed, which wraps
        return torch.tensor(t, dtype=exact, device=like.device).to(compute)
    return t.to(compute).to(result).to(compute)


def relu(x: Tensor) -> Tensor:
    """0 where x < 0, else x: NaN stays NaN, −0 stays −0."""
    return torch.where(x < 0, torch.zeros_like(x), x)


# Empty, one element, primes, odd matrices, many dimensions; and every N mod 8.
SHAPES = [(), (0,), (1,), (3, 0, 5), (7, 13), (33, 129), (2, 3, 5, 2, 3, 2, 2)]
TAILS = [(1040 + k,) for k in range(8)]
FAR = (3,)  # with layout distant, the last offset is 2³¹ itself
# One of x, y and out has another layout than the others.
ALONE = [((139,), "misaligned"), ((17, 19), "transposed"), (FAR, "distant")]
# The same for sizes with whole and partial blocks or tiles: each dtype has three, and a remainder.
ALONE += [((6151,), "misaligned"), ((67, 133), "transposed"), ((67, 80), "padded")]
ALONE += [((2, 70, 3, 3), "channels_last"), ((2, 3, 9, 15), "channels_last")]
ALONE += [((72, 136), "transposed"), ((2, 24, 2, 4), "channels_last")]  # multiples of 8
ALONE += [((50, 9, 3, 5), "reversed")]  # tiles with several indices of the other dimensions
ALONE += [((150, 48), "chunk")]  # rows of whole vectors, too short for a tile
LARGE = {"standard": [(1024, 1024)], "full": [(1024, 1024), (4096, 4099)]}
HUGE = [((2**31 + 17,), "contiguous"), ((2**15 + 1, 2**16 + 1), "transposed")]  # past 32 bits
# All offsets fit into 32 bits, except those of masked lanes in the last program.
ALMOST_HUGE = (2**31 - 5,)
ALMOST_HUGE_TILES = (2**31 - 16, 1)  # the same in tiles, of one element that repeats
HUGE_ROWS = (2**16 + 1, 2**16 + 1)  # past 2³² elements, beside a row that repeats


BROADCAST = (
    *("same", "row", "column", "0-d", "batch", "outer", "channel", "middle", "strided-row"),
    "padded-column",
)
_LYING = (*cases.LAYOUTS, *cases.OF_MODELS, *cases.DISTANT)
DENSE = {"contiguous", "misaligned", "inplace", "functional"}
ORDERS = (DENSE, {"transposed"}, {"channels_last"})  # tensors of these are dense in one order
# Element types on the CUDA side.
ELEMENT = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}


class Elementwise(Spec):
    """An op that applies one formula to every element of one or two tensors that broadcast.

    The oracle is the formula, in the compute type, rounded once to the result dtype.

    Args:
        name, summary: as in :class:`Spec`.
        formula: its positional parameters are the tensors, with the op's names; its keyword-only
            parameters are numbers. It is called with tensors of the compute type.
        numbers: number → the values that cases give it, the first one in most cases.
        dtypes: the dtypes that check covers.
        flops: operations per element.
        eager: the op in torch; the formula by default.
        every: what cases with values "every" prove, if the formula does not tell.
        cancelling: whether the formula ends in a sum of which only roundings may remain.
        sizes_timed: the sizes of the squares that benchmarks time.
        own: for kernels from elsewhere, the arguments of :class:`Spec`: triton, cuda, peers,
            takes_out.
    """

    in_place = True

    def __init__(
        self,
        name: str,
        summary: str,
        formula: Callable[..., Tensor],
        *,
        numbers: Mapping[str, tuple[float, ...]] | None = None,
        dtypes: tuple[str, ...] = FLOATS,
        flops: int = 1,
        eager: Callable[..., Tensor] | None = None,
        every: str | None = None,
        cancelling: bool = False,
        sizes_timed: tuple[int, ...] = (1024, 2048, 4096, 16384),
        **own: Any,
    ) -> None:
        super().__init__(name, summary, **own)
        parameters = inspect.signature(formula).parameters.values()
        self.operands = tuple(p.name for p in parameters if p.kind != p.KEYWORD_ONLY)
        self.cancelling = cancelling
        self.formula, self.dtypes, self.flops = formula, dtypes, flops
        self.numbers = dict(numbers or {})
        self.sizes_timed = sizes_timed
        self.unary = len(self.operands) == 1
        alone = "every x" if self.numbers else "every input"
        self.every = every if every is not None else alone if self.unary else ""
        if cancelling:
            self.values = (*self.values, "cancelling", "ties")
        self.options = {**dict.fromkeys(self.numbers, NUMBER), "out": LYING}
        if not self.unary:
            kinds = {"y": choice(*BROADCAST, *_LYING), "y_dtype": FLOAT_DTYPE}
            self.options = {**self.options, **kinds}
        self.default_options = {name: values[0] for name, values in self.numbers.items()}
        self._eager = eager or formula

    def oracle(self, *operands: Any, **numbers: Any) -> Tensor:
        """The formula in the compute dtype, rounded once."""
        count = len(self.operands)
        named = [name for name in self.numbers if name not in numbers]
        numbers = {**dict(zip(named, operands[count:])), **numbers}
        x, *others = operands = operands[:count]
        result = result_type(x, *others, *cases.tensors_of(((), numbers)))
        factors = {name: promoted(number, result, x) for name, number in numbers.items()}
        return self.formula(*(promoted(t, result, x) for t in operands), **factors).to(result)

    def eager(self, *args: Any, **kwargs: Any) -> Tensor:
        """The op in torch."""
        return self._eager(*args, **kwargs)

    def result_shape(self, arguments: Arguments) -> tuple[int, ...]:
        """The shape to which the tensors broadcast."""
        return tuple(torch.broadcast_tensors(*cases.tensors_of(arguments))[0].shape)

    def result_dtype(self, case: Case, arguments: Arguments) -> torch.dtype:
        """The dtype to which torch promotes."""
        args, options = arguments
        return result_type(*args[: len(self.operands)], *cases.tensors_of(((), options)))

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """The bytes of operands and steps in the compute type, and of counts of differences. If one
        rounding covers two operations, also of both errors in float64."""
        compute = compute_dtype(dtype).itemsize
        if self.cancelling and dtype.is_floating_point:
            return written * (148 if compute == 8 or case.values == "cancelling" else 76)
        operands = len(self.operands)
        return written * (compute * (operands + 1) + 2 * operands + 8)

    def cut(self, arguments: Arguments) -> int | None:
        """The longest dimension."""
        shape = self.result_shape(arguments)
        return max(range(len(shape)), key=shape.__getitem__) if shape else None

    def part(self, arguments: Arguments, along: int, start: int, size: int) -> Arguments:
        """A slice of every tensor that does not broadcast along the dimension."""
        shape, (args, options) = self.result_shape(arguments), arguments
        narrowed = functools.partial(
            cases.narrowed, shape=shape, along=along, start=start, size=size
        )
        return tuple(map(narrowed, args)), {n: narrowed(t) for n, t in options.items()}

    # ---- rungs of the CUDA side ----

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """A rung takes tensors of one shape and dtype that are dense in one order; the best one
        only equal alignments. The rungs for other layouts are asked."""
        rung = self._rung(side, variant)
        if rung is None:
            return super().takes(side, variant, case)
        if not rung.dense:
            laid = self._laid(case)
            return bool(laid) and not self._dense(case, laid) and not rung.refuses(laid)
        layouts = {case.layout, case.out_layout}
        layouts |= {str(case.options[name]) for name in ("y", "grad") if name in case.options}
        dense = any(layouts - {"same"} <= order for order in ORDERS) and "x" not in case.options
        if not dense or {"y_dtype", "grad_dtype"} & set(case.options):
            return False
        alike = "misaligned" not in layouts or layouts == {"misaligned"}
        return case.torch_dtype in rung.dtypes and (alike or variant != tuple(self.rungs())[-1])

    def _laid(self, case: Case) -> dict[str, Tensor]:
        """A case's operands and result without their values; empty if not all are tensors."""
        # Values do not matter, and not all kinds of them can be made here.
        args, numbers = arguments = self.inputs(replace(case, values="normal"), META)
        operands = args[: len(self.operands)]
        if not all(isinstance(t, Tensor) for t in operands) or cases.tensors_of(((), numbers)):
            return {}
        shape, dtype = self.result_shape(arguments), self.result_dtype(case, arguments)
        out = cases.Guarded(shape, dtype, META, case.out_layout).out
        return {**dict(zip(self.operands, operands)), "out": out}

    def _dense(self, case: Case, laid: Mapping[str, Tensor]) -> bool:
        """Whether the tensors are all dense and aligned, so that the rungs for these take them."""
        shape = laid["out"].shape
        dense = all(t.is_contiguous() and t.shape == shape for t in laid.values())
        return dense and not {"misaligned", "half-aligned"} & case.lying

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """The name of a rung's kernel: its template with the op's formula."""
        if variant not in self.rungs():
            return super().cuda_kernel(dtype, variant)
        formula = self.name.title().replace("_", "")
        element, size = ELEMENT[dtype], cases.DTYPES[dtype].itemsize
        if variant == "strided":
            return f"strided_kernel<{formula}, {element}, int>"
        if variant in ("elements", "tile", "stream"):
            return f"{variant}_kernel<{formula}, {element}>"
        bytes_moved = {"scalar": size, "pack64": 8, "pack128": 16}[variant]
        access = {8: "float2", 16: "float4"}[bytes_moved] if bytes_moved > size else element
        return f"pack_kernel<{formula}, {element}, {access}, {bytes_moved // size}>"

    def cuda_kernels(self, dtype: str, variant: str | None) -> dict[str, str]:
        """One kernel; of strided also that with offsets of 64 bits, and that for what repeats."""
        kernels = super().cuda_kernels(dtype, variant)
        if variant == "strided":
            repeats = kernels[""].replace("strided_kernel<", "rows_of_packs_kernel<")
            kernels["what repeats"] = repeats.replace(", int>", ">")
            kernels["far"] = kernels[""].replace(", int>", ", long long>")
        return kernels

    # ---- cases ----

    def settings(self, dtype: str) -> list[dict[str, Any]]:
        """The options of cases: the usual ones, then others for a few cases."""
        most = max((len(values) for values in self.numbers.values()), default=1)
        return [
            {name: values[min(i, len(values) - 1)] for name, values in self.numbers.items()}
            for i in range(most)
        ]

    def kinds(self, dtype: str) -> list[dict[str, Any]]:
        """The ways in which the second tensor may differ from the first."""
        if self.unary:
            return []
        other = "float16" if dtype == "float32" else "float32"
        return [{"y": "row"}, {"y": "column"}, {"y": "outer"}, {"y": "0-d"}, {"y_dtype": other}]

    def cases(self, dtype: str, level: Level) -> Iterator[Case]:
        """The cases that all elementwise ops share. A function without ``out`` has no cases with
        another layout of the result."""
        shared = self._shared_cases(dtype, level)
        if self.takes_out:
            return shared
        return (c for c in shared if c.layout != "inplace" and "out" not in c.options)

    def _shared_cases(self, dtype: str, level: Level) -> Iterator[Case]:
        base, *others = self.settings(dtype)
        rounding = others[0] if others else {}  # used by cases with partial blocks
        binary = not self.unary

        def case(
            shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
        ) -> Case:
            return Case(self.name, dtype, shape, layout, values, 0, {**base, **o})

        for shape in SHAPES:
            yield case(shape)
        for shape in TAILS:
            yield case(shape, **rounding)
        for layout in (*cases.LAYOUTS[1:], "inplace", "functional"):
            yield case((33, 129), layout)
            yield case((2, 3, 5, 2, 3, 2, 2), layout)
        yield case((2, 3, 5, 2, 3, 2, 2), "reversed", out="contiguous")
        yield case((1043,), "misaligned", **rounding)
        yield case((20011,), "misaligned")  # more than two blocks, with partial ones at both ends
        yield case((1043,), "misaligned", "special")
        yield case((33, 129), "inplace", out="padded")
        # A dense result at no multiple of 16 bytes: its first pack has elements before it.
        yield case((3, 5, 2, 7), "reversed", out="misaligned")
        # One element more than all threads of a block have in packs.
        yield case((256 * (16 // cases.DTYPES[dtype].itemsize) + 1,), "strided", out="contiguous")
        yield case((5,), out="strided")  # rows so short that the flat kernel takes them
        yield case((3, 1016), "chunk")  # fewer rows than the common divisor, in tiles of few rows
        unaligned = {"y": "misaligned"} if binary else {}
        yield case((1043,), "inplace", "integers", **unaligned)
        yield case(FAR, "distant")
        for shape, layout in ALONE:
            yield case(shape, layout, out="contiguous", **({"y": "contiguous"} if binary else {}))
            yield case(shape, out=layout)
            if binary:
                yield case(shape, y=layout)
        if binary:  # x broadcasts; a 0-d x does not widen the result's dtype
            yield case((), y="batch")
            yield case((7, 13), y="batch")
            for kind in ("row", "column", "outer"):  # rows of whole vectors, longer than a block
                yield case((3, 4112), y=kind)
            for kind in ("row", "column"):  # the same, shorter
                yield case((37, 48), y=kind)
            yield case((139, 1), y="row")  # a row of one element
            yield case((3, 0), y="outer")  # none: 0 beside 1 is 0
            yield case((17, 19), y="row", out="transposed")  # only x is dense
            yield case((17, 19), y="row", out="misaligned")
            for kind in ("row", "column"):  # in tiles of three dimensions
                yield case((6, 5, 4), "transposed", y=kind, out="contiguous")
            yield case((4, 3, 40), y="middle")  # not flat, though it looks so
            # All strides are multiples of 8, except y's along the second of three dimensions.
            yield case((3, 8, 40), "transposed", y="padded", out="contiguous")
            yield case((7, 33), y="strided-row")
            yield case((3, 32, 5), y="padded-column")
            yield case((2, 70, 3, 5), y="channel")
            yield case((2, 3, 16, 257), y="channel")
            # All inputs repeat, in more blocks than the CPU is said to hold: of two dimensions, of
            # three, and where elements do not lie side by side.
            yield case((131, 136), y="outer")
            yield case((131, 137), y="outer")  # rows of no whole packs
            yield case((3, 47, 136), "expanded", y="column")
            yield case((131, 136), "expanded", y="strided-row")
            if dtype == "float64":
                yield case((), y="batch", y_dtype="float16")
            elif dtype in FLOATS:
                yield case((139,), y="0-d", y_dtype="float64")
        yield case((4099,), values="special")
        yield case((33, 129), "transposed", "special")
        yield case((33, 129), "transposed", "special", out="contiguous")
        for options in (*others, *self.kinds(dtype)):
            yield case((33, 129), values="special", **options)  # with the usual layout
            yield case((33, 129), "transposed", **options)  # with the usual values
        if "cancelling" in self.values:
            yield case((139,), values="cancelling")
        if cases.DTYPES[dtype].itemsize <= 2:
            yield case((65536,), values="every")
        if level != "quick" and torch.cuda.is_available():
            for shape in LARGE[level]:
                yield case(shape)
                yield case(shape, "transposed")
        huge = dtype in ("float16", "float32", "uint8")
        if level == "full" and torch.cuda.is_available() and huge:
            for shape, layout in HUGE:
                yield case(shape, layout)
            if binary:
                yield case(ALMOST_HUGE, y="0-d")
            if dtype == "uint8":
                yield case(ALMOST_HUGE_TILES, "expanded", out="contiguous")
                if binary:
                    yield case(HUGE_ROWS, y="row")

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """x in the case's layout, and the second tensor. Option y is its shape: row, column, 0-d,
        scalar, channel, batch of x's shape, one row per matrix ("middle"), every second element of
        a row ("strided-row"), a column with gaps ("padded-column"), a row while x is a column
        ("outer"); or a layout of its own. Option x may be scalar.

        Values "ties" are for a 16-bit result dtype that rounds the operands. With values
        "cancelling" only the roundings of the sum remain, so that an operand or a product with
        another rounding shows.
        """
        options = {k: v for k, v in case.options.items() if k != "out"}
        g = case.generator()
        if self.unary:
            x = cases.random_values(case.shape, case.torch_dtype, case.values, g, device)
            return (cases.arrange(x, case.layout),), options
        x_kind, kind = options.pop("x", "same"), options.pop("y", "same")
        dtype = cases.DTYPES[options.pop("y_dtype", case.dtype)]
        x_values, _, y_values = case.values.partition(":")
        if case.values == "every":
            y_values = "shuffled"
        elif case.values == "ties":
            x_values, y_values = cases.ties(case.torch_dtype, dtype)
        elif case.values == "cancelling":
            x_values = "normal"
        alone = x_kind == "scalar"
        home = cases.CPU if alone else device
        shape, other_shape = self.shapes(case)
        first: Any = cases.random_values(shape, case.torch_dtype, x_values, g, home)
        first = first.item() if alone else cases.arrange(first, case.layout)
        home = cases.CPU if kind == "scalar" else device
        second: Any = cases.random_values(other_shape, dtype, y_values or x_values, g, home)
        if case.values == "cancelling" and device.type != "meta":
            self.cancel(first, second, options)
        if kind == "scalar":
            second = second.item()
        elif kind == "same":
            second = cases.arrange(second, case.layout)
        elif kind in _LYING:
            second = cases.arrange(second, kind)
        elif kind == "strided-row":
            second = cases.arrange(second, "strided")
        elif kind == "padded-column":
            second = cases.arrange(second[..., 0], "padded")[..., None]
        return (first, second), options

    def shapes(self, case: Case) -> list[tuple[int, ...]]:
        """The operands' shapes; () for a number."""
        shape = case.shape
        if self.unary:
            return [shape]
        kind, column = case.options.get("y", "same"), (*shape[:-1], 1)
        others = {"row": shape[-1:], "column": column, "0-d": (), "scalar": ()}
        others |= {"batch": (3, *shape), "outer": shape[-1:], "channel": (*shape[-3:-2], 1, 1)}
        others |= {"middle": (*shape[:-2], 1, *shape[-1:]), "strided-row": shape[-1:]}
        others |= {"padded-column": column}
        alone = case.options.get("x") == "scalar"
        return [() if alone else column if kind == "outer" else shape, others.get(kind, shape)]

    def refuses(self, case: Case) -> str:
        """Shapes with too few dimensions for option y."""
        needed = {"outer": 1, "middle": 2, "strided-row": 1, "channel": 3, "padded-column": 3}
        least = needed.get(case.options.get("y", ""), 0)
        return f"this y needs a shape of {least} sizes or more" if len(case.shape) < least else ""

    def cancel(self, x: Tensor, y: Tensor, options: Mapping[str, Any]) -> None:
        """Set the second tensor to the formula's value without it, negated, so that both cancel."""
        numbers = {
            name: torch.tensor(options[name], dtype=torch.float64, device=y.device)
            for name in self.numbers
        }
        y.copy_(-self.formula(x.double(), torch.zeros_like(y).double(), **numbers))

    def sample(self) -> dict[str, Any]:
        """Tensors of one shape, and 2 for every number."""
        return {**dict.fromkeys(self.operands, (4, 5)), **dict.fromkeys(self.numbers, 2.0)}

    # ---- cost ----

    def cost(self, case: Case) -> tuple[int, int]:
        """Every tensor is moved once."""
        shapes = self.shapes(case)
        # Called for every case and implementation; mostly there is nothing to broadcast.
        alike = len(set(shapes)) == 1
        shapes.append(shapes[0] if alike else tuple(torch.broadcast_shapes(*shapes)))
        moved = sum(map(math.prod, shapes)) * case.torch_dtype.itemsize
        return self.flops * math.prod(shapes[-1]), moved

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Squares, as for other ops."""
        return (Case(self.name, dtype, (n, n), options=options) for n in self.sizes_timed)

    def sweeps(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
        """Flat tensors of 2¹² to 2²⁸ elements, for launch cost, L2 and memory."""
        for k in range(6, 15):
            yield "numel", 4**k, Case(self.name, dtype, (4**k,), options=options)

    # ---- problems drawn at random ----

    @property
    def strata(self) -> Mapping[str, float]:
        """The layouts of the tensors, and which of them broadcasts."""
        return drawn_elementwise.UNARY if self.unary else drawn_elementwise.BINARY

    def draw(self, stratum: str, dtype: str, random: Random) -> Case | None:
        """A drawn case with the usual numbers."""
        itemsize = cases.DTYPES[dtype].itemsize
        drawn = drawn_elementwise.lying(stratum, itemsize, random)
        if drawn is None:
            return None
        shape, layout, options = drawn
        return Case(self.name, dtype, shape, layout, options={**self.default_options, **options})
