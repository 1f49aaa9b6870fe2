"""What an op file says for fuse and torch.compile: the words, which triton_kernels.graph reads.

A :class:`Fusion` has four parts. ``reads``: calls of the op's own functions, and of others, as
forms, for patterns to begin with. ``elementwise`` and ``products``: patterns, which find the nodes
that one call of the op computes. ``speeds``: where the kernels were measured, and how fast they
are. ``probes``: how that is measured again. This module imports nothing of triton_kernels.graph, so
that op files can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from triton_kernels._gpu import Gpu

# ---- forms ----


class Attribute(NamedTuple):
    """A parameter of a module that a node calls: its qualified name and the tensor."""

    target: str
    tensor: torch.Tensor


Operand = Node | Attribute


class Form:
    """What a node of a graph computes."""


class Columns(NamedTuple):
    """A step that treats each column alike, z → z·scale + shift·factor. Tensors are [N], or of one
    element; ``mean`` and ``variance`` go with a BatchNorm in eval, which makes
    (z − mean)/√(variance + eps) first. Numbers have no tensors."""

    scale: Operand | float | None = None
    shift: Operand | None = None
    factor: float = 1.0
    mean: Operand | None = None
    variance: Operand | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Product(Form):
    """alpha·(x@b) + beta·c + bias; b is the operand ``weight``, transposed if ``by_rows``. A 1×1
    convolution is one along dimension 1, with a weight [N, K, 1, 1]. ``columns``: what is done to
    columns of alpha·(x@b) + bias before c is added, in order."""

    x: Node
    weight: Operand
    by_rows: bool
    bias: Operand | None = None
    alpha: float = 1.0
    c: Operand | None = None
    beta: float = 1.0
    convolution: bool = False
    columns: tuple[Columns, ...] = ()


@dataclass(frozen=True)
class Activation(Form):
    """An activation of triton_kernels.activations, by name; where it is written out in several
    operations, ``inner`` are those before the last."""

    name: str
    x: Node
    inner: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Scaled(Form):
    """x·factor for a Python number."""

    x: Node
    factor: float


@dataclass(frozen=True)
class Sum(Form):
    """x + alpha·y for tensors x and y."""

    x: Node
    y: Node
    alpha: float = 1.0


@dataclass(frozen=True)
class Times(Form):
    """x·y for tensors x and y."""

    x: Node
    y: Node


@dataclass(frozen=True)
class Normalized(Form):
    """x with each column treated alike."""

    x: Node
    columns: Columns


@dataclass(frozen=True)
class Square(Form):
    """x·x."""

    x: Node


@dataclass(frozen=True)
class Refused(Form):
    """One of these ops, in a form that is not fused."""

    reason: str


@dataclass(frozen=True)
class Divided(Form):
    """x/divisor for a Python number that is no power of two: multiplying by 1/divisor rounds once
    more."""

    x: Node
    divisor: float


@dataclass(frozen=True)
class Reshaped(Form):
    """x in another shape. ``rows``: all its rows, in their order; else all its elements, in some
    order, which only what is computed of each alone may follow."""

    x: Node
    rows: bool = True


class Signature(NamedTuple):
    """How a target's arguments are called, and what reads them."""

    names: tuple[str, ...]
    read: Callable[[dict[str, Any]], Form | None]


# ---- matches ----

Sizes = tuple[int | None, int | None, int | None]  # M, N, K; None where unknown


class Transposed(NamedTuple):
    """A matrix operand, transposed."""

    operand: Operand


class Matrix(NamedTuple):
    """A batch of one matrix, as the matrix."""

    operand: Operand


class Row(NamedTuple):
    """An operand of shape [1, …, N], as [N]."""

    operand: Operand


@dataclass(frozen=True)
class Match:
    """Nodes that one call computes.

    Attributes:
        kernel: as :attr:`Fusion.speeds` names it.
        nodes: in the order of the graph; the last is the result.
        function, arguments, keywords: the call. Arguments may be operands, :class:`Transposed`,
            :class:`Matrix` or :class:`Row`.
        sizes: M, N, K of a product.
        act: the activation at the end of a product.
        wider: those of the nodes that may have more digits than the result.
        views: those of the nodes that give the product's rows another shape; they follow the call.
        autocast: the dtype in which the call computes under autocast, where the nodes do not.
    """

    kernel: str
    nodes: tuple[Node, ...]
    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    sizes: Sizes = (None, None, None)
    act: str = "none"
    views: tuple[Node, ...] = ()
    wider: tuple[Node, ...] = ()
    autocast: torch.dtype | None = None

    def nodes_hold(self, nodes: Iterable[Node]) -> bool:
        """Whether all of these are among the nodes."""
        return all(node in self.nodes for node in nodes)

    def operands(self) -> list[Operand]:
        """The tensors that the call reads."""
        return [*_operands_in(self.arguments)]


