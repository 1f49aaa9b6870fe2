"""replace_modules: puts fused modules into a model, in every Sequential and in small blocks.

A model may call its modules in any order, but the order in a torch.nn.Sequential is known. So each
Sequential becomes a graph of calls of its children, for the same matcher as all graphs. Small
blocks with their own forward are traced; see blocks.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node

from triton_kernels._fusion import Activation, Match, Refused
from triton_kernels.graph import blocks, capabilities, forms
from triton_kernels.graph.chains import Misfit
from triton_kernels.graph.matching import Matcher
from triton_kernels.graph.planning import Options, judge
from triton_kernels.nn.modules import LinearAct, LinearGELU

# The attribute of a fused layer with the replaced modules, in a tuple, so that torch.nn.Module does
# not register them as children.
ORIGINALS = "_replaced_modules"


@dataclass(frozen=True)
class Replaced:
    """A layer that replaces two modules, or a kernel in a block."""

    name: str
    before: str
    after: str
    linears: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"replaced: {self.name}: {self.before} → {self.after}"


@dataclass(frozen=True)
class Kept:
    """A linear layer that is not replaced, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"left: {self.name}: {self.reason}"


@dataclass
class Replacement:
    """The report of :func:`replace_modules`. It prints one line per layer."""

    model: nn.Module
    replaced: list[Replaced] = field(default_factory=list)
    left: list[Kept] = field(default_factory=list)

    def undo(self) -> None:
        """Put the original modules back, as :func:`restore_modules` does."""
        restore_modules(self.model)

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.replaced, *self.left])) or "no linear layers"

    __repr__ = __str__


def replace_modules(model: nn.Module, *, min_score: float = capabilities.MIN_SCORE) -> Replacement:
    """Replace Linear → activation by LinearGELU or LinearAct in every Sequential of a model.

    The new layers have the same Parameter objects as the old ones. torch.nn.Identity takes the
    place of the activation, so that all names, and the keys of the state_dict, remain. Layers are
    left if they have hooks, parametrizations or a forward that was put on them, are pruned, or are
    in several places.

    Small blocks with their own forward, such as the MLPs of Hugging Face and timm, keep their
    layers. Their new forward fuses what torch.compile's tracer sees in the old one, and calls the
    old one while a layer is wrapped, quantised, sharded or has hooks. Larger modules are left; for
    these see :func:`triton_kernels.fuse`.

    If a model calls a linear layer of its Sequential directly, the result includes the activation.

    Args:
        model: changed in place. It must be on the device where it will run. On the CPU layers are
            only replaced inside ``with triton_kernels.interpret():``.
        min_score: the least expected speed relative to eager's; 0 replaces all that fits.

    Returns:
        A report of what was replaced, and of what was left with the reasons. Its ``undo()`` puts
        the old modules back.

    Raises:
        TypeError: ``model`` is no torch.nn.Module, or ``min_score`` no number.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"replace_modules(): argument 'model' must be a module, not {type(model).__name__}"
        )
    options = Options(min_score)
    report = Replacement(model)
    reasons: dict[str, str] = {}
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    for prefix, sequential in list(model.named_modules()):
        if isinstance(sequential, nn.Sequential):
            _replace_in(sequential, prefix, options, places, report.replaced, reasons)
    for name, block in list(blocks.candidates(model)):
        _replace_block(block, name, options, report.replaced, reasons)
    inside = {step for line in report.replaced for step in line.linears}
    for name, module in model.named_modules():
        if _is_linear(module) and not hasattr(module, ORIGINALS) and name not in inside:
            report.left.append(Kept(name, reasons.get(name) or _why_unseen(module)))
    return report


def restore_modules(model: nn.Module) -> None:
    """Undo :func:`replace_modules`: put the original modules back, with the current parameters.

    Raises:
        RuntimeError: hooks were registered on a fused layer, another forward was put on it, its
            weight or bias is no longer a parameter, or something else changed the class of a block.
            Then nothing is changed.
    """
    replaced = [module for module in model.modules() if hasattr(module, blocks.RECORD)]
    for block in replaced:
        if not blocks.restorable(block):
            raise RuntimeError(
                f"restore_modules(): {type(block).__name__} was given another class since it was "
                "replaced; undo that first"
            )
    fused = [
        (sequential, name, layer)
        for sequential in model.modules()
        if isinstance(sequential, nn.Sequential)
        for name, layer in sequential.named_children()
        if hasattr(layer, ORIGINALS)
    ]
    for _, name, layer in fused:
        if forms.has_hooks(layer):
            raise RuntimeError(
                f"restore_modules(): hooks were registered on {type(layer).__name__} {name!r} "
                "since it was replaced; remove them first"
            )
        if "forward" in vars(layer) or not {"weight", "bias"} <= layer._parameters.keys():
            raise RuntimeError(
                f"restore_modules(): {type(layer).__name__} {name!r} was parametrized since it was "
                "replaced, or given another forward, or a weight that is no parameter; undo that "
                "first"
            )
    for sequential, name, layer in fused:
        linear, activation_name, activation = getattr(layer, ORIGINALS)
        linear.weight, linear.bias = layer.weight, layer.bias
        sequential.set_submodule(name, linear.train(layer.training))
        sequential.set_submodule(activation_name, activation.train(sequential.training))
    for block in replaced:
        blocks.restore(block)


def _replace_in(
    sequential: nn.Sequential,
    prefix: str,
    options: Options,
    places: Counter[int],
    replaced: list[Replaced],
    reasons: dict[str, str],
) -> None:
    """Replace layers in one Sequential; give the reason for each linear layer that is left."""
    if type(sequential).forward is not nn.Sequential.forward or "forward" in vars(sequential):
        reason = f"{type(sequential).__name__} has a forward of its own"
        reasons.update(
            {_join(prefix, n): reason for n, m in sequential.named_children() if _is_linear(m)}
        )
        return
    for linear, following, match, reason in _candidates(sequential, options):
        name = _join(prefix, linear)
        layer = sequential.get_submodule(linear)
        if places[id(layer)] > 1:
            reason = f"shared: it has {places[id(layer)]} places in the model"
        if match is None or reason:
            reasons[name] = reason
            continue
        activation = sequential.get_submodule(following)
        fused = _fused(layer, match)
        setattr(fused, ORIGINALS, (layer, following, activation))
        sequential.set_submodule(linear, fused)
        sequential.set_submodule(following, nn.Identity().train(activation.training))
        replaced.append(Replaced(name, f"{layer} + {activation}", str(fused)))


def _replace_block(
    block: nn.Module,
    name: str,
    options: Options,
    replaced: list[Replaced],
    reasons: dict[str, str],
) -> None:
    """Replace one block's forward; give the reason for each linear layer that is left."""
    plan = blocks.plan(block, options)
    linears = [child for child, module in block.named_children() if _is_linear(module)]
    if isinstance(plan, str):
        reasons.update({_join(name, linear): plan for linear in linears})
        return
    why = {line.node: line.reason for line in plan.left}
    other = next((line.reason for line in plan.left if line.node not in linears), "")
    for linear in linears:
        reasons[_join(name, linear)] = why.get(linear) or other or "nothing to fuse with it"
    kind = type(block).__name__
    # An adapter beside a layer has no activation. It is left, because the library that wrapped the
    # layer looks at its class, and merges it.
    if all(step.act == "none" for step in plan.steps):
        for step in plan.steps:
            named = (_join(name, node) for node in step.nodes if node in linears)
            reasons.update(dict.fromkeys(named, f"{kind} has no activation"))
        return
    blocks.replace(block, options)
    for step in plan.steps:
        inside = tuple(_join(name, node) for node in step.nodes if node in linears)
        before = f"{kind}'s {' + '.join(step.nodes)}"
        after = step.kernel if step.act == "none" else f"{step.kernel} (act {step.act})"
        replaced.append(Replaced(name, before, after, inside))


