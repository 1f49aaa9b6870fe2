"""Calls of shapes that no call before had: as right and as well checked as others, and little work
on the host, because their launch is kept for all shapes of a form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from function_calls import calls_of
from torch import Tensor

import cuda_reference as C
from compare.checking.implementations import MODES
from cuda_reference import _build, _forms, _memory, _prepared

MODE = pytest.mark.parametrize("mode", ["cuda-host", "cuda-gpu"], indirect=True)
pytestmark = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)
SHAPES = [(3, 4), (4, 4), (2, 5), (7, 3), (1, 6), (6, 1), (1, 1), (2, 3, 4), (1, 2, 5)]


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


def row(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[-1:]


def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[1:]


def padded_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*[1] * (len(shape) - 1), shape[-1])


def column(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], 1)


ACT, BOTH = "silu", Callable[..., Any]
# name → the function, and the shapes of its tensors for a result of a shape
CALLS: dict[str, tuple[Callable[..., Any], tuple[Callable[..., tuple[int, ...]], ...]]] = {
    "dense": (C.add, (whole, whole)),
    "row": (C.add, (whole, row)),
    "row first": (lambda x, y: C.add(x, y, alpha=0.5), (row, whole)),
    "rows of several dimensions": (C.add, (whole, rows)),
    "padded row": (C.add, (whole, padded_row)),
    "column": (C.add, (whole, column)),
    "row and column": (C.relu_scale_add, (whole, row, column)),
    "row and number": (lambda x, y: C.relu_scale_add(x, y, 2), (row, whole)),
    "rung": (lambda x: C.square(x, variant="auto"), (whole,)),
    "auto of a row": (lambda x, y: C.act_mul(x, y, ACT, variant="auto"), (whole, row)),
    "two results": (lambda g, x, y: C.act_mul_backward(g, x, y, ACT), (whole, row, column)),
    "two results of a rung": (
        lambda g, x, y: C.act_mul_backward(g, x, y, ACT, variant="auto"),
        (whole, whole, whole),
    ),
    "sums of columns": (lambda x: C.sum_to(x, x.shape[1:], factor=0.5), (whole,)),
    "sums of columns, padded": (lambda x: C.sum_to(x, padded_row(x.shape)), (whole,)),
    "sums of rows": (lambda x: C.sum_to(x, column(x.shape), dtype=torch.float64), (whole,)),
    "sum": (lambda x: C.sum_to(x, ()), (whole,)),
}


def made(shapes: Any, shape: tuple[int, ...], device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(each(shape), generator=generator).to(device) for each in shapes]


@MODE
@pytest.mark.parametrize("name", CALLS)
def test_they_are_right(name: str, device: torch.device, checks: list[str]) -> None:
    """As the same call in a layout without a form, whose launch is not kept."""
    function, shapes = CALLS[name]
    for shape in [(5, 8), (6, 8), *SHAPES]:
        tensors = made(shapes, shape, device)
        checks.clear()
        found = function(*tensors)
        kept = not checks
        apart = [torch.stack([t, t], -1)[..., 0] for t in tensors]
        for t in apart:
            assert t.numel() == 1 or not t.is_contiguous()
        right = function(*apart)
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (found, right)))
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, rtol=0, atol=0)
            assert mine.stride() == torch.empty(mine.shape).stride()
        if shape in ((2, 5), (7, 3)):  # the first ones are kept at their second call
            assert kept, (name, shape)


@MODE
def test_in_place_and_elsewhere(device: torch.device, checks: list[str]) -> None:
    for n in range(2, 9):
        x, y = torch.rand(n, 5, device=device), torch.rand(5, device=device)
        right = x + y
        checks.clear()
        out = torch.empty_like(x)
        assert C.add(x, y, out=out) is out
        before = x._version
        assert C.add(x, y, out=x) is x
        assert x._version > before
        assert bool(checks) == (n < 4)
        assert torch.equal(out, right)
        assert torch.equal(x, right)


def test_results_that_overlap_are_refused() -> None:
    memory = torch.rand(400)
    for n in (8, 12, 16):  # the first distance is far enough for n elements, but not for more
        x, out = memory[:n], memory[200 : 200 + n]
        C.square(x, out=out)
        near = memory[8 : 8 + n]
        if n == 8:
            C.square(x, out=near)
            C.square(x, out=near)
        else:
            with pytest.raises(RuntimeError, match="overlaps 'x'"):
                C.square(x, out=near)
    for n in (3, 4, 5, 6):
        matrix, row = memory[: n * 8].view(n, 8), memory[100:108]
        C.add(matrix, row, out=memory[200 : 200 + n * 8].view(n, 8))
        with pytest.raises(RuntimeError, match="overlaps 'y'"):
            C.add(matrix, row, out=memory[104 : 104 + n * 8].view(n, 8))
        C.add(matrix, row, out=memory[108 : 108 + n * 8].view(n, 8))  # beside the row


def test_shapes_that_do_not_fit_are_refused() -> None:
    for n in range(3, 8):
        x = torch.rand(n, 4)
        C.add(x, x[0])
        C.sum_to(x, (4,))
        C.sum_to(x, (n, 1))
        with pytest.raises(RuntimeError, match="do not broadcast"):
            C.add(x, torch.rand(5))
        with pytest.raises(RuntimeError, match="cannot be summed"):
            C.sum_to(x, (5,))
        with pytest.raises(RuntimeError, match="cannot be summed"):
            C.sum_to(x, (n + 1, 1))
        with pytest.raises(RuntimeError, match="but the result has"):
            C.add(x, x[0], out=torch.empty(n + 1, 4))
        with pytest.raises(RuntimeError, match="but the result has"):
            C.sum_to(x, (4,), out=torch.empty(5))


def test_without_elements_nothing_is_launched() -> None:
    for n in (2, 3, 4, 0, 5):
        x = torch.rand(n, 4)
        assert C.square(x).shape == (n, 4)
        assert C.add(x, x[:1]).shape == (n, 4)
        assert torch.equal(C.sum_to(x, (4,)), C.sum_to(x.t().contiguous().t(), (4,)))


def test_dimensions_of_a_kernel_that_takes_them() -> None:
    for n in range(2, 9):
        x = torch.rand(n, 5)
        assert torch.equal(C.square(x, variant="2d"), x * x)
        with pytest.raises(ValueError, match="takes a matrix"):
            C.square(x[0], variant="2d")


def test_what_is_no_row_has_no_form() -> None:
    def form(*shapes: tuple[int, ...]) -> Any:
        return _forms.elementwise([torch.empty(shape) for shape in shapes])

    assert form((2, 3), (3, 2)) is None
    assert form((2, 1), (1, 3)) is None
    assert form((2, 3), ()) is None  # promotion differs
    assert form((2, 3, 4), (2, 1, 1)) is None
    assert form((2, 3, 4), (3, 4), (4,)) is None  # two kinds of rows
    assert form((5,), (1, 5)) is None
    assert form((2, 3), (2, 3), (3,), (2, 1)) is not None
    assert _forms.elementwise([torch.empty(3, 2).t()]) is None


# How many functions at most: a few more than there are. Before all shapes of a form had one launch,
# they were 145, 165, 165, 139 and 105; a product is kept for each shape.
NEW: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "add": (lambda x: C.add(x, x), 55),
    "add of a row": (lambda x: C.add(x, x[0]), 65),
    "add of a column": (lambda x: C.add(x, x[:, :1].contiguous()), 65),
    "sum_to": (lambda x: C.sum_to(x, x.shape[1:]), 58),
    "square": (C.square, 50),
    "relu_scale": (lambda x: C.relu_scale(x, 0.5), 58),
    "gemm_bias_act": (lambda x: C.gemm_bias_act(x, x.t(), x[:, 0], act="relu"), 170),
}


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that lies low is looked at twice; so it does here, wherever it lies."""
    for module in (_prepared, _memory):
        monkeypatch.setattr(module, "NEVER", 0)


