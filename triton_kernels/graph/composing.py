"""Activations that a graph composes of several operations, such as gelu(hardtanh(x/2, −2, 2)), or
of one without a name here, such as mish. They are made into jit functions: value, derivative, and
where the gradient is dropped.

Any expression of one tensor and numbers that is computed element by element is such an activation.
The kernels compute it in float32 or more and round once, while the operations round one by one.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node
from triton.language.extra import libdevice

from triton_kernels import activations
from triton_kernels._fusion import Activation
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.graph import curves
from triton_kernels.graph.forms import as_wide, same_shape, tensor_of
from triton_kernels.graph.primitives import BINARY, ENDS_OF_CLAMP, IN_TORCH, PRIMITIVES, Step, read

MOST_NODES = 24


# The names that the texts of primitives use.
_NAMES = {**vars(activations), **vars(curves), "libdevice": libdevice}

# Primitives that are named activations. leaky_relu is not one, because its slope may be any number.
_NAMED = {"relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}
# Steps (name, operands, numbers). An operand is a float, or an int: x is 0, earlier steps 1, 2, …
Written = tuple[tuple[str, tuple[int | float, ...], tuple[float, ...]], ...]


def composed(
    root: Node,
    starts: Callable[[Node], bool],
    spelled: Mapping[Node, Activation],
    position: Mapping[Node, int],
) -> Activation | None:
    """The longest activation that ends with a node, or None.

    Args:
        root: the last node.
        starts: whether an activation of a node is wanted.
        spelled: last node → an activation that several operations compute.
        position: node → its index in the graph.
    """
    if _read(root, spelled) is None:
        return None
    for x in sorted(_cone(root, spelled), key=position.__getitem__):
        if starts(x) and _like(root, x):
            expression = _Expression(x, spelled)
            if expression.of(root) is not None and expression.closed(root):
                name = _name(tuple(expression.steps))
                inner = expression.nodes - {x, root}
                return Activation(name, x, tuple(sorted(inner, key=position.__getitem__)))
    return None


def _name(steps: Written) -> str:
    """The name of the activation: that of its only step except casts and copies, if this is a named
    activation; else a new name, which is registered."""
    computing = [name for name, _, _ in steps if name != "identity"]
    if len(computing) == 1 and computing[0] in _NAMED:
        return computing[0]
    return _registered(steps)


def _read(node: Node, spelled: Mapping[Node, Activation]) -> Step | None:
    form = spelled.get(node)
    if form is not None and form.name in PRIMITIVES:
        return Step(form.name, (form.x,))
    return read(node)


def _like(root: Node, x: Node) -> bool:
    """Whether the result has x's dtype and shape, and needs a gradient if x does: of x.detach()
    there is none, not zeros."""
    before, after = tensor_of(x), tensor_of(root)
    if before is None or after is None or not before.is_floating_point():
        return False
    if before.requires_grad != after.requires_grad:
        return False
    return before.dtype == after.dtype and same_shape(before, after)


def _cone(root: Node, spelled: Mapping[Node, Activation]) -> list[Node]:
    """The nodes of which the expression may be a function: those that it is computed from."""
    seen: dict[Node, None] = {}
    waiting = [root]
    while waiting and len(seen) < 2 * MOST_NODES:
        node = waiting.pop()
        step = _read(node, spelled)
        for each in () if step is None else step.operands:
            if isinstance(each, Node) and each not in seen:
                seen[each] = None
                waiting.append(each)
    return list(seen)


class _Expression:
    """An expression in x, as a list of steps. Operands of a step refer to earlier steps."""

    def __init__(self, x: Node, spelled: Mapping[Node, Activation]) -> None:
        self.x, self.spelled = x, spelled
        self.index: dict[Node, int] = {x: 0}
        self.steps: list[Any] = []
        self.nodes: set[Node] = {x}

    def of(self, operand: Any) -> int | float | None:
        if not isinstance(operand, Node):
            return float(operand)
        if operand in self.index:
            return self.index[operand]
        step = _read(operand, self.spelled)
        if step is None or len(self.steps) >= MOST_NODES or not as_wide(operand, self.x):
            return None
        operands = [self.of(each) for each in step.operands]
        if any(each is None for each in operands):
            return None
        self.steps.append((step.name, tuple(operands), step.numbers))
        self.index[operand] = len(self.steps)
        self.nodes.add(operand)
        if operand in self.spelled:
            self.nodes.update(self.spelled[operand].inner)
        return self.index[operand]

    def closed(self, root: Node) -> bool:
        """Whether the values between x and root have no users outside the expression."""
        return all(user in self.nodes for n in self.nodes - {self.x, root} for user in n.users)


# ---- jit functions ----


def _registered(steps: Written) -> str:
    """Register the expression as an activation, and return its name."""
    # By its text: steps with 1 for step 1 and with the number 1.0 are equal, and have one hash.
    digest = hashlib.sha256(repr(steps).encode()).hexdigest()[:10]
    name = f"composed_{digest}"
    if name in ACTIVATIONS:
        return name
    straight = all(_straight(step) for step in steps)
    forward, derivative, *drops = _jit(name, *_texts(name, steps))
    record = activations.Activation(
        forward,
        derivative,
        of_pre=True,
        straight=straight,
        in_torch=functools.partial(_in_torch, steps),
        drops=drops[0] if drops else None,
        written=written(steps),
    )
    ACTIVATIONS[name] = record
    return name


def _straight(step: Any) -> bool:
    """Whether a step of piecewise linear operands is piecewise linear."""
    name, operands, _ = step
    if name in PRIMITIVES:
        return PRIMITIVES[name].straight
    variable = [isinstance(each, int) for each in operands]
    return name in ("add", "sub") or (sum(variable) == 1 and (name == "mul" or variable[0]))


def _in_torch(steps: Written, x: Tensor) -> Tensor:
    """The expression in torch."""
    values = [x]
    for name, operands, numbers in steps:
        given = [values[each] if isinstance(each, int) else each for each in operands]
        values.append(IN_TORCH[name](*given, *numbers))
    return values[-1]


def _texts(name: str, steps: Written) -> tuple[str, ...]:
    """The source texts of three functions: the value, the derivative, and, unless the gradient is
    multiplied everywhere, where it is dropped.

    v0 is x; step i has the value v{i} and the derivative d{i}, and k{i} is where torch's backward
    pass drops the gradient on every way from the step to x. There the gradient is 0 times the
    slopes before the drop, and so is d{i}: 0, or NaN where one of them is infinite or NaN.
    """
    dropping: dict[int, str] = {}  # step → k{i}, for steps that have one
    lines = [line for i, step in enumerate(steps, 1) for line in _lines(i, step, dropping)]
    values = [line for line in lines if line.startswith("v")]
    last = len(steps)
    derivative = ["one = tl.full(x.shape, 1.0, x.dtype)", *lines]
    texts = [
        _function(name, values, f"v{last}"),
        _function(f"{name}_derivative", derivative, f"d{last}"),
    ]
    if last in dropping:
        texts.append(_function(f"{name}_drops", derivative, f"k{last} & (d{last} == 0.0)"))
    return tuple(texts)


def _lines(i: int, step: Any, dropping: dict[int, str]) -> list[str]:
    """The lines of step i: value, where the gradient is dropped, derivative. If it is dropped
    nowhere, the second is left out; otherwise ``dropping`` gets its name."""
    what, operands, numbers = step
    a, *b = (_text(each) for each in operands)
    own = ""
    if what in PRIMITIVES:
        exact = [f"number(x, {number!r})" for number in numbers]
        given = dict(zip("pqr", exact), x=a, y=f"v{i}", **ENDS_OF_CLAMP)
        value, factors = PRIMITIVES[what].value, [PRIMITIVES[what].slope]
        own = PRIMITIVES[what].drops.format(**given)
    else:
        given = {"a": a, "b": b[0], "y": f"v{i}"}
        value, *factors = BINARY[what]
    ways = [(factor, each) for factor, each in zip(factors, operands) if isinstance(each, int)]
    terms = [_term(f"({factor.format(**given)})", each, dropping) for factor, each in ways]
    slope = " + ".join(terms)
    if what == "detach":
        slope = "0.0 * one"  # there is no way to x, however large the slopes on it
    elif own:
        slope = f"tl.where({own}, 0.0 * {_slope(operands[0])}, {slope})"
    where = _everywhere([dropping.get(each, "") for _, each in ways], own)
    if where:
        dropping[i] = f"k{i}"
    dropped = [f"k{i} = {where}"] if where else []
    return [f"v{i} = {value.format(**given)}", *dropped, f"d{i} = {slope}"]


def _everywhere(ways: list[str], own: str) -> str:
    """Where a step's gradient is dropped: by itself, or on all of its ways to x. "" for nowhere."""
    before = " & ".join(dict.fromkeys(ways)) if all(ways) else ""
    return " | ".join(f"({each})" for each in (own, before) if each)