def _operands_in(argument: Any) -> Iterator[Operand]:
    if isinstance(argument, (Node, Attribute)):
        yield argument
    elif isinstance(argument, tuple):
        for each in argument:
            yield from _operands_in(each)


# The match that ends with a node, from that node and the form of each, None where it has none.
Pattern = Callable[[Node, Mapping[Node, Form | None]], Match | None]
# The same from a product with all that is added to it, its nodes, activation, and M, N and K.
ProductPattern = Callable[[Product, tuple[Node, ...], str, Sizes], Match | None]

# ---- speeds ----


class Problem(NamedTuple):
    """What a kernel is to compute. M, N and K are None for elementwise kernels, or where unknown.

    ``other`` is who computes it otherwise: "eager" or "inductor". ``act`` is the activation at the
    end of a product; None is any that the kernel has. ``precision`` is that of float32 products.
    ``scaled``: whether factors of its columns go into its weight first.
    """

    kernel: str
    dtype: torch.dtype
    device: torch.device
    other: str
    M: int | None = None
    N: int | None = None
    K: int | None = None
    act: str | None = None
    precision: str = "ieee"
    scaled: bool = False


@dataclass(frozen=True)
class Entry:
    """The speed of a kernel relative to eager's and to Inductor's, under conditions.

    Speeds are the least of the measured cases that an entry covers, from docs/benchmarks/h200.json,
    unless they are estimated.

    Attributes:
        dtypes: for which the figures stand.
        eager, inductor: how many times as fast as these the kernel is.
        capabilities: compute capabilities for which the figures stand; empty for any, where
            bandwidth decides.
        aligned: whether rows of x and of the weight are multiples of 16 bytes; None: either way.
        rows: the least M.
        acts: the activations; empty for any.
        precision: of float32 products.
        estimated: whether the figures are the roofline's, and nobody measured them yet.
        timed: whether the times of :mod:`triton_kernels.gemm.rivals` count instead, on GPUs of
            which it knows them.
    """

    dtypes: tuple[torch.dtype, ...]
    eager: float
    inductor: float
    capabilities: tuple[int, ...] = ()
    aligned: bool | None = None
    rows: int = 0
    acts: tuple[str, ...] = ()
    precision: str = "ieee"
    estimated: bool = False
    timed: bool = False

    def covers(self, problem: Problem, gpu: Gpu) -> bool:
        return (
            problem.dtype in self.dtypes
            and problem.precision == self.precision
            and (not self.capabilities or gpu.capability in self.capabilities)
            and self.aligned in (None, aligned(problem))
            and (problem.M is None or problem.M >= self.rows)
            and (not self.acts or problem.act is None or problem.act in self.acts)
        )


def aligned(problem: Problem) -> bool:
    """Whether rows of K and of N elements are multiples of 16 bytes; taken so where unknown."""
    step = 16 // problem.dtype.itemsize
    return (problem.K or 0) % step == 0 and (problem.N or 0) % step == 0


@dataclass(frozen=True)
class Probe:
    """A kernel beside what torch does where it is not taken, for :func:`triton_kernels.tune`.

    Attributes:
        shapes: of the tensors, a letter a dimension: M, N and K of a product; n, the elements of
            what is elementwise.
        ours: called with the tensors and, of a product, the name of an activation.
        theirs: called with the tensors; of a product it returns what the activation is of.
    """

    shapes: tuple[str, ...]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]


@dataclass(frozen=True)
class Fusion:
    """What graphs may make of an op's kernels.

    Attributes:
        reads: what a node may call → its arguments by name, and the form that they make.
        elementwise: patterns of nodes without a product. Of several matches that of most nodes
            holds, of equally long ones that of the last file.
        products: patterns of a product with its epilogue; what none takes is a gemm_bias_act.
        speeds: kernel → entries; the first that covers a problem holds. A kernel without one that
            does is not taken.
        probes: kernel → how its speeds are measured. Kernels with the same entries share them, and
            one of them is enough.
    """

    reads: Mapping[Any, Signature] = field(default_factory=dict)
    elementwise: tuple[Pattern, ...] = ()
    products: tuple[ProductPattern, ...] = ()
    speeds: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    probes: Mapping[str, Probe] = field(default_factory=dict)
