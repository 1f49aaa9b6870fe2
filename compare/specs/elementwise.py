"""The elementwise ops as compare sees them: oracles that take the contract's very steps, and cases.

Exact ops: both sides must give the oracle's bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from compare import cases, numerics
from compare.case_options import ANY_DTYPE, FLOAT_DTYPE, LYING, NUMBER, choice
from compare.cases import FLOATS, Arguments, Case, Level, Sized


def _compute_dtype(result: torch.dtype) -> torch.dtype:
    return torch.float32 if result in (torch.float16, torch.bfloat16) else result


def _promoted(t: Tensor | int | float, result: torch.dtype, like: Tensor) -> Tensor:
    """An operand as the formula sees it: in the result dtype, then in the compute dtype."""
    compute = _compute_dtype(result)
    if not isinstance(t, Tensor):
        exact = compute if compute.is_floating_point else torch.int64  # of which the rest is cut
        return torch.tensor(t, dtype=exact, device=like.device).to(compute)
    return t.to(compute).to(result).to(compute)


def _relu(x: Tensor) -> Tensor:
    return torch.where(x < 0, torch.zeros_like(x), x)


def add_oracle(
    x: Tensor | int | float, y: Tensor | int | float, *, alpha: int | float = 1
) -> Tensor:
    """fma(alpha, y, x) in the compute dtype, rounded once."""
    result = torch.result_type(x, y)
    like = x if isinstance(x, Tensor) else y
    assert isinstance(like, Tensor)
    a, b = _promoted(x, result, like), _promoted(y, result, like)
    if not result.is_floating_point:
        return (a + b * alpha).to(result)
    return numerics.fma(torch.tensor(alpha, dtype=a.dtype, device=a.device), b, a).to(result)


def stepwise(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The oracle of an op of tensors, and of numbers by name: the formula in the compute dtype,
    rounded once."""

    def oracle(*operands: Tensor, **numbers: float) -> Tensor:
        x, *others = operands
        result = torch.result_type(x, *others) if others else x.dtype
        factors = {name: _promoted(number, result, x) for name, number in numbers.items()}
        return formula(*(_promoted(t, result, x) for t in operands), **factors).to(result)

    return oracle


def relu_scale_oracle(x: Tensor, scale: float) -> Tensor:
    """relu(x)·scale in the compute dtype, rounded once."""
    wide = _promoted(x, x.dtype, x)
    return (_relu(wide) * torch.tensor(scale, dtype=wide.dtype, device=x.device)).to(x.dtype)


