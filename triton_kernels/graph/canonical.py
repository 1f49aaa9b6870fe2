"""Operations that compute nothing: they return their argument, or its elements in another shape.

Models often have such operations between a product and the operations to fuse with it.

- Operations that return their argument itself: dropout in eval mode or with p = 0, casts to the
  dtype that a tensor has, torch.nn.Identity. :func:`drop_idle` removes them, which changes neither
  values nor aliases. It also removes torch.export's assertions of dtypes, and replaces
  x.reshape_as(y) by x.reshape(sizes), so that y has no user which only reads its shape.
- Views: GPT-2's linear layer multiplies rows and restores their shape, and a decoder makes images
  of a product. :func:`view_of` recognises them; the matcher puts them after the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from triton_kernels._fusion import Reshaped
from triton_kernels.graph import forms
from triton_kernels.graph.callees import called

# ---- operations that return their argument ----

_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
}
_DROPOUT_MODULES = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
    nn.FeatureAlphaDropout,
)
_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Views that take the shape of another tensor, and those that are given it.
_AS = {"reshape_as": "reshape", "view_as": "view"}


def drop_idle(module: GraphModule) -> None:
    """Remove the operations that return their argument, assertions of dtypes that hold, and uses of
    a tensor for its shape alone."""
    for node in list(module.graph.nodes):
        _by_sizes(node)
        if _idle(node, module):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif called(node) == "_assert_tensor_metadata" and _holds(node):
            module.graph.erase_node(node)


def _idle(node: Node, module: GraphModule) -> bool:
    if not node.args or not isinstance(node.args[0], Node):
        return False
    if node.op == "call_module":
        inner = module.get_submodule(str(node.target))
        if len(node.args) > 1 or node.kwargs or forms.changed(inner):
            return False
        if type(inner) in _DROPOUT_MODULES:
            return bool(not inner.training or inner.p == 0)
        return type(inner) is nn.Identity
    callee = called(node)
    if node.op == "call_function" and callee in _DROPOUTS:
        given = dict(zip(("input", "p", "training"), node.args)) | dict(node.kwargs)
        training = given.get("training", given.get("train", True))
        return bool(training is False or given.get("p", 0.5) == 0)
    return isinstance(callee, str) and _returns_itself(node, callee)


def _by_sizes(node: Node) -> None:
    """Replace the other tensor of reshape_as or view_as by sizes, if at most one is a symbol."""
    if node.op != "call_method" or node.target not in _AS or len(node.args) != 2 or node.kwargs:
        return
    value = forms.tensor_of(node)
    sizes = () if value is None else tuple(n if type(n) is int else -1 for n in value.shape)
    if value is None or sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes):
        return
    node.target, node.args = _AS[str(node.target)], (node.args[0], sizes)


def _holds(node: Node) -> bool:
    """Whether an assertion of dtype, device and layout holds for all inputs of the graph."""
    value = forms.tensor_of(node.args[0]) if len(node.args) == 1 else None
    given = {name: wanted for name, wanted in node.kwargs.items() if wanted is not None}
    return value is not None and all(
        getattr(value, name) == wanted if name in ("dtype", "device", "layout") else False
        for name, wanted in given.items()
    )


def _returns_itself(node: Node, method: str) -> bool:
    """Whether a method casts a tensor to the dtype and device that it already has."""
    value = forms.tensor_of(node.args[0])
    if value is None:
        return False
    if method in _CASTS:
        return len(node.args) == 1 and not node.kwargs and value.dtype == _CASTS[method]
    if method == "type" and len(node.args) == 2 and not node.kwargs:
        return bool(node.args[1] == value.dtype)
    if method == "type_as" and len(node.args) == 2:
        other = forms.tensor_of(node.args[1])
        return other is not None and (other.dtype, other.device) == (value.dtype, value.device)
    if method != "to" or set(node.kwargs) - {"dtype", "device"}:
        return False
    wanted = [*node.args[1:], *(each for each in node.kwargs.values() if each is not None)]
    return bool(wanted) and all(_has(value, each) for each in wanted)


def _has(value: Tensor, wanted: Any) -> bool:
    if isinstance(wanted, torch.dtype):
        return value.dtype == wanted
    if isinstance(wanted, (str, torch.device)):
        device = torch.device(wanted)
        return device.type == value.device.type and device.index in (None, value.device.index)
    other = forms.tensor_of(wanted)
    return other is not None and (other.dtype, other.device) == (value.dtype, value.device)


# ---- views ----

_VIEWS = {
    *("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "contiguous"),
    *(torch.reshape, torch.flatten, torch.unsqueeze, torch.squeeze, torch.unflatten),
}
# Views that permute dimensions.
_TURNS = {
    *("transpose", "permute", "t", "swapaxes", "swapdims", "movedim", "moveaxis"),
    *(torch.transpose, torch.permute, torch.t, torch.swapaxes, torch.swapdims),
    *(torch.movedim, torch.moveaxis),
}


def view_of(node: Node) -> Reshaped | None:
    """The form of a node that has all elements of a tensor, in any order; None for other nodes."""
    turns = called(node) in _TURNS
    if node.op not in ("call_function", "call_method") or not (turns or called(node) in _VIEWS):
        return None
    source = node.args[0] if node.args else None
    before, after = forms.tensor_of(source), forms.tensor_of(node)
    if not isinstance(source, Node) or before is None or after is None:
        return None
    if before.dtype != after.dtype or not before.dim() or not after.dim():  # view(dtype)
        return None
    last, length = before.shape[-1], after.shape[-1]
    same = isinstance(last, int) and isinstance(length, int) and last == length
    return Reshaped(source, rows=same and not turns)
