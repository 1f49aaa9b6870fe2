"""A product's kernel and what would run without it, timed on the GPU at hand when a plan is made.

The models of times behind other scores are wrong by some per cent, so they cannot decide between
two that take about as long. Here the match's call and its own nodes run in turns, on random
operands of the same sizes and strides. If Inductor would compile the nodes, only the product is
timed, which is the library's in any case; the model adds the time of the rest. Of long calls the
worse of two ratios counts, on a cool and on a hot GPU. Where gradients are needed, both calls are
followed by their backward passes.

This takes 60 ms, or 260, for each product that differs, and memory for its operands. A float32
product of a dynamic number of rows, for which there is no model, is timed with the rows of the call
that the graph was traced with. Nothing else is timed without the sizes, nor under autocast, with
deterministic algorithms (each process may decide differently), or while a CUDA graph is captured;
nor products of float64, nor, where Gluon's kernels cannot run, those of float32 in "ieee".
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node, map_arg
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.errors import OutOfResources

from triton_kernels import _elementwise_kernels, _launch, _modes
from triton_kernels._fusion import Attribute, Match, Matrix, Problem, Row, Rows, Transposed
from triton_kernels._gpu import Gpu
from triton_kernels.gemm import rivals
from triton_kernels.gemm.configurations import HALVES
from triton_kernels.gemm.gluon import availability
from triton_kernels.graph import capabilities, forms

DOUBT = 1.3  # a model's score is believed if it differs by more than this factor from the least one
MOST = 0.25  # the fraction of free memory that operands and results may take
LONG = 200.0  # microseconds; calls that take longer are timed on a hot GPU, too
# Microseconds that a layer's four calls, with its backward pass, take longer on the host than
# Inductor's. Training steps are often bound by the host, so a kernel must save as much on the GPU.
CALLS = 75.0
KEPT = 4096  # the number of speeds that are kept

_speeds: dict[str, float | None] = {}


def doubtful(verdict: capabilities.Verdict, min_score: float, trained: bool = False) -> bool:
    """Whether a score that was not measured for this product could be on the wrong side of
    ``min_score``. The models know nothing of backward passes: with these it could in any case."""
    if verdict.score is None or not min_score:
        return False
    estimated = verdict.source in ("", capabilities.ESTIMATED)
    return trained or estimated or 1 / DOUBT < verdict.score / min_score < DOUBT


def trained(match: Match) -> bool:
    """Whether a product needs gradients."""
    value = forms.value(match.nodes[0])
    return value is not None and value.requires_grad


def hopeless(match: Match, problem: Problem) -> bool:
    """Whether a kernel cannot save what its calls take in a training step: all that Inductor's
    kernels do around the product takes less than half of that. Then nothing need be compiled.
    In another precision than torch's the product itself may take less."""
    if problem.other != "inductor" or not trained(match) or "precision" in match.keywords:
        return False
    if None in (problem.M, problem.N, problem.K):
        return False
    gpu = _launch.gpu(_elementwise_kernels.flat_kernel, problem.device)
    return _rest(problem, gpu, True)(0.0) < CALLS / 2


def speed(match: Match, problem: Problem) -> float | None:
    """The time of what would run otherwise, divided by the kernel's. None if they cannot be timed
    now."""
    problem = _of_traced_rows(match, problem)
    if not _possible(match, problem):
        return None
    nodes = [(node.target, map_arg((node.args, node.kwargs), _layout)) for node in match.nodes]
    call = match.function, _described(match.arguments), match.keywords
    key = repr((problem, call, nodes))
    if key not in _speeds:
        if len(_speeds) >= KEPT:
            _speeds.clear()
        _speeds[key] = _timed(match, problem)
    return _speeds[key]