def relu_scale_add_oracle(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """fma(relu(x), scale, y) in the compute dtype, rounded once."""
    result = torch.result_type(x, y)
    a, b = _promoted(x, result, x), _promoted(y, result, x)
    factor = torch.tensor(scale, dtype=a.dtype, device=a.device)
    return numerics.fma(_relu(a), factor, b).to(result)


# Empty, one, primes, odd matrices, many dimensions; and every N mod 8.
SHAPES = [(), (0,), (1,), (3, 0, 5), (7, 13), (33, 129), (2, 3, 5, 2, 3, 2, 2)]
TAILS = [(1040 + k,) for k in range(8)]
FAR = (3,)  # distant, the last offset is 2³¹ itself
# Of x, y and out one lies otherwise than the others.
ALONE = [((139,), "misaligned"), ((17, 19), "transposed"), (FAR, "distant")]
LARGE = {"standard": [(1024, 1024)], "full": [(1024, 1024), (4096, 4099)]}
HUGE = [((2**31 + 17,), "contiguous"), ((2**15 + 1, 2**16 + 1), "transposed")]  # past 32 bits
# All offsets are 32-bit numbers, those of the last program's masked lanes are not.
ALMOST_HUGE = (2**31 - 5,)


def elementwise_cases(
    op: str, dtype: str, level: Level, extra: Mapping[str, list[dict[str, Any]]]
) -> Iterator[Case]:
    """The cases that all elementwise ops share, with ``extra["all"]`` options in every one, and
    some more cases for each of ``extra["more"]``, which an op of one tensor has none of."""
    (base, *others) = extra["all"]
    rounding = others[0] if others else {}  # which tails shall have
    binary = bool(extra["more"])

    def case(
        shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
    ) -> Case:
        return Case(op, dtype, shape, layout, values, 0, {**base, **o})

    for shape in SHAPES:
        yield case(shape)
    for shape in TAILS:
        yield case(shape, **rounding)
    for layout in (*cases.LAYOUTS[1:], "inplace", "functional"):
        yield case((33, 129), layout)
        yield case((2, 3, 5, 2, 3, 2, 2), layout)
    yield case((1043,), "misaligned", **rounding)
    yield case((1043,), "misaligned", "special")
    yield case((33, 129), "inplace", out="padded")
    yield case(FAR, "distant")
    for shape, layout in ALONE:
        yield case(shape, layout, out="contiguous", **({"y": "contiguous"} if binary else {}))
        yield case(shape, out=layout)
        if binary:
            yield case(shape, y=layout)
    if binary:  # x broadcasts; one without dimensions does not widen the result
        yield case((), y="batch")
        yield case((7, 13), y="batch")
        if dtype == "float64":
            yield case((), y="batch", y_dtype="float16")
        elif dtype in FLOATS:
            yield case((139,), y="0-d", y_dtype="float64")
    yield case((4099,), values="special")
    yield case((33, 129), "transposed", "special")
    for options in (*others, *extra["more"]):
        yield case((33, 129), **options)
        yield case((33, 129), values="special", **options)
        yield case((33, 129), "transposed", **options)
    if cases.DTYPES[dtype].itemsize <= 2:
        yield case((65536,), values="every")
    if level != "quick" and torch.cuda.is_available():
        for shape in LARGE[level]:
            yield case(shape)
            yield case(shape, "transposed")
    if level == "full" and torch.cuda.is_available() and dtype in ("float16", "float32", "uint8"):
        for shape, layout in HUGE:
            yield case(shape, layout)
        if binary:
            yield case(ALMOST_HUGE, y="0-d")


VALUES = ("normal", "special", "every", "integers", "cancelling", "ties")  # of add and its like


def unary_inputs(case: Case, device: torch.device = cases.CPU) -> Arguments:
    """x in the case's layout."""
    x = cases.random_values(case.shape, case.torch_dtype, case.values, case.generator(), device)
    return (cases.arrange(x, case.layout),), {k: v for k, v in case.options.items() if k != "out"}


_BROADCAST = ("same", "row", "column", "0-d", "batch")
_LYING = (*cases.LAYOUTS, *cases.DISTANT)
UNARY_OPTIONS = {"out": LYING}
BINARY_OPTIONS = {"y": choice(*_BROADCAST, *_LYING), "y_dtype": FLOAT_DTYPE, "out": LYING}
ADD_OPTIONS = {
    "x": choice("same", "scalar"),
    "y": choice(*_BROADCAST, "scalar", *_LYING),
    "y_dtype": ANY_DTYPE,
    "alpha": NUMBER,
    "out": LYING,
}


def add_refuses(case: Case) -> str:
    """Why there is no such call, in the words of the command line."""
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


def binary_inputs(case: Case, device: torch.device = cases.CPU) -> Arguments:
    """x and y; option y says how y differs: row, column, 0-d, scalar, batch of x's shape, or a
    layout of its own; x may be a scalar, too.

    Values "ties" are for operands that a 16-bit result dtype rounds. Where they are "cancelling"
    nothing but roundings remains of the sum: an operand or a product rounded otherwise shows.
    """
    options = {k: v for k, v in case.options.items() if k != "out"}
    x_kind, kind = options.pop("x", "same"), options.pop("y", "same")
    dtype = cases.DTYPES[options.pop("y_dtype", case.dtype)]
    generator = case.generator()
    x_values, _, y_values = case.values.partition(":")
    if case.values == "every":
        y_values = "shuffled"
    elif case.values == "ties":
        x_values, y_values = cases.ties(case.torch_dtype, dtype)
    elif case.values == "cancelling":
        x_values = "normal"
    number = x_kind == "scalar"
    x: Any = cases.random_values(
        () if number else case.shape,
        case.torch_dtype,
        x_values,
        generator,
        cases.CPU if number else device,
    )
    x = x.item() if number else cases.arrange(x, case.layout)
    shape = case.shape
    if kind == "row":
        shape = case.shape[-1:]
    elif kind == "column":
        shape = (*case.shape[:-1], 1)
    elif kind in ("0-d", "scalar"):
        shape = ()
    elif kind == "batch":
        shape = (3, *case.shape)
    home = cases.CPU if kind == "scalar" else device
    y: Any = cases.random_values(shape, dtype, y_values or x_values, generator, home)
    if case.values == "cancelling" and "scale" in options:
        y.copy_(-options["scale"] * _relu(x.double()))
    elif case.values == "cancelling":
        x.copy_(-options.get("alpha", 1) * y.double())
    if kind == "scalar":
        y = y.item()
    elif kind == "same":
        y = cases.arrange(y, case.layout)
    elif kind in (*cases.LAYOUTS, *cases.DISTANT):
        y = cases.arrange(y, kind)
    return (x, y), options


def add_cases(dtype: str, level: Level) -> Iterator[Case]:
    """With broadcast, scalar and promoted y, and alphas that round or wrap."""
    kinds: list[dict[str, Any]] = [
        {"y": kind} for kind in ("row", "column", "0-d", "scalar", "contiguous")
    ]
    kinds.append({"x": "scalar", "alpha": -3})
    if dtype in FLOATS:
        alphas: list[dict[str, Any]] = [{"alpha": 0.1}, {"alpha": -3}]
        kinds += [{"y_dtype": other} for other in ("int64", "float16", "float32") if other != dtype]
    else:
        alphas = [{"alpha": -3}, {"alpha": 2**40 + 7}]
        kinds += [{"y_dtype": other} for other in ("int32", "uint8", "bfloat16") if other != dtype]
    yield from elementwise_cases("add", dtype, level, {"all": [{}, *alphas], "more": kinds})
    for layout in ("contiguous", "misaligned"):
        yield Case("add", dtype, (139,), layout, "cancelling", options=alphas[0])
    scalars = {"y": "scalar", **alphas[0]}
    if dtype == "int64":  # of which each is a 32-bit number, but not their product
        scalars |= {"y_dtype": "int32", "alpha": -7}
        yield Case("add", dtype, (139,), options={**scalars, "y_dtype": "int64"})
    yield Case("add", dtype, (139,), options=scalars)
    narrow = dtype in ("float16", "bfloat16")
    if narrow:
        yield Case("add", dtype, (139,), values="cancelling", options={"y_dtype": "int16"})
        yield Case("add", dtype, (139,), values="ties", options={"y": "0-d", "y_dtype": "float64"})
    if narrow or dtype in ("int32", "int64"):
        other = "int64" if narrow else "bfloat16"
        yield Case("add", dtype, (139,), values="ties", options={"y_dtype": other})
        yield Case("add", dtype, (17, 19), "transposed", "ties", options={"y_dtype": other})


def relu_scale_add_cases(dtype: str, level: Level) -> Iterator[Case]:
    """With broadcast and promoted y, and sums of which roundings remain."""
    kinds: list[dict[str, Any]] = [{"y": kind} for kind in ("row", "column", "0-d")]
    kinds.append({"y_dtype": "float16" if dtype == "float32" else "float32"})
    extra: dict[str, list[dict[str, Any]]] = {"all": [{"scale": 0.1}, {"scale": -2}], "more": kinds}
    yield from elementwise_cases("relu_scale_add", dtype, level, extra)
    yield Case("relu_scale_add", dtype, (139,), values="cancelling", options={"scale": 0.1})


def add_takes(side: str, variant: str | None, case: Case) -> bool:
    """A variant is for its dtype; on the CUDA side for dense tensors of one shape. On the Triton
    side it is the default's kernels in other blocks, to which strides and values are separate."""
    if variant is None:
        return True
    prefix = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(case.dtype, "none")
    if variant != prefix and not variant.startswith(prefix + "x"):
        return False
    if "y_dtype" in case.options:
        return False
    if side == "triton" and case.values == "normal" and "out" not in case.options:
        return True
    return _dense(case) and "x" not in case.options


def _dense(case: Case) -> bool:
    return case.lying <= {"contiguous", "misaligned", "inplace", "functional"}


def square_takes(side: str, variant: str | None, case: Case) -> bool:
    """1d is for dense tensors, 2d for dense matrices."""
    return variant is None or (_dense(case) and (variant != "2d" or len(case.shape) == 2))


def to_compile(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """The launches that differ in machine code: flat and strided kernel, an index past 2³¹."""
    yield Case(op, dtype, (64, 64), options=options)
    yield Case(op, dtype, (64, 64), "padded", options=options)
    if dtype == "float32":
        yield Case(op, dtype, (1 << 16, 1 << 15), "padded", options=options)
    if op == "add":
        for operand in ("x", "y"):
            yield Case(op, dtype, (64, 64), options={**options, operand: "scalar"})


_CUDA_TYPE = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}


def cuda_kernel(op: str, dtype: str, variant: str | None) -> str:
    """The kernel in csrc that computes ``op`` in ``dtype``, as the source writes it."""
    if op == "add" and variant is not None:
        per_thread = re.search(r"x(\d)", variant)
        element = access = _CUDA_TYPE[dtype]
        if variant.endswith(("f32x4", "_pack")):
            access = "float4"
        elif per_thread:
            access = "unsigned"
        return f"add_vector_kernel<{element}, {access}, {per_thread[1] if per_thread else 1}>"
    name = f"{op}_{variant}" if variant else op
    return f"{name}_kernel<{cuda_type(dtype)}>"


def cuda_type(dtype: str) -> str:
    """The compute type of ``dtype`` on the CUDA side."""
    if dtype not in FLOATS:
        return "u64"
    return "double" if dtype == "float64" else "float"


def timed(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """What benchmarks time: squares, as everyone else's."""
    return (Case(op, dtype, (n, n), options=options) for n in (1024, 2048, 4096, 16384))


def timed_gradient(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """Fewer of these: what holds for an op's memory accesses holds for its gradient's."""
    return (Case(op, dtype, (n, n), options=options) for n in (1024, 4096))


def sweeps(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
    """Flat tensors from 2¹² to 2²⁸ elements: what launching costs, L2, memory."""
    return (("numel", 4**k, Case(op, dtype, (4**k,), options=options)) for k in range(6, 15))


def square_sweeps(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
    """Square matrices from 2¹² to 2²⁸ elements."""
    return (("numel", 4**k, Case(op, dtype, (2**k, 2**k), options=options)) for k in range(6, 15))
