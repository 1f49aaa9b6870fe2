"""Shrinks a failing case while it still fails, and writes a file that reproduces it.

Greedy delta debugging: each coordinate of the case moves towards its simplest value, in large steps
first, until no step of any coordinate fails like the case. Failures are compared by their
:class:`~compare.debugging.signatures.Signature`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from compare import numerics
from compare.cases import Case
from compare.checking.progress import Bar
from compare.debugging.findings.findings import Findings
from compare.debugging.investigation import investigate
from compare.debugging.shrink.reproduction import check_output, reproduce
from compare.debugging.shrink.shrunk import Reproduction, Shrunk
from compare.debugging.shrink.signatures import signatures
from compare.debugging.subjects import Op, Subject
from compare.specs import Spec

RUNS = 400  # the most interpreted runs
SIMPLE = ("float32", "float16", "bfloat16", "float64", "int32")  # dtypes, the simplest first

State = TypeVar("State")
Move = Callable[[State], Iterator[State]]


class _Enough(Exception):
    """The limit of runs is reached."""


class NothingToShrink(ValueError):
    """The case does not fail, or not in the interpreter."""


class Search(Generic[State]):
    """Searches the smallest state that fails like the first one.

    Attributes:
        best: the smallest so far.
        findings: of the best.
        runs: the number of runs after the first.
    """

    def __init__(self, first: State, subject: Callable[[State], Subject], sanitize: bool) -> None:
        self.best, self.runs, self.stopped = first, 0, ""
        self._subject, self._seen = subject, dict[str, Findings | None]()
        self.findings = findings = investigate(subject(first), sanitize=sanitize, replay=False)
        if findings.partial:
            raise KeyboardInterrupt
        wanted = signatures(findings)
        if not wanted:
            passes = "the case passes in the interpreter"
            if findings.less_accurate:
                passes = "every element keeps its bound in the interpreter"
            raise NothingToShrink(f"nothing to shrink: {passes}")
        self._wanted = wanted[0]
        self._sanitize = sanitize and self._wanted.kind == "hazard"

    def fails(self, key: str, state: State, subject: Callable[[], Subject]) -> bool:
        """Whether a state fails like the first one; if so it becomes the best."""
        if key not in self._seen:
            if self.runs >= RUNS:
                raise _Enough
            self.runs += 1
            self._seen[key] = self._run(subject)
        findings = self._seen[key]
        if findings is None:
            return False
        self.best, self.findings = state, findings
        return True

    def _run(self, subject: Callable[[], Subject]) -> Findings | None:
        """The findings if they are the same failure, else None."""
        try:
            findings = investigate(subject(), sanitize=self._sanitize, replay=False)
        except Exception:  # noqa: BLE001 - this case does not exist
            return None
        if findings.partial:
            raise KeyboardInterrupt
        return findings if any(self._wanted.same(each) for each in signatures(findings)) else None

    def descend(self, moves: list[Move[State]], bar: Bar, text: Callable[[State], str]) -> None:
        """Move towards simpler states until none of them fails."""

        def attempt(state: State) -> bool:
            bar.update(self.runs, RUNS)
            return self.fails(text(state), state, lambda: self._subject(state))

        changed = True
        while changed:
            changed = False
            for move in moves:
                while any(attempt(state) for state in move(self.best)):
                    changed = True
                    bar.describe(f"shrinking: {text(self.best)}")

    def until_stopped(self, work: Callable[[Bar], None]) -> None:
        """Do the work until the limit of runs or Ctrl-C ends it; the best so far stays."""
        try:
            with Bar("shrinking", "runs", "Ctrl-C keeps the best so far") as bar:
                work(bar)
        except KeyboardInterrupt:
            self.stopped = "Ctrl-C"
        except _Enough:
            self.stopped = f"the limit of {RUNS} runs"


def steps(n: int, least: int = 1) -> Iterator[int]:
    """Numbers below n: the least first, then halfway, and so on up to n − 1."""
    step = n - least
    while step > 0:
        yield n - step
        step //= 2


def finished(subject: Subject, shrunk: Shrunk, sanitize: bool, output: Path | None) -> Findings:
    """The findings of the small case, with its file."""
    findings = investigate(subject, sanitize=sanitize)
    findings.shrunk = shrunk
    if not findings.partial:
        try:
            findings.reproduction = reproduce(subject, findings, output)
        except KeyboardInterrupt:
            findings.reproduction = Reproduction("", "interrupted before the file was tried out")
    return findings


def simpler_dtypes(name: str) -> tuple[str, ...]:
    """The simpler dtypes to try instead of one."""
    at = SIMPLE.index(name) if name in SIMPLE else len(SIMPLE)
    return SIMPLE[:at]


# ---- a case of an op ----


def shrink_case(
    spec: Spec,
    case: Case,
    variant: str | None,
    function: Any,
    sanitize: bool = True,
    output: Path | None = None,
) -> Findings:
    """The findings of the smallest case that fails like ``case``, with ``shrunk`` and
    ``reproduction``.

    Raises:
        NothingToShrink: it does not fail.
        ValueError: ``output`` cannot be written.
    """
    if output is not None:
        check_output(output)

    def subject(state: Case) -> Subject:
        if not spec.takes("triton", variant, state):
            raise ValueError("the variant is not made for it")
        return Op(spec, state, variant, function)

    search = Search(case, subject, sanitize)
    moves = _case_moves(spec, search)
    search.until_stopped(lambda bar: search.descend(moves, bar, str))
    best = search.best
    impl = "triton-interpreted" + (f"/{variant}" if variant else "")
    shrunk = Shrunk(
        search.runs, _words(case), _words(best), best.command(impl, "debug"), search.stopped
    )
    return finished(subject(best), shrunk, sanitize, output)


def _words(case: Case) -> str:
    return str(case).removeprefix(f"{case.op} ")


def _case_moves(spec: Spec, search: Search[Case]) -> list[Move[Case]]:
    def sizes(case: Case) -> Iterator[Case]:
        for axis in sorted(range(len(case.shape)), key=lambda i: -case.shape[i]):
            for n in steps(case.shape[axis]):
                yield replace(case, shape=(*case.shape[:axis], n, *case.shape[axis + 1 :]))

    def dimensions(case: Case) -> Iterator[Case]:
        for axis, n in enumerate(case.shape):
            if n == 1 and len(case.shape) > 1:
                yield replace(case, shape=(*case.shape[:axis], *case.shape[axis + 1 :]))

    def dtypes(case: Case) -> Iterator[Case]:
        for name in () if case.values.startswith("0x") else simpler_dtypes(case.dtype):
            if name in spec.dtypes:
                yield replace(case, dtype=name)

    def layouts(case: Case) -> Iterator[Case]:
        for layout in spec.layouts[: spec.layouts.index(case.layout)]:
            yield replace(case, layout=layout)

    def options(case: Case) -> Iterator[Case]:
        defaults = dict(spec.default_options)
        if case.options != defaults:
            yield replace(case, options=defaults)
        for key in case.options:
            kept = {k: v for k, v in case.options.items() if k != key}
            if case.options[key] != defaults.get(key):
                yield replace(case, options={**defaults, **kept})

    def values(case: Case) -> Iterator[Case]:
        for kind in _simpler_values(spec, case, search.findings):
            yield replace(case, values=kind)

    def seeds(case: Case) -> Iterator[Case]:
        if case.seed:
            yield replace(case, seed=0)

    return [sizes, dtypes, layouts, options, values, seeds, dimensions]


def _simpler_values(spec: Spec, case: Case, findings: Findings) -> Iterator[str]:
    """Integers; for an elementwise op also the worst element's inputs in all places."""
    if case.values == "integers" or case.values.startswith("0x"):
        return
    yield "integers"
    if not spec.bounded and findings.wrong:
        index = findings.wrong[0].deviation.index
        operands = [t for t in spec.inputs(case)[0] if isinstance(t, Tensor)]
        wide = torch.broadcast_tensors(*operands)
        if len(index) == wide[0].dim():
            yield ":".join(numerics.hex_of(t[index]) for t in wide)
