"""The host time of a call: until it returns, with launches queued, compared with torch's.

A round calls each provider many times, the providers in a random order, and waits for the GPU in
between. A sample is a round's time divided by the number of calls. Tensors are small, so that the
host never waits for the GPU. A call has a shape that was seen before, a new shape every time, or is
a forward and backward pass.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import triton_kernels
from compare.cases import Arguments, Case
from compare.specs import Spec
from compare.timing import bench
from compare.timing.engine import Candidate
from compare.timing.statistics import Samples, ratio

SEEN, NEW, TRAINING = "seen shape", "new shape", "forward and backward"
TORCH = "eager"
PROVIDERS = ("triton", "cuda", TORCH)
TRIED = 3  # calls of each provider before the timing
MODEL = "nn.MLP"  # its training step is timed, too
STEP = 16  # the last dimension of new shapes grows by it from row to row
LAYERS = (128, 256, 512)  # the model's rows, features and hidden features

Function = Callable[..., Any]


@dataclass(frozen=True)
class Effort:
    """The effort for a row: rounds, and calls per round. There are fewer calls with new shapes,
    whose tensors are all made beforehand, and in training."""

    rounds: int = 15
    calls: int = 150
    steps: int = 40
    new: int = 50


@dataclass
class HostTime:
    """One row: microseconds per call of each provider.

    Attributes:
        op, dtype, shape, options: of the case, or of a model's training step.
        what: seen shape, new shape, or forward and backward.
        times: provider → samples.
        problems: provider → why there are no times.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    options: dict[str, Any]
    what: str
    times: dict[str, Samples] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def against(self, provider: str) -> tuple[float, float, float] | None:
        """The multiple of torch's time, with a 95 % interval; None if a time is missing."""
        if provider not in self.times or TORCH not in self.times or provider == TORCH:
            return None
        return ratio(self.times[provider], self.times[TORCH])

    def to_dict(self) -> dict[str, Any]:
        """The row as the JSON file has it."""
        calls = []
        for name in dict.fromkeys((*self.times, *self.problems)):
            call: dict[str, Any] = {"provider": name, "problem": self.problems.get(name, "")}
            if (samples := self.times.get(name)) is not None:
                call["microseconds"] = samples.median
                call["low"], call["high"] = samples.percentile(20), samples.percentile(80)
                call["times_torch"] = self.against(name)
            calls.append(call)
        return {
            "op": self.op,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "options": self.options,
            "what": self.what,
            "calls": calls,
        }


class Job(NamedTuple):
    """A row to measure: a spec's case or, without a spec, the model. ``number`` counts the rows of
    an op; rows with different numbers share no new shape."""

    spec: Spec | None
    case: Case
    what: str
    number: int = 0


def jobs(specs: Sequence[Spec], dtypes: Sequence[str], model: bool) -> list[Job]:
    """The rows of these ops, and of the model's training step."""
    rows = [
        Job(spec, case, what, number)
        for spec in specs
        for number, case in enumerate(
            case for dtype in dtypes if dtype in spec.dtypes for case in spec.small(dtype)
        )
        for what in (SEEN, NEW, TRAINING)
    ]
    if model:
        rows += [Job(None, Case(MODEL, dtype, LAYERS), TRAINING) for dtype in dtypes]
    return rows


def measure(
    job: Job,
    names: Sequence[str] = PROVIDERS,
    effort: Effort = Effort(),
    device: str = "cuda",
    synchronize: Callable[[], None] = torch.cuda.synchronize,
) -> HostTime | None:
    """Time a row. None if we have no provider for it, for example for an op without a gradient.

    A provider that raises, or whose result is wrong, has no times.
    """
    spec, case, what, _ = job
    row = HostTime(case.op, case.dtype, case.shape, dict(case.options), what)
    if spec is None:
        made = {name: each for name, each in _steps(case, device).items() if name in names}
    else:
        made = _functions(spec, case, names, what, device)
    if not set(made) - {TORCH}:
        return None
    row.problems = _wrong(job, made, device)
    running = [name for name in made if name not in row.problems]
    samples = {name: Samples([], []) for name in running}
    many = {NEW: effort.new, TRAINING: effort.steps}.get(what, effort.calls)
    shuffled = random.Random(0)
    for number in range(-1, effort.rounds):  # round −1 is the warm-up
        sets = _arguments(job, (number + 1) * many, many, device)
        shuffled.shuffle(running)
        for name in running[:]:
            try:
                took = _round(made[name], sets, synchronize)
            except Exception as error:  # noqa: BLE001 - one may raise anything; the rest go on
                row.problems[name] = _words(error)
                running.remove(name)
                continue
            if number >= 0:
                samples[name].rounds.append(number)
                samples[name].microseconds.append(1e6 * took / many)
    row.times = {name: samples[name] for name in made if name in running}
    return row


def _round(function: Function, sets: list[Arguments], synchronize: Callable[[], None]) -> float:
    """The host seconds of these calls."""
    synchronize()
    collecting = gc.isenabled()
    gc.disable()  # a collection within the calls would count for this provider
    try:
        begin = time.perf_counter()
        for args, kwargs in sets:
            function(*args, **kwargs)
        return time.perf_counter() - begin
    finally:
        if collecting:
            gc.enable()
        synchronize()


