"""What Inductor saves if a kernel takes over the end of a product: little, where it passes over the
result in any case.

Inductor compiles elementwise operations, norms and reductions itself, those that follow each other
into one kernel. An activation before such an operation costs it nothing, because that kernel reads
the product instead of the result; a sum costs the reading of what is added. Only before products,
attention, convolutions and the end of the graph does it need a kernel for them alone.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from triton_kernels._fusion import Match
from triton_kernels.graph.callees import called
from triton_kernels.graph.primitives import BINARY, PRIMITIVES

COMPUTED = {
    *PRIMITIVES,
    *BINARY,
    *("truediv", "rsub", "pow", "maximum", "minimum", "where", "masked_fill", "lerp", "addcmul"),
    *("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize", "norm"),
    *("mean", "sum", "var", "std", "var_mean", "amax", "amin", "softmax", "log_softmax"),
    *("to", "float", "half", "bfloat16", "double", "type_as", "clone", "contiguous", "dropout"),
    *("relu6", "selu", "celu", "hardshrink", "threshold", "log_sigmoid", "prelu", "cat", "stack"),
}
VIEWS = {
    *("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "detach"),
    *("transpose", "permute", "t", "movedim", "swapaxes", "squeeze", "unsqueeze", "expand"),
    *("getitem", "chunk", "split", "tensor_split", "unbind", "narrow", "select"),
}


def extra(match: Match) -> int | None:
    """A match's :attr:`Problem.extra <triton_kernels._fusion.Problem.extra>`."""
    root = match.nodes[-1]
    if len(match.nodes) == 1:  # the product alone
        return 0
    if not any(map(_passes, root.users)):
        return None
    # The pass reads the product instead of the result, and what is added to it. It writes the
    # result if others use that, too.
    return match.added + (len(root.users) > 1)


def _passes(user: Node) -> bool:
    name = _name(called(user))
    return name in COMPUTED or (name in VIEWS and any(map(_passes, user.users)))


def _name(function: Any) -> str:
    return function if isinstance(function, str) else str(getattr(function, "__name__", ""))
