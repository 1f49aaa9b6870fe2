"""What hypothesis draws: tensors of any layout and value, and calls of the ops on them.

What is drawn is a description whose repr rebuilds it, so that a failure can be replayed by hand:

    >>> from strategies import *
    >>> TensorSpec('float16', (2, 3), strides=(1, 2), special=('nan',)).tensor()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import inf, nan
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from torch import Tensor

from compare import cases
from compare.cases import CPU, DTYPES, FLOATS, INTEGERS, Arguments, Case
from compare.ops import SPECS
from compare.specs import Elementwise
from compare.specs.activations import ACTIVATIONS
from compare.specs.elementwise import result_type

# ---- tensors ----

SPECIAL = ("0", "1", "-1", "max", "-max")
FLOAT_SPECIAL = (*SPECIAL, "-0", "nan", "inf", "-inf", "tiny", "subnormal", "-subnormal")
# 1 + eps/2 and (1 + eps) + eps/2 lie between two numbers: the tie goes to the even one.
FLOAT_SPECIAL += ("1+eps", "eps/2")


def special_value(name: str, dtype: torch.dtype) -> float | int:
    """The number that a name in ``special`` stands for."""
    if name.startswith("-"):
        return -special_value(name[1:], dtype)
    if not dtype.is_floating_point:
        return {"0": 0, "1": 1, "max": torch.iinfo(dtype).max}[name]
    info = torch.finfo(dtype)
    named = {"max": info.max, "tiny": info.tiny, "subnormal": info.tiny * info.eps}
    named |= {"1+eps": 1 + info.eps, "eps/2": info.eps / 2}
    return named[name] if name in named else float(name)


@dataclass(frozen=True, repr=False)
class TensorSpec:
    """A tensor: every element from ``values`` and ``seed``, half of them then special.

    ``values`` is a kind of compare.cases.random_values, or "integers" from −8 to 8. ``strides``
    None is contiguous; ``offset`` is how many elements past an aligned address it starts.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    values: str = "normal"
    special: tuple[str, ...] = ()
    seed: int = 0

    def __repr__(self) -> str:
        set_ = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[2:]]
        default = [f"{f.name}={f.default!r}" for f in fields(self)[2:]]
        words = [repr(self.dtype), repr(self.shape), *(s for s in set_ if s not in default)]
        return f"TensorSpec({', '.join(words)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every field

    def _numbers(self) -> Tensor:
        dtype, generator = DTYPES[self.dtype], torch.Generator().manual_seed(self.seed)
        n = math.prod(self.shape)
        if self.values == "integers":
            numbers = torch.randint(-8, 9, (n,), generator=generator).to(dtype)
        else:
            numbers = cases.random_values((n,), dtype, self.values, generator)
        if self.special and n:
            chosen = [special_value(name, dtype) for name in self.special]
            at = torch.randperm(n, generator=generator)[: -(-n // 2)]
            numbers[at] = torch.tensor(chosen, dtype=dtype).repeat(len(at))[: len(at)]
        return numbers.view(self.shape)

    @property
    def overlaps(self) -> bool:
        """Whether several elements share one address."""
        if self.strides is None or 0 in self.shape:
            return False
        memory = torch.arange(sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + 1)
        elements = memory.as_strided(self.shape, self.strides)
        return elements.unique().numel() < elements.numel()

    def tensor(self, device: torch.device = CPU) -> Tensor:
        """The tensor, with poison in all memory that is not its own."""
        numbers = self._numbers().to(device)
        strides = numbers.stride() if self.strides is None else self.strides
        reach = sum((n - 1) * s for n, s in zip(self.shape, strides)) if numbers.numel() else 0
        memory = torch.full(
            (self.offset + reach + 1,),
            cases.poison_of(numbers.dtype),
            dtype=numbers.dtype,
            device=device,
        )
        view = memory.as_strided(self.shape, strides, self.offset)
        once = tuple(slice(1) if s == 0 else slice(None) for s in strides)  # expanded dimensions
        view[once].copy_(numbers[once])
        return view


SEEDS = st.integers(0, 3)
VALUES = st.sampled_from(["normal", "special"])
OFFSETS = st.sampled_from([0, 1, 2, 3, 4, 8, 15])


@st.composite
def strides_for(draw: st.DrawFn, shape: tuple[int, ...], written: bool) -> tuple[int, ...] | None:
    """Contiguous; or dimensions in any order in memory, with gaps, some expanded unless written;
    or, unless written, small numbers: windows that overlap. torch has no negative strides."""
    if not shape or draw(st.booleans()):
        return None
    if not written and draw(st.integers(0, 4)) == 4:
        return tuple(draw(st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape))))
    strides, reach = [0] * len(shape), 1
    for d in draw(st.permutations(range(len(shape))[::-1])):
        step, gap = draw(st.sampled_from([(1, 0), (2, 0), (1, 3), *([] if written else [(0, 0)])]))
        strides[d] = step * reach
        reach = max(reach, strides[d] * shape[d]) + gap
    return tuple(strides)


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    dtype: str,
    *,
    values: st.SearchStrategy[str] = VALUES,
    special: Sequence[str] | None = None,
    written: bool = False,
) -> TensorSpec:
    """A tensor of a shape and dtype, of any layout; ``written`` ones do not overlap themselves."""
    if special is None:
        special = FLOAT_SPECIAL if dtype in FLOATS else SPECIAL
    return TensorSpec(
        dtype,
        shape,
        draw(strides_for(shape, written)),
        draw(OFFSETS),
        draw(values),
        ()
        if written or not special
        else draw(st.lists(st.sampled_from(special), max_size=3).map(tuple)),
        draw(SEEDS),
    )


