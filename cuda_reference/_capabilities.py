"""capabilities: the rungs of the ops, and the tensors that each rung takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cuda_reference import _cublaslt, _gemm, _rungs, _sum_rungs, ops
from cuda_reference._walks import DIMS

_LAYOUTS = {
    _rungs.ELEMENTS: f"of {DIMS} dimensions or fewer",
    _rungs.STRIDED: f"of {DIMS} dimensions or fewer",
    _rungs.TILE: f"of {DIMS} dimensions or fewer, some along another one than the result",
}
# Scores by drawn problems from 32 MB on for which "auto" takes a rung: geometric means of 9, 25 and
# 3 problems of elementwise ops, and by op of 8 and 9 sums.
_SCORES = {_rungs.PACKED: 1.00, _rungs.STRIDED: 0.80, _rungs.TILE: 0.80}
_SCORES_OF_SUMS = {"sum_to": 0.69, "act_backward": 0.58}
_MEASURED = "H200, 2026-11-27"
_REST = 'What no rung of an op takes, its plain kernel does: variant None, and "auto" there.'


@dataclass(frozen=True)
class Rung:
    """One rung of an op.

    Attributes:
        op, name: the op, and the name of the variant.
        dtypes: the dtypes. Operands and result have the same one, except a product's result.
        layouts: the layouts that it takes.
        alignment: the required alignment of its tensors.
        architecture: the GPUs on which it runs.
        auto: whether variant "auto" may choose it.
        dense: whether it takes only dense tensors of one shape.
        score: its speed relative to a copy of the same number of bytes, where "auto" takes it for
            large tensors; None if not measured.
        source: the source of the score.
    """

    op: str
    name: str
    dtypes: tuple[torch.dtype, ...]
    layouts: str
    alignment: str
    architecture: str = "any"
    auto: bool = False
    dense: bool = False
    score: float | None = None
    source: str = "not measured"

    def refuses(self, tensors: Mapping[str, Tensor]) -> str:
        """Why the rung of an elementwise op or a sum does not take tensors of these dtypes and
        layouts, of which the result is last; "" if it does."""
        if ops.VARIANTS[self.op] is _sum_rungs.VARIANTS:
            return _sum_rungs.misfit(self.op, tensors)
        return _rungs.misfit(self.name, self.dtypes, tensors)


@dataclass(frozen=True)
class Capabilities:
    """The result of :func:`capabilities`; prints one line per rung.

    Attributes:
        rungs: per op, the best one last.
    """

    rungs: tuple[Rung, ...]

    def __str__(self) -> str:
        head = ("op", "variant", "dtypes", "layouts", "alignment", "GPUs", "auto", "score")
        rows = [head, *map(_row, self.rungs)]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths)) for row in rows)
        return "\n".join([*(line.rstrip() for line in lines), _REST])


def _row(rung: Rung) -> tuple[str, ...]:
    dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in rung.dtypes)
    score = rung.source if rung.score is None else f"{rung.score:.2f} ({rung.source})"
    auto = "yes" if rung.auto else "no"
    return rung.op, rung.name, dtypes, rung.layouts, rung.alignment, rung.architecture, auto, score


def capabilities(op: str | None = None) -> Capabilities:
    """The rungs of all ops or of one op, and what each takes. Of a product's variants only
    "cublaslt" is a rung.

    Raises:
        ValueError: there is no such op.
    """
    if op is not None and op not in ops.FUNCTIONS:
        known = ", ".join(sorted(ops.FUNCTIONS))
        raise ValueError(f"capabilities(): no op {op!r}; the ops are {known}")
    wanted = sorted(ops.VARIANTS) if op is None else [op]
    return Capabilities(tuple(rung for name in wanted for rung in _of(name)))


def _of(op: str) -> list[Rung]:
    variants = ops.VARIANTS.get(op, {})
    if variants == _gemm.VARIANTS:
        return [Rung(op, _cublaslt.NAME, _cublaslt.DTYPES, "any", "any", "any, no CPU")]
    if variants is _sum_rungs.VARIANTS:
        layouts = f"{_sum_rungs.MOST} dimensions or fewer of each kind, kept and added up"
        *rungs, best = (Rung(op, name, each, layouts, "any") for name, each in variants.items())
        score = _SCORES_OF_SUMS[op]
        return [*rungs, replace(best, auto=True, score=score, source=_MEASURED)]
    return [
        Rung(
            op,
            name,
            variants[name],
            _LAYOUTS.get(name, "dense in one order, one shape"),
            f"alike modulo {_rungs.ALIGNMENT} bytes" if name == _rungs.STREAM else "any",
            auto=name in _rungs.BEST,
            dense=name in _rungs.DENSE,
            score=_SCORES.get(name),
            source=_MEASURED if name in _SCORES else Rung.source,
        )
        for name in _rungs.RUNGS
        if name in variants
    ]
