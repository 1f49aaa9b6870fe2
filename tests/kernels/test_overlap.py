"""The overlap tests of both sides: right where brute force can tell, and bounded work everywhere.

The strides of an ``out`` are the caller's, and to decide any strides at all is NP-hard.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import cuda_reference
import triton_kernels
from compare.checking.implementations import implementations, unavailable
from compare.ops import SPECS
from cuda_reference import _arguments as cuda_arguments
from triton_kernels import _arguments as triton_arguments

SIDES = {
    "triton": (triton_arguments, triton_arguments._overlap),
    "cuda": (cuda_arguments, cuda_arguments._share_memory),
}
STORAGE = torch.zeros(4096, dtype=torch.uint8)


def first_bytes(t: Tensor) -> list[int]:
    """The address of every element, one entry an element."""
    indices = itertools.product(*map(range, t.shape))
    item = t.element_size()
    steps = [stride * item for stride in t.stride()]
    return [t.data_ptr() + sum(i * s for i, s in zip(index, steps)) for index in indices]


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Up to twelve dimensions, few elements, strides that nest, repeat and interleave."""
    dtype = draw(st.sampled_from((torch.uint8, torch.int16, torch.float32, torch.int64)))
    sizes: list[int] = []
    for size in draw(st.lists(st.sampled_from((1, 2, 2, 2, 3, 4)), max_size=12)):
        if math.prod((*sizes, size)) <= 256:
            sizes.append(size)
    last = STORAGE.numel() // dtype.itemsize - 1
    strides = [draw(st.integers(0, last // (2 * sum(sizes)))) for _ in sizes]
    strides = [draw(st.sampled_from((stride, 1, 2, 3))) for stride in strides]
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides))
    return STORAGE.view(dtype).as_strided(sizes, strides, draw(st.integers(0, last - reach)))


@pytest.mark.parametrize("side", SIDES)
def test_as_brute_force_says(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the search, and, where it may take no step, by the sums of the halves."""
    module, overlap = SIDES[side]

    @given(views(), views())
    def check(a: Tensor, b: Tensor) -> None:
        in_a, in_b = first_bytes(a), first_bytes(b)
        bytes_a, bytes_b = (
            {address + i for address in starts for i in range(t.element_size())}
            for t, starts in ((a, in_a), (b, in_b))
        )
        assert module._overlaps_itself(a) == (len(set(in_a)) < len(in_a))
        assert overlap(a, b) == overlap(b, a) == bool(bytes_a & bytes_b)

    check()
    monkeypatch.setattr(module, "STEPS" if side == "triton" else "MAX_STEPS", 0)
    check()


def irregular(seed: int, count: int) -> Iterator[Tensor]:
    """Views of 8 to 12 dimensions whose strides neither nest nor share a divisor."""
    draw = random.Random(seed)
    for _ in range(count):
        sizes = [draw.choice((3, 4, 6, 10))] * draw.randint(8, 12)
        top = 10 ** draw.randint(5, 9)
        yield placed(sizes, [draw.randint(top // 2, top) for _ in sizes])


def placed(sizes: list[int], strides: list[int]) -> Tensor:
    """A view that takes no memory: meta tensors have strides as others do."""
    numel = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
    return torch.empty(numel, dtype=torch.uint8, device="meta").as_strided(sizes, strides)


@pytest.mark.parametrize("side", SIDES)
def test_irregular_strides_take_bounded_work(side: str) -> None:
    """One of these took up to 40 seconds; now a tenth of a second at most, or nobody can tell."""
    module, _ = SIDES[side]
    answers, slowest = [], 0.0
    for view in irregular(0, 60):
        begin = time.perf_counter()
        answers.append(module._overlaps_itself(view))
        slowest = max(slowest, time.perf_counter() - begin)
    assert slowest < 2
    counts = {answer: answers.count(answer) for answer in (True, False, None)}
    assert all(counts.values()), counts


def test_both_sides_tell_the_same() -> None:
    for view in irregular(1, 40):
        answers = [module._overlaps_itself(view) for module, _ in SIDES.values()]
        assert answers[0] is answers[1] or None in answers, (view.shape, view.stride())


@pytest.mark.parametrize("side", SIDES)
def test_as_many_dimensions_as_torch_has(side: str) -> None:
    module, _ = SIDES[side]
    begin = time.perf_counter()
    dense = placed([2] * 60, [2**k for k in reversed(range(60))])
    assert module._overlaps_itself(dense.permute(*range(59, -1, -1))) is False
    assert module._overlaps_itself(placed([2] * 60, [2**k + 1 for k in range(60)])) is True
    base = torch.empty(100, device="meta")
    assert module._overlaps_itself(base.as_strided([2] * 62 + [1] * 2, [1] * 64)) is True
    padded = placed([1] * 44 + [2] * 20, [7] * 44 + [3**k for k in range(20)])
    assert module._overlaps_itself(padded) is False
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize("side", SIDES)
def test_an_out_that_nobody_can_judge_is_refused(side: str) -> None:
    """In words that do not claim an overlap; nothing is written."""
    module, overlap = SIDES[side]
    strides = [541, 1009, 20011, 30011, 50021, 70001, 90001, 110017, 130003, 150001, 170003]
    sizes = [3] * len(strides)
    base = torch.zeros(2 * sum(s + 2 * 10**5 for s in strides) + 1, dtype=torch.uint8)
    out = base.as_strided(sizes, [s + 2 * 10**5 for s in strides])
    x = torch.ones(sizes, dtype=torch.uint8)
    if side == "cuda" and "cuda-host" in unavailable():
        pytest.skip(unavailable()["cuda-host"])
    mode = "triton-interpreted" if side == "triton" else "cuda-host"
    square = implementations(SPECS["square"], [mode])[0]
    with pytest.MonkeyPatch.context() as few:  # so that a view of few elements is too much
        few.setattr(module, "STEPS" if side == "triton" else "MAX_STEPS", 50)
        few.setattr(module, "SUMS" if side == "triton" else "MAX_SUMS", 50)
        assert module._overlaps_itself(out) is None
        with pytest.raises(RuntimeError, match=r"^square\(\): argument 'out' .*too irregular to"):
            square(x, out=out)
        assert overlap(base, out.as_strided([3], [7])) is True
    assert not base.any()


def test_an_irregular_out_that_can_be_judged_is_written() -> None:
    strides = [100003, 110017, 130003, 150001, 170003, 190027, 210011, 230003]
    base = torch.zeros(sum(strides) + 1)
    out = base.as_strided([2] * 8, strides)
    x = torch.arange(256.0).view([2] * 8)
    packages: list[Any] = [triton_kernels]
    if "cuda-host" not in unavailable():
        packages.append(cuda_reference)
    for package in packages:
        with triton_kernels.interpret():
            package.square(x, out=out)
        assert torch.equal(out, x * x)
        base.zero_()
