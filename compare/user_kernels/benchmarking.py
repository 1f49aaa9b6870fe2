"""bench: what ``python -m compare bench`` does, for your own functions and inputs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from compare.cases import dtype_name, tensors_of
from compare.checking.implementations import unavailable
from compare.specs import Spec
from compare.timing import baseline as baselines
from compare.timing import bench as benchmarks
from compare.timing import providers, saved, tables
from compare.timing.bench import Mode, Work
from compare.timing.engine import Budget
from compare.timing.results import CaseResult
from compare.timing.session import Session
from compare.user_kernels.given import Given


class Benchmark:
    """The result of :func:`bench`: true if nothing failed and nothing became slower; printable.

    Attributes:
        cases: the measurements of every case, as ``bench --json`` writes them.
        slower: what became slower than in the baseline, in words.
    """

    def __init__(self, results: Sequence[CaseResult], slower: Sequence[str]) -> None:
        self._results, self.slower = list(results), list(slower)
        self.cases = [result.to_dict() for result in results]

    def __bool__(self) -> bool:
        failed = any(entry.failed for result in self._results for entry in result.entries)
        return not failed and not self.slower

    def __str__(self) -> str:
        out = Console(file=io.StringIO(), width=120)
        if any(result.sweep for result in self._results):
            out.print(tables.sweep(self._results, 120))
        else:
            for result in self._results:
                out.print(tables.block(result))
        for line in self.slower:
            out.print(line, markup=False)
        assert isinstance(out.file, io.StringIO)
        return out.file.getvalue().rstrip()

    def median(self, provider: str, case: int = 0) -> float:
        """A provider's median time in microseconds.

        Raises:
            ValueError: it has no time; the text is the reason.
        """
        for entry in self._results[case].entries:
            if entry.provider == provider:
                if entry.problem:
                    raise ValueError(f"{provider}: {entry.problem}")
                return entry.timing.gpu.median
        raise ValueError(f"{provider} was not timed")


def bench(
    spec: Spec | None = None,
    *,
    triton: Callable[..., Tensor] | None = None,
    cuda: Callable[..., Tensor] | None = None,
    peers: Mapping[str, Callable[..., Tensor]] | None = None,
    inputs: Sequence[tuple[Any, ...]] = (),
    oracle: Callable[..., Tensor] | None = None,
    max_ulps: float = 1.0,
    bound: Callable[..., Tensor | float] | None = None,
    flops: int = 0,
    bytes: int | None = None,
    name: str = "kernels",
    dtypes: Sequence[str | torch.dtype] = (),
    shapes: Sequence[tuple[int, ...]] = (),
    sweep: bool = False,
    warm: bool = False,
    graph: bool = False,
    samples: int = 60,
    seconds: float = 1.0,
    json: Path | str | None = None,
    baseline: Path | str | None = None,
    threshold: float = 5.0,
) -> Benchmark:
    r"""Time functions against each other on a GPU, with a cold cache. Results are checked first.

    Args:
        spec: what to time, with its own cases; replaces the arguments from triton to ``bytes``.
        triton, cuda: your functions; one is enough.
        peers: name → function to compare with.
        inputs: a list of argument tuples; every entry is a case.
        oracle: takes the same arguments; returns the right result. By default the first peer, and
            results are compared by the norm of the error.
        max_ulps, bound: the tolerance around the oracle's result, as in
            :func:`compare.cross_check`.
        flops, bytes: of a call, for rates and the per cent of the limit. By default every input is
            read once, and a result of the first input's size is written.
        name: of the functions, in tables and in the file.
        dtypes, shapes, sweep: for a spec, only these dtypes; these shapes, or a range of sizes,
            instead of its own.
        warm, graph, samples, seconds: as the options of ``python -m compare bench``.
        json: a file for all measurements.
        baseline, threshold: such a file; a slowdown of more than threshold per cent is reported.

    Returns:
        A :class:`Benchmark`.

    Raises:
        RuntimeError: there is no GPU, or none of its memory is free.
        TypeError, ValueError: wrong arguments; the baseline is not such a file.

    Example:
        >>> print(bench(triton=f, peers={"eager": torch.sin}, inputs=[(x,)]))
    """
    functions = {"triton": triton, "cuda": cuda}
    if spec is None:
        spec = _given(functions, peers, inputs, oracle, max_ulps, bound, flops, bytes, name)
        work = [Work(spec, spec.case(number)) for number in range(len(inputs))]
    elif any(functions.values()) or peers or inputs or oracle:
        raise TypeError("bench(): a spec has functions, inputs and an oracle of its own")
    elif not isinstance(spec, Spec):
        kind = type(spec).__name__
        raise TypeError(f"bench(): argument 'spec' must be a compare.Spec, but got {kind}")
    else:
        sweeps: list[str] | None = [] if sweep else None
        work = list(
            benchmarks.work([spec], [dtype_name(each) for each in dtypes], list(shapes), sweeps)
        )
        if not work:
            raise ValueError(f"bench(): {spec.name} has no such cases to time")
    mode, file = Mode(cold=not warm, graph=graph), None if json is None else Path(json)
    before = None if baseline is None else baselines.read(Path(baseline), mode)
    if reason := unavailable().get("triton-compiled"):
        raise RuntimeError(f"bench(): nothing to time: {reason}")
    budget = Budget(samples, seconds)
    session = Session(saved.Saved(file, saved.head(mode, budget, [], False)), mode, budget)
    results = [session.measure(each, _names(each)) for each in work]
    session.end("")
    now = [result.to_dict() for result in results]
    slower = baselines.regressions(now, before, threshold / 100) if before else []
    return Benchmark(results, slower)


def _names(work: Work) -> list[str]:
    return providers.names(work.spec, work.case, sweep=bool(work.sweep))


def _given(
    functions: Mapping[str, Callable[..., Tensor] | None],
    peers: Mapping[str, Callable[..., Tensor]] | None,
    inputs: Sequence[tuple[Any, ...]],
    oracle: Callable[..., Tensor] | None,
    max_ulps: float,
    bound: Callable[..., Tensor | float] | None,
    flops: int,
    moved: int | None,
    name: str,
) -> Given:
    """The spec of a call, after a check of its arguments."""
    if not any(functions.values()):
        raise TypeError("bench(): needs a spec, or 'triton' or 'cuda': a function to time")
    if isinstance(inputs, Tensor) or not all(isinstance(each, tuple) for each in inputs):
        raise TypeError("bench(): argument 'inputs' must be a list of argument tuples")
    if not inputs or not all(tensors_of((each, {})) for each in inputs):
        raise ValueError("bench(): argument 'inputs' needs tuples with tensors: nothing to time")
    if oracle is None and not peers:
        raise ValueError("bench(): give an oracle, or a peer to compare the results with")
    own = {**functions, "peers": peers}
    return Given(name, inputs, oracle, max_ulps, bound, flops, moved, **own)
