"""Plans a graph, and rewrites it: which nodes become which kernel, which do not, and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from triton_kernels._fusion import Attribute, Match, Matrix, Product, Row, Rows, Transposed
from triton_kernels._precision import PRECISIONS
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.graph import canonical, capabilities, effects, forms, racing
from triton_kernels.graph.chains import Misfit
from triton_kernels.graph.matching import PASSES, Matcher


@dataclass(frozen=True)
class Options:
    """The options of a plan.

    Attributes:
        min_score: the least expected speed relative to what would run otherwise; 0 fuses all.
        passes: the passes that run, of "elementwise" and "epilogue" (products), in this order.
        rest: the backend of torch.compile for the rewritten graph, such as "eager" or "inductor".
        measure: whether to time products on the GPU whose scores are not certain.
        precision: of float32 products, also of those with nothing to fuse; None is torch's own, and
            leaves these.
    """

    min_score: float = capabilities.MIN_SCORE
    passes: Sequence[str] = PASSES
    rest: str = "eager"
    measure: bool = True
    precision: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.min_score, bool) or not isinstance(self.min_score, (int, float)):
            raise TypeError(f"option 'min_score' must be a number, but got {self.min_score!r}")
        unknown = set(self.passes) - set(PASSES)
        if isinstance(self.passes, str) or unknown:
            raise ValueError(
                f"option 'passes' must be a sequence of {PASSES}, but got {self.passes!r}"
            )
        if self.precision not in (None, *PRECISIONS):
            raise ValueError(
                f"option 'precision' must be one of {PRECISIONS} or None, but got "
                f"{self.precision!r}"
            )

    @property
    def active_passes(self) -> list[str]:
        """``passes`` without those that the environment turns off: TRITON_KERNELS_FUSE=0 turns off
        all, TRITON_KERNELS_FUSE_OFF=elementwise,… the named ones."""
        if os.environ.get("TRITON_KERNELS_FUSE") == "0":
            return []
        off = os.environ.get("TRITON_KERNELS_FUSE_OFF", "").replace(" ", "").split(",")
        return [name for name in PASSES if name in self.passes and name not in off]


@dataclass(frozen=True)
class Step:
    """One kernel that replaces ``nodes``. ``estimated``: whether its score is an estimate, not
    measured on such a GPU. ``precision``: that of the option, if it applies."""

    kernel: str
    nodes: tuple[str, ...]
    score: float
    act: str = "none"
    estimated: bool = False
    precision: str = ""

    def __str__(self) -> str:
        act = "" if self.act == "none" else f" (act {self.act})"
        act += f" in {self.precision}" if self.precision else ""
        score = f"{self.score:.2f}{', estimated' if self.estimated else ''}"
        return f"{' + '.join(self.nodes)} → {self.kernel}{act}, score {score}"


@dataclass(frozen=True)
class Left:
    """A node that is not replaced although a kernel might compute it, and the reason."""

    node: str
    reason: str
    score: float | None = None

    def __str__(self) -> str:
        return f"left: {self.node}: {self.reason}"


@dataclass
class Plan:
    """The plan of one graph. It prints one line per step, then one per node left."""

    steps: list[Step] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.steps, *self.left])) or "nothing to fuse"

    __repr__ = __str__


def rewrite(module: GraphModule, options: Options, casts: effects.Casts | None = None) -> Plan:
    """Fuse the graph in place as far as the options allow, and return the plan.

    Shapes and dtypes come from the nodes' meta["example_value"]. Inner graphs, of checkpoints and
    branches, are also rewritten; for these ``casts`` is the state of autocast around the graph.
    """
    canonical.drop_idle(module)
    plans = _rewrite_inside(module, options, casts)
    rewriting = _Rewriting(module, options, casts)
    for name in options.active_passes:
        rewriting.run(name)
    module.graph.lint()
    module.recompile()
    plans.insert(0, rewriting.plan())
    steps = [step for plan in plans for step in plan.steps]
    return Plan(steps, [line for plan in plans for line in plan.left])


def _rewrite_inside(
    module: GraphModule, options: Options, casts: effects.Casts | None
) -> list[Plan]:
    plans, seen = [], set()
    around = effects.autocast(module.graph, casts)
    for node in module.graph.nodes:
        for graph in effects.subgraphs(node, module):
            if graph not in seen:
                seen.add(graph)
                plans.append(rewrite(graph, options, around[node]))
    return plans


def judge(matcher: Matcher, match: Match, options: Options) -> capabilities.Verdict:
    """Whether the match's kernel is taken with these options."""
    problem, least = matcher.problem(match, options.rest), options.min_score
    expected = capabilities.judge(problem, least)
    if not options.measure or not racing.doubtful(expected, least, racing.trained(match)):
        return expected
    if racing.hopeless(match, problem):
        score = min(1.0, expected.score or 0.0)
        return capabilities.verdict(problem, score, capabilities.ESTIMATED, least)
    speed = racing.speed(match, problem)
    if speed is None:
        return expected
    return capabilities.verdict(problem, speed, capabilities.TIMED, least)


