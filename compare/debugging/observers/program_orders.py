"""Orders of a launch's programs, and the changes of its results that they cause."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compare import numerics
from compare.checking import judging
from compare.checking.stores import Stores, address_of
from compare.debugging.findings.hazards import Hazard, Witness
from compare.debugging.subjects import Result
from triton_kernels.interpreter import Program

Order = Callable[[Sequence[Program]], Sequence[Program]]


def forward(programs: Sequence[Program]) -> Sequence[Program]:
    """The programs in the interpreter's order."""
    return programs


def _reverse(programs: Sequence[Program]) -> Sequence[Program]:
    return programs[::-1]


def _shuffled(programs: Sequence[Program]) -> Sequence[Program]:
    return random.Random(0).sample(programs, len(programs))


OTHERS: dict[str, Order] = {"reverse": _reverse, "random": _shuffled}

ROUNDING = 64  # epsilons of the largest value by which the order of float additions may matter


class Outcome(NamedTuple):
    """The outcome of the programs in an order; without an oracle there are no results."""

    order: str
    stores: Stores
    results: list[Result]


Key = tuple[str, bool]  # the tensor, and whether the first order is right


def differences(first: Outcome, other: Outcome) -> Iterator[tuple[Key, Hazard]]:
    """Tensors that are right in only one of two orders or, without an oracle, have other bits.

    If programs use atomics, float results may differ by rounding; that is no hazard.
    """
    yield from _judged(first, other) if first.results else _unjudged(first, other)


def _judged(first: Outcome, other: Outcome) -> Iterator[tuple[Key, Hazard]]:
    for a, b in zip(first.results, other.results):
        same = _only_rounding(first, a.tensor, b.tensor)
        for right, wrong, x, y in ((first, other, a, b), (other, first, b, a)):
            flipped = x.comparison.right & ~y.comparison.right & ~same
            if not flipped.any():
                continue
            _, error, bound, _ = y.comparison
            d = judging.deviation(y.tensor, y.reference, ~flipped, error, bound)
            what = f"right in {right.order} order, wrong in {wrong.order} order"
            words = f"set to {d.got} in {wrong.order} order, not {d.expected},"
            told = [(wrong, y.tensor, words), (right, x.tensor, f"set in {right.order} order")]
            key = (a.name, right is first)
            yield key, _hazard(what, int(flipped.sum()), (a.name, d.index), told)


def _unjudged(first: Outcome, other: Outcome) -> Iterator[tuple[Key, Hazard]]:
    before, after = _stored(first.stores), _stored(other.stores)
    for name in (name for name in before if name in after):
        a, b = before[name], after[name]
        same = (numerics.bits(a) == numerics.bits(b)) | _only_rounding(first, a, b)
        same |= torch.from_numpy(_by_atomics(first.stores, a) | _by_atomics(other.stores, b))
        if same.all():
            continue
        x, y = a.double(), b.double()
        apart = torch.where(same, -1.0, (x - y).abs().nan_to_num(1e308, posinf=1e308))
        at = torch.unravel_index(apart.flatten().argmax(), a.shape)
        index = tuple(int(i) for i in at)
        told = [
            (run, tensor, f"set to {tensor[index].item()!r} in {run.order} order")
            for run, tensor in ((first, a), (other, b))
        ]
        what = f"{first.order} and {other.order} order give different values"
        yield (name, True), _hazard(what, int((~same).sum()), (name, index), told)


def _hazard(
    what: str,
    count: int,
    worst: tuple[str, tuple[int, ...]],
    told: list[tuple[Outcome, Tensor, str]],
) -> Hazard:
    """``told``: runs with the worst element's tensor, and words about its writer."""
    name, index = worst
    witnesses = []
    for run, tensor, words in told:
        history = run.stores.history(address_of(tensor, index))
        if history.last is not None:
            element = f"{name}[{', '.join(map(str, index))}]"
            program, place = history.last.program, history.last.place
            lane = history.lane if history.last.lanes > 1 else ()
            witnesses.append(Witness(words, program, place, name, element, lane))
    text = f"{what}: {count} element{'s' if count > 1 else ''} of {name}"
    return Hazard("order", text, tuple(witnesses), count)


def _stored(stores: Stores) -> dict[str, Tensor]:
    return {argument.name: argument.tensor for argument in stores.stored()}


def _by_atomics(stores: Stores, tensor: Tensor) -> np.ndarray:
    """The elements that were last changed by an atomic."""
    atomic = np.array([store.verb != "store" for store in stores.stores] + [False])
    writers = stores.writers(tensor)
    return atomic[writers if writers is not None else np.full(tensor.shape, -1)]


def _only_rounding(run: Outcome, a: Tensor, b: Tensor) -> Tensor:
    """Where two float results differ at most by rounding; nowhere if the run had no atomics."""
    atomics = any(store.verb != "store" for store in run.stores.stores)
    if not (atomics and a.dtype.is_floating_point and a.numel()):
        return torch.zeros(a.shape, dtype=torch.bool)
    x, y = a.double(), b.double()
    scale = torch.cat([x.flatten(), y.flatten()]).nan_to_num(0.0, 0.0, 0.0).abs().max()
    return ((x - y).abs() <= ROUNDING * torch.finfo(a.dtype).eps * scale) | (x.isnan() & y.isnan())
