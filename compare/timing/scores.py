"""Whether the scores by which a graph takes kernels have the right sign, on a sample's problems.

A score is a kernel's speed relative to what would run otherwise, eager's or Inductor's kernels. It
is right if a kernel that is taken is not slower, and one that is left out not faster. Within
``CLOSE`` of the other's speed both are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from compare.cases import Case
from compare.ops import spec_of
from compare.specs.products import Product
from compare.timing import bench, providers
from compare.timing.distributions import OURS, replay
from compare.timing.results import CaseResult
from triton_kernels.graph import capabilities, racing
from triton_kernels.graph.capabilities import Problem
from triton_kernels.graph.compiling import explain

CLOSE = 0.02
OTHERS = {"eager": "eager", "compile": "inductor"}  # provider → its name in scores


@dataclass(frozen=True)
class Judged:
    """A problem: the score and the measured speed, both relative to the other."""

    score: float
    speed: float
    result: CaseResult

    @property
    def right(self) -> bool:
        """Whether the decision costs nothing."""
        if self.score >= capabilities.MIN_SCORE:
            return self.speed >= 1 - CLOSE
        return self.speed <= 1 + CLOSE


@dataclass(frozen=True)
class Standing:
    """An op's scores against one provider; ``wrong`` has the costliest mistake first."""

    op: str
    other: str
    problems: int
    wrong: tuple[Judged, ...]

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        wrong = [
            {"score": each.score, "speed": each.speed, "replay": replay(each.result.case)}
            for each in self.wrong
        ]
        count = {"problems": self.problems, "right": self.problems - len(wrong)}
        return {"op": self.op, "other": self.other, **count, "wrong": wrong}


def standings(results: Iterable[CaseResult], measured: bool = False) -> list[Standing]:
    """Every op that a graph may take, against eager and against torch.compile.

    ``measured``: whether doubtful scores are measured on the GPU at hand, as plans do by default.
    """
    groups: dict[tuple[str, str], list[Judged]] = {}
    for result in results:
        for provider, other in OTHERS.items():
            if (judged := _judged(result, provider, other, measured)) is not None:
                groups.setdefault((result.case.op, provider), []).append(judged)
    return [_standing(*each, group) for each, group in groups.items()]


def _standing(op: str, other: str, group: list[Judged]) -> Standing:
    wrong = [each for each in group if not each.right]
    wrong.sort(key=lambda each: each.speed if each.score >= 1 else 1 / each.speed)
    return Standing(op, other, len(group), tuple(wrong))


def _judged(result: CaseResult, provider: str, other: str, measured: bool) -> Judged | None:
    """None if graphs have no such call, or if a time is missing."""
    medians = {
        entry.provider: entry.timing.gpu.median for entry in result.entries if not entry.problem
    }
    problem = _problem(result, other)
    if problem is None or not {OURS, provider} <= medians.keys():
        return None
    verdict = capabilities.judge(problem, capabilities.MIN_SCORE)
    score = verdict.score or 0.0
    if measured and problem.M and racing.doubtful(verdict, capabilities.MIN_SCORE):
        score = planned(result.case, other)
    return Judged(score, medians[provider] / medians[OURS], result)


def planned(case: Case, other: str) -> float:
    """The score in a plan of eager's function for a case."""
    spec = spec_of(case.op)
    args, kwargs = bench.inputs(spec, case, 0)
    (eager,) = providers.candidates(spec, case, ["eager"])
    with providers.torchs_precision(case), torch.no_grad():
        (plan,) = explain(lambda *tensors: eager.call(tensors, kwargs), args, rest=other).plans
    known = [step.score for step in plan.steps]
    known += [left.score for left in plan.left if left.score is not None]
    return known[0] if known else 0.0


def _problem(result: CaseResult, other: str) -> Problem | None:
    """The problem as a graph would ask; None for a bare product, for a backward pass, and for a
    precision that torch's products do not have."""
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
    if precision not in ("ieee", "tf32"):
        return None
    M, N, K = case.shape
    return Problem(case.op, case.torch_dtype, device, other, M, N, K, act, precision)
