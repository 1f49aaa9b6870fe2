"""The types of sharding rules: the placements of DTensors on which registered ops run directly.

A rule is for one dimension of a device mesh: the placements of an op's results, and those of its
tensors. DTensor combines rules for all dimensions of the mesh. If no rule fits the arguments, it
redistributes them at the least cost, so that the result is still right. docs/DISTRIBUTED.md has a
table of the rules.

These are not DTensor's own types: op files define rules at import, and torch.distributed.tensor is
slow to import. _sharding.py translates the rules once other code has imported that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Placement:
    """The placement of a tensor on the ranks. ``kind`` is "replicate"; "partial": the tensor is the
    sum of the ranks' tensors; or "shard": it is cut along ``dim``."""

    kind: str
    dim: int = -1


R, P = Placement("replicate"), Placement("partial")


def Shard(dim: int) -> Placement:
    """The placement of a tensor that is cut along a dimension."""
    return Placement("shard", dim)


Rule = tuple[Sequence[Placement], Sequence[Placement]]  # placements of results, of tensors
Rules = Callable[..., Iterator[Rule]]  # from an op's arguments; tensors have shape and dtype only


@dataclass(frozen=True)
class Sharding:
    """How DTensor shards a registered op.

    Attributes:
        rules: makes the rules from the op's arguments.
        decisive: the first argument that is no tensor and decides shapes, dtypes or placements of
            the results; "" if only tensors decide.
        shape: the argument with the shape of the result. It is the shape of the whole tensor; each
            rank makes its own part.
    """

    rules: Rules
    decisive: str = ""
    shape: str = ""


def elementwise(*tensors: Any) -> Iterator[Rule]:
    """The rules of elementwise ops: all operands are replicated; or all are sharded along one
    dimension, except that operands which broadcast along it are replicated."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    yield (R,), [R] * len(tensors)
    for dim in range(len(shape)):
        yield (Shard(dim),), [beside(t, dim, shape) for t in tensors]


def beside(t: Any, dim: int, shape: Sequence[int]) -> Placement:
    """The placement of t, which broadcasts to ``shape``, if ``shape`` is sharded along ``dim``."""
    own = dim - (len(shape) - len(t.shape))
    return Shard(own) if own >= 0 and t.shape[own] == shape[dim] else R


def floating(t: Any) -> bool:
    """Whether t has a floating dtype. To a rule, t has its dtype in ``tensor_meta``."""
    return bool(t.tensor_meta.dtype.is_floating_point)


def twice(rules: Rules) -> Rules:
    """The rules of an op that returns two tensors with equal placements."""
    return lambda *args: (([*out, *out], tensors) for out, tensors in rules(*args))
