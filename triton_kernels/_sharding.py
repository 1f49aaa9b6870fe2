"""Registers the ops' sharding rules with DTensor. Op files define them in the types of
_placements.py.

This module imports torch.distributed.tensor, which is slow. So it is only imported by the first
call of an op after other code has imported that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from triton_kernels import _placements
from triton_kernels._placements import Rules, Sharding

_registered: set[str] = set()


def register(shardings: Mapping[str, Sharding]) -> None:
    """Register the rules of ops with DTensor. Ops that have their rules already are skipped."""
    for name in shardings.keys() - _registered:
        _registered.add(name)
        op = getattr(torch.ops.triton_kernels, name).default
        register_sharding(op)(_strategy(op, shardings[name].rules))
        _remember_arguments(op, shardings[name])


def _placement(word: _placements.Placement) -> Placement:
    """A rule's placement as DTensor's."""
    words: dict[str, Placement] = {
        "replicate": Replicate(),
        "partial": Partial(),
        "shard": Shard(word.dim),
    }
    return words[word.kind]


def _strategy(op: Any, rules: Rules) -> Callable[..., list[Any]]:
    """The rules as a function for register_sharding, with a placement or None per argument."""
    tensors = [i for i, argument in enumerate(op._schema.arguments) if _is_tensor(argument)]

    def placed(
        args: tuple[Any, ...], words: Sequence[_placements.Placement]
    ) -> list[Placement | None]:
        placements = dict(zip(tensors, map(_placement, words)))
        return [None if arg is None else placements.get(i) for i, arg in enumerate(args)]

    return lambda *args: [
        (list(map(_placement, out)), placed(args, given)) for out, given in rules(*args)
    ]


def _is_tensor(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


def _remember_arguments(op: Any, sharding: Sharding) -> None:
    """Name the arguments on which decisions depend. Only this function uses private API of DTensor.

    DTensor caches its decisions. The key has only those arguments, except tensors, that are named
    here. Without that, the decision for act="none" would be used for act="gelu".
    """
    propagator = DTensor._op_dispatcher.sharding_propagator
    names = [argument.name for argument in op._schema.arguments]
    if sharding.decisive:
        known = propagator.op_to_schema_info
        known[op] = replace(known[op], static_argnum=names.index(sharding.decisive))
    if sharding.shape:
        propagator.op_to_shape_and_stride_idx[op] = names.index(sharding.shape)
