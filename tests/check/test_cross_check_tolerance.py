"""cross_check's default tolerance: what it says where it alone may be wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from compare import cross_check

X = torch.rand(64) + 0.5
EPSILON = torch.finfo(torch.float32).eps


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def off_by(ulps: float):
    """A function that is so far off everywhere."""

    def function(x: Tensor) -> Tensor:
        return 2 * x * (1 + ulps * EPSILON)

    return function


def text_of(triton, cuda, **options) -> str:
    report = cross_check(
        triton=triton, cuda=cuda, oracle=lambda x: 2 * x.double(), inputs=[(X,)], **options
    )
    return str(report)


def test_some_roundings_more_bring_the_hint() -> None:
    text = text_of(off_by(9), off_by(7))
    assert "both sides are wrong" in text
    last = text.splitlines()[-1]
    assert "max_ulps=1 is for functions that round once" in last
    assert last.endswith("say max_ulps=… or bound=…")


def test_no_hint_for_integers_which_are_not_rounded() -> None:
    report = cross_check(triton=lambda x: x + 9, oracle=doubled, inputs=[(torch.arange(4),)])
    assert "4 of 4 elements wrong" in str(report)
    assert "say max_ulps" not in str(report)


def test_no_hint_where_something_else_is_wrong() -> None:
    assert "say max_ulps" not in text_of(doubled, doubled)
    assert "say max_ulps" not in text_of(doubled, off_by(1e5))
    assert "say max_ulps" not in text_of(off_by(9), lambda x: x[1:])
    assert "say max_ulps" not in text_of(off_by(9), off_by(9), bound=lambda ref, x: 0 * ref)
    assert "FAIL" in text_of(off_by(9), off_by(9), bound=lambda ref, x: 0 * ref)