# ---- calls ----


@dataclass(frozen=True)
class Call:
    """A call of an op: TensorSpecs stand for tensors, names for dtypes; out "x" is in place."""

    op: str
    args: tuple[TensorSpec | float | tuple[int, ...] | None, ...]
    options: dict[str, Any] = field(default_factory=dict)
    out: TensorSpec | str | None = None

    def arguments(self, device: torch.device = CPU) -> Arguments:
        """The positional and keyword arguments, without out."""

        def real(value: Any) -> Any:
            return value.tensor(device) if isinstance(value, TensorSpec) else value

        options = {key: real(value) for key, value in self.options.items()}
        if "out_dtype" in options:
            options["out_dtype"] = DTYPES[options["out_dtype"]]
        return tuple(real(value) for value in self.args), options

    def case(self, shape: Sequence[int]) -> Case:
        """The nearest case of compare's, for what the spec tells by it."""
        x, *others = self.args
        options = {k: v for k, v in self.options.items() if not isinstance(v, TensorSpec)}
        if isinstance(self.options.get("scale"), TensorSpec):
            options["scale"] = "strided"
        if not isinstance(x, TensorSpec):
            x, others, options["x"] = others[0], [], "scalar"
        out = self.out if isinstance(self.out, TensorSpec) else x
        every = [t for t in (x, *others, out) if isinstance(t, TensorSpec)]
        dense = all(t.strides is None and t.shape == tuple(shape) for t in every)
        if others and not isinstance(others[0], TensorSpec):
            options["y"] = "scalar"
        elif others and others[0].dtype != x.dtype:
            options["y_dtype"] = others[0].dtype
        values = "lattice" if all(t.values == "integers" for t in every) else "drawn"
        layout = "contiguous" if dense else "strided"
        return Case(self.op, x.dtype, tuple(shape), layout, values, 0, options)


