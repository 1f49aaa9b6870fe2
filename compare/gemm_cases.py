"""Where the matrix products are probed: shapes, layouts, options; what is compiled of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from compare import cases, elementwise
from compare.cases import Case, Level
from compare.gemm import ACTIVATIONS
from compare.gemm_inputs import HOW, NEAR
from cuda_reference.ops.gemm_bias_act import takes as cuda_takes
from triton_kernels.activations import OF_PRE_ACTIVATION

# Shapes (M, N, K): one tile, tails in each dimension, vectors, nothing, all of K in one step or in
# many; sized so that an interpreted run takes few tile steps.
SHAPES = [(64, 64, 64), (33, 65, 70), (1, 1, 1), (1, 129, 40), (130, 1, 33), (7, 13, 200)]
SHAPES += [(3, 5, 0), (0, 4, 8), (4, 0, 8), (96, 80, 128)]
TAILS = (33, 65, 70)
# For 16-bit matrices past 32 rows: rows on multiples of 16 bytes, read without a copy.
TMA = (70, 40, 136)
# Lengths of rows and columns that leave every remainder of 8: other 16-bit matrices are copied.
ALIGNMENTS = [(40 + i, 48 + 3 * i % 8, 40 + 5 * i % 8) for i in range(8)]
LARGE = {
    "standard": [(512, 512, 512)],
    "full": [(512, 512, 512), (333, 4097, 1023), (1, 4096, 4096), (2048, 2048, 2048)],
}
LONG_SUM = (128, 128, 4096)  # so many roundings that the way of adding shows
# More rows of tiles than the second dimension of a grid has room for; an a past 2³¹ elements.
TALL, HUGE = (2**20 + 17, 24, 16), (2**25 + 7, 3, 65)
# Matrices of which the last row or column lies past 2³¹ elements: in the last lane of a step of K,
# or a whole step away; for descriptors.
DISTANT = {
    "float32": [(17, 9, 16), (17, 9, 17)],
    "float16": [(17, 9, 128), (17, 9, 129), (40, 40, 40)],
}

# How launches are cut on the Triton side, as (M, N, K) and multiprocessors. First what both ops
# try: more rows of tiles than a group has; more tiles than programs, halved in the epilogue.
Cut = tuple[tuple[int, int, int], int]
_HALF_ORDERS: list[Cut] = [((1030, 72, 40), 132), ((194, 392, 40), 2)]
_ORDERS = {
    "float16": _HALF_ORDERS,
    "bfloat16": _HALF_ORDERS,
    "float32": [((580, 70, 5), 132)],
    "float64": [((300, 40, 5), 132)],
}
# Then all tiles of _gemm's tables, to which a test holds them; through pointers, by descriptors.
_HALF_TILES: list[Cut] = [((9, 40, 130), 132), ((20, 40, 130), 132), ((9, 140, 130), 2)]
_HALF_TILES += [((20, 140, 130), 2), ((70, 130, 5), 132), ((140, 300, 5), 1)]
_HALF_TILES += [((194, 388, 40), 1), ((322, 136, 40), 2), ((66, 66, 3080), 1)]
_HALF_TILES += [((66, 264, 40), 2), ((66, 136, 130), 3), ((130, 72, 40), 132)]
_TILES = {
    "float16": _HALF_TILES,
    "bfloat16": _HALF_TILES,
    "float32": [((70, 130, 40), 132)],
    "float32/tf32": [((130, 130, 40), 132), ((40, 70, 40), 132)],
    "float32/tf32x3": [((70, 130, 40), 132)],
    "float64": [((70, 40, 40), 132)],
}


def is_exact(case: Case) -> bool:
    """Whether the case's sums and epilogue involve no rounding, so that bits must agree."""
    act = case.options.get("act", "gelu" if case.op == "linear_gelu" else "none")
    without_act = act in ("none", "relu") or case.options.get("training") == "pre"
    return case.values.startswith("lattice") and without_act


def _gemm_cases(
    op: str, dtype: str, level: Level, variations: list[dict[str, Any]]
) -> Iterator[Case]:
    """Every shape plain; then layouts, activations, scalars, lattices on shapes with tails."""
    base = variations[0]
    halves = dtype in ("float16", "bfloat16")

    def case(
        shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
    ) -> Case:
        return Case(op, dtype, shape, layout, values, 0, {**base, **o})

    for shape in SHAPES:
        yield case(shape)
    every_tensor: dict[str, Any] = {"bias": True, "c": "full"} if op == "gemm_bias_act" else {}
    for layout in NEAR[1:]:
        yield case(TAILS, layout, **every_tensor)
    for options in variations[1:]:
        yield case(TAILS, **options)
    yield case(TAILS, values="special")
    if halves:
        for layout in (*NEAR, "half-aligned"):
            yield case(TMA, layout, **every_tensor)
        yield case(TMA, "expanded", "lattice", **every_tensor)  # hardly two results differ
        for options in variations[1:]:
            yield case(TMA, **options)
    for shape, multiprocessors in _ORDERS[dtype]:
        yield case(shape, values="lattice", multiprocessors=multiprocessors)
    for shape, layout in itertools.product(DISTANT.get(dtype, ()), cases.DISTANT):
        yield case(shape, layout, "lattice", **every_tensor)
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