class _Rewriting:
    def __init__(self, module: GraphModule, options: Options, casts: effects.Casts | None) -> None:
        self.module, self.options, self._casts = module, options, casts
        # Node → the nodes of the original graph that it replaces, by their names in plans.
        labels = {node: label(node) for node in module.graph.nodes}
        often = Counter(labels.values())
        self._names: dict[Node, tuple[str, ...]] = {  # a shared module is called more than once
            n: (name if often[name] == 1 else f"{name} ({n.name})",) for n, name in labels.items()
        }
        self._order = [names[0] for names in self._names.values()]
        self._steps: dict[Node, Step] = {}
        self._left: dict[str, Left] = {}

    def run(self, name: str) -> None:
        """Run one pass, from the last node to the first, so that the longest match comes first."""
        matcher = Matcher(self.module, casts=self._casts, precision=self.options.precision)
        gone: set[Node] = set()
        for root in reversed(list(self.module.graph.nodes)):
            if root in gone or root.op == "output":
                continue
            if name == "elementwise" and (kept := self._for_product(matcher, root)):
                gone.update(kept)
                continue
            try:
                match = matcher.find(name, root)
            except Misfit as misfit:
                self._leave(root, str(misfit))
                continue
            if match is None:
                continue
            verdict = judge(matcher, match, self.options)
            if verdict.refusal:
                self._leave(root, verdict.refusal, verdict.score)
            else:
                self._apply(match, verdict)
                gone.update(match.nodes)

    def _for_product(self, matcher: Matcher, root: Node) -> tuple[Node, ...]:
        """The nodes that the next pass will fuse with a product to one kernel that ends with this
        node; empty if there are none."""
        if "epilogue" not in self.options.active_passes:
            return ()
        match = matcher.composed(root)
        return () if match is None or judge(matcher, match, self.options).refusal else match.nodes

    def plan(self) -> Plan:
        order = list(self.module.graph.nodes)
        steps = sorted(self._steps, key=order.index)
        fused = {name for step in self._steps.values() for name in step.nodes}
        left = {name: line for name, line in self._left.items() if name not in fused}
        for node in order:
            if isinstance(forms.read(node, self.module), Product) and not self._spoken(node, left):
                name = self._names[node][-1]
                left[name] = Left(name, f"nothing to fuse with it{self._followers(node)}")
        lines = sorted(left.values(), key=lambda line: self._order.index(line.node))
        return Plan([self._steps[node] for node in steps], lines)

    def _spoken(self, node: Node, left: Iterable[str]) -> bool:
        """Whether the node, or a node that uses it, is already listed as left."""
        names = {name for n in (node, *node.users) for name in self._names.get(n, ())}
        return not names.isdisjoint(left)

    def _followers(self, node: Node) -> str:
        users = [user for user in node.users if user.op != "output"]
        names = [name for user in users for name in self._first_names(user)]
        return f", used by {', '.join(names)}" if names else ""

    def _first_names(self, node: Node) -> list[str]:
        """The node's name, or the names of its users if it was inserted for a call's argument."""
        if node in self._names:
            return [*self._names[node][:1]]
        return [name for user in node.users for name in self._first_names(user)]

    def _leave(self, root: Node, reason: str, score: float | None = None) -> None:
        name = self._names[root][-1]
        self._left.setdefault(name, Left(name, reason, score))

    def _apply(self, match: Match, verdict: capabilities.Verdict) -> None:
        *inner, root = match.nodes
        graph = self.module.graph
        with graph.inserting_before(root):
            arguments = tuple(self._inserted(argument) for argument in match.arguments)
            new = call = graph.call_function(match.function, arguments, match.keywords)
            new.meta.update(root.meta)
            if match.views:
                new.meta["example_value"] = forms.tensor_of(match.nodes[0])
            for view in match.views:
                new = graph.create_node(view.op, view.target, (new, *view.args[1:]), view.kwargs)
                new.meta.update(view.meta)
                self._names[new] = self._names[view]
        root.replace_all_uses_with(new)
        for node in (root, *reversed(inner)):
            graph.erase_node(node)
        names = tuple(name for node in match.nodes for name in self._names[node])
        self._names[call] = names
        for node in match.nodes:
            self._steps.pop(node, None)
        estimated = verdict.source == capabilities.ESTIMATED
        act = ACTIVATIONS[match.act].written or match.act
        precision = match.keywords.get("precision", "")
        score = verdict.score or 0.0
        self._steps[call] = Step(match.kernel, names, score, act, estimated, precision)

    def _inserted(self, argument: Any) -> Any:
        """Insert the nodes that make an argument of the call, and return it."""
        graph = self.module.graph
        if isinstance(argument, Transposed):
            matrix = self._inserted(argument.operand)
            return graph.call_method("t", (matrix,))
        if isinstance(argument, Matrix):
            return graph.call_method("squeeze", (self._inserted(argument.operand), 0))
        if isinstance(argument, Row):
            row = self._inserted(argument.operand)
            return graph.call_method("flatten", (row,))
        if isinstance(argument, Rows):
            rows = self._inserted(argument.operand)
            return graph.call_method("flatten", (rows, 0, -2))
        if isinstance(argument, Attribute):
            node = graph.get_attr(argument.target)
            node.meta["example_value"] = argument.tensor
            return node
        if isinstance(argument, tuple):
            return tuple(self._inserted(each) for each in argument)
        return argument


def label(node: Node) -> str:
    """A node's name in plans: the module's path, or the node's own name with its function."""
    path = str(node.target) if node.op == "call_module" else forms.module_path(node)
    if path:
        return path
    what = node.target if node.op == "call_method" else getattr(node.target, "__name__", node.name)
    what = str(what).partition(".")[0]  # without an operator's overload
    return node.name if what in node.name else f"{node.name} ({what})"