def _shapes(operands: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """That many shapes that broadcast: small ones of any dimension, or long vectors with tails."""
    few = mutually_broadcastable_shapes(
        num_shapes=operands, min_dims=0, max_dims=4, min_side=0, max_side=5
    )
    many = mutually_broadcastable_shapes(
        num_shapes=operands, min_dims=5, max_dims=8, min_side=1, max_side=2
    )
    small = (few | many).map(lambda drawn: drawn.input_shapes)
    ends = st.sampled_from([127, 128, 129, 511, 512, 513, 1024, 1025])
    long = (st.integers(0, 40) | ends).map(lambda n: ((n,),) * operands)
    return small | long


ROUND = st.sampled_from([1, 2, -3, 0, 0.5, 0.1, -0.0, 1.5])  # as people write them
# Not numbers, infinite, past float32's largest or beside it, its smallest and below.
EXTREME = st.sampled_from(
    [nan, inf, -inf, 1e38, -1e38, 3.5e38, 1e308, 1e-40, -1e-45, 1e-46, 5e-324]
)
EXTREME_INTEGERS = st.sampled_from([-(2**63), 2**63 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1])


def _numbers(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """A factor for a result of the dtype: every float, or every integer, wrapping."""
    if dtype.is_floating_point:
        return ROUND | EXTREME | st.floats()
    return st.sampled_from([1, 2, -3]) | EXTREME_INTEGERS | st.integers(-(2**63), 2**63 - 1)


def _addends(x: str) -> st.SearchStrategy[float]:
    """A Python number that may stand for add's x or y, beside a tensor of that dtype."""
    if x in FLOATS:
        return ROUND | EXTREME | st.floats()
    info = torch.iinfo(DTYPES[x])
    return st.integers(info.min, info.max) | st.booleans() | st.sampled_from([0.5, 1e30, -0.0])


@st.composite
def elementwise_calls(draw: st.DrawFn, op: str) -> Call:
    """A call of an exact op, with operands of any dtypes and shapes that fit."""
    spec = SPECS[op]
    assert isinstance(spec, Elementwise)
    binary = not spec.unary
    dtype = st.sampled_from(spec.dtypes)
    scaled = "scale_dtype" in spec.options and draw(st.booleans())
    x_shape, *others = draw(_shapes(1 + binary + scaled))
    x = draw(tensors(x_shape, draw(dtype)))
    args: list[Any] = [x]
    if op == "add" and draw(st.integers(0, 4)) == 4:
        args.insert(draw(st.integers(0, 1)), draw(_addends(x.dtype)))
    elif binary:
        args.append(draw(tensors(others[0], draw(st.just(x.dtype) | dtype))))
    numbered = args[0] is not x
    scale = [draw(tensors(others[-1], draw(st.just(x.dtype) | dtype)))] if scaled else []
    meta, _ = Call(op, (*args, *scale)).arguments(torch.device("meta"))
    result = result_type(*meta)
    shape = torch.broadcast_shapes(*(m.shape for m in meta if isinstance(m, Tensor)))
    options = {}
    if op == "add" and draw(st.booleans()):
        options["alpha"] = draw(_numbers(result))
    for number in spec.numbers:
        options[number] = scale[0] if scaled else draw(_numbers(result))
    name = str(result).removeprefix("torch.")
    outs = st.none() | tensors(tuple(shape), name, written=True)
    if not numbered and x.shape == tuple(shape) and x.dtype == name and not x.overlaps:
        outs |= st.just("x")
    return Call(op, tuple(args), options, draw(outs))


@st.composite
def sums(draw: st.DrawFn, op: str) -> Call:
    """A call of sum_to; of integers, where no sum rounds, or of any numbers."""
    dtype = draw(st.sampled_from(SPECS[op].dtypes))
    exact = draw(st.booleans())
    values = st.just("integers" if exact else "normal")
    special = () if exact or draw(st.booleans()) else _gemm_special(dtype)
    (full,) = draw(_shapes(1))
    kept = [n if draw(st.booleans()) else 1 for n in full]
    shape = tuple(kept[draw(st.integers(0, next_kept(kept, full))) :])
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["factor"] = draw(POWERS.filter(bool) | LIMITS if exact else FACTORS)
    out = draw(st.none() | tensors(shape, dtype, values=values, written=True))
    x = draw(tensors(full, dtype, values=values, special=special))
    return Call(op, (x, shape), options, out)


def next_kept(kept: list[int], full: tuple[int, ...]) -> int:
    """How many leading dimensions sum_to's shape may leave out."""
    return next((d for d, (n, m) in enumerate(zip(kept, full)) if n == m != 1), len(full))


M_OR_N = st.integers(0, 20) | st.sampled_from([33, 65])
K = st.integers(0, 40) | st.sampled_from([65, 130])
FACTORS = st.sampled_from([1.0, 2.0, -0.5, 0.0, 0.3, -1.7])
POWERS = st.sampled_from([1.0, 2.0, -0.5, 0.0])
# Times an integer they are what they are in float64, in float32, too, or infinite.
LIMITS = st.sampled_from([-0.0, nan, inf, -inf, 2.0**127, -(2.0**127), 2.0**-149])


def _gemm_special(dtype: str) -> tuple[str, ...]:
    """Values whose products and sums stay below the accumulator's largest number: the bound has
    no term for overflow there. float16's largest do stay."""
    more = ("max",) if dtype == "float16" else ()
    return ("0", "1", "-1", "-0", "nan", "inf", "-inf", "tiny", "subnormal", "1+eps", *more)


@st.composite
def gemm_calls(draw: st.DrawFn, op: str) -> Call:
    """A call of a matrix product; of integers, where no sum rounds, or of any numbers."""
    dtype = draw(st.sampled_from(SPECS[op].dtypes))
    exact = draw(st.booleans())
    values = st.just("integers" if exact else "normal")
    special = () if exact or draw(st.booleans()) else _gemm_special(dtype)

    def tensor(*shape: int) -> TensorSpec:
        return draw(tensors(shape, dtype, values=values, special=special))

    m, n, k = draw(M_OR_N), draw(M_OR_N), draw(K)
    bias = tensor(n) if draw(st.booleans()) else None
    acts = ["none", "relu"] if exact else list(ACTIVATIONS)
    options: dict[str, Any]
    if op in ("linear_act", "linear_gelu"):
        leading = draw(st.just((m,)) | st.lists(st.integers(0, 4), max_size=3).map(tuple))
        if op == "linear_gelu":
            options = {"approximate": draw(st.sampled_from(["none", "tanh"]))}
        else:
            options = {"act": draw(st.sampled_from(acts))}
            if dtype == "float32" and not special:
                options["precision"] = draw(st.sampled_from(["ieee", "tf32", "tf32x3"]))
        return Call(op, (tensor(*leading, k), tensor(n, k), bias), options)
    factors = POWERS if exact else FACTORS
    options = {"act": draw(st.sampled_from(acts)), "alpha": draw(factors)}
    if draw(st.booleans()):
        options["c"] = tensor(*draw(st.sampled_from([(m, n), (n,), (m, 1), (1, n), (1,), ()])))
        options["beta"] = draw(st.none() | factors)
    if dtype == "float32" and not special:
        options["precision"] = draw(st.sampled_from(["ieee", "tf32", "tf32x3"]))
    out_dtype = draw(st.just(dtype) | st.sampled_from(FLOATS))
    if out_dtype != dtype:
        options["out_dtype"] = out_dtype
    elif exact and "c" not in options and bias is None:  # else what overflows might cancel
        options["alpha"] = draw(factors | LIMITS)
    out = draw(st.none() | tensors((m, n), out_dtype, values=values, written=True))
    return Call(op, (tensor(m, k), tensor(k, n), bias), options, out)


@st.composite
def gradients(draw: st.DrawFn, op: str) -> Call:
    """A call of act_backward; of integers, where no sum rounds, or of any numbers. What is saved
    may be special, but for the results of sigmoid and tanh, which are finite."""
    dtype = draw(st.sampled_from(SPECS[op].dtypes))
    exact = draw(st.booleans())
    values = st.just("integers" if exact else "normal")
    act = draw(st.sampled_from(["none", "relu"] if exact else list(ACTIVATIONS)))
    plain = exact or act in ("sigmoid", "tanh") or draw(st.booleans())
    shape = draw(M_OR_N), draw(M_OR_N)
    grad = draw(tensors(shape, dtype, values=values, special=()))
    saved = draw(
        tensors(shape, dtype, values=values, special=() if plain else _gemm_special(dtype))
    )
    return Call(op, (grad, saved), {"act": act})


@st.composite
def gated_units(draw: st.DrawFn, op: str) -> Call:
    """A call of act_mul or act_mul_backward; of integers, where only results round, or of any
    numbers, with special ones among the gates."""
    dtype = draw(st.sampled_from(SPECS[op].dtypes))
    exact = draw(st.booleans())
    values = st.just("integers" if exact else "normal")
    act = draw(st.sampled_from(["none", "relu"] if exact else list(ACTIVATIONS)))
    special = () if exact or draw(st.booleans()) else _gemm_special(dtype)
    backward = op == "act_mul_backward"
    *grad, gate, up = draw(_shapes(3 if backward else 2))
    args = [draw(tensors(shape, dtype, values=values, special=())) for shape in grad]
    args.append(draw(tensors(gate, dtype, values=values, special=special)))
    args.append(draw(tensors(up, dtype, values=values, special=())))
    shape = torch.broadcast_shapes(*grad, gate, up)
    # A pair of results would be the caller's to make.
    out = None if backward else draw(st.none() | tensors(tuple(shape), dtype, written=True))
    return Call(op, tuple(args), {"act": act}, out)


@st.composite
def any_sums(draw: st.DrawFn) -> Call:
    """A call of add whose shapes need not broadcast and whose alpha need not be of its kind."""
    shape = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    dtype = st.sampled_from(FLOATS + INTEGERS)
    x, y = (TensorSpec(draw(dtype), draw(shape)) for _ in range(2))
    return Call("add", (x, y), {"alpha": draw(st.sampled_from([2, 0.5, 2.0]))})
