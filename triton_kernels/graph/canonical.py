"""What returns its argument, or the same numbers in another shape: nothing to compute.

In models that people write such operations stand between a product and what is fused with it.

- Operations that return their argument itself: dropout in eval or of p = 0, casts to the dtype that
  a tensor has, torch.nn.Identity. :func:`drop_idle` takes them out; values and aliases stay.
- Views that keep the last dimension: GPT-2's linear layer multiplies rows and gives them their
  shape back. :func:`view_of` sees through them; the matcher puts them behind the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from triton_kernels.graph import forms

# ---- what does nothing ----

_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, torch.dropout}
_DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


def drop_idle(module: GraphModule) -> None:
    """Take out what returns its argument itself."""
    for node in list(module.graph.nodes):
        if _idle(node, module):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)


def _idle(node: Node, module: GraphModule) -> bool:
    if not node.args or not isinstance(node.args[0], Node):
        return False
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        if len(node.args) > 1 or node.kwargs or forms.has_hooks(called):
            return False
        if type(called) in _DROPOUT_MODULES:
            return bool(not called.training or called.p == 0)
        return type(called) is nn.Identity
    if node.op == "call_function" and node.target in _DROPOUTS:
        given = dict(zip(("input", "p", "training"), node.args)) | dict(node.kwargs)
        training = given.get("training", given.get("train", True))
        return bool(training is False or given.get("p", 0.5) == 0)
    return node.op == "call_method" and _returns_itself(node)


def _returns_itself(node: Node) -> bool:
    """Whether a method casts a tensor to the dtype and device that it has."""
    value = forms.tensor_of(node.args[0])
    if value is None:
        return False
    if node.target in _CASTS:
        return len(node.args) == 1 and not node.kwargs and value.dtype == _CASTS[node.target]  # type: ignore[index]
    if node.target == "type_as" and len(node.args) == 2:
        other = forms.tensor_of(node.args[1])
        return other is not None and (other.dtype, other.device) == (value.dtype, value.device)
    if node.target != "to" or set(node.kwargs) - {"dtype", "device"}:
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

_VIEWS = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten"}
_VIEW_FUNCTIONS = {torch.reshape, torch.flatten, torch.unsqueeze, torch.squeeze, torch.unflatten}


def view_of(node: Node) -> Node | None:
    """What a node is a view of that keeps rows rows: all of the same length, in their order."""
    method = node.op == "call_method" and node.target in _VIEWS
    if not method and not (node.op == "call_function" and node.target in _VIEW_FUNCTIONS):
        return None
    source = node.args[0] if node.args else None
    before, after = forms.tensor_of(source), forms.tensor_of(node)
    if before is None or after is None or not before.dim() or not after.dim():
        return None
    if before.dtype != after.dtype:  # view(dtype)
        return None
    last, length = before.shape[-1], after.shape[-1]
    same = isinstance(last, int) and isinstance(length, int) and last == length
    return source if same else None  # type: ignore[return-value]
