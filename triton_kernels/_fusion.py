"""The types with which op files describe their fusions; triton_kernels.graph reads them.

A :class:`Fusion` has four parts. ``reads`` turns calls of the op's functions, and of others, into
forms, from which patterns start. ``elementwise`` and ``products`` are patterns, which find the
nodes that one call of the op computes. ``speeds`` has the measured speeds of the kernels and their
conditions. ``probes`` measure these again. This module does not import triton_kernels.graph, so
that op files can import it.
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
    """A parameter of the module that a node calls: its qualified name and the tensor."""

    target: str
    tensor: torch.Tensor


Operand = Node | Attribute


class Form:
    """What a node of a graph computes."""


class Columns(NamedTuple):
    """A step with the same formula in each column, z → z·scale + shift·factor.

    Tensors have shape [N] or one element. A BatchNorm in eval mode has ``mean`` and ``variance``:
    it first computes (z − mean)/√(variance + eps). For a number ``scale`` there are no tensors.
    """

    scale: Operand | float | None = None
    shift: Operand | None = None
    factor: float = 1.0
    mean: Operand | None = None
    variance: Operand | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Product(Form):
    """alpha·(x@b) + beta·c + bias; b is the operand ``weight``, transposed if ``by_rows``.

    A 1×1 ``convolution`` is such a product along dimension 1, with a weight [N, K, 1, 1].
    ``columns`` are the steps applied to the columns of alpha·(x@b) + bias, in order, before c is
    added.
    """

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
    """An activation of triton_kernels.activations, by name. If several operations compute it,
    ``inner`` are the nodes before the last one."""

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
    """x with one step applied to its columns."""

    x: Node
    columns: Columns


@dataclass(frozen=True)
class Square(Form):
    """x·x."""

    x: Node


@dataclass(frozen=True)
class Refused(Form):
    """A call of such an op that cannot be fused, and the reason."""

    reason: str


@dataclass(frozen=True)
class Divided(Form):
    """x/divisor for a Python number that is no power of two. It is no :class:`Scaled`, because
    1/divisor is rounded."""

    x: Node
    divisor: float


@dataclass(frozen=True)
class Reshaped(Form):
    """x in another shape. With ``rows`` it has all of x's rows in their order. Otherwise it has x's
    elements in any order, and only elementwise operations may follow."""

    x: Node
    rows: bool = True


class Signature(NamedTuple):
    """The names of a target's arguments, and the function that makes a form of them."""

    names: tuple[str, ...]
    read: Callable[[dict[str, Any]], Form | None]


# ---- matches ----

Sizes = tuple[int | None, int | None, int | None]  # M, N, K; None where unknown


class Transposed(NamedTuple):
    """A matrix operand, to be passed transposed."""

    operand: Operand


class Matrix(NamedTuple):
    """A batch of one matrix, to be passed as the matrix."""

    operand: Operand


class Row(NamedTuple):
    """An operand of shape [1, …, N], to be passed as [N]."""

    operand: Operand


class Rows(NamedTuple):
    """An operand of shape […, N], to be passed as a matrix of its rows."""

    operand: Operand


@dataclass(frozen=True)
class Match:
    """Nodes that one call computes.

    Attributes:
        kernel: a key of :attr:`Fusion.speeds`.
        nodes: the nodes in the order of the graph; the last one is the result.
        function, arguments, keywords: the call. Arguments may be operands, :class:`Transposed`,
            :class:`Matrix`, :class:`Row` or :class:`Rows`.
        sizes: M, N, K of a product.
        act: the activation at the end of a product.
        wider: the nodes whose dtype may be wider than the result's.
        views: the nodes that reshape the product's rows; they follow the call.
        autocast: the dtype in which the call computes under autocast, if the nodes compute in
            another one.
        added: whether a tensor other than a bias is added to a product.
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
    added: bool = False

    def nodes_hold(self, nodes: Iterable[Node]) -> bool:
        """Whether the match has all of these nodes."""
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


# (node, node → its form or None) → the match that ends with the node, or None.
Pattern = Callable[[Node, Mapping[Node, Form | None]], Match | None]
# (a product with its addends, the nodes, the activation, M, N and K) → the match, or None.
ProductPattern = Callable[[Product, tuple[Node, ...], str, Sizes], Match | None]

# ---- speeds ----


class Problem(NamedTuple):
    """The work of a kernel.

    Attributes:
        other: who computes it if the kernel is not taken: "eager" or "inductor".
        M, N, K: a product's sizes; None for elementwise kernels, or if unknown.
        act: the activation at the end of a product; None stands for any that the kernel has.
        precision: the precision of float32 products.
        scaled: whether the weight is first multiplied by factors of the columns.
        extra: if Inductor passes over the result in any case, for what follows, the number of
            tensors of the result's size that this pass also reads or writes if the kernel is not
            taken; None if what follows the product needs a pass of its own.
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
    extra: int | None = None


@dataclass(frozen=True)
class Entry:
    """The speed of a kernel relative to eager's and to Inductor's, under conditions.

    Unless they are estimated, the speeds are the lowest of the measured cases that the entry
    covers, from docs/benchmarks/h200.json.

    Attributes:
        dtypes: the dtypes covered.
        eager, inductor: the kernel's speed relative to eager's and to Inductor's.
        capabilities: the compute capabilities covered; empty for all, if bandwidth decides.
        elsewhere: the most that both speeds are estimated to be on other GPUs.
        aligned: whether rows of x and of the weight are multiples of 16 bytes; None covers both.
        rows: the smallest M covered.
        acts: the activations covered; empty for all.
        precision: the precision of float32 products.
        estimated: whether the speeds are estimates by the roofline model, not measurements.
        timed: whether the times of :mod:`triton_kernels.gemm.rivals` are used instead, on GPUs for
            which it has them.
    """

    dtypes: tuple[torch.dtype, ...]
    eager: float
    inductor: float
    capabilities: tuple[int, ...] = ()
    elsewhere: float = 1.0
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
    """Whether rows of K and of N elements are multiples of 16 bytes; unknown sizes are taken so."""
    step = 16 // problem.dtype.itemsize
    return (problem.K or 0) % step == 0 and (problem.N or 0) % step == 0


@dataclass(frozen=True)
class Probe:
    """A kernel, and what torch computes instead of it; for :func:`triton_kernels.tune`.

    Attributes:
        shapes: the tensors' shapes, one letter per dimension: M, N and K of a product; n, the
            number of elements of an elementwise kernel.
        ours: the kernel's function of the tensors, and for a product of an activation's name.
        theirs: torch's function of the tensors; for a product without the activation.
    """

    shapes: tuple[str, ...]
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]


@dataclass(frozen=True)
class Fusion:
    """How graphs use an op's kernels.

    Attributes:
        reads: the target of a call → its signature, which makes the form of its arguments.
        elementwise: patterns of nodes without a product. The match with the most nodes wins; of
            equally long ones that of the last file.
        products: patterns of a product with its epilogue. Products without a match become a
            gemm_bias_act.
        speeds: kernel → entries. The first entry that covers a problem counts; without one the
            kernel is not taken.
        probes: kernel → how to measure its speeds. Of kernels with the same entries one is enough.
    """

    reads: Mapping[Any, Signature] = field(default_factory=dict)
    elementwise: tuple[Pattern, ...] = ()
    products: tuple[ProductPattern, ...] = ()
    speeds: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    probes: Mapping[str, Probe] = field(default_factory=dict)
