"""The words of sharding rules: on which placements of DTensors the registered ops run as they are.

A rule is for one dimension of a device mesh: the placements of an op's results, and those of its
tensors. DTensor combines the rules for all dimensions of the mesh. Arguments that no rule fits it
redistributes, at the least cost, so that a result is never wrong; docs/DISTRIBUTED.md has the
rules as a table.

The words are not DTensor's own: op files have rules at import, and torch.distributed.tensor takes a
while to load. _sharding.py translates them, once somebody else has loaded that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Placement:
    """How a tensor lies on the ranks: ``kind`` is replicate, partial (each has an addend) or shard,
    which is cut along ``dim``."""

    kind: str
    dim: int = -1


R, P = Placement("replicate"), Placement("partial")


def Shard(dim: int) -> Placement:
    """Cut along a dimension."""
    return Placement("shard", dim)


Rule = tuple[Sequence[Placement], Sequence[Placement]]  # of the results, of the tensors
Rules = Callable[..., Iterator[Rule]]  # of an op's arguments; tensors have shape and dtype only


@dataclass(frozen=True)
class Sharding:
    """What DTensor is told of a registered op.

    Attributes:
        rules: the rules, from the op's arguments.
        decisive: the first of the arguments, from which on they decide shapes, dtypes or placements
            of the results; none if tensors alone do.
        shape: the argument that is the result's shape: it is the whole tensor's, of which each rank
            makes its own part.
    """

    rules: Rules
    decisive: str = ""
    shape: str = ""


def elementwise(*tensors: Any) -> Iterator[Rule]:
    """Rules of elementwise ops: all operands replicated; or sharded alike, with those replicated
    that are broadcast along the sharded dimension."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    yield (R,), [R] * len(tensors)
    for dim in range(len(shape)):
        yield (Shard(dim),), [beside(t, dim, shape) for t in tensors]


def beside(t: Any, dim: int, shape: Sequence[int]) -> Placement:
    """The placement of t, which broadcasts to ``shape``, where that is sharded along ``dim``."""
    own = dim - (len(shape) - len(t.shape))
    return Shard(own) if own >= 0 and t.shape[own] == shape[dim] else R


def floating(t: Any) -> bool:
    """Whether t is of a floating dtype: as a rule sees it, with its dtype among its meta data."""
    return bool(t.tensor_meta.dtype.is_floating_point)


def twice(rules: Rules) -> Rules:
    """The rules of an op that returns two tensors which lie alike."""
    return lambda *args: (([*out, *out], tensors) for out, tensors in rules(*args))
