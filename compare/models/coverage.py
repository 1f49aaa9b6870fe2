"""The part of a model's matrix products, in FLOPs, that runs in fused kernels, and why the rest
does not.

A product counts if one kernel could compute more than the product: an activation, a gate or a scale
of columns follows it, and nothing else reads the values in between. Views, casts, inactive dropout,
added rows and scalars may lie between. Such a product is covered if its kernel computes the
epilogue, or if its gate is an act_mul.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from triton_kernels.activations import ACTIVATIONS
from triton_kernels.graph.compiling import explain
from triton_kernels.graph.planning import Plan, label

SCALED = "gemm_bias_act_of_columns"
FUSED = ("linear_act", "linear_gelu", "gemm_bias_act_of_rows", "gemm_bias_act", SCALED)
# Product → the index of its left matrix among its arguments.
PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}
VIEWS = {
    *("view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "squeeze"),
    *("unsqueeze", "expand", "t", "to", "type_as", "float", "bfloat16", "half", "identity"),
}
PARTS = {"chunk", "split", "getitem", "narrow", "unbind", "tensor_split"}
CURVES = {
    *("relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu", "celu"),
    *("mish", "softplus", "hardswish", "hardsigmoid", "hardtanh", "clamp", "clamp_min", "erf"),
    *("logsigmoid", "prelu", "threshold"),
}
POINTWISE = {*CURVES, *("add", "sub", "mul", "truediv", "div", "pow", "rsub", "neg", "exp")}
LONGEST = 24  # the most nodes that are followed from a product


@dataclass(frozen=True)
class Product:
    """A matrix product of a model.

    Attributes:
        name: the node's name in the graph.
        flops: floating-point operations per call of the model, in all its layers.
        end: what follows it: "activation", "gate", "scale", or "".
        fused: whether a kernel of this package computes it with its epilogue, or computes its gate.
        reason: why not; "" if it is fused.
    """

    name: str
    flops: float
    end: str
    fused: bool
    reason: str = ""


@dataclass
class Coverage:
    """The matrix products of one model."""

    model: str
    graphs: int = 0
    products: list[Product] = field(default_factory=list)

    @property
    def counted(self) -> list[Product]:
        return [product for product in self.products if product.end]

    @property
    def part(self) -> float | None:
        """The fraction of the counted products' FLOPs in fused kernels; None without such FLOPs."""
        total = sum(product.flops for product in self.counted)
        return sum(p.flops for p in self.counted if p.fused) / total if total else None

    def reasons(self) -> dict[str, float]:
        """Reason → the fraction of the counted FLOPs not fused because of it, the largest first."""
        total = sum(product.flops for product in self.counted)
        lost: Counter[str] = Counter()
        for product in self.counted:
            if not product.fused:
                lost[product.reason] += product.flops / total  # type: ignore[assignment]
        return dict(lost.most_common())


def cover(
    name: str,
    model: nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    repeated: float = 1.0,
    training: bool = False,
    **options: Any,
) -> Coverage:
    """The products of a model that the backend fuses, and those that it does not.

    Args:
        name: the model's name in tables.
        model: a model on any device. On "meta" the plans are made as for an NVIDIA H200.
        args, keywords: the arguments of one call.
        repeated: how many layers of the real model each layer stands for. Layers are the elements
            of lists of modules.
        training: whether gradients are needed.
        options: options of :func:`triton_kernels.explain`.
    """
    coverage = Coverage(name)
    with torch.set_grad_enabled(training):
        explained = explain(model, args, **options, **keywords)
    for plan, graph in zip(explained.plans, explained.graphs):
        coverage.graphs += 1
        for module in graph.modules():
            if isinstance(module, GraphModule):
                coverage.products += _products(module, plan, repeated)
    return coverage


def _products(module: GraphModule, plan: Plan, repeated: float) -> Iterator[Product]:
    for node in module.graph.nodes:
        called = _called(node)
        shape = _shape(node)
        if shape is None or (called not in FUSED and called not in PRODUCTS):
            continue
        place = PRODUCTS.get(called, 0)
        x = node.args[place] if place < len(node.args) else None  # by name: batches, in BLOOM
        rows = _shape(x) if isinstance(x, Node) else None
        if not rows:
            continue
        flops = 2.0 * math.prod(shape) * rows[-1] * (repeated if _in_layer(node) else 1.0)
        if called in FUSED:
            activated = any(map(_curved, _acts(node, called)))
            end = "activation" if activated else "scale" if called == SCALED else ""
            yield Product(node.name, flops, end, True)
        elif not _batched(node):
            end, last = _end(node)
            fused = end == "fused gate"
            reason = "" if fused else _reason(node, last, plan)
            yield Product(node.name, flops, end.removeprefix("fused "), fused, reason)


def _acts(node: Node, called: str) -> set[Any]:
    """The activation of a fused product, among other strings."""
    if called == "linear_gelu":
        return {"gelu"}
    return {node.kwargs.get("act"), *(a for a in node.args if isinstance(a, str))}


def _curved(act: str | None) -> bool:
    """Whether an activation is a curve. One composed by a graph's plan may have only sums and
    factors, without a function call."""
    if act in (None, "none"):
        return False
    written = ACTIVATIONS[act].written if act in ACTIVATIONS else ""
    return not written or "(" in re.sub(r"(?<!\w)\(", "", written)


