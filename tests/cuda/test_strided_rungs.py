"""The rungs for tensors that are not all dense: the right bits in every layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rung_calls import CALLS, devices, needs_host, with_right_bits
from torch import Tensor

import cuda_reference
from compare.cases import Guarded
from compare.ops import SPECS
from cuda_reference import _walks, load_inline

HALF, FLOAT = torch.float16, torch.float32
SHAPES = [
    (33, 65),
    (130, 70),
    (64, 128),
    (257, 31),
    (1, 70),
    (70, 1),
    (2, 3, 20, 33),
    (4, 40, 8, 8),
]
LAYOUTS = ["contiguous", "misaligned", "transposed", "padded", "strided", "channels_last"]
OTHERS = [*LAYOUTS, "row", "column", "channel", "expanded"]


def laid(values: Tensor, layout: str) -> Tensor:
    """The values in a layout of compare, or those of them that repeat."""
    if layout == "row":
        return values[:1].clone()
    if layout == "column":
        return values[..., :1].clone()
    if layout == "channel":
        return values[:1, :, :1, :1].clone() if values.dim() == 4 else values[:1].clone()
    if layout == "expanded":
        return values[:1].expand(values.shape)
    view = Guarded(tuple(values.shape), values.dtype, values.device, layout).out
    return view.copy_(values)


def results(
    op: str, inputs: list[Tensor], layout: str, variant: str | None, shape: tuple[int, ...]
) -> list[Tensor]:
    """The op's results, in memory of that layout of which nothing else changes."""
    _, others, count = CALLS[op]
    dtype, device = inputs[0].dtype, inputs[0].device
    outs = [Guarded(shape, dtype, device, layout) for _ in range(count)]
    out: Any = tuple(each.out for each in outs) if count > 1 else outs[0].out
    getattr(cuda_reference, op)(*inputs, *others, out=out, variant=variant)
    assert all(each.intact() for each in outs)
    return [each.out for each in outs]


