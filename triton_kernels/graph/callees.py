"""What a node calls, under one name: the tables of this package list functions and methods.

:func:`called` says which of these an operator of aten is, as torch.export writes them, and gives
what works in place the name of what does not. Whether that may be is asked apart.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

# Operators of aten that tables list as functions; others have the names of methods.
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
    """The function that a node calls, or the name of its method; None of other nodes, whose targets
    are names that a user gave."""
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
    """The name of a method without the underscore of those that work in place."""
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name
