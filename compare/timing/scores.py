"""Whether the scores by which a graph takes kernels are right in sign, on the problems of a sample.

A score says how fast a kernel is against what would run otherwise, eager's kernels or Inductor's.
It is right if a kernel that is taken is not slower, and one that is left not faster. What is
within ``CLOSE`` of the other's speed may be taken or left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from compare.ops import spec_of
from compare.specs.products import Product
from compare.timing.distributions import OURS, replay
from compare.timing.results import CaseResult
from triton_kernels.graph import capabilities
from triton_kernels.graph.capabilities import Problem

CLOSE = 0.02
OTHERS = {"eager": "eager", "compile": "inductor"}  # provider → as scores name it


@dataclass(frozen=True)
class Judged:
    """A problem: the score, and how fast the kernel was, both relative to the other."""

    score: float
    speed: float
    result: CaseResult

    @property
    def right(self) -> bool:
        """Whether taking the kernel, or leaving it, costs nothing."""
        if self.score >= capabilities.MIN_SCORE:
            return self.speed >= 1 - CLOSE
        return self.speed <= 1 + CLOSE


@dataclass(frozen=True)
class Standing:
    """An op's scores against one provider; ``wrong`` has the dearest mistake first."""

    op: str
    other: str
    problems: int
    wrong: tuple[Judged, ...]

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file has of it."""
        wrong = [
            {"score": each.score, "speed": each.speed, "replay": replay(each.result.case)}
            for each in self.wrong
        ]
        count = {"problems": self.problems, "right": self.problems - len(wrong)}
        return {"op": self.op, "other": self.other, **count, "wrong": wrong}


def standings(results: Iterable[CaseResult]) -> list[Standing]:
    """Every op that a graph may take, beside eager and beside torch.compile."""
    groups: dict[tuple[str, str], list[Judged]] = {}
    for result in results:
        for provider, other in OTHERS.items():
            if (judged := _judged(result, provider, other)) is not None:
                groups.setdefault((result.case.op, provider), []).append(judged)
    return [_standing(*each, group) for each, group in groups.items()]


def _standing(op: str, other: str, group: list[Judged]) -> Standing:
    wrong = [each for each in group if not each.right]
    wrong.sort(key=lambda each: each.speed if each.score >= 1 else 1 / each.speed)
    return Standing(op, other, len(group), tuple(wrong))


def _judged(result: CaseResult, provider: str, other: str) -> Judged | None:
    """None where graphs have no such call, or where a time is missing."""
    medians = {
        entry.provider: entry.timing.gpu.median for entry in result.entries if not entry.problem
    }
    problem = _problem(result, other)
    if problem is None or not {OURS, provider} <= medians.keys():
        return None
    score = capabilities.judge(problem, capabilities.MIN_SCORE).score or 0.0
    return Judged(score, medians[provider] / medians[OURS], result)


def _problem(result: CaseResult, other: str) -> Problem | None:
    """What a graph would ask for: no product without an epilogue, and none of a backward pass."""
    case, spec = result.case, spec_of(result.case.op)
    if case.op not in capabilities.ENTRIES:
        return None
    device = torch.device("cuda")
    if not isinstance(spec, Product):
        return Problem(case.op, case.torch_dtype, device, other)
    act = spec.act(case.options)
    forward = case.options.get("operands", "forward") == "forward"
    if act == "none" or not forward or case.options.keys() & {"c", "training"}:
        return None
    precision = case.options.get("precision", "ieee")
    M, N, K = case.shape
    return Problem(case.op, case.torch_dtype, device, other, M, N, K, act, precision)