@devices
@pytest.mark.parametrize("op", CALLS)
def test_every_layout_gives_the_right_bits(op: str, device: str) -> None:
    """Of one operand, of another, and of the result, in turn."""
    generator, (count, _, _) = torch.Generator().manual_seed(1), CALLS[op]
    tried = {"elements": 0, "strided": 0, "tile": 0}
    for shape, (number, dtype) in itertools.product(
        SHAPES, enumerate((FLOAT, HALF, torch.bfloat16))
    ):
        values = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(count)]
        places = [(first, "contiguous", "contiguous") for first in LAYOUTS]
        places += [("contiguous", "contiguous", out) for out in LAYOUTS]
        places += [(LAYOUTS[i % 6], other, LAYOUTS[i // 2 % 6]) for i, other in enumerate(OTHERS)]
        for first, other, out in places[number::2] if device == "cpu" else places:
            if count == 1 and other != "contiguous":
                continue
            inputs = [laid(t, first if i == 0 else other) for i, t in enumerate(values)]
            right = with_right_bits(op, inputs)
            every = [*(t.expand(shape) for t in inputs), results(op, inputs, out, None, shape)[-1]]
            for variant in tried:
                if variant == "tile" and len(_walks.walk(every).turned) != 1:
                    with pytest.raises(ValueError, match="but these go along"):
                        results(op, inputs, out, variant, shape)
                    continue
                seen = results(op, inputs, out, variant, shape)
                assert all(map(torch.equal, right, seen)), (shape, dtype, first, other, out)
                tried[variant] += 1
    assert tried["elements"] == tried["strided"] > 80
    assert tried["tile"] > 20


@needs_host
@pytest.mark.parametrize("variant", ["elements", "strided", "auto"])
@pytest.mark.parametrize("other", ["row", "column"])
def test_kept_calls_of_other_sizes(other: str, variant: str) -> None:
    """The launcher computes its divisors from the sizes of each call."""
    for rows, columns in ((4, 24), (4, 24), (4, 24), (9, 16), (1, 8), (8, 1), (33, 100), (4, 24)):
        x, y = torch.randn(rows, columns), laid(torch.randn(rows, columns), other)
        for _ in range(2):
            seen = cuda_reference.add(x, y, alpha=3, variant=variant)
            assert torch.equal(seen, cuda_reference.add(x, y, alpha=3)), (rows, columns)


@needs_host
def test_in_place_beside_a_turned_operand() -> None:
    x, y = laid(torch.randn(70, 90), "padded"), torch.randn(90, 70).T
    right = cuda_reference.add(x, y)
    for variant in ("elements", "strided", "tile"):
        again = laid(x, "padded")
        cuda_reference.add(again, y, out=again, variant=variant)
        assert torch.equal(again, right)


DIVIDES = """
#include "strided.cuh"
__global__ void divide_kernel(
    const int* x, const int* size, const unsigned* numbers, int* out, int n) {
  for (int i = 0; i < n; ++i) {
    Divisor<int> by;
    by.size = size[i], by.magic = numbers[2 * i], by.shift = numbers[2 * i + 1];
    out[i] = by.quotient(x[i]);
  }
}
int divide(const int* x, const int* size, int* numbers, int* out, int n, cudaStream_t stream) {
  for (int i = 0; i < n; ++i) {
    const Divisor<int> by(size[i]);
    numbers[2 * i] = static_cast<int>(by.magic), numbers[2 * i + 1] = static_cast<int>(by.shift);
  }
  LAUNCH(divide_kernel, 1, 1, 0, stream, x, size, reinterpret_cast<unsigned*>(numbers), out, n);
  return cudaGetLastError();
}
"""


@needs_host
def test_dividing_by_multiplying_is_exact() -> None:
    """At and beside every multiple that is nearest to a power of two, up to 2³¹ - 1."""
    sizes = [1, 2, 3, 5, 7, 9, 11, 13, 31, 33, 641, 6700417, 2**15 - 1, 2**16 + 1, 2**30 + 1]
    sizes += [2**k + d for k in range(2, 31) for d in (-1, 0, 1)] + [2**31 - 1]
    pairs = [
        (x, size)
        for size in sizes
        for k in range(32)
        for multiple in (2**k // size * size, (2**k // size + 1) * size)
        for x in (multiple - 1, multiple, multiple + 1)
        if 0 <= x < 2**31
    ]
    x, size = (torch.tensor(each, dtype=torch.int32) for each in zip(*pairs))
    numbers, out = torch.empty(2 * len(pairs), dtype=torch.int32), torch.empty_like(x)
    names = "const int* x, const int* size, int* numbers, int* out, int n, cudaStream_t stream"
    module = load_inline(DIVIDES, {"divide": names})
    module.divide(x, size, numbers, out, len(pairs))
    assert torch.equal(out, x // size)
    assert len(pairs) > 10000


def test_offsets_past_32_bits_are_in_a_case() -> None:
    for op in ("add", "square", "relu_scale_backward"):
        spec = SPECS[op]
        far = [case for case in spec.cases("float16", "standard") if "distant" in case.layout]
        assert any(spec.takes("cuda", "strided", case) for case in far), op


# ---- walks ----


@pytest.mark.parametrize(
    ("tensors", "sizes", "strides", "turned"),
    [
        (lambda: [torch.ones(4, 9)] * 2, (36,), ((1,), (1,)), set()),
        (lambda: [torch.ones(4, 9).T] * 2, (36,), ((1,), (1,)), set()),
        (lambda: [torch.ones(9, 4).T, torch.ones(4, 9)], (4, 9), ((1, 4), (9, 1)), {0}),
        (lambda: [torch.ones(9).expand(4, 9), torch.ones(4, 9)], (4, 9), ((0, 1), (9, 1)), set()),
        (
            lambda: [torch.ones(3, 1, 1).expand(2, 3, 4, 5), torch.ones(2, 3, 4, 5)],
            *((2, 3, 20), ((0, 1, 0), (60, 20, 1)), set()),
        ),
        (
            lambda: [torch.ones(2, 4, 5, 3).permute(0, 3, 1, 2), torch.ones(2, 3, 4, 5)],
            *((2, 3, 20), ((60, 1, 3), (60, 20, 1)), {1}),
        ),
        (lambda: [torch.ones(1, 1), torch.ones(1, 1)], (1,), ((1,), (1,)), set()),
        (lambda: [torch.ones(()), torch.ones(())], (1,), ((1,), (1,)), set()),
    ],
)
def test_walks(
    tensors: Callable[[], list[Tensor]], sizes: Any, strides: Any, turned: set[int]
) -> None:
    walk = _walks.walk(tensors())
    assert (walk.sizes, walk.strides, walk.turned) == (sizes, strides, turned)
    for dim in turned:
        rows = walk.with_rows(dim)
        assert rows.turned == {len(sizes) - 2}
        assert sorted(zip(rows.sizes, *rows.strides)) == sorted(zip(sizes, *strides))


@needs_host
def test_what_they_refuse() -> None:
    every = torch.randn(3, 4, 5, 6, 7).permute(4, 2, 0, 3, 1)
    with pytest.raises(ValueError, match="at most 4 dimensions, but these have 5 that are not one"):
        cuda_reference.square(every, variant="strided", out=torch.empty(every.shape))
    x, y = torch.randn(20, 30, 40).permute(0, 2, 1), torch.randn(40, 30, 20).permute(2, 0, 1)
    with pytest.raises(ValueError, match="but these go along 2 dimensions"):
        cuda_reference.add(x, y, out=torch.empty(20, 40, 30), variant="tile")
    with pytest.raises(ValueError, match=r"variant 'strided' does not take torch.float64"):
        cuda_reference.square(torch.ones(4, 4, dtype=torch.float64).T, variant="strided")
