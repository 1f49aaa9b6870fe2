"""Side effects in a graph: overwritten tensors, switched modes.

A fused call takes the place of the last of its nodes. So nothing between its first and last node
may change their operands, or a mode that their computation depends on.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from triton_kernels.graph import forms

AUTOCAST = {"_enter_autocast": 1, "_exit_autocast": -1}
HARMLESS = {"_log_api_usage_once"}
PURE_MODULES = ("torch", "_operator", "math", "triton_kernels")


Casts = dict[str, torch.dtype | None]  # device → the dtype to which autocast casts, if it is on


def autocast(graph: Graph, around: Casts | None = None) -> dict[Node, Casts]:
    """Node → the state of autocast there. Outside the graph's own regions it is ``around``, or the
    current state. Nodes of one region have the same dictionary object."""
    now: Casts = {
        device: torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cuda", "cpu")
    }
    outer, at = [now if around is None else around], {}
    for node in graph.nodes:
        step = AUTOCAST.get(getattr(node.target, "__name__", ""), 0)
        if step > 0:
            device, dtype, enabled, *_ = node.args
            dtype = torch.get_autocast_dtype(device) if dtype is None else dtype
            outer.append({**outer[-1], device: dtype if enabled else None})
        elif step < 0 and len(outer) > 1:
            outer.pop()
        at[node] = outer[-1]
    return at


# Higher-order operators that run their subgraphs unchanged. Others inspect them, as flex_attention
# does, or have a second one for the gradient.
SUBGRAPHS = {
    *("tag_activation_checkpoint", "cond", "invoke_subgraph", "wrap"),
    "wrap_activation_checkpoint",
}


def subgraphs(node: Node, module: GraphModule) -> list[GraphModule]:
    """The graphs that a node runs and that may be rewritten. Those of a checkpoint with a policy
    may not: the policy names the operators whose results are saved, as the model calls them."""
    target: Any = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.__name__ not in SUBGRAPHS:
        return []
    inside = dict(module.named_modules())
    named = [inside.get(str(a.target)) for a in node.all_input_nodes if a.op == "get_attr"]
    graphs = [graph for graph in named if isinstance(graph, GraphModule)]
    policy = "_checkpoint_context_fn"
    return [] if any(policy in graph.meta for graph in graphs) else graphs


def may_interfere(node: Node, module: GraphModule) -> bool:
    """Whether a node may overwrite a tensor or switch a mode; True if that is unknown."""
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        inner = list(called.modules())
        return any(forms.changed(m) or getattr(m, "inplace", False) for m in inner)
    if node.op != "call_function":
        return False
    return _function_may_interfere(node)


def _function_may_interfere(node: Node) -> bool:
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return bool(schema.is_mutable)
    name = getattr(target, "__name__", "")
    # A built-in method, such as torch.relu, has no __module__; the type of its __self__ does.
    home = getattr(target, "__module__", None) or type(getattr(target, "__self__", None)).__module__
    if home.split(".")[0] not in (*PURE_MODULES, "builtins"):
        return True
    if name in HARMLESS:
        return False
    if isinstance(target, torch._ops.HigherOrderOperator) or name.startswith("_"):
        return True
    return (
        name.endswith("_")
        or name in ("setitem", "delitem")
        or (home == "_operator" and _augmented(name))
        or "out" in node.kwargs
        or _inplace(node)
    )


def _augmented(name: str) -> bool:
    """Whether a function of the module operator is an augmented assignment, such as iadd."""
    plain = name.removeprefix("i")
    return plain != name and (hasattr(operator, plain) or hasattr(operator, f"{plain}_"))


def _inplace(node: Node) -> bool:
    """Whether a call has a true argument ``inplace``."""
    target: Any = node.target
    try:
        bound = inspect.signature(target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):  # built-in functions have no such argument
        return False
    return bool(bound.arguments.get("inplace", False))
