"""Proof by exhaustion: all 2³² float32 values of a unary op, all 2³² pairs of a 16-bit add.

Every check runs all 8- and 16-bit values of unary ops. This needs a GPU and --exhaustive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from compare import cases, numerics
from compare.cases import Case
from compare.checking import running, workers
from compare.checking.implementations import Implementation, applies
from compare.checking.running import Outcome
from compare.checking.verdicts import Row
from compare.specs import Spec

CHUNK = 1 << 26


def prove(spec: Spec, dtype: str, row: Row, candidates: list[Implementation]) -> None:
    """Run the GPU implementations of an exact op on every input, if there are 2³² of them.

    The first wrong input of each implementation is added to ``row``'s mismatches. Options other
    than the tensors, such as scale, keep their defaults.
    """
    outcomes = wrong(spec, dtype, candidates)
    if outcomes is not None:
        enter(spec, row, outcomes)


def enter(spec: Spec, row: Row, outcomes: list[Outcome]) -> None:
    """Add the outcomes of :func:`wrong` to a row."""
    for outcome in outcomes:
        row.add_outcome(outcome)
    row.proved = spec.every or "every pair"


def probe(spec: Spec, dtype: str) -> Case:
    """The case that represents all inputs."""
    return Case(spec.name, dtype, (CHUNK,), options=spec.default_options)


def wrong(spec: Spec, dtype: str, candidates: list[Implementation]) -> list[Outcome] | None:
    """An outcome for each implementation, with its first wrong input if it has one. None if no
    implementation can run, or the op does not have exactly 2³² inputs."""
    arity = 1 if spec.unary else 2
    kind, case = cases.DTYPES[dtype], probe(spec, dtype)
    going = [w for w in candidates if w.device.type == "cuda" and applies(w, spec, case)]
    if not going or spec.bounded or not kind.is_floating_point or kind.itemsize * 8 * arity != 32:
        return None
    outcomes = []
    for operands in _every_input(kind, arity):
        reference = spec.oracle(*operands, **spec.default_options)
        for implementation in list(going):
            options = dict(spec.default_options)
            workers.tell(implementation.name)
            outcome = running.run(spec, case, implementation, (operands, options), reference)
            if outcome.mismatch is None:
                continue
            going.remove(implementation)
            deviation, result = outcome.mismatch.deviation, outcome.result
            if deviation is not None and result is not None:
                # A case of this input alone, which can be replayed.
                pattern = ":".join(numerics.hex_of(t[deviation.index]) for t in operands)
                single = replace(case, shape=(1,), values=pattern)
                one = slice(deviation.index[0], deviation.index[0] + 1)
                arguments = tuple(t[one] for t in operands), options
                outcome = running.judge(
                    spec, single, implementation, arguments, result[one], reference[one]
                )
            outcomes.append(outcome)
            if running.gpu_is_lost():  # the inputs of the other implementations are lost, too
                return outcomes
    return outcomes


def _every_input(dtype: torch.dtype, arity: int) -> Iterator[tuple[Tensor, ...]]:
    """Chunks of operands that together hold every bit pattern, or every pair of patterns."""
    if arity == 1:
        for start in range(-(2**31), 2**31, CHUNK):
            pattern = torch.arange(start, start + CHUNK, dtype=torch.int32, device="cuda")
            yield (pattern.view(dtype),)
        return
    rows = CHUNK >> 16
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32, device="cuda").to(torch.int16)
    second = every.repeat(rows).view(dtype)
    for start in range(0, 1 << 16, rows):
        yield every[start : start + rows].repeat_interleave(1 << 16).view(dtype), second