def gemm_bias_act_cases(dtype: str, level: Level) -> Iterator[Case]:
    """Every activation, scalar, kind of c and precision; lattices; every x for activations."""
    variations: list[dict[str, Any]] = [{}]
    variations += [{"act": act, "bias": True} for act in ACTIVATIONS]
    variations += [
        {"alpha": 0.3, "bias": True},
        {"alpha": -1.7, "beta": 0.6, "c": "full", "bias": True, "act": "gelu"},
        {"c": "row"},
        {"c": "column", "beta": 2.0},
        {"c": "0-d", "beta": 0.5, "act": "relu"},
        {"c": "full", "beta": 0.0},
        {"alpha": 0.0, "bias": True},
    ]
    if dtype != "float32":
        variations.append({"out_dtype": "float32", "bias": True})
    yield from _gemm_cases("gemm_bias_act", dtype, level, variations)
    yield from _activation_cases(dtype)
    for precision in PRECISIONS if dtype == "float32" else PRECISIONS[:1]:
        yield from _precision_cases(dtype, precision)
    if dtype in ("float16", "bfloat16"):
        for shape in ALIGNMENTS:
            yield Case("gemm_bias_act", dtype, shape, "contiguous", "lattice")
            yield Case("gemm_bias_act", dtype, shape, "transposed", "lattice")
    yield from _training_cases("gemm_bias_act", dtype, [{"act": a} for a in OF_PRE_ACTIVATION])


PRECISIONS = ("ieee", "tf32", "tf32x3")
_EPILOGUE: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "c": "full", "bias": True}


def _activation_cases(dtype: str) -> Iterator[Case]:
    """With K = 0 the pre-activation is c, and nothing hides an activation's own error: on every
    value of 16 bits; on special and on ordinary ones; where the result is wider or narrower."""

    def case(shape: tuple[int, int, int], values: str, **options: Any) -> Case:
        return Case("gemm_bias_act", dtype, shape, values=values, options={"c": "full", **options})

    for act in ACTIVATIONS:
        if dtype in ("float16", "bfloat16"):
            yield case((256, 256, 0), "every", act=act)
        else:
            yield case((32, 64, 0), "normal", act=act)
            yield case((64, 64, 0), "special", act=act)
    # gelu's form for results of 16 bits is the one that differs in more than speed.
    for other in ("float16", "bfloat16", "float32"):
        if other != dtype:
            yield case((32, 64, 0), "normal", act="gelu", beta=0.3, bias=True, out_dtype=other)
    # What beta = 0 leaves out may be NaN.
    yield case((33, 65, 0), "special", beta=0.0)


def _precision_cases(dtype: str, precision: str) -> Iterator[Case]:
    """Lattices with and without an epilogue, special values, every way of cutting."""
    o: dict[str, Any] = {} if precision == "ieee" else {"precision": precision}

    def case(
        shape: tuple[int, int, int],
        layout: str = "contiguous",
        values: str = "lattice",
        **more: Any,
    ) -> Case:
        return Case("gemm_bias_act", dtype, shape, layout, values, 0, {**o, **more})

    for shape in (TAILS, (96, 80, 128), (16, 16, 301), TMA):
        if o:
            yield case(shape, values="normal")
        yield case(shape)
        yield case(shape, "transposed", **_EPILOGUE)
        yield case(shape, "padded", **_EPILOGUE, act="relu")
        if dtype in ("float32", "float64") and precision != "tf32":
            yield case(shape, values="lattice-wide")
    if o:
        yield case(TAILS, values="special")
        yield case((16, 16, 24), values="tf32")
    for shape, multiprocessors in _TILES["/".join([dtype, *o.values()])]:
        # A launch's stages depend on c and its code on the dtype, but not the interpreter's way.
        if torch.cuda.is_available() or dtype != "bfloat16":
            yield case(shape, multiprocessors=multiprocessors)
        if torch.cuda.is_available() or shape == (194, 388, 40):
            yield case(shape, **_EPILOGUE, multiprocessors=multiprocessors)


def _training_cases(op: str, dtype: str, forms: list[dict[str, Any]]) -> Iterator[Case]:
    """Both results of a training step: in each form of the op, from both kernels, with and without
    descriptors for the results."""

    def case(shape: tuple[int, int, int], **options: Any) -> Case:
        options = {**options, "bias": True}
        return Case(op, dtype, shape, "functional", "lattice", 0, options)

    for form in forms:
        yield case(TAILS, **form, training="pre")
    yield case(TAILS, **forms[0], training="out")
    if dtype in ("float16", "bfloat16"):
        yield case((20, 65, 70), **forms[0], training="pre")
        yield case(TMA, **forms[0], training="pre")
        yield case(TMA, **forms[0], training="out")
    if op == "gemm_bias_act":
        yield case(TAILS, **forms[0], **_EPILOGUE, training="pre")
        if dtype == "float16":
            yield case((194, 392, 40), **forms[0], training="pre", multiprocessors=2)