def _candidates(
    sequential: nn.Sequential, options: Options
) -> Iterator[tuple[str, str, Match | None, str]]:
    """For each linear layer: its name, the next module's, their match, and why there is none."""
    graph = _graph(sequential)
    matcher = Matcher(graph, modular=True)
    nodes = [node for node in graph.graph.nodes if node.op == "call_module"]
    for node, after in zip(nodes, [*nodes[1:], None]):
        if not _is_linear(graph.get_submodule(str(node.target))):
            continue
        match, reason = _match(matcher, node, after, options)
        yield str(node.target), "" if after is None else str(after.target), match, reason


def _match(
    matcher: Matcher, node: Node, after: Node | None, options: Options
) -> tuple[Match | None, str]:
    form = matcher.forms[node]
    if isinstance(form, Refused):
        return None, form.reason
    if after is None:
        return None, "last of its Sequential: no activation follows"
    try:
        match = matcher.find("epilogue", after)
    except Misfit as misfit:
        return None, str(misfit)
    if match is None:
        return None, _what_follows(matcher, after)
    problem = matcher.problem(match, options.rest)
    if problem.device.type == "meta":
        return None, "on device meta"
    return match, judge(matcher, match, options).refusal


def _what_follows(matcher: Matcher, after: Node) -> str:
    module = matcher.module.get_submodule(str(after.target))
    what = type(module).__name__
    following = after.next
    between = following.op == "call_module" and isinstance(
        matcher.forms[following], (Activation, Refused)
    )
    if between and not _is_linear(module):
        return f"{what} between it and the activation"
    return f"followed by {what}, no activation that a kernel has"


def _graph(sequential: nn.Sequential) -> GraphModule:
    """A graph that calls the Sequential's children in their order."""
    graph = Graph()
    node = graph.placeholder("x")
    for name, _ in sequential.named_children():
        node = graph.call_module(name, (node,))
    graph.output(node)
    return GraphModule(sequential, graph)


def _fused(linear: Any, match: Match) -> LinearAct | LinearGELU:
    if match.kernel == "linear_gelu":
        return LinearGELU.sharing(linear, **match.keywords)
    return LinearAct.sharing(linear, act=match.act)


def _is_linear(module: nn.Module) -> bool:
    """Whether the module is a linear layer, quantised or not."""
    return isinstance(module, nn.Linear) or hasattr(module, "_packed_params")


def _why_unseen(module: nn.Module) -> str:
    if type(module) in (LinearAct, LinearGELU):
        return "fused already"
    reason = forms.unfit_linear(module)
    return reason or "in no Sequential and no small block: what follows it is not seen; see fuse"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