def _of_traced_rows(match: Match, problem: Problem) -> Problem:
    """A float32 problem of a dynamic number of rows with those of the traced call."""
    product = forms.value(match.nodes[0])
    if problem.dtype != torch.float32 or problem.M is not None or not problem.N or product is None:
        return problem
    elements = _traced(product.numel())
    return problem if elements is None else problem._replace(M=elements // problem.N)


def _traced(n: int | torch.SymInt) -> int | None:
    """A size; of a symbol, what it was when the graph was traced. Reading a symbol's value would
    specialise the graph on it."""
    if isinstance(n, int):
        return n
    return int(n.node.hint) if n.node.has_hint() else None


def _possible(match: Match, problem: Problem) -> bool:
    if problem.device.type != "cuda" or not (problem.M and problem.N and problem.K):
        return False
    if match.autocast is not None or torch.are_deterministic_algorithms_enabled():
        return False
    if problem.dtype not in (*HALVES, torch.float32):
        return False
    if _modes.compiling() or _launch.interpreted(_elementwise_kernels.flat_kernel):
        return False
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return False
    if problem.dtype == torch.float32 and problem.precision == "ieee":
        gpu = _launch.gpu(_elementwise_kernels.flat_kernel, problem.device)
        if availability.expected(gpu, problem.device) == "tl":
            return False  # its multiply-adds are hardly ever faster, and take long to compile
    if any(node.op not in ("call_function", "call_method") for node in match.nodes):
        return False
    operands = {*match.operands(), *(a for node in match.nodes for a in node.all_input_nodes)}
    layouts = [_layout(each) for each in operands]
    if None in layouts:
        return False
    needed = sum(math.prod(shape) * dtype.itemsize for shape, _, dtype, _ in layouts)
    needed *= 2 if trained(match) else 1
    free, _ = torch.cuda.mem_get_info(problem.device)
    return needed <= MOST * free


def _layout(operand: Node | Attribute) -> Any:
    """Shape, strides, dtype, whether it requires grad; None if one is unknown."""
    value = forms.value(operand)
    if value is None:
        return None
    shape, strides = tuple(map(_traced, value.shape)), tuple(map(_traced, value.stride()))
    if None in (*shape, *strides):
        return None
    return shape, strides, value.dtype, value.requires_grad


def _described(argument: Any) -> Any:
    """An argument of a match's call, with layouts for operands."""
    if isinstance(argument, (Node, Attribute)):
        return _layout(argument)
    if isinstance(argument, tuple):
        return type(argument).__name__, *map(_described, argument)
    return argument


# ---- timing ----


def _timed(match: Match, problem: Problem) -> float | None:
    from triton_kernels.tuning.stopwatch import Stopwatch  # it imports this package's graph

    gpu = _launch.gpu(_elementwise_kernels.flat_kernel, problem.device)
    inductor = problem.other == "inductor"
    try:
        with torch.cuda.device(problem.device), _apart(), torch.set_grad_enabled(trained(match)):
            operands = _Operands(problem.device)
            without = operands.computing(match.nodes[:1] if inductor else match.nodes)
            calls = [operands.calling(match), without]
            if trained(match):
                calls = list(map(operands.and_backward, calls))
            watch = Stopwatch(gpu, problem.device)
            times = [watch.medians(calls)]
            if min(times[0]) > LONG:
                times.append(watch.in_a_row(calls, min(times[0])))
    except (RuntimeError, TypeError, ValueError, OutOfResources):
        return None  # out of memory, or the nodes do not run by themselves
    if inductor:
        rest = _rest(problem, gpu, trained(match))
        times = [[ours, rest(theirs)] for ours, theirs in times]
    ours, theirs = min(times, key=lambda pair: pair[1] / pair[0])
    if inductor and trained(match) and theirs - ours < CALLS:
        return min(1.0, theirs / ours)
    return theirs / ours


def _rest(problem: Problem, gpu: Gpu, backward: bool) -> Callable[[float], float]:
    """A function from the microseconds of a product alone to those with what Inductor's kernels do
    after it, and before its backward pass."""
    M, N, K = problem.M or 0, problem.N or 0, problem.K or 0
    layer = rivals.Layer(M, N, K, problem.dtype, problem.act)
    rates, _ = capabilities.rates_of(gpu, problem.device)
    before = 0.0
    if backward and problem.act not in (None, "none"):
        # The derivative reads the product. In a kernel for it alone, it also reads and writes a
        # gradient.
        tensors = 3 if problem.extra is None else 1
        before = tensors * problem.dtype.itemsize * M * N / rates.bandwidth
        before += rates.further if problem.extra is None else 0

    def time(product: float) -> float:
        alone = 1e-6 * product
        after = rivals.theirs(layer, gpu, rates, "inductor", problem.extra, alone)
        return 1e6 * (after + before)

    return time


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Inside, calls know nothing of the trace for which a plan is made."""
    with torch.autocast("cuda", enabled=False), _disable_current_modes():
        yield


class _Operands:
    """Random tensors in place of a match's operands, drawn apart from the user's numbers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator(device)
        self._tensors: dict[Node | Attribute, Tensor] = {}
        self._gradient: Tensor | None = None

    def of(self, operand: Node | Attribute) -> Tensor:
        """The tensor of an operand, always the same."""
        if operand not in self._tensors:
            shape, strides, dtype, grad = _layout(operand)
            last = sum((n - 1) * step for n, step in zip(shape, strides))
            memory = torch.empty(last + 1, dtype=dtype, device=self._device)
            if dtype.is_floating_point:
                memory.normal_(generator=self._generator)
            else:
                memory.zero_()
            tensor = memory.as_strided(shape, strides)
            self._tensors[operand] = tensor.requires_grad_(grad and torch.is_grad_enabled())
        return self._tensors[operand]

    def calling(self, match: Match) -> Callable[[], Any]:
        """The call of a match's kernel."""
        arguments = [self._argument(each) for each in match.arguments]
        return lambda: match.function(*arguments, **match.keywords)

    def and_backward(self, call: Callable[[], Tensor]) -> Callable[[], Any]:
        """A call and its backward pass, from a random gradient."""
        result = call().detach()
        if self._gradient is None:
            self._gradient = torch.empty_like(result).normal_(generator=self._generator)
        gradient = self._gradient.view(result.shape)

        def run() -> Any:
            leaves = [t for t in self._tensors.values() if t.requires_grad]
            return torch.autograd.grad(call(), leaves, gradient, allow_unused=True)

        return run

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, (Node, Attribute)):
            return self.of(argument)
        if isinstance(argument, Transposed):
            return self._argument(argument.operand).t()
        if isinstance(argument, Matrix):
            return self._argument(argument.operand).squeeze(0)
        if isinstance(argument, Row):
            return self._argument(argument.operand).flatten()
        if isinstance(argument, Rows):
            return self._argument(argument.operand).flatten(0, -2)
        return tuple(map(self._argument, argument)) if isinstance(argument, tuple) else argument

    def computing(self, nodes: Sequence[Node]) -> Callable[[], Any]:
        """The nodes, one after another, as eager runs them."""

        def run() -> Any:
            values: dict[Node, Any] = {}
            for node in nodes:
                args, kwargs = map_arg(
                    (node.args, node.kwargs), lambda n: values[n] if n in values else self.of(n)
                )
                target: Any = node.target
                if node.op == "call_method":
                    values[node] = getattr(args[0], target)(*args[1:], **kwargs)
                else:
                    values[node] = target(*args, **kwargs)
            return values[nodes[-1]]

        return run