def linear_gelu_cases(dtype: str, level: Level) -> Iterator[Case]:
    """Both forms of GELU, with and without bias; of the bias alone."""
    forms: list[dict[str, Any]] = [{}, {"approximate": "tanh"}]
    yield from _gemm_cases("linear_gelu", dtype, level, [*forms, {"bias": False}])
    for form in forms:
        for values in ("normal", "special"):
            yield Case("linear_gelu", dtype, (2, 256, 0), values=values, options=form)
    yield from _training_cases("linear_gelu", dtype, forms)


def gemm_takes(side: str, variant: str | None, case: Case) -> bool:
    """Triton everything, a CUDA variant what it is made for, but no case that is about Triton's
    launches; the CUDA default counts as naive."""
    if side == "triton":
        return True
    precision = case.options.get("precision", "ieee")
    ours = cuda_takes(variant or "naive", case.torch_dtype, precision)
    return ours and not HOW.keys() & case.options.keys()


def refuses(case: Case) -> str:
    """Why there is no such call, in the words of the command line."""
    if case.options.get("precision", "ieee") != "ieee" and case.dtype != "float32":
        return "precisions but ieee are for float32"
    if case.options.get("beta") and "c" not in case.options:
        return "beta needs c"
    if "training" in case.options and case.layout != "functional":
        return "training needs --layout functional"
    act = case.options.get("act", "gelu" if case.op == "linear_gelu" else "none")
    if case.options.get("training") == "pre" and act not in OF_PRE_ACTIVATION:
        return f"training=pre is for {', '.join(OF_PRE_ACTIVATION)}"
    return ""


def gemm_cost(case: Case) -> tuple[int, int]:
    """2·M·N·K operations; each matrix moved once."""
    M, N, K = case.shape
    return 2 * M * N * K, (M * K + K * N + M * N) * case.torch_dtype.itemsize


def out_dtype(case: Case) -> torch.dtype:
    """The result's dtype."""
    return cases.DTYPES[case.options.get("out_dtype", case.dtype)]


# One shape for each tile configuration of triton_kernels._gemm; a test holds them to that.
# Multiples of 16, so that a launch is specialised as usual.
_SHAPES_TO_COMPILE = ((16, 2048, 64), (32, 2048, 64), (512, 2048, 64), (2048, 2048, 64))
_HALF_SHAPES_TO_COMPILE = (
    *((16, 2048, 128), (32, 2048, 128), (16, 8192, 128), (32, 8192, 128)),  # few rows
    *((512, 2048, 32), (2048, 2048, 32), (512, 4096, 4096)),  # short sums, a long one
    *((64, 2048, 128), (128, 4096, 128), (512, 2048, 128), (512, 4096, 128), (2048, 2048, 128)),
)


def _shapes_to_compile(dtype: str) -> tuple[tuple[int, int, int], ...]:
    return _HALF_SHAPES_TO_COMPILE if dtype in ("float16", "bfloat16") else _SHAPES_TO_COMPILE


def gemm_bias_act_to_compile(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """Each tile configuration and precision, without an epilogue and with the heaviest."""
    heavy: dict[str, Any] = {"act": "gelu", "bias": True, "c": "full"}
    for precision in ("ieee", "tf32", "tf32x3") if dtype == "float32" else ("ieee",):
        for shape in _shapes_to_compile(dtype):
            for epilogue in ({}, heavy):
                yield Case(op, dtype, shape, options={**epilogue, "precision": precision})


def linear_gelu_to_compile(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """Each tile configuration with the erf form of GELU, the largest also with the tanh form."""
    for shape in _shapes_to_compile(dtype):
        yield Case(op, dtype, shape)
    yield Case(op, dtype, _shapes_to_compile(dtype)[-1], options={"approximate": "tanh"})


_CORES = {
    "float16": "HalfCores, false",
    "bfloat16": "BFloat16Cores, false",
    "float32/tf32": "TF32Cores, false",
    "float32/tf32x3": "TF32Cores, true",
}


def cuda_kernel(op: str, dtype: str, variant: str | None) -> str:
    """The kernel in csrc that a variant runs, as the source writes it; of none the twin of what
    Triton does: on tensor cores where Triton uses them. dtype may be "float32/tf32"."""
    if dtype in _CORES and variant in (None, "wmma"):
        return f"gemm_wmma_kernel<{_CORES[dtype]}>"
    return f"gemm_{variant or 'naive'}_kernel<{elementwise.cuda_type(dtype)}>"
