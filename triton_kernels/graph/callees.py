"""One name for what a node calls. The tables of this package list functions and names of methods.

:func:`called` maps torch.export's aten operators to these, and in-place functions and methods to
the ones that are not in place. Whether in-place operations may be fused is checked elsewhere.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

# Name of an aten operator → the function in the tables. Others are listed as methods, by name.
_FUNCTIONS = {
    each.__name__: each
    for each in (
        *(F.linear, F.gelu, F.silu, F.leaky_relu, F.elu, F.celu, F.selu, F.hardtanh, F.relu6),
        *(F.softplus, F.mish, F.hardswish, F.hardsigmoid, F.softsign, F.tanhshrink, F.softshrink),
        *(F.hardshrink, F.dropout, F.alpha_dropout, F.feature_alpha_dropout),
    )
} | {"log_sigmoid": F.logsigmoid, "feature_dropout": F.dropout2d}
_AUGMENTED = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ipow: operator.pow,
}
_IN_PLACE = {
    getattr(home, name): getattr(home, name[:-1])
    for home in (F, torch)
    for name in dir(home)
    if name.endswith("_") and not name.startswith("_") and hasattr(home, name[:-1])
}


def called(node: Node) -> Any:
    """The function that a node calls, or the name of the method; None for other nodes, whose
    targets are user's names."""
    target: Any = node.target
    if node.op == "call_method":
        return _plain(target)
    if node.op != "call_function":
        return None
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace != "aten":
            return target
        name = _plain(target._schema.name.removeprefix("aten::"))
        return _FUNCTIONS.get(name, name)
    try:
        return _IN_PLACE.get(target) or _AUGMENTED.get(target, target)
    except TypeError:  # not hashable
        return target


def _plain(name: str) -> str:
    """The name of a method without the underscore of in-place methods."""
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name
