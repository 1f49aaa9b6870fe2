"""The elementwise operations of one tensor of which activations may be composed, each with texts of
its value and its derivative for a jit function.

At kinks and for NaN the derivatives equal torch's.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from triton_kernels.activations import GELU_APPROXIMATIONS
from triton_kernels.graph.callees import called


class Primitive(NamedTuple):
    """An operation: the texts of its value and of its derivative.

    A text may contain {x}, the argument; {y}, the value; {p}, {q}, {r}, numbers; and the keys of
    :data:`ENDS_OF_CLAMP`. ``straight``: whether the operation is piecewise linear. ``drops``: the
    text of where torch's backward pass puts 0 for any gradient, even an infinite one or NaN; ""
    where it always multiplies, also by a slope of 0. The slope does not count where it drops.
    """

    value: str
    slope: str
    straight: bool = False
    drops: str = ""


# The comparisons with a clamp's ends in its derivative, which at the ends is 1 up to torch 2.13 and
# 0 from 2.14 on.
_OPEN = torch.__version__ >= "2.14"
ENDS_OF_CLAMP = {"above": ">" if _OPEN else ">=", "below": "<" if _OPEN else "<="}

# A derivative may use ``one``, a block of ones of x's dtype: tl.where of two plain numbers would be
# float32 even for a float64 x.
PRIMITIVES = {
    "identity": Primitive("{x}", "1.0", straight=True),
    "detach": Primitive("{x}", "0.0", straight=True, drops="tl.full({x}.shape, True, tl.int1)"),
    "neg": Primitive("-{x}", "-1.0", straight=True),
    "abs": Primitive("tl.abs({x})", "tl.where({x} > 0, one, tl.where({x} < 0, -one, 0.0))", True),
    "relu": Primitive("relu({x})", "1.0", straight=True, drops="{y} <= 0"),
    "leaky_relu": Primitive(
        "tl.where({x} > 0, {x}, {p} * {x})", "tl.where({x} > 0, one, {p} * one)", straight=True
    ),
    "hardtanh": Primitive(
        "tl.where({x} > {q}, {q}, tl.where({x} < {p}, {p}, {x}))",
        "1.0",
        straight=True,
        drops="({x} <= {p}) | ({x} >= {q})",
    ),
    "clamp": Primitive(
        "tl.where({x} > {q}, {q}, tl.where({x} < {p}, {p}, {x}))",
        "1.0",
        straight=True,
        drops="~(({x} {above} {p}) & ({x} {below} {q}))",
    ),
    "clamp_min": Primitive(
        "tl.where({x} < {p}, {p}, {x})", "1.0", straight=True, drops="~({x} {above} {p})"
    ),
    "clamp_max": Primitive(
        "tl.where({x} > {p}, {p}, {x})", "1.0", straight=True, drops="~({x} {below} {p})"
    ),
    "hardsigmoid": Primitive(
        "tl.where({x} > 3.0, 1.0, tl.where({x} < -3.0, 0.0, {x} / 6.0 + 0.5))",
        "one / 6.0",
        straight=True,
        drops="~(({x} > -3.0) & ({x} < 3.0))",
    ),
    "hardswish": Primitive(
        "{x} * tl.where({x} > 3.0, 1.0, tl.where({x} < -3.0, 0.0, {x} / 6.0 + 0.5))",
        "tl.where({x} < 3.0, {x} / 3.0 + 0.5, one)",
        drops="{x} <= -3.0",
    ),
    "gelu": Primitive("gelu({x})", "gelu_derivative({x})"),
    "gelu_tanh": Primitive("gelu_tanh({x})", "gelu_tanh_derivative({x})"),
    "silu": Primitive("silu({x})", "silu_derivative({x})"),
    "sigmoid": Primitive("sigmoid({x})", "sigmoid_derivative({y})"),
    "tanh": Primitive("tanh({x})", "tanh_derivative({y})"),
    "erf": Primitive("tl.erf({x})", "1.1283791670955126 * tl.exp(-{x} * {x})"),
    "exp": Primitive("tl.exp({x})", "{y}"),
    "expm1": Primitive("libdevice.expm1({x})", "tl.exp({x})"),
    "log": Primitive("libdevice.log({x})", "one / {x}"),
    "log1p": Primitive("libdevice.log1p({x})", "one / (1.0 + {x})"),
    "sin": Primitive("libdevice.sin({x})", "libdevice.cos({x})"),
    "cos": Primitive("libdevice.cos({x})", "-libdevice.sin({x})"),
    "sqrt": Primitive("libdevice.sqrt({x})", "one / (2.0 * {y})"),
    "rsqrt": Primitive("1.0 / libdevice.sqrt({x})", "-0.5 * {y} * {y} * {y}"),
    "reciprocal": Primitive("1.0 / {x}", "-{y} * {y}"),
    "square": Primitive("{x} * {x}", "2.0 * {x}"),
    "cube": Primitive("{x} * {x} * {x}", "3.0 * {x} * {x}"),
    "fourth": Primitive("square(square({x}))", "4.0 * {x} * {x} * {x}"),
    # p·x for positive x, q·(exp(r·x) − 1) for others.
    "elu": Primitive(
        "tl.where({x} > 0, {p} * {x}, {q} * libdevice.expm1({r} * {x}))",
        "tl.where({x} <= 0, {q} * {r} * tl.exp({r} * {x}), {p} * one)",
    ),
    "softplus": Primitive(
        "tl.where({p} * {x} > {q}, {x}, libdevice.log1p(tl.exp({p} * {x})) / {p})",
        "tl.where({p} * {x} > {q}, one, sigmoid({p} * {x}))",
    ),
    "tanhshrink": Primitive("{x} - tanh({x})", "square(tanh({x}))"),
    "softshrink": Primitive(
        "tl.where({x} > {p}, {x} - {p}, tl.where({x} < -{p}, {x} + {p}, 0.0 * {x}))",
        "1.0",
        straight=True,
        drops="tl.abs({x}) <= {p}",
    ),
    "mish": Primitive("mish({x})", "mish_derivative({x})"),
    "softsign": Primitive("{x} / (1.0 + tl.abs({x}))", "one / square(1.0 + tl.abs({x}))"),
    "logsigmoid": Primitive(
        "tl.where({x} < 0, {x}, 0.0) - libdevice.log1p(tl.exp(-tl.abs({x})))", "sigmoid(-{x})"
    ),
}  # fmt: skip

# Operations of {a} and {b}, each a value or a number: the value, and the derivatives by a and by b,
# which may contain the value {y}.
BINARY = {
    "add": ("{a} + {b}", "1.0", "1.0"),
    "sub": ("{a} - {b}", "1.0", "-1.0"),
    "mul": ("{a} * {b}", "{b}", "{a}"),
    "div": ("{a} / {b}", "1.0 / {b}", "-{y} / {b}"),
}

# The primitives in torch, for second derivatives: functions of the value and the numbers.
IN_TORCH: dict[str, Callable[..., Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "neg", "detach", "relu", "clamp", "clamp_min", "clamp_max", "sigmoid", "tanh"),
            *("erf", "exp", "expm1", "log", "log1p", "sin", "cos", "sqrt", "rsqrt", "reciprocal"),
            "square",
        )
    },
    **{
        name: getattr(F, name)
        for name in (
            *("leaky_relu", "hardtanh", "hardsigmoid", "hardswish", "gelu", "silu", "softplus"),
            *("tanhshrink", "softshrink", "mish", "softsign", "logsigmoid"),
        )
    },
    "identity": torch.clone,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "cube": lambda x: x**3,
    "fourth": lambda x: x**4,
    "elu": lambda x, p, q, r: torch.ops.aten.elu(x, q / p, p, r),
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv},
}

# ---- calls ----

Given = dict[str, Any]
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Call:
    """A call that is a primitive.

    Attributes:
        name: the primitive.
        names: the names of the call's arguments.
        defaults: default values of arguments.
        make: makes another primitive's name and its numbers from the arguments; None if the call
            is no primitive. Without ``make`` there are no numbers.
    """

    name: str
    names: tuple[str, ...] = ("input",)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[Given], tuple[str, Numbers] | None] | None = None


def _gelu(given: Given) -> tuple[str, Numbers] | None:
    name = GELU_APPROXIMATIONS.get(given["approximate"])
    return None if name is None else (name, ())


def _clamp(given: Given) -> tuple[str, Numbers] | None:
    least, most = given["min"], given["max"]
    if least is None and most is None:
        return None
    if most is None:
        return "clamp_min", (least,)
    if least is None:
        return "clamp_max", (most,)
    return ("clamp", (least, most)) if least <= most else None


_POWERS: dict[float, str] = {
    **{2: "square", 3: "cube", 4: "fourth", 1: "identity"},
    **{0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"},
}


def _pow(given: Given) -> tuple[str, Numbers] | None:
    name = _POWERS.get(given["exponent"])
    return None if name is None else (name, ())


_SELU = 1.0507009873554805, 1.0507009873554805 * 1.6732632423543772, 1.0
_INPLACE = {"inplace": False}
_CLAMP = Call("clamp", ("input", "min", "max"), {"min": None, "max": None}, _clamp)
CALLS: dict[Any, Call] = {
    **dict.fromkeys((F.relu, torch.relu, "relu"), Call("relu", ("input", "inplace"), _INPLACE)),
    F.silu: Call("silu", ("input", "inplace"), _INPLACE),
    F.gelu: Call("gelu", ("input", "approximate"), {"approximate": "none"}, _gelu),
    **dict.fromkeys(
        (F.sigmoid, torch.sigmoid, torch.special.expit, "sigmoid", "special_expit"), Call("sigmoid")
    ),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), Call("tanh")),
    **dict.fromkeys((torch.erf, torch.special.erf, "erf"), Call("erf")),
    **dict.fromkeys((torch.exp, "exp"), Call("exp")),
    **{
        each: Call(name)
        for name in ("expm1", "log", "log1p", "sin", "cos", "sqrt", "rsqrt", "reciprocal")
        for each in (getattr(torch, name), name)
    },
    **dict.fromkeys((torch.special.expm1, "special_expm1"), Call("expm1")),
    **dict.fromkeys((torch.special.log1p, "special_log1p"), Call("log1p")),
    **dict.fromkeys((torch.abs, "abs", operator.abs), Call("abs")),
    **dict.fromkeys((torch.neg, "neg", operator.neg), Call("neg")),
    **dict.fromkeys((torch.square, "square"), Call("square")),
    **dict.fromkeys((torch.pow, operator.pow, "pow"), Call("pow", ("input", "exponent"), {}, _pow)),
    **dict.fromkeys((torch.clamp, torch.clip, "clamp", "clip"), _CLAMP),
    **dict.fromkeys(
        (torch.clamp_min, "clamp_min"),
        Call("clamp_min", ("input", "min"), {}, lambda g: ("clamp_min", (g["min"],))),
    ),
    **dict.fromkeys(
        (torch.clamp_max, "clamp_max"),
        Call("clamp_max", ("input", "max"), {}, lambda g: ("clamp_max", (g["max"],))),
    ),
    F.hardtanh: Call(
        "hardtanh",
        ("input", "min_val", "max_val", "inplace"),
        {"min_val": -1.0, "max_val": 1.0, **_INPLACE},
        lambda g: ("hardtanh", (g["min_val"], g["max_val"])),
    ),
    F.relu6: Call("relu6", ("input", "inplace"), _INPLACE, lambda _: ("hardtanh", (0.0, 6.0))),
    F.leaky_relu: Call(
        "leaky_relu",
        ("input", "negative_slope", "inplace"),
        {"negative_slope": 0.01, **_INPLACE},
        lambda g: ("leaky_relu", (g["negative_slope"],)),
    ),
    F.elu: Call(
        "elu",
        ("input", "alpha", "inplace"),
        {"alpha": 1.0, **_INPLACE},
        lambda g: ("elu", (1.0, g["alpha"], 1.0)),
    ),
    **dict.fromkeys(
        (F.celu, torch.celu),
        Call(
            "celu",
            ("input", "alpha", "inplace"),
            {"alpha": 1.0, **_INPLACE},
            lambda g: ("elu", (1.0, g["alpha"], 1.0 / g["alpha"])),
        ),
    ),
    **dict.fromkeys(
        (F.selu, torch.selu),
        Call("selu", ("input", "inplace"), _INPLACE, lambda _: ("elu", _SELU)),
    ),
    F.rrelu: Call(
        "rrelu",
        ("input", "lower", "upper", "training", "inplace"),
        {"lower": 1 / 8, "upper": 1 / 3, "training": False, **_INPLACE},
        lambda g: None if g["training"] else ("leaky_relu", ((g["lower"] + g["upper"]) / 2,)),
    ),
    F.tanhshrink: Call("tanhshrink"),
    F.softshrink: Call(
        "softshrink", ("input", "lambd"), {"lambd": 0.5}, lambda g: ("softshrink", (g["lambd"],))
    ),
    F.softplus: Call(
        "softplus",
        ("input", "beta", "threshold"),
        {"beta": 1.0, "threshold": 20.0},
        lambda g: ("softplus", (g["beta"], g["threshold"])),
    ),
    F.mish: Call("mish", ("input", "inplace"), _INPLACE),
    F.hardswish: Call("hardswish", ("input", "inplace"), _INPLACE),
    F.hardsigmoid: Call("hardsigmoid", ("input", "inplace"), _INPLACE),
    F.softsign: Call("softsign"),
    F.logsigmoid: Call("logsigmoid"),
    **dict.fromkeys((torch.detach, "detach"), Call("detach")),
    **dict.fromkeys((torch.clone, "clone"), Call("identity")),
    # Casts. That the result has x's dtype, and no inner value a narrower one, is checked elsewhere.
    **dict.fromkeys(("float", "double", "half", "bfloat16"), Call("identity")),
    **dict.fromkeys(
        ("to", "type", "type_as"),
        Call("identity", ("input", "dtype"), {}, lambda _: ("identity", ())),
    ),
}
PAIRS: dict[Any, str] = {
    **dict.fromkeys((torch.add, operator.add, "add", "__add__"), "add"),
    **dict.fromkeys((torch.sub, torch.subtract, operator.sub, "sub", "__sub__"), "sub"),
    **dict.fromkeys((torch.mul, torch.multiply, operator.mul, "mul", "__mul__"), "mul"),
    **dict.fromkeys((torch.div, torch.true_divide, operator.truediv, "div"), "div"),
}
_RSUB = (torch.rsub, "rsub")


class Step(NamedTuple):
    """One operation: a primitive of one operand, with numbers, or one of :data:`BINARY` of two."""

    name: str
    operands: tuple[Any, ...]
    numbers: Numbers = ()


def read(node: Node) -> Step | None:
    """The operation of a node, on nodes and numbers; None if it is none of these."""
    if node.op not in ("call_function", "call_method"):
        return None
    target = called(node)
    try:
        call, pair = CALLS.get(target), PAIRS.get(target)
    except TypeError:  # not hashable
        return None
    if target in _RSUB:
        return _pair("sub", node, turned=True)
    if pair is not None:
        return _pair(pair, node)
    if call is None:
        return None
    given = {**call.defaults, **dict(zip(call.names, node.args)), **node.kwargs}
    if len(node.args) > len(call.names) or set(given) != set(call.names):
        return None
    if not isinstance(given["input"], Node):
        return None
    if any(isinstance(each, Node) for name, each in given.items() if name != "input"):
        return None if target not in ("to", "type_as") else Step("identity", (given["input"],))
    made = (call.name, ()) if call.make is None else call.make(given)
    if made is None or not all(_finite(number) for number in made[1]):
        return None
    return Step(made[0], (given["input"],), tuple(map(float, made[1])))


def _pair(name: str, node: Node, turned: bool = False) -> Step | None:
    second = node.kwargs.get("other")
    operands = node.args if second is None else (*node.args, second)
    if len(operands) != 2 or set(node.kwargs) - {"other"}:
        return None
    if not all(isinstance(each, Node) or _finite(each) for each in operands):
        return None
    return Step(name, tuple(operands[::-1] if turned else operands))


def _finite(number: Any) -> bool:
    plain = isinstance(number, (int, float)) and not isinstance(number, bool)
    return plain and math.isfinite(number)
