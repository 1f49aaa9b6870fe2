"""Arguments that share memory: what is harmless is allowed, and the logic against brute force."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import pytest
import torch
from calls import Call, good, tensors
from every_function import PAIRS
from torch import Tensor

from compare.checking.implementations import MODES
from compare.ops import SPECS
from compare.specs import Elementwise
from cuda_reference import _arguments as cuda_arguments
from triton_kernels import _arguments as triton_arguments

ELEMENTWISE = [
    spec.name
    for spec in SPECS.values()
    if isinstance(spec, Elementwise) and spec.name not in PAIRS  # whose out is a pair
]


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


# ---- overlap that is no harm ----


@pytest.mark.parametrize("op", ELEMENTWISE)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_out_may_be_an_input(op: str, layout: str, call: Call, device: torch.device) -> None:
    for name in {*tensors(op)} - {"out"}:
        arguments = good(op, device)
        base = torch.full((10, 10), 3.0, device=device)
        views = {"contiguous": base[:4], "transposed": base[:, :4].t(), "strided": base[::3, ::2]}
        view = views[layout]
        others = {k: torch.ones(view.shape, device=device) for k in tensors(op) if k != name}
        arguments = {**arguments, **others, name: view, "out": view}
        untouched = torch.full_like(base, 3.0)
        expected = call(op, {k: v for k, v in arguments.items() if k != "out"})
        assert call(op, arguments) is view
        assert torch.equal(view, expected)
        view.fill_(3.0)
        assert torch.equal(base, untouched)


def interleaved(device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of views of one buffer that share no byte."""
    flat = torch.ones(40, device=device)
    yield flat[::2], flat[1::2]
    yield flat[1::2], flat[::2]
    yield flat[::4], flat[2::4]
    matrix = torch.ones(6, 10, device=device)
    yield matrix[:, :5], matrix[:, 5:]
    yield matrix[::2], matrix[1::2]
    yield matrix[:, ::2].t(), matrix[:, 1::2].t()
    # Every third against every sixth, never meeting.
    yield flat[:18:3], flat[1::6][:6]
    # Halves in the gaps between floats: other item sizes, other strides.
    yield flat.view(torch.float16)[2::4], flat[::2]


@pytest.mark.parametrize("number", range(8))
def test_interleaved_views_are_allowed(number: int, call: Call, device: torch.device) -> None:
    for each, name in [(op, name) for op in ELEMENTWISE for name in tensors(op) if name != "out"]:
        x, out = list(interleaved(device))[number]
        given = {*tensors(each)} - {name, "out"}
        others = {k: torch.ones(x.shape, device=device) for k in given}
        if not others and x.dtype != out.dtype:
            continue  # one operand does not promote
        arguments = {**good(each, device), **others, name: x, "out": out}
        expected = call(each, {k: v for k, v in arguments.items() if k != "out"})
        assert torch.equal(call(each, arguments), expected), (each, name)


def test_interleaved_gemm_operands_are_allowed(call: Call, device: torch.device) -> None:
    base = torch.ones(6, 18, device=device)
    a, b, c, out = base[:, :6], base[:, 6:10], base[:, 10:14], base[:, 14:]
    call("gemm_bias_act", {"a": a, "b": b, "c": c, "out": out})
    assert out.tolist() == [[7.0] * 4] * 6
    assert bool((base[:, :14] == 1).all())


# ---- the overlap logic, by brute force ----


def addresses(t: Tensor) -> list[int]:
    """The byte address of every element's first byte, one entry an element."""
    indices = itertools.product(*(range(n) for n in t.shape))
    strides, item = t.stride(), t.element_size()
    return [t.data_ptr() + item * sum(i * s for i, s in zip(index, strides)) for index in indices]


def random_view(random_: random.Random, storage: Tensor) -> Tensor:
    base = storage.view(random_.choice((torch.int16, torch.float32, torch.int64)))
    dims = random_.randint(1, 3)
    sizes = [random_.choice((1, 2, 2, 3, 3, 4, 4, 0)) for _ in range(dims)]
    strides = [random_.randint(0, 5) for _ in range(dims)]
    return base.as_strided(sizes, strides, random_.randint(0, 40))


SIDES = {"triton": triton_arguments, "cuda": cuda_arguments}


@pytest.mark.parametrize("side", SIDES)
def test_overlap_by_brute_force(side: str) -> None:
    module = SIDES[side]
    overlap = module._overlap if side == "triton" else module._share_memory
    random_ = random.Random(0)
    storage = torch.zeros(1024, dtype=torch.uint8)
    met = {(what, answer): 0 for what in ("itself", "other") for answer in (False, True)}
    for _ in range(4000):
        a, b = random_view(random_, storage), random_view(random_, storage)
        in_a, in_b = addresses(a), addresses(b)
        bytes_a, bytes_b = (
            {address + i for address in starts for i in range(t.element_size())}
            for t, starts in ((a, in_a), (b, in_b))
        )
        described = [(t.dtype, tuple(t.shape), t.stride(), t.storage_offset()) for t in (a, b)]
        itself, other = len(set(in_a)) < len(in_a), bool(bytes_a & bytes_b)
        assert module._overlaps_itself(a) == itself, described[0]
        assert overlap(a, b) == overlap(b, a) == other, described
        met["itself", itself] += 1
        met["other", other] += 1
    assert min(met.values()) > 300, met


@pytest.mark.parametrize("side", SIDES)
def test_overlap_is_quick_for_large_views(side: str) -> None:
    """Millions of elements must not mean millions of steps: these come with every call."""
    module = SIDES[side]
    overlap = module._overlap if side == "triton" else module._share_memory
    flat = torch.empty(2**22)
    matrix = flat.view(2**11, 2**11)
    cases: list[tuple[Tensor, Tensor, bool]] = [
        (flat[::2], flat[1::2], False),
        (flat[1::4], flat[::2], False),
        (flat[::3], flat[1::6], False),
        (flat[::3], flat[3::6], True),
        (flat[::2], flat.view(torch.float16)[2::4], False),
        (flat.view(torch.float16)[3::4], flat[::2], False),
        (flat[1:], flat[:-1], True),
        (matrix[:, : 2**10], matrix[:, 2**10 :], False),
        (matrix[:, : 2**10].t(), matrix[:, 2**10 :].t(), False),
        (matrix[:, ::2], matrix[:, 1::2], False),
        (matrix[: 2**10, : 2**10], matrix[2**10 :, 2**10 :].t(), False),
        (matrix[1:, ::2].t(), matrix[:-1, 1::2], False),
        (matrix, matrix.t(), True),
    ]
    begin = time.perf_counter()
    for a, b, expected in cases:
        assert overlap(a, b) == overlap(b, a) == expected, (a.shape, a.stride(), b.stride())
        assert not module._overlaps_itself(a)
    assert not module._overlaps_itself(flat.as_strided((2**19, 3), (7, 2)))
    assert module._overlaps_itself(flat.as_strided((2**19, 3), (4, 2)))
    assert module._overlaps_itself(flat[:1].expand(2**22))
    assert time.perf_counter() - begin < 1  # it takes milliseconds