@pytest.mark.parametrize("name", NEW)
def test_they_are_little_work_on_the_host(name: str, low: None) -> None:
    call, most = NEW[name]
    counted = []
    for n in range(3, 11):
        x = torch.rand(n, 11)
        counted.append(calls_of(lambda: call(x)))  # noqa: B023
    assert max(counted[2:]) <= most, counted  # the first loads the library, the second is kept


# The same for a call and its backward pass, which were 293, 348, 268, 313 and 500 when the
# dispatcher recorded them.
TRAINING: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], int]] = {
    "add": (C.add, ((4, 5), (4, 5)), 150),
    "add of a row": (C.add, ((4, 5), (5,)), 190),
    "square": (C.square, ((4, 5),), 180),
    "act_mul": (lambda x, y: C.act_mul(x, y, "silu"), ((4, 5), (4, 5)), 205),
    "gemm_bias_act": (
        lambda a, b, bias: C.gemm_bias_act(a, b, bias, act="relu"),
        ((4, 5), (5, 6), (6,)),
        325,
    ),
}


@pytest.mark.parametrize("name", TRAINING)
def test_gradients_are_little_work_on_the_host(name: str, low: None) -> None:
    function, shapes, most = TRAINING[name]
    leaves = [torch.rand(shape, requires_grad=True) for shape in shapes]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        result = function(*leaves)
        result.backward(result.detach())

    for _ in range(3):
        step()
    assert calls_of(step) <= most
