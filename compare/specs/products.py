"""The spec class of matrix products: shared cases, and what is compiled and timed.

A result is right if it is within the bound of :mod:`compare.specs.product_bounds`. Lattice inputs
involve no rounding, so bits must agree.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from compare import cases
from compare.cases import META, Arguments, Case, Level, Sized, tensors_of
from compare.specs import drawn_products
from compare.specs.activations import ACTIVATIONS, OF_PRE
from compare.specs.gluon_forms import (
    GLUON,
    GLUON_ALONG,
    GLUON_CLUSTERS,
    GLUON_FEW,
    GLUON_FMA,
    GLUON_PARTS,
    GLUON_TURNED,
    Cut,
)
from compare.specs.product_inputs import HOW, LAYOUTS, NEAR, VALUES, called
from compare.specs.spec import Spec, cuda_type
from cuda_reference.ops.gemm_bias_act import takes as cuda_takes
from triton_kernels.gemm import GPUS, Problem, choose
from triton_kernels.gemm.choice import SMALL
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.launch import lying

HALVES = ("float16", "bfloat16")
PRECISIONS = ("ieee", "tf32", "tf32x3", "f16x3")  # other dtypes than float32 have "ieee" only
# Shapes (M, N, K): one tile, partial tiles in each dimension, vectors, empty ones, K in one step
# and in many. Small, so that an interpreted run has few tile steps.
SHAPES = [(64, 64, 64), (33, 65, 70), (1, 1, 1), (1, 129, 40), (130, 1, 33), (7, 13, 200)]
SHAPES += [(3, 5, 0), (0, 4, 8), (4, 0, 8), (96, 80, 128)]
TAILS = (33, 65, 70)
# 16-bit matrices with more than 32 rows, whose rows start at multiples of 16 bytes, and sums that
# are not short: descriptors, without copies.
TMA = (70, 40, 200)
# Padded, the rows start at multiples of 16 bytes and end between two.
ENDING = (40, 45, 200)
# Row and column lengths with every remainder modulo 8; 16-bit matrices are copied for most.
ALIGNMENTS = [(40 + i, 48 + 3 * i % 8, 40 + 5 * i % 8) for i in range(8)]
LARGE = {
    "standard": [(512, 512, 512)],
    "full": [(512, 512, 512), (333, 4097, 1023), (1, 4096, 4096), (2048, 2048, 2048)],
}
LONG_SUM = (128, 128, 4096)  # enough roundings to show the order of additions
# More row tiles than the second dimension of a grid allows; an a past 2³¹ elements, and one that
# is copied for descriptors.
TALL, HUGE, HUGE_COPY = (2**20 + 17, 24, 16), (2**25 + 7, 3, 65), (2**25 + 7, 40, 65)
# An a or a b past 2³¹ elements that is split into parts, with its layout and values: many rows or
# columns, some of which are computed again; so many that one step of K passes 2³¹; and a long K.
HUGE_PARTS = [
    ((2**25 + 7, 8, 64), "contiguous", "special"),
    ((8, 2**25 + 7, 64), "transposed", "special"),
    ((9 * 2**24 + 7, 8, 33), "transposed", "special"),
    ((8, 9 * 2**24 + 7, 17), "contiguous", "special"),
    ((2**19 + 7, 8, 4112), "contiguous", "normal"),
    ((2**19 + 7, 8, 4112), "transposed", "normal"),
]
# Matrices whose last row or column lies past 2³¹ elements: in the last lane of a step of K, or a
# whole step later; for descriptors.
DISTANT = {
    "float32": [(17, 9, 64), (17, 9, 65)],
    "float16": [(17, 9, 128), (17, 9, 129), (40, 40, 200)],
}

# Splits of launches on the Triton side, as (M, N, K) and multiprocessors. First those that both ops
# try: more row tiles than a group has; more tiles than programs, with the epilogue in halves; more
# row tiles that are not square, through pointers; b, a, then both copied for their pitch.
_HALF_ORDERS: list[Cut] = [((1030, 72, 200), 132), ((194, 392, 40), 2), ((580, 140, 5), 132)]
_HALF_ORDERS += [((1032, 72, 1032), 24), ((72, 1544, 1032), 16), ((72, 1544, 40), 6)]
_ORDERS = {
    "float16": _HALF_ORDERS,
    "bfloat16": _HALF_ORDERS,
    "float32": [((580, 70, 5), 132)],
    "float64": [((300, 40, 5), 132)],
}
# Then all tiles of triton_kernels.gemm.choice; a test checks that. Through pointers for few rows,
# by descriptors, and with K split unevenly. On one or two multiprocessors no split pays.
_FEW_ROWS: list[Cut] = [((9, 40, 130), 132), ((20, 40, 130), 132)]
_FEW_ROWS += [((9, 140, 130), 2), ((20, 140, 130), 2)]
_BY_TMA: list[Cut] = [((194, 388, 40), 1), ((322, 136, 40), 2), ((66, 66, 3080), 1)]
_BY_TMA += [((66, 264, 40), 2), ((66, 136, 130), 3), ((130, 72, 200), 132)]
_SPLIT: list[Cut] = [((9, 40, 1288), 132), ((20, 40, 1288), 132), ((40, 40, 1288), 132)]
_SPLIT += [((40, 40, 2056), 10)]
_ON_CORES = [*_FEW_ROWS, *_BY_TMA, *_SPLIT]
_HALF_TILES = [((70, 130, 5), 132), ((140, 300, 5), 1), *_ON_CORES]
_HALF_TILES += [((70, 72, 40), 132), ((70, 72, 136), 8), ((70, 72, 72), 4)]  # short sums
_DOUBLE: list[Cut] = [((20, 40, 40), 2), ((20, 40, 520), 6), ((33, 40, 40), 2), ((70, 40, 264), 20)]
_DOUBLE += [((70, 70, 40), 2), ((70, 200, 40), 1)]
TILES = {
    "float16": _HALF_TILES,
    "bfloat16": _HALF_TILES,
    "float32": [((70, 130, 40), 132), *_FEW_ROWS, *_SPLIT],
    "float32/tf32": [((130, 130, 24), 132), ((40, 70, 24), 132), *_ON_CORES],
    "float32/tf32x3": [((70, 130, 40), 132)],
    "float32/f16x3": [((130, 130, 72), 1), ((70, 130, 40), 3), ((70, 40, 40), 132)],
    "float64": [*_DOUBLE, ((130, 130, 1032), 6), ((70, 200, 1032), 1)],
}

# Through pointers, of an a whose rows go across K in pieces of 8 bytes; two with K in parts. The
# last of a b along K in pieces of 4 bytes, too.
PIECES: list[Cut] = [((68, 72, 1056), 1), ((68, 72, 1056), 4), ((100, 40, 1056), 4)]
PIECES += [((34, 364, 1026), 20)]

# Of up to 32 rows of 16 bits, by their layout: every tile for vectors and for tensor cores; then
# tiles of all columns and depths with K in parts of unequal length.
FEW_ROWS: dict[str, list[Cut]] = {
    "contiguous": [
        *(((1, 33, 40), 1), ((1, 33, 136), 1), ((12, 136, 40), 1), ((32, 72, 40), 1)),
        *(((1, 33, 1032), 4), ((1, 33, 1288), 10), ((12, 33, 520), 4), ((2, 264, 4104), 2)),
    ],
    "transposed": [
        *(((1, 9, 41), 1), ((1, 9, 40), 1), ((1, 9, 520), 1)),
        *(((2, 9, 41), 1), ((2, 9, 1032), 2), ((2, 9, 40), 1)),
        *(((4, 9, 41), 1), ((4, 9, 520), 2), ((4, 9, 40), 4)),
        *(((8, 9, 41), 1), ((8, 9, 264), 4), ((8, 9, 40), 1)),
        *(((12, 33, 265), 1), ((12, 33, 40), 2), ((12, 72, 40), 2)),
        *(((32, 33, 265), 1), ((32, 33, 40), 4), ((32, 72, 40), 2)),
        *(((1, 9, 1289), 2), ((1, 9, 4104), 16), ((1, 9, 6152), 4), ((2, 9, 8200), 16)),
        *(((2, 9, 4104), 20), ((4, 9, 6152), 10), ((4, 9, 4104), 16)),
        *(((12, 33, 2061), 1), ((12, 136, 4104), 2)),
    ],
}

# One shape per tile configuration of triton_kernels.gemm; a test checks that. Multiples of 16, so
# that launches are specialised as usual.
_SHAPES_TO_COMPILE = (
    *((16, 2048, 64), (32, 2048, 64), (64, 2048, 32), (512, 2048, 64), (2048, 2048, 64)),
    *((16, 2048, 128), (32, 2048, 128), (16, 8192, 128), (32, 8192, 128)),  # few rows
)
# The same of up to 32 rows of 16 bits, with their layout.
_FEW_ROWS_TO_COMPILE = {
    "contiguous": (
        *((1, 32, 32), (1, 32, 129), (2, 32, 128), (2, 32, 32), (32, 32, 32)),
        (32, 128, 128),
    ),
    "transposed": (
        *((1, 32, 129), (1, 32, 32), (1, 32, 1024), (2, 32, 129), (2, 32, 512), (2, 32, 32)),
        *((4, 32, 1024), (4, 32, 129), (4, 32, 32), (8, 32, 512), (8, 32, 129), (8, 32, 32)),
        *((16, 32, 129), (4, 32768, 32), (32, 32, 129), (32, 16384, 32)),
    ),
}
_HALF_SHAPES_TO_COMPILE = (
    *((512, 2048, 32), (2048, 2048, 32), (512, 4096, 4096)),  # short sums, a long one
    (64, 2048, 4096),  # few tiles
    *((64, 2048, 256), (128, 4096, 256), (512, 2048, 256), (512, 4096, 256), (2048, 2048, 128)),
    *((64, 512, 64), (256, 1024, 64), (512, 1024, 64)),  # through pointers
)

_CORES = {
    "float16": "HalfCores, false",
    "bfloat16": "BFloat16Cores, false",
    "float32/tf32": "TF32Cores, false",
    "float32/tf32x3": "TF32Cores, true",
}

# Sweeps: squares, some of them no powers of two; tokens times a layer's weight.
_SQUARES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_TOKENS = tuple(2**k for k in range(15))
_LAYER = 4096  # N and K
_TIMED = (  # M, N, K
    (1, 16384, 4096),
    (16, 8192, 8192),
    (32, 3072, 768),
    (333, 4097, 1023),
    (512, 4096, 1024),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4096, 16384, 4096),
    (8192, 8192, 8192),
)


def activated(pre: Tensor, act: str) -> Tensor:
    """An activation in torch."""
    functional = torch.nn.functional
    if act in ("gelu", "gelu_tanh"):
        return functional.gelu(pre, approximate="tanh" if act == "gelu_tanh" else "none")
    if act == "none":
        return pre
    function = getattr(functional, act, None) or getattr(torch, act)
    result: Tensor = function(pre)
    return result


def _in_kernels(kernels: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def pinned(*args: Any, **kwargs: Any) -> Tensor:
        with availability.only(kernels):
            return function(*args, **kwargs)

    return pinned


def _repacked(t: Tensor, itemsize: int, turned: bool = False) -> int:
    """Bytes of a copy of t with this itemsize, in which each row takes whole lines of 128 bytes. It
    keeps t's order of rows or columns; ``turned`` gives it the other one."""
    lines, length = t.numel() // max(1, t.shape[-1]), t.shape[-1]
    if (t.stride(-1) != 1) is not turned:
        lines, length = length, lines
    return 128 * lines * -(-length * itemsize // 128)


class Product(Spec):
    """A matrix product [M, K]·[K, N] with an epilogue.

    Attributes:
        every_tensor: the options with which a case has all optional tensors.
        columns: the dimension of the second matrix that gives the result's columns.
        timed_options: of timed cases: an epilogue that cuBLASLt has, too.
        forms: options that name an activation, for drawn problems.
    """

    order = 2
    bounded = True
    default_variant = "naive"
    configured = True
    layouts = LAYOUTS
    values = VALUES
    sizes = "M,N,K"
    default_shape = (33, 65, 70)
    every_tensor: Mapping[str, Any] = {}
    columns = 1
    timed_options: Mapping[str, Any] = {}
    forms: Sequence[Mapping[str, Any]] = tuple({"act": act} for act in drawn_products.ACTIVATIONS)

    def act(self, options: Mapping[str, Any]) -> str:
        """The activation of a case or call."""
        raise NotImplementedError(f"{self.name} has no activation")

    def exact(self, case: Case) -> bool:
        """Whether nothing in the case is rounded, so that bits must agree."""
        pre = case.options.get("training") == "pre"
        without_act = pre or self.act(case.options) in ("none", "relu")
        return case.values.startswith("lattice") and without_act

    def takes(self, side: str, variant: str | None, case: Case) -> bool:
        """Triton takes every case; its pinned variants those that Gluon's kernel can run. Sums of
        scaled values overflow on the way in float32, so only parts take them, where float32's own
        product may be chosen. A CUDA variant takes its dtypes and precisions, but no options of
        Triton's launches. The CUDA default counts as naive."""
        if side == "triton":
            if variant is None:
                return case.values != "scaled" or bool(availability.here(multiply_adds=True))
            return self._both_kernels_take(case)
        precision = case.options.get("precision", "ieee")
        ours = cuda_takes(variant or "naive", case.torch_dtype, precision)
        return ours and not HOW.keys() & case.options.keys()

    def _both_kernels_take(self, case: Case) -> bool:
        """Whether both descriptor kernels take the case on this GPU."""
        out_dtype = case.options.get("out_dtype", case.dtype)
        taken = {case.dtype, out_dtype} <= set(HALVES)
        precision = case.options.get("precision", "ieee")
        if case.dtype == "float32":
            taken = precision == "ieee" or (precision != "tf32x3" and out_dtype == case.dtype)
        multiply_adds = case.dtype == "float32" and precision == "ieee"
        # There may be few rows in multiply-adds, and in 16 bits.
        few_rows = multiply_adds or case.dtype in HALVES
        least = min(case.shape[few_rows:])
        large_enough = least > (0 if precision == "f16x3" else SMALL)
        return taken and large_enough and not availability.here()

    def pinned(self) -> Mapping[str, Callable[..., Tensor]]:
        """The kernels in Triton's language and in Gluon. The default chooses between them."""
        return {kernels: _in_kernels(kernels, self.triton) for kernels in ("tl", "gluon")}

    def library(self) -> Mapping[str, Callable[..., Tensor]]:
        """cuBLASLt, called by the CUDA side."""
        return {"cublaslt": functools.partial(self.cuda, variant="cublaslt")}

    def pinned_to_compile(self, dtype: str) -> Iterator[tuple[str, Case]]:
        """Every form of Gluon's kernels. In tf32, where only the elements differ, some."""
        cuts: list[tuple[dict[str, Any], list[Cut]]] = []
        if dtype in HALVES:
            along = GLUON + GLUON_ALONG + GLUON_CLUSTERS + GLUON_FEW[:4]
            cuts = [({}, along), ({"operands": "wgrad"}, GLUON_TURNED)]
        elif dtype == "float32":
            of_precision = {"tf32": GLUON[::3], "f16x3": GLUON_PARTS, "ieee": GLUON_FMA}
            cuts = [({"precision": each}, some) for each, some in of_precision.items()]
        for how, some in cuts:
            for shape, multiprocessors in some:
                options = {**self.default_options, **how, "multiprocessors": multiprocessors}
                yield "gluon", Case(self.name, dtype, shape, options=options)

    def called(self, case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function as the case calls it."""
        return called(case, function)

    def result_shape(self, arguments: Arguments) -> tuple[int, ...]:
        """a's leading dimensions, and the columns of b or the rows of a weight."""
        (a, b, *_), _ = arguments
        return (*a.shape[:-1], b.shape[self.columns])

    def workspace(self, case: Case, arguments: Arguments) -> int:
        """Copies of inputs with unsuitable strides; if K is split, the partial sums."""
        (a, b, *_), _ = arguments
        precision = case.options.get("precision", "ieee")
        if precision == "f16x3":
            scales = 4 * (math.prod(a.shape[:-1]) + b.shape[self.columns])
            return 2 * (_repacked(a, 2) + _repacked(b, 2)) + scales
        if precision == "tf32x3":
            return max(t.numel() for t in tensors_of(arguments)) * case.torch_dtype.itemsize
        M, N, K = math.prod(a.shape[:-1]), b.shape[self.columns], a.shape[-1]
        gpu = GPUS["sm_90"]
        if number := case.options.get("multiprocessors"):
            gpu = gpu._replace(multiprocessors=number)
        problem = Problem(M, N, K, case.torch_dtype, case.torch_dtype, precision)
        of_b = b.stride(1 - self.columns), b.stride(self.columns)
        problem = lying(problem, a.stride()[-2:], of_b)
        chosen = [choose(problem._replace(kernels=kernels), gpu) for kernels in ("tl", "any")]
        copied = 0
        if case.dtype == "float64":
            copied = max(t.numel() for t in tensors_of(arguments)) * 8
        elif case.dtype == "float32" and precision == "ieee":  # of gemm.kernels, and of Gluon
            copied = max(_repacked(b, 4, turned=True), _repacked(a, 4) + _repacked(b, 4))
        elif any(form.tma for form in chosen):  # tf32 copies transposes, others what is not one
            turns = (False, True) if precision == "tf32" else (False,)
            copied = sum(max(_repacked(t, t.itemsize, turned) for turned in turns) for t in (a, b))
        split = (form for form in chosen if form.SPLIT > 1)
        by_cores = problem.by_cores
        each = ((f, f.left if f.gluon and by_cores else math.prod(f.tiles[:2])) for f in split)
        sums = (form.SPLIT * form.tiles_of(M, N) * left for form, left in each)
        return copied + max(4, case.torch_dtype.itemsize) * max(sums, default=0)

    def work(self, case: Case, dtype: torch.dtype, read: int, written: int) -> int:
        """Bytes of inputs and absolute values in float64, of the oracle's result, bound, errors."""
        if self.exact(case):
            return 8 * read + 24 * written
        act = self.act(case.options)
        of_slope = 0 if ACTIVATIONS[act].curvature is None else 32 if act == "gelu_tanh" else 24
        return (8 + case.torch_dtype.itemsize % 8) * read + (72 + of_slope) * written

    def cut(self, arguments: Arguments) -> int | None:
        """The longest of a's leading dimensions; None if there are none."""
        rows = arguments[0][0].shape[:-1]
        return max(range(len(rows)), key=rows.__getitem__, default=None)

    def part(self, arguments: Arguments, along: int, start: int, size: int) -> Arguments:
        """Some rows of a, and of c if c has rows."""
        shape, ((a, *others), options) = self.result_shape(arguments), arguments
        if isinstance(c := options.get("c"), Tensor):
            options = {**options, "c": cases.narrowed(c, shape, along, start, size)}
        return (a.narrow(along, start, size), *others), options

    def refuses(self, case: Case) -> str:
        """Combinations of options that no call has."""
        if case.options.get("precision", "ieee") != "ieee" and case.dtype != "float32":
            return "precisions but ieee are for float32"
        if case.options.get("beta") and "c" not in case.options:
            return "beta needs c"
        if "training" in case.options and case.layout != "functional":
            return "training needs --layout functional"
        if case.options.get("training") == "pre" and self.act(case.options) not in OF_PRE:
            return f"training=pre is for {', '.join(OF_PRE)}"
        return ""

    def cost(self, case: Case) -> tuple[int, int]:
        """2·M·N·K operations; each matrix moved once, c and the pre-activation too."""
        M, N, K = case.shape
        written = 1 + (case.options.get("c") == "full") + ("training" in case.options)
        return 2 * M * N * K, (M * K + K * N + written * M * N) * case.torch_dtype.itemsize

    def usual_cases(
        self, dtype: str, level: Level, variations: list[dict[str, Any]]
    ) -> Iterator[Case]:
        """Every shape plain; then layouts, activations, scalars and lattices with partial tiles."""
        base = variations[0]
        halves = dtype in ("float16", "bfloat16")

        def case(
            shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
        ) -> Case:
            return Case(self.name, dtype, shape, layout, values, 0, {**base, **o})

        for shape in SHAPES:
            yield case(shape)
        for layout in NEAR[1:]:
            yield case(TAILS, layout, **self.every_tensor)
        for options in variations[1:]:
            yield case(TAILS, **options)
        yield case(TAILS, values="special")
        if halves:
            for layout in (*NEAR, "half-aligned"):
                yield case(TMA, layout, **self.every_tensor)
            yield case(TMA, "expanded", "lattice", **self.every_tensor)  # results are mostly equal
            yield case(ENDING, "padded", **self.every_tensor)
            for options in variations[1:]:
                yield case(TMA, **options)
        for shape, multiprocessors in _ORDERS[dtype]:
            yield case(shape, values="lattice", multiprocessors=multiprocessors)
        for shape, layout in itertools.product(DISTANT.get(dtype, ()), cases.DISTANT):
            yield case(shape, layout, "lattice", **self.every_tensor)
        if torch.cuda.is_available():
            yield case(LONG_SUM)
        if level != "quick" and torch.cuda.is_available():
            for shape in LARGE[level]:
                yield case(shape)
                yield case(shape, "transposed")
                for options in variations[1:3]:
                    yield case(shape, **options)
        if level == "full" and dtype == "float16" and torch.cuda.is_available():
            yield case(TALL)
            for layout in ("contiguous", "transposed"):
                yield case(HUGE, layout)
            yield case(HUGE_COPY)

    def training_cases(self, dtype: str, forms: list[dict[str, Any]]) -> Iterator[Case]:
        """Both results of a training step, for each form of the op, from both kernels, and with
        results that descriptors can and cannot store."""

        def case(shape: tuple[int, int, int], **options: Any) -> Case:
            options = {**options, "bias": True}
            return Case(self.name, dtype, shape, "functional", "lattice", 0, options)

        for form in forms:
            yield case(TAILS, **form, training="pre")
        yield case(TAILS, **forms[0], training="out")
        if dtype in ("float16", "bfloat16"):
            yield case((20, 65, 70), **forms[0], training="pre")
            yield case(TMA, **forms[0], training="pre")
            yield case(TMA, **forms[0], training="out")

    def shapes_to_compile(self, dtype: str) -> tuple[tuple[int, int, int], ...]:
        """One shape per tile configuration."""
        plain = () if dtype in HALVES else _SHAPES_TO_COMPILE
        return plain if dtype == "float64" else (*plain, *_HALF_SHAPES_TO_COMPILE)

    def few_rows_to_compile(self, dtype: str) -> Iterator[tuple[tuple[int, int, int], str]]:
        """Shape and layout, one for each tile for up to 32 rows of 16-bit matrices."""
        if dtype in HALVES:
            for layout, shapes in _FEW_ROWS_TO_COMPILE.items():
                yield from ((shape, layout) for shape in shapes)

    def cuda_kernel(self, dtype: str, variant: str | None) -> str:
        """The kernel of a variant. Without a variant it is the twin of Triton's: on tensor cores
        where Triton uses them. ``dtype`` may be "float32/tf32"."""
        if dtype == "float32/f16x3":
            return "gemm_f16x3_kernel"
        if dtype in _CORES and variant in (None, "wmma"):
            return f"gemm_wmma_kernel<{_CORES[dtype]}>"
        return f"gemm_{variant or 'naive'}_kernel<{cuda_type(dtype)}>"

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Shapes of models, and squares."""
        return (Case(self.name, dtype, shape, options=self.timed_options) for shape in _TIMED)

    def small(self, dtype: str) -> Iterator[Case]:
        """A layer; one with few rows; one whose rows descriptors do not take."""
        for shape in ((128, 512, 256), (8, 512, 256), (128, 511, 255)):
            yield Case(self.name, dtype, shape, options=self.timed_options)

    def sweeps(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
        """Squares, and M rows times a weight of 4096²."""
        for n in _SQUARES:
            yield "M=N=K", n, Case(self.name, dtype, (n, n, n), options=self.timed_options)
        for m in _TOKENS:
            yield "M", m, Case(self.name, dtype, (m, _LAYER, _LAYER), options=self.timed_options)

    # ---- problems drawn at random ----

    @property
    def strata(self) -> Mapping[str, float]:
        """Regimes and alignments."""
        return drawn_products.STRATA

    def draw(self, stratum: str, dtype: str, random: Random) -> Case | None:
        """A drawn case with a drawn epilogue."""
        shape = drawn_products.shape(stratum, cases.DTYPES[dtype].itemsize, random)
        of_pre = [form for form in self.forms if self.act(form) in OF_PRE]
        options = drawn_products.options(self.forms, of_pre, "c" in self.options, random)
        return shape and Case(self.name, dtype, shape, "functional", options=options)

    def fuses(self, case: Case) -> bool:
        """cuBLASLt has relu and GELU's tanh form after the bias, for one result."""
        (_, _, bias), _ = self.inputs(case, META)
        more = {"c", "training", "alpha", "beta", "out_dtype"} & case.options.keys()
        fused = self.act(case.options) in ("relu", "gelu_tanh")
        return fused and bias is not None and not more

    def compiled_alike(self, case: Case) -> bool:
        """Whether torch.compile makes the same single cuBLAS call as eager: without an activation,
        with at most one addend, and with rows of a multiple of 8 elements, which it does not pad.
        """
        (_, _, bias), options = self.inputs(case, META)
        addends = (bias is not None) + ("c" in options)
        alone = self.act(case.options) == "none" and "out_dtype" not in case.options
        return alone and addends <= 1 and all(n % 8 == 0 for n in case.shape[1:])
