"""The backend "triton_kernels" of torch.compile, and explain.

torch.compile loads this file through the entry point in pyproject.toml when the name is first used.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from triton_kernels.graph import capabilities, logs
from triton_kernels.graph.checkpoints import call_checkpoints
from triton_kernels.graph.matching import PASSES
from triton_kernels.graph.planning import Options, Plan, rewrite

NAME = "triton_kernels"


def backend(
    module: GraphModule,
    inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend for torch.compile. It fuses the graph, and another backend compiles the result.

    Args:
        module, inputs: the arguments that torch.compile passes to a backend.
        options: ``torch.compile(options=...)``: "rest", the backend that compiles the rewritten
            graph, "eager" by default; "min_score", "passes", "measure" and "precision" as in
            :func:`triton_kernels.fuse`.
            With "inductor" for the rest also "mode" and Inductor's own options.
        mode: ``torch.compile(mode=...)``: Inductor compiles the rest, in this mode.

    Raises:
        TypeError, ValueError, RuntimeError: an unknown option or mode, or a wrong value.
    """
    from torch._dynamo import lookup_backend

    chosen, for_rest = _options(options, mode)
    logs.note(rewrite(module, chosen), "torch.compile")
    if chosen.rest == "eager":
        call_checkpoints(module)
    if for_rest:
        from torch._inductor.compile_fx import compile_fx

        compiled: Any = compile_fx(module, list(inputs), config_patches=for_rest)
        return compiled  # type: ignore[no-any-return]
    return lookup_backend(chosen.rest)(module, list(inputs))  # type: ignore[arg-type]


def register() -> None:
    """Make ``torch.compile(..., backend="triton_kernels")`` work if this package is on the path
    without being installed. If it is installed, torch finds the backend without this."""
    if NAME not in torch.compiler.list_backends():
        from torch._dynamo import register_backend

        register_backend(backend, name=NAME)


def _options(
    given: Mapping[str, Any] | None, mode: str | None = None
) -> tuple[Options, dict[str, Any]]:
    """The options of this package, and those for Inductor if Inductor compiles the rest."""
    known = [each.name for each in fields(Options)]
    ours = {name: value for name, value in (given or {}).items() if name in known}
    others = {name: value for name, value in (given or {}).items() if name not in known}
    mode = others.pop("mode", mode)
    options = Options(**({} if mode is None else {"rest": "inductor"}) | ours)
    if options.rest == "inductor":
        return options, _for_inductor(mode, others)
    if mode is not None:
        raise ValueError(
            f"backend triton_kernels: a mode is Inductor's, but option 'rest' is {options.rest!r}"
        )
    if others:
        raise ValueError(
            f"backend triton_kernels: unknown option {min(others)!r}; there are {known}, "
            "and Inductor's with rest='inductor'"
        )
    if options.rest not in torch.compiler.list_backends(exclude_tags=()) or options.rest == NAME:
        raise ValueError(f"backend triton_kernels: option 'rest': no backend {options.rest!r}")
    return options, {}


def _for_inductor(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a mode and the given ones, by their names in Inductor's configuration."""
    if mode is None and not options:
        return {}
    import torch._inductor

    named = {name.replace("-", "_"): value for name, value in options.items()}
    unknown = sorted(named.keys() - set(torch._inductor.list_options()))
    if unknown:
        ours = [each.name for each in fields(Options)]
        raise ValueError(
            f"backend triton_kernels: unknown option {unknown[0]!r}; there are {ours}, 'mode', and "
            "those of torch._inductor.list_options()"
        )
    return {**torch._inductor.list_mode_options(mode or "default"), **named}


@dataclass
class Explanation:
    """The result of :func:`explain`: the plan of each graph that torch.compile made, and the
    rewritten graphs. It prints as the plans."""

    plans: list[Plan]
    graphs: list[GraphModule] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        if len(self.plans) == 1:
            return str(self.plans[0])
        graphs = "\n".join(f"graph {i}\n{plan}" for i, plan in enumerate(self.plans))
        return graphs or "torch.compile made no graph of it"

    __repr__ = __str__


def explain(
    module: nn.Module | Callable[..., Any],
    inputs: Tensor | tuple[Any, ...] = (),
    *,
    min_score: float = capabilities.MIN_SCORE,
    passes: Sequence[str] = PASSES,
    rest: str = "eager",
    measure: bool = True,
    precision: str | None = None,
    **keywords: Any,
) -> Explanation:
    """What ``torch.compile(module, backend="triton_kernels")`` does with these inputs, and why.

    The module is called once, without fusing. Nodes have torch.compile's names.

    Args:
        module: a module or function.
        inputs: its only tensor, or the tuple of its arguments.
        min_score, passes, rest, measure, precision: as in the backend's options.
        keywords: its keyword arguments: ``explain(model, **tokens)``.

    Returns:
        The plans. They print one line per kernel, with its score, and one per refusal.

    Raises:
        TypeError, ValueError: a wrong option.
        RuntimeError: the module breaks into several graphs, and torch.compile has compiled one of
            them too often in this process.
    """
    from torch._dynamo import config
    from torch._dynamo.exc import FailOnRecompileLimitHit

    given = {"min_score": min_score, "passes": passes, "rest": rest, "measure": measure}
    options, _ = _options({**given, "precision": precision})
    plans: list[Plan] = []
    graphs: list[GraphModule] = []

    def collect(graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(_copy(graph))
        plans.append(rewrite(graphs[-1], options))
        return graph.forward

    arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    try:
        with config.patch(fail_on_recompile_limit_hit=True):
            torch.compile(_unseen(module), backend=collect)(*arguments, **keywords)
    except FailOnRecompileLimitHit as error:
        raise RuntimeError(
            "explain(): torch.compile compiles no part of a model more than "
            f"{config.recompile_limit} times; call torch._dynamo.reset() first"
        ) from error
    return Explanation(plans, graphs)


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function called from new code. torch.compile compiles the same code only eight times:
    otherwise a ninth explain would find nothing, and a later torch.compile of the model would leave
    it eager. Code after a graph break is not new, so its compilations still count."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), globals(), closure=call.__closure__)


def _copy(module: GraphModule) -> GraphModule:
    """A copy of the graph, and of the graphs inside it, over the same tensors. Nodes keep their
    meta."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copy = GraphModule(module, graph)
    copy.meta.update(module.meta)
    for name, inner in list(copy.named_children()):
        if isinstance(inner, GraphModule):
            setattr(copy, name, _copy(inner))
    return copy
