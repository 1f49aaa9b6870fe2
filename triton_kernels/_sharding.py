"""Sharding rules: on which placements of DTensors the registered ops run as they are.

A rule is for one dimension of a device mesh: the placements of an op's results, and those of its
tensors. DTensor combines the rules for all dimensions of the mesh. Arguments that no rule fits it
redistributes, at the least cost, so that a result is never wrong; docs/DISTRIBUTED.md has the
rules as a table.

Importing this module imports torch.distributed.tensor, which takes a while: it is imported with
the first call of an op after somebody else has imported that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Rule = tuple[Sequence[Placement], Sequence[Placement]]  # of the results, of the tensors
Rules = Callable[..., Iterator[Rule]]  # of an op's arguments; tensors have shape and dtype only
R, P = Replicate(), Partial()


@cache
def register() -> None:
    """Tell DTensor the rules, once."""
    for name, rules in _RULES.items():
        op = getattr(torch.ops.triton_kernels, name).default
        register_sharding(op)(_strategy(op, rules))
        _remember_arguments(op)


def _strategy(op: Any, rules: Rules) -> Callable[..., list[Any]]:
    """The rules in the form of register_sharding: a placement, or None, for every argument."""
    tensors = [i for i, argument in enumerate(op._schema.arguments) if _is_tensor(argument)]

    def placed(args: tuple[Any, ...], placements: Sequence[Placement]) -> list[Placement | None]:
        found = dict(zip(tensors, placements))
        return [None if arg is None else found.get(i) for i, arg in enumerate(args)]

    return lambda *args: [(list(out), placed(args, given)) for out, given in rules(*args)]


def _is_tensor(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


# The first of the arguments, from which on they decide shapes, dtypes or placements of the results.
_DECISIVE = {
    "add_scalar": "y",
    "add_to_scalar": "x",
    "sum_to": "shape",
    "gemm_bias_act": "act",
    "gemm_bias_act_with_pre": "act",
    "act_backward": "bias",
}


def _remember_arguments(op: Any) -> None:
    """What register_sharding cannot say; all private API of DTensor is here.

    DTensor keeps its decision for later calls, and of the arguments that are no tensors its key has
    only what we name: the decision of a call with act="none" would be taken for act="gelu". And the
    shape that sum_to gets is the whole tensor's, of which each rank makes its own part.
    """
    propagator = DTensor._op_dispatcher.sharding_propagator
    name = op._schema.name.split("::")[1]
    if name in _DECISIVE:
        names = [argument.name for argument in op._schema.arguments]
        known = propagator.op_to_schema_info
        known[op] = replace(known[op], static_argnum=names.index(_DECISIVE[name]))
    if name == "sum_to":
        propagator.op_to_shape_and_stride_idx[op] = names.index("shape")


# ---- the rules ----


def _elementwise(*tensors: Any) -> Iterator[Rule]:
    """All replicated; or sharded alike, and what is broadcast along that dimension replicated."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    yield (R,), [R] * len(tensors)
    for dim in range(len(shape)):
        yield (Shard(dim),), [_beside(t, dim, shape) for t in tensors]


def _beside(t: Any, dim: int, shape: Sequence[int]) -> Placement:
    """The placement of t, which broadcasts to ``shape``, where that is sharded along ``dim``."""
    own = dim - (len(shape) - len(t.shape))
    return Shard(own) if own >= 0 and t.shape[own] == shape[dim] else R


def _add(x: Any, y: Any, alpha: Any) -> Iterator[Rule]:
    yield from _elementwise(x, y)
    if _floating(x) and _floating(y):  # a replicated addend would be divided by the ranks
        yield (P,), (P, P)


def _floating(t: Any) -> bool:
    return bool(t.tensor_meta.dtype.is_floating_point)


def _relu_scale_backward(grad: Any, x: Any, scale: Any) -> Iterator[Rule]:
    yield from _elementwise(grad, x)
    yield (P,), (P, R)


def _square_backward(grad: Any, x: Any) -> Iterator[Rule]:
    yield from _elementwise(grad, x)
    yield (P,), (P, R)
    yield (P,), (R, P)


def _sum_to(x: Any, shape: Sequence[int], factor: Any, dtype: Any) -> Iterator[Rule]:
    """A kept dimension stays sharded; over a reduced one, each rank has a part of the sum."""
    yield (R,), (R,)
    yield (P,), (P,)
    added = len(x.shape) - len(shape)
    for dim, size in enumerate(x.shape):
        kept = dim >= added and shape[dim - added] == size
        yield (Shard(dim - added) if kept else P,), (Shard(dim),)


def _linear_gelu(x: Any, weight: Any, bias: Any, approximate: Any) -> Iterator[Rule]:
    """Along a batch dimension, or column-parallel; gelu of a part of the sum would be wrong."""
    last = len(x.shape) - 1
    yield (R,), (R, R, R)
    yield (Shard(last),), (R, Shard(0), Shard(0))
    for dim in range(last):
        yield (Shard(dim),), (Shard(dim), R, R)


def _gemm_bias_act(
    a: Any,
    b: Any,
    bias: Any,
    act: str,
    alpha: Any,
    beta: Any,
    c: Any,
    out_dtype: Any,
    precision: Any,
) -> Iterator[Rule]:
    """By rows, by columns; without an activation along the contraction, too. That makes sums, in
    which bias and c are to count once: DTensor divides what is replicated by the ranks."""
    shape = (a.shape[0], b.shape[1])
    yield (R,), (R, R, R, R)
    for dim, operands in enumerate([(Shard(0), R), (R, Shard(1))]):
        beside = [R if t is None else _beside(t, dim, shape) for t in (bias, c)]
        yield (Shard(dim),), (*operands, *beside)
    if act == "none":
        yield (P,), (Shard(1), Shard(0), P, P)


def _act_backward(grad: Any, saved: Any, act: Any, bias: bool, dtype: Any) -> Iterator[Rule]:
    """Linear in grad. The sums are over the rows; without bias they are an empty tensor."""
    for placement, sums in [(R, R), (Shard(0), P), (Shard(1), Shard(0))]:
        yield (placement, sums if bias else R), (placement, placement)
    yield (P, P if bias else R), (P, R)


def _twice(rules: Rules) -> Rules:
    """Of an op that returns two tensors alike."""
    return lambda *args: (([*out, *out], tensors) for out, tensors in rules(*args))


_RULES: dict[str, Rules] = {
    "add": _add,
    "add_scalar": lambda x, y, alpha: _elementwise(x),
    "add_to_scalar": lambda y, x, alpha: _elementwise(y),
    "square": _elementwise,
    "square_backward": _square_backward,
    "relu_scale": lambda x, scale: _elementwise(x),
    "relu_scale_add": lambda x, y, scale: _elementwise(x, y),
    "relu_scale_backward": _relu_scale_backward,
    "sum_to": _sum_to,
    "linear_gelu": _linear_gelu,
    "linear_gelu_with_pre": _twice(_linear_gelu),
    "gemm_bias_act": _gemm_bias_act,
    "gemm_bias_act_with_pre": _twice(_gemm_bias_act),
    "act_backward": _act_backward,
}