def _term(factor: str, operand: int, dropping: Mapping[int, str]) -> str:
    """The part of a derivative that comes through an operand. What the operand drops is not
    multiplied: the factor may be infinite."""
    slope = _slope(operand)
    if operand not in dropping:
        return f"{factor} * {slope}"
    return f"tl.where({dropping[operand]}, {slope}, {factor} * {slope})"


def _slope(operand: int) -> str:
    return f"d{operand}" if operand else "one"


def _text(operand: int | float) -> str:
    if isinstance(operand, float):
        return f"({operand!r})"
    return f"v{operand}" if operand else "x"


def _function(name: str, lines: Sequence[str], result: str) -> str:
    body = "".join(f"    {line}\n" for line in [*lines, f"return {result}"])
    return f"@triton.jit\ndef {name}(x):\n{body}"


def _jit(name: str, *texts: str) -> tuple[Any, ...]:
    """The jit functions with these texts. Triton reads the texts from linecache."""
    names: dict[str, Any] = {**_NAMES, "__name__": __name__}
    functions: list[Any] = []
    for text in texts:
        file = f"<{name} {len(functions)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), names)  # consists of numbers and this package's texts
        function = text.partition("def ")[2].partition("(")[0]
        functions.append(names[function])
    return tuple(functions)


# ---- text for plans ----

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def written(steps: Written) -> str:
    """The expression in plans: gelu(hardtanh(0.5 * x, -2, 2))."""
    texts = ["x"]
    for name, operands, numbers in steps:
        first, *others = (texts[e] if isinstance(e, int) else f"{e:g}" for e in operands)
        if name in _SIGNS:
            texts.append(f"({first} {_SIGNS[name]} {others[0]})")
        elif name == "identity":
            texts.append(first)
        else:
            bare = first[1:-1] if first.startswith("(") and first.endswith(")") else first
            texts.append(f"{name}({', '.join([bare, *(f'{n:g}' for n in numbers)])})")
    return texts[-1]
