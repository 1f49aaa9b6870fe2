"""The ops' sharding rules, told to DTensor; an op file has its own, in the words of _placements.py.

Importing this module imports torch.distributed.tensor, which takes a while: it is imported with
the first call of an op after somebody else has imported that.
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
    """Tell DTensor the rules of registered ops, by name; each once."""
    for name in shardings.keys() - _registered:
        _registered.add(name)
        op = getattr(torch.ops.triton_kernels, name).default
        register_sharding(op)(_strategy(op, shardings[name].rules))
        _remember_arguments(op, shardings[name])


def _placement(word: _placements.Placement) -> Placement:
    """A rule's word as DTensor's own."""
    words: dict[str, Placement] = {
        "replicate": Replicate(),
        "partial": Partial(),
        "shard": Shard(word.dim),
    }
    return words[word.kind]


def _strategy(op: Any, rules: Rules) -> Callable[..., list[Any]]:
    """The rules in the form of register_sharding: a placement, or None, for every argument."""
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
    """What register_sharding cannot say; all private API of DTensor is here.

    DTensor keeps its decision for later calls, and of the arguments that are no tensors its key has
    only what we name: the decision of a call with act="none" would be taken for act="gelu".
    """
    propagator = DTensor._op_dispatcher.sharding_propagator
    names = [argument.name for argument in op._schema.arguments]
    if sharding.decisive:
        known = propagator.op_to_schema_info
        known[op] = replace(known[op], static_argnum=names.index(sharding.decisive))
    if sharding.shape:
        propagator.op_to_shape_and_stride_idx[op] = names.index(sharding.shape)