def _end(node: Node) -> tuple[str, Node]:
    """What follows a product ("activation", "gate", "fused gate", "scale" or ""), and the last node
    that was followed."""
    for _ in range(LONGEST):
        users = [user for user in node.users if user.op != "output"]
        if len(users) != len(node.users) or not users:
            return "", node
        if len(users) > 1:
            if all(_called(user) in PARTS for user in users):
                ends = [_end(user) for user in users]
                return next((end for end in ends if "gate" in end[0]), ("", node))
            last = _meeting(node)
            return ("activation", last) if last is not None else ("", node)
        (user,) = users
        called = _called(user)
        if called == "act_mul":
            return "fused gate", user
        if called in CURVES:
            (after,) = user.users if len(user.users) == 1 else (None,)
            gate = after is not None and _called(after) == "mul" and not _scalar(after)
            return ("gate" if gate else "activation"), user
        if called == "mul" and not _scalar(user):
            return _times(user, node), user
        steps = called in VIEWS | PARTS or _idle_dropout(user)
        if not steps and not (called in POINTWISE and (_scalar(user) or _row(user, node))):
            return "", user
        node = user
    return "", node


def _times(product: Node, node: Node) -> str:
    """What a multiplication by another tensor is: "scale", "gate" or ""."""
    if _row(product, node):
        return "scale"
    others = [a for a in product.args if isinstance(a, Node) and a is not node]
    return "gate" if any(_called(other) in CURVES for other in others) else ""


def _meeting(node: Node) -> Node | None:
    """The node at which all users of a value join again, if there is a curve in between: the end of
    an activation that is written as several operations. Else None."""
    region, waiting = {node}, list(node.users)
    while waiting and len(region) < LONGEST:
        user = min(waiting, key=_position)
        waiting = [each for each in waiting if each is not user]
        called = _called(user)
        inner = [a for a in user.all_input_nodes if a not in region]
        if called not in POINTWISE | VIEWS or inner:
            return None
        region.add(user)
        if not waiting and len(region) > 2:
            curved = any(_called(each) in CURVES | {"exp"} for each in region)
            return user if curved and _shape(user) == _shape(node) else None
        waiting += [each for each in user.users if each not in region and each not in waiting]
    return None


def _position(node: Node) -> int:
    return list(node.graph.nodes).index(node)


def _reason(node: Node, last: Node, plan: Plan) -> str:
    """The plan's reason for leaving a product or what follows it."""
    names, step = {_plain(label(node)), _plain(label(last))}, node
    for _ in range(LONGEST):
        if len(step.users) != 1 or step is last:
            break
        (step,) = step.users
        names.add(_plain(label(step)))
    for left in plan.left:
        if _plain(left.node) in names and not left.reason.startswith("nothing to fuse"):
            return left.reason
    return f"followed by {_called(last) or last.op}"


def _plain(name: str) -> str:
    """A plan's name for a node, without the parentheses at its end."""
    return name.partition(" (")[0]


def _called(node: Node) -> str:
    if node.op not in ("call_function", "call_method"):
        return ""
    target: Any = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    name = name.partition(".")[0].strip("_")
    return {"imul": "mul", "iadd": "add", "multiply": "mul", "isub": "sub"}.get(name, name)


def _shape(node: Any) -> tuple[int, ...] | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, Tensor):
        return None
    # A symbolic size counts as the size at tracing.
    return tuple(int(getattr(getattr(n, "node", None), "hint", None) or n) for n in value.shape)


def _scalar(node: Node) -> bool:
    """Whether at most one of the node's arguments is a tensor."""
    return sum(isinstance(_shape(a), tuple) for a in node.all_input_nodes) <= 1


def _row(node: Node, value: Node) -> bool:
    """Whether another argument is a row: it has the value's last dimension, all others are 1."""
    shape = _shape(value)
    others = [_shape(a) for a in node.all_input_nodes if a is not value]
    return bool(shape) and any(
        other and other[-1] == shape[-1] and math.prod(other) == shape[-1]  # type: ignore[index]
        for other in others
    )


def _idle_dropout(node: Node) -> bool:
    if _called(node) not in ("dropout", "feature_dropout"):
        return False
    given = dict(zip(("input", "p", "training"), node.args)) | dict(node.kwargs)
    return bool(given.get("training", True) is False or given.get("p", 0.5) == 0)


def _batched(node: Node) -> bool:
    """Whether both factors have more than two dimensions, as in attention."""
    if node.target is F.linear or _called(node) in ("mm", "addmm"):
        return False
    ranks = [len(_shape(a) or ()) for a in node.args[:2] if isinstance(a, Node)]
    return len(ranks) == 2 and min(ranks) > 2


def _in_layer(node: Node) -> bool:
    """Whether the node, or a parameter that it reads, belongs to an element of a list of
    modules."""
    read = [a.args[0] if _called(a) in VIEWS and a.args else a for a in node.all_input_nodes]
    parameters = [a for a in read if isinstance(a, Node) and a.op in ("placeholder", "get_attr")]
    stacks = [each.meta.get("nn_module_stack") or {} for each in (node, *parameters)]
    paths = [str(where) for stack in stacks for where, _ in stack.values()]
    return any(re.search(r"(\.|\[|_)\d+(\.|\]|_|$)", path) for path in paths)


def total(coverages: Sequence[Coverage]) -> float | None:
    """The mean of the models' parts, each with equal weight; None if no model has one."""
    parts = [each.part for each in coverages if each.part is not None]
    return sum(parts) / len(parts) if parts else None
