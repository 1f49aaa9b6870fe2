"""Finds users' registered activations in a graph, by their ``torch_function``.

The function is traced once, and its operations are searched for. Operands of sums and products may
be in any order, and default arguments of Python functions may be given or not.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Tracer

from triton_kernels._fusion import Activation, Refused
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.graph.callees import called
from triton_kernels.graph.forms import changed, same_shape, tensor_of

_COMMUTING = {torch.add, operator.add, "add", torch.mul, operator.mul, "mul"}


def registered(root: Node) -> Activation | None:
    """The registered activation whose last operation the node is, or None."""
    for name, record in ACTIVATIONS.items():
        traced = None if record.torch_function is None else _traced(record.torch_function)
        bound = None if traced is None else _matched(traced[1], root, {})
        if bound is None:
            continue
        x = next((match for each, match in bound.items() if each.op == "placeholder"), None)
        if x is None or not _alike(x, root):
            continue
        inner = {node for node in bound.values() if node not in (x, root)}
        return Activation(name, x, tuple(n for n in root.graph.nodes if n in inner))
    return None


def registered_modules(module: GraphModule) -> dict[Node, Activation | Refused]:
    """Call of a module that is a registered activation → its form, for a graph that only lists
    modules."""
    activations: dict[Node, Activation | Refused] = {}
    for node in module.graph.nodes:
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            called = module.get_submodule(str(node.target))
            name = _registered_module(called)
            if name is not None:
                reason = changed(called)
                activations[node] = Refused(reason) if reason else Activation(name, node.args[0])
    return activations


def _registered_module(module: nn.Module) -> str | None:
    """The registered activation that a module without state computes, or None.

    A copy is traced, so that attributes which a forward sets on its module do not change here.
    """
    functions = {n: f for n, record in ACTIVATIONS.items() if (f := record.torch_function)}
    state = (module.children(), module.parameters(), module.buffers())
    if not functions or any(True for each in state for _ in each):
        return None
    theirs = _trace(copy.copy(module))
    if theirs is None:
        return None
    graph, result = theirs
    for name, function in functions.items():
        ours = _traced(function)
        bound = None if ours is None else _matched(ours[1], result, {})
        # The graph must have no other nodes: one with an unused result may be in place.
        if bound is not None and {*bound.values(), graph.output_node()} == {*graph.nodes}:
            return name
    return None


@functools.cache
def _traced(function: Callable[..., Any]) -> tuple[Graph, Node] | None:
    """The trace of a registered function, cached."""
    return _trace(function)


def _trace(function: Callable[..., Any]) -> tuple[Graph, Node] | None:
    """A function's graph and its last operation; None if it cannot be traced."""

    def called(x: Any) -> Any:
        return function(x)

    module = isinstance(function, nn.Module)
    try:
        graph: Graph = Tracer().trace(function if module else called)
    except Exception:  # noqa: BLE001 - a function may raise anything for a proxy of a tensor
        return None
    (result,) = graph.output_node().args
    operation = isinstance(result, Node) and result.op in ("call_function", "call_method")
    return (graph, result) if operation else None  # type: ignore[return-value]


def _matched(pattern: Any, value: Any, bound: dict[Node, Node]) -> dict[Node, Node] | None:
    """Node of the pattern → node of the graph, or None if the value does not match."""
    if not isinstance(pattern, Node):
        if isinstance(pattern, (tuple, list)):
            return _all_matched(pattern, value, bound) if isinstance(value, type(pattern)) else None
        alike = not isinstance(value, Node) and type(value) is type(pattern)
        numbers = isinstance(pattern, (int, float)) and isinstance(value, (int, float))
        return bound if (alike or numbers) and value == pattern else None
    if not isinstance(value, Node):
        return None
    if pattern in bound:
        return bound if bound[pattern] is value else None
    if pattern.op != "placeholder":
        callee = called(pattern)
        if callee is None:
            same = (pattern.op, pattern.target) == (value.op, value.target)
        else:
            same = callee == called(value)
        if not same:
            return None
        match = _operands_matched(pattern, value, bound)
        if match is None:
            return None
        bound = match
    return {**bound, pattern: value}


def _operands_matched(
    pattern: Node, value: Node, bound: dict[Node, Node]
) -> dict[Node, Node] | None:
    (ours, our_keywords), (theirs, their_keywords) = _arguments(pattern), _arguments(value)
    if set(our_keywords) != set(their_keywords):
        return None
    names = list(our_keywords)
    orders = [theirs]
    if called(pattern) in _COMMUTING and len(theirs) == 2:
        orders.append(theirs[::-1])
    for order in orders:
        match = _all_matched(
            (*ours, *(our_keywords[name] for name in names)),
            (*order, *(their_keywords[name] for name in names)),
            bound,
        )
        if match is not None:
            return match
    return None


def _all_matched(patterns: Any, values: Any, bound: dict[Node, Node]) -> dict[Node, Node] | None:
    if len(patterns) != len(values):
        return None
    match: dict[Node, Node] | None = bound
    for pattern, value in zip(patterns, values):
        match = None if match is None else _matched(pattern, value, match)
    return match


def _arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, completed by defaults if the signature is known."""
    if inspect.isfunction(node.target):
        try:
            call = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        except TypeError:
            return node.args, node.kwargs
        call.apply_defaults()
        return call.args, call.kwargs
    return node.args, node.kwargs


def _alike(x: Node, root: Node) -> bool:
    """Whether the result has x's dtype and shape, as that of an activation."""
    before, after = tensor_of(x), tensor_of(root)
    return (
        before is not None
        and after is not None
        and before.is_floating_point()
        and before.dtype == after.dtype
        and same_shape(before, after)
    )