def _words(error: Exception) -> str:
    return " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _functions(
    spec: Spec, case: Case, names: Sequence[str], what: str, device: str
) -> dict[str, Function]:
    """The providers of a case; for a backward pass, those that have one."""
    functions: dict[str, Function] = {}
    for name in names:
        if name == TORCH:
            function: Function | None = spec.eager if spec.has_eager else None
        else:
            function = getattr(spec, name) if spec.takes(name, None, case) else None
        if function is None:
            continue
        function = spec.called(case, function)
        if what != TRAINING:
            functions[name] = function
        elif _differentiates(function, bench.inputs(spec, case, 0, device)):
            functions[name] = _there_and_back(function)
    return functions


def _differentiates(function: Function, arguments: Arguments) -> bool:
    """Whether the result has a gradient if the inputs require one."""
    args, kwargs = arguments
    try:
        result = function(*_leaves(args), **kwargs)
    except Exception:  # noqa: BLE001 - each refuses in its own way
        return False
    return isinstance(result, Tensor) and result.requires_grad


def _leaves(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with tensors that require gradients."""

    def leaf(each: Any) -> Any:
        floating = isinstance(each, Tensor) and each.is_floating_point()
        return each.detach().requires_grad_() if floating else each

    return tuple(map(leaf, args))


def _there_and_back(function: Function) -> Function:
    """A call and its backward pass, with fresh gradients of the inputs. The result's gradient is
    the same in all calls, and has memory of its own, as in training."""
    given: dict[torch.dtype, Tensor] = {}

    def both(*args: Any, **kwargs: Any) -> Tensor:
        for each in args:
            if isinstance(each, Tensor):
                each.grad = None
        result: Tensor = function(*args, **kwargs)
        if result.dtype not in given:
            pattern = torch.arange(result.numel(), device=result.device) % 7 - 3
            given[result.dtype] = pattern.view(result.shape).to(result.dtype)
        result.backward(given[result.dtype])
        return result

    return both


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _steps(case: Case, device: str) -> dict[str, Function]:
    """A training step of a small MLP: with this project's layers, and with torch's on the same
    parameters. The learning rate is 0, so all steps are equal."""
    rows, features, hidden = case.shape
    placed: dict[str, Any] = {"device": device, "dtype": case.torch_dtype}
    torch.manual_seed(0)
    ours = triton_kernels.nn.MLP(features, hidden, features, **placed)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(features, hidden, **placed),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, features, **placed),
    )
    layers = (("0", ours.fc1), ("2", ours.fc2))
    theirs.load_state_dict(
        {f"{key}.{name}": t for key, layer in layers for name, t in layer.state_dict().items()}
    )
    x = torch.randn(rows, features, **placed)

    def step(model: torch.nn.Module) -> Function:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def once() -> list[Tensor | None]:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            return [loss, *(parameter.grad for parameter in model.parameters())]

        return once

    return {"triton": step(ours), TORCH: step(theirs)}


def _arguments(job: Job, first: int, count: int, device: str, seed: int = 0) -> list[Arguments]:
    """The arguments of ``count`` calls: the same for each, or shapes that no call had before."""
    spec, case, what, _ = job
    if spec is None:
        return [((), {})] * count
    if what == NEW:
        rows, *others, last = case.shape
        others.append(last + STEP * job.number)
        shapes = ((rows + 1 + first + i, *others) for i in range(count))
        return [bench.inputs(spec, replace(case, shape=shape), seed, device) for shape in shapes]
    args, kwargs = bench.inputs(spec, case, seed, device)
    return [(_leaves(args) if what == TRAINING else args, kwargs)] * count


def _wrong(job: Job, made: dict[str, Function], device: str) -> dict[str, str]:
    """Providers with wrong results, and what is wrong. Several calls are judged, because a repeated
    call may take another path; of a backward pass, the gradients are compared with torch's in
    float64. (Its own in 16 bits were off by 3e-2 in unaligned products, presumably because cuBLAS
    adds parts in 16 bits.) Those of the model are compared with torch's as they are."""
    problems: dict[str, str] = {}
    same = job if job.what == TRAINING else job._replace(what=SEEN)
    for seed in range(1, 1 + TRIED):
        expected: list[Tensor] = []
        for name in sorted(made, key=lambda name: name != TORCH):
            ((args, kwargs),) = _arguments(same, 0, 1, device, seed)
            try:
                result = made[name](*args, **kwargs)
                if job.what == TRAINING and name == TORCH and job.spec is not None:
                    wide = _leaves([t.double() if isinstance(t, Tensor) else t for t in args])
                    expected = _with_gradients(made[name](*wide, **kwargs), wide)
                    continue
            except Exception as error:  # noqa: BLE001 - one may raise anything; the rest go on
                problems[name] = _words(error)
                continue
            if job.what != TRAINING:
                assert job.spec is not None
                check = bench.Checker(job.spec, job.case)
                wrong = check(Candidate(name, made[name]), result, (args, kwargs))
            else:
                results = [*result] if job.spec is None else _with_gradients(result, args)
                results = [t.detach().clone() for t in results]
                expected = expected or results
                worst = max(map(bench.off_by_norm, results, expected))
                limit = bench.TOLERANCE[job.case.dtype]
                wrong = f"wrong: off by {worst:.1e} of torch's norm" if worst > limit else ""
            if wrong:
                problems[name] = wrong
    return problems


def _with_gradients(result: Tensor, args: Sequence[Any]) -> list[Tensor]:
    return [result.detach(), *[_gradient(each) for each in args if isinstance(each, Tensor)]]
