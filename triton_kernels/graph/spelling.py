"""Finds activations written as formulas, such as 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).

A formula is expanded to a polynomial in x and in tanh, erf and sigmoid of such polynomials, and
looked up in :data:`KNOWN`. So one entry per activation covers all orders, factorings and roundings
of constants. The kernels compute in float32 or more and round once; the formula rounds after each
operation.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from triton_kernels._fusion import Activation
from triton_kernels.graph.callees import called
from triton_kernels.graph.forms import as_wide, tensor_of
from triton_kernels.graph.registered import registered

Power = tuple[Any, int]  # base and exponent; the base is "x", or a function's name and argument
Monomial = tuple[Power, ...]
Polynomial = dict[Monomial, float]

X: Polynomial = {(("x", 1),): 1.0}
MOST_TERMS, MOST_DEGREE, MOST_NODES = 12, 6, 16

_ADD = {torch.add, operator.add, "add", "__add__"}
_SUB = {torch.sub, torch.subtract, operator.sub, "sub", "subtract"}
_MUL = {torch.mul, torch.multiply, operator.mul, "mul", "multiply", "__mul__"}
_DIV = {torch.div, torch.true_divide, operator.truediv, "div", "true_divide"}
_POW = {torch.pow, operator.pow, "pow"}
_SQUARE = {torch.square, "square"}
_NEG = {torch.neg, operator.neg, "neg"}
_CURVES = {
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), "tanh"),
    **dict.fromkeys((torch.erf, torch.special.erf, "erf"), "erf"),
    **dict.fromkeys(
        (torch.sigmoid, F.sigmoid, torch.special.expit, "sigmoid", "special_expit"), "sigmoid"
    ),
}
_BINARY = _ADD | _SUB | _MUL | _DIV


def _times(a: Polynomial, b: Polynomial) -> Polynomial | None:
    product: Polynomial = {}
    for left, m in a.items():
        for right, n in b.items():
            powers: dict[Any, int] = dict(left)
            for atom, power in right:
                powers[atom] = powers.get(atom, 0) + power
            if sum(powers.values()) > MOST_DEGREE:
                return None
            monomial = tuple(sorted(powers.items(), key=repr))
            product[monomial] = product.get(monomial, 0.0) + m * n
    return product if len(product) <= MOST_TERMS else None


def _plus(a: Polynomial, b: Polynomial, factor: float = 1.0) -> Polynomial:
    total = dict(a)
    for monomial, n in b.items():
        total[monomial] = total.get(monomial, 0.0) + factor * n
    return {monomial: n for monomial, n in total.items() if n}


def _curve(name: str, argument: Polynomial) -> Polynomial:
    return {(((name, tuple(sorted(argument.items(), key=repr))), 1),): 1.0}


def _cubic(first: float, third: float) -> Polynomial:
    return {(("x", 1),): first, (("x", 3),): third}


def _product(*factors: Polynomial) -> Polynomial:
    product: Polynomial | None = {(): 1.0}
    for factor in factors:
        product = None if product is None else _times(product, factor)
    assert product is not None
    return product


_ONE: Polynomial = {(): 1.0}
_HALF: Polynomial = {(("x", 1),): 0.5}
_ROOT = math.sqrt(2 / math.pi)
# (the expanded formula, the activation's name).
KNOWN: tuple[tuple[Polynomial, str], ...] = (
    (_product(X, _curve("sigmoid", X)), "silu"),
    (_product(_HALF, _plus(_ONE, _curve("erf", {(("x", 1),): math.sqrt(0.5)}))), "gelu"),
    (
        _product(_HALF, _plus(_ONE, _curve("tanh", _cubic(_ROOT, 0.044715 * _ROOT)))),
        "gelu_tanh",
    ),
    (_product(X, _curve("sigmoid", _cubic(2 * _ROOT, 2 * 0.044715 * _ROOT))), "gelu_tanh"),
)


def _alike(a: Polynomial, b: Polynomial, tolerance: float) -> bool:
    """Whether the polynomials are equal, except for the rounding of constants."""
    left, right = (sorted(p.items(), key=lambda term: _shape(term[0])) for p in (a, b))
    return len(left) == len(right) and all(
        math.isclose(m, n, rel_tol=tolerance) and _alike_monomials(p, q, tolerance)
        for (p, m), (q, n) in zip(left, right)
    )


def _alike_monomials(p: Monomial, q: Monomial, tolerance: float) -> bool:
    p, q = (tuple(sorted(each, key=lambda power: _shape((power,)))) for each in (p, q))
    if len(p) != len(q):
        return False
    for (left, m), (right, n) in zip(p, q):
        if m != n or isinstance(left, str) != isinstance(right, str):
            return False
        if isinstance(left, str):
            if left != right:
                return False
        elif left[0] != right[0] or not _alike(dict(left[1]), dict(right[1]), tolerance):
            return False
    return True


def _shape(monomial: Monomial) -> str:
    """A sort key of a monomial that does not depend on constants."""
    return repr(sorted((a if isinstance(a, str) else a[0], power) for a, power in monomial))


@dataclass
class _Expansion:
    """Expands an expression in x to a polynomial, and collects its nodes."""

    x: Node
    nodes: set[Node] = field(default_factory=set)

    def of(self, argument: Any) -> Polynomial | None:
        if isinstance(argument, (int, float)) and not isinstance(argument, bool):
            return {(): float(argument)} if argument else {}
        if not isinstance(argument, Node):
            return None
        if argument is self.x:
            return X
        operands = _operands(argument)
        if operands is None or not as_wide(argument, self.x):
            return None
        self.nodes.add(argument)
        return self._computed(argument, operands) if len(self.nodes) <= MOST_NODES else None

    def _computed(self, node: Node, operands: tuple[Any, ...]) -> Polynomial | None:
        target = called(node)
        first = self.of(operands[0])
        if first is None:
            return None
        if target in _CURVES:
            return _curve(_CURVES[target], first)
        if target in _NEG:
            return _plus({}, first, -1.0)
        if target in _SQUARE:
            return _times(first, first)
        if target in _POW:
            if operands[1] not in (2, 3):
                return None
            square = _times(first, first)
            return square if operands[1] == 2 or square is None else _times(square, first)
        if target not in _BINARY:
            return first  # a cast
        second = self.of(operands[1])
        if second is None:
            return None
        if target in _MUL:
            return _times(first, second)
        if target in _DIV:
            divisor = second.get((), 0.0) if set(second) <= {()} else 0.0
            return {m: n / divisor for m, n in first.items()} if divisor else None
        return _plus(first, second, -1.0 if target in _SUB else 1.0)


def _operands(node: Node) -> tuple[Any, ...] | None:
    """The operands of an operation that may be part of a formula; None for other nodes."""
    if node.op not in ("call_function", "call_method"):
        return None
    target = called(node)
    try:
        if target in _BINARY | _POW:
            names = ["exponent"] if target in _POW else ["other"]
        elif target in _NEG | _SQUARE or target in _CURVES:
            names = []
        elif target in ("to", "type", "type_as", "float", "double"):
            return node.args[:1]
        else:
            return None
    except TypeError:  # not hashable
        return None
    given = [*node.args, *(node.kwargs[name] for name in names if name in node.kwargs)]
    if set(node.kwargs) - set(names) or len(given) != 1 + len(names):
        return None
    return tuple(given)


class Spellings:
    """The activations that a graph computes by formulas.

    Attributes:
        found: last node of an activation → its form.
        inner: any other node of an activation → the last node.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.found: dict[Node, Activation] = {}
        self.inner: dict[Node, Node] = {}
        # Node → the number of operations after a curve, for nodes near one.
        below: dict[Node, int] = {}
        for node in nodes:
            own = registered(node)
            if own is not None:
                self.found[node] = own
                self.inner.update(dict.fromkeys(own.inner, node))
                continue
            operands = _operands(node)
            if operands is None:
                continue
            above = [below[a] for a in operands if isinstance(a, Node) and a in below]
            callee = called(node)
            steps = 0 if callee in _CURVES else min(above, default=MOST_NODES) + 1
            if steps < MOST_NODES:
                below[node] = steps
            if steps and node in below and callee in _BINARY:
                self._look(node)

    def _look(self, root: Node) -> None:
        result = tensor_of(root)
        for x in _cone(root):
            of = tensor_of(x)
            if of is None or result is None or of.dtype != result.dtype:
                continue
            if not of.is_floating_point():
                continue
            expansion = _Expansion(x)
            written = expansion.of(root)
            if written is None:
                continue
            tolerance = min(4 * torch.finfo(of.dtype).eps, 1e-6)
            for known, name in KNOWN:
                if _alike(written, known, tolerance):
                    self._note(root, x, expansion.nodes, name)
                    return

    def _note(self, root: Node, x: Node, nodes: set[Node], name: str) -> None:
        inner = tuple(node for node in root.graph.nodes if node in nodes and node is not root)
        self.found[root] = Activation(name, x, inner)
        self.inner.update(dict.fromkeys(inner, root))


def _cone(root: Node) -> list[Node]:
    """The nodes of which an expression may be a function: those that it is computed from."""
    seen: dict[Node, None] = {}
    waiting = [root]
    while waiting and len(seen) < 2 * MOST_NODES:
        node = waiting.pop(0)
        for operand in _operands(node) or ():
            if isinstance(operand, Node) and operand not in seen:
                seen[operand] = None
                waiting.append(operand)
    return list(reversed(seen))
