"""Products of copies that suit the library's fast kernels: on a stand-in for it, and on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cublaslt_calls import BRAIN, FLOAT, HALF, afresh, integers, moved, product, stand_in
from fake_cublaslt import Fake
from rung_calls import needs_host

import cuda_reference
from cuda_reference import _cublaslt_copies
from cuda_reference._cublaslt_copies import copies

LAYOUTS = ("rows", "columns", "padded")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Copies for products of every size."""
    monkeypatch.setattr(_cublaslt_copies, "LEAST", 0)
    monkeypatch.setattr(_cublaslt_copies, "MOST", 1e9)
    yield from afresh(monkeypatch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    return stand_in(monkeypatch)


def right_in_every_layout(device: str, shapes: list[tuple[int, int, int]]) -> None:
    for (M, N, K), dtype in itertools.product(shapes, (HALF, BRAIN)):
        bias, c = integers(N, dtype=dtype, device=device), integers(M, N, device=device).to(dtype)
        for layout_a, layout_b in itertools.product(LAYOUTS, LAYOUTS):
            a = moved(integers(M, K, dtype=dtype, device=device), layout_a)
            b = moved(integers(K, N, dtype=dtype, device=device), layout_b)
            for more in ({"act": "relu"}, {"act": "leaky_relu", "c": c, "beta": 2.0}):
                right = cuda_reference.gemm_bias_act(a, b, bias, **more)
                for _ in range(3):  # the last one is kept
                    found = product(a=a, b=b, bias=bias, **more)
                    assert torch.equal(found, right), (M, N, K, layout_a, layout_b, dtype)


@needs_host
def test_copies_multiply_to_the_same(fake: Callable[..., Fake]) -> None:
    lib = fake()
    right_in_every_layout("cpu", [(5, 7, 9), (8, 11, 16), (13, 16, 8), (3, 24, 21)])
    ways = {words.rpartition(" ")[0].rpartition("cublaslt ")[2] for words in lib.ranges}
    assert ways == {"fused", "fallback", "fused of copies", "fallback of copies"}


@pytest.mark.gpu_only
def test_copies_multiply_to_the_same_on_a_gpu() -> None:
    shapes = [(5, 7, 9), (33, 65, 70), (130, 257, 131), (129, 64, 77), (1, 9, 4)]
    right_in_every_layout("cuda", shapes)


@needs_host
@pytest.mark.parametrize(
    ("layout_a", "layout_b", "shape"),
    [
        ("rows", "rows", (5, 16, 16)),
        ("columns", "rows", (8, 16, 9)),
        ("rows", "columns", (5, 16, 16)),
    ],
)
def test_sizes_and_rows_are_multiples(
    layout_a: str, layout_b: str, shape: tuple[int, int, int], fake: Callable[..., Fake]
) -> None:
    """Those along rows of the operands, and of the sum."""
    lib = fake()
    a = moved(integers(5, 9, dtype=HALF), layout_a)
    b = moved(integers(9, 11, dtype=HALF), layout_b)
    assert torch.equal(product(a=a, b=b, act="relu"), (a @ b).relu())
    first, second, _, out = lib.calls[0]["layouts"]
    assert (out["cols"], out["rows"]) == shape[:2]
    assert {shape[2]} == {
        first["rows"] if layout_b == "columns" else first["cols"],
        second["cols"] if layout_a == "columns" else second["rows"],
    }
    for each in (first, second, out):
        assert each["ld"] % 8 == 0


@needs_host
def test_what_lies_beside_16_bytes_is_copied(fake: Callable[..., Fake]) -> None:
    lib = fake()
    a, b = integers(8 * 8 + 1, dtype=HALF)[1:].view(8, 8), integers(8, 17, dtype=HALF)[:, :16]
    assert torch.equal(product(a=a, b=b, act="relu"), (a @ b).relu())
    assert lib.ranges == ["cuda_reference cublaslt fused of copies relu"]


def test_when_copies_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(M: int, N: int, K: int, dtype: torch.dtype = HALF, precision: str = "ieee") -> Any:
        a, b = (torch.empty(*s, dtype=dtype, device="meta") for s in ((M, K), (K, N)))
        return copies(a, b, precision)

    assert made(8, 16, 24) is None
    assert made(8, 16, 25) is not None
    assert made(8, 16, 25, FLOAT) is None
    assert made(8, 16, 25, FLOAT, "tf32") is not None
    assert made(8, 12, 20, FLOAT, "tf32") is None
    assert made(8, 17, 24).a is None
    monkeypatch.undo()
    assert made(8, 16, 25) is None  # too few operations
    assert made(600, 511, 513) is not None
    assert made(2**20, 1, 513) is None  # eight times the operations
    assert made(2**15 - 1, 128, 255) is not None
    assert made(2**15, 128, 257) is None  # a is large, and each element is multiplied 128 times
    assert made(2**15, 256, 257) is not None
