"""Elementwise calls on dense tensors of sizes that no call had: one recording serves them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from simulated_starts import Machine, replayed, simulated
from torch import Tensor

import triton_kernels as tk
from triton_kernels import _replay


@pytest.fixture(params=["3.6", "3.7"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with simulated(request.param) as found:
        yield found


def matrix(*shape: int) -> Tensor:
    return torch.randn(shape)


def same(result: Any, expected: Any) -> None:
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
    assert result.stride() == expected.stride()


OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int, int], Any]]] = {
    "add": (tk.add, torch.add, lambda n, k: (matrix(n, k), matrix(n, k))),
    "add of a row": (tk.add, torch.add, lambda n, k: (matrix(n, 2, 48), matrix(48))),
    "add of a row with a leading one": (
        tk.add,
        torch.add,
        lambda n, k: (matrix(n, 2, 48), matrix(1, 1, 48)),
    ),
    "add of two rows": (tk.add, torch.add, lambda n, k: (matrix(n, 2, 24), matrix(2, 24))),
    "add of a number": (lambda x: tk.add(x, 3), lambda x: x + 3, lambda n, k: (matrix(n, k),)),
    "add of doubles": (
        tk.add,
        torch.add,
        lambda n, k: (matrix(n, k), matrix(n, k).double()),
    ),
    "relu_scale by a tensor": (
        tk.relu_scale,
        lambda x, s: torch.relu(x) * s,
        lambda n, k: (matrix(n, k), matrix(n, k)),
    ),
    "relu_scale_add": (
        lambda x, y: tk.relu_scale_add(x, y, 0.5),
        lambda x, y: torch.relu(x) * 0.5 + y,
        lambda n, k: (matrix(n, k), matrix(n, k)),
    ),
    "act_mul": (
        lambda x, y: tk.act_mul(x, y, "relu"),
        lambda x, y: torch.relu(x) * y,
        lambda n, k: (matrix(n, k), matrix(n, k)),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_other_sizes_are_replayed(name: str, machine: Machine) -> None:
    ours, theirs, inputs = OPS[name]
    again = []
    for n, k in ((2, 48), (3, 32), (16, 16), (700, 16), (4, 80), (1, 16)):
        args = inputs(n, k)
        result, was = replayed(machine, lambda args=args: ours(*args))
        same(result, theirs(*args))
        again.append(was)
    assert again == [False, False, True, True, True, True]


def test_counts_of_each_divisibility_have_their_own(machine: Machine) -> None:
    """Triton compiles for multiples of 16, for others and for 1."""
    again = []
    for n in (16, 32, 48, 33, 35, 1, 1, 0, 49, 64):
        x = matrix(n)
        result, was = replayed(machine, lambda x=x: tk.square(x))
        same(result, x * x)
        if n:
            again.append(was)
    assert again == [False, False, True, False, True, False, True, True, True]


def known(machine: Machine) -> None:
    """After this, add of two matrices of any size and of a matrix and a row of 16 are replayed."""
    for n in (2, 3, 4):
        tk.add(matrix(n, 16), matrix(n, 16))
        tk.add(matrix(n, 16), matrix(16))


def again(machine: Machine, x: Tensor, y: Tensor) -> bool:
    result, was = replayed(machine, lambda: tk.add(x, y))
    same(result, torch.add(x, y))
    return was


def test_what_lies_otherwise_runs_by_itself(machine: Machine) -> None:
    known(machine)
    assert again(machine, matrix(5, 16), matrix(5, 16))
    assert again(machine, matrix(6, 16), matrix(16))
    assert not again(machine, matrix(5, 16), matrix(16, 5).t())
    assert not again(machine, matrix(16, 5).t(), matrix(16, 5).t())
    assert not again(machine, matrix(5, 32)[:, ::2], matrix(5, 32)[:, ::2])
    assert not again(machine, matrix(7, 16), matrix(7, 1))
    assert not again(machine, matrix(1, 16), matrix(9, 16))
    assert not again(machine, matrix(5, 32), matrix(32)), "a row of another length"
    assert not again(machine, matrix(5, 16), matrix(5, 16).double())
    assert not again(machine, matrix(5 * 16 + 1)[1:].view(5, 16), matrix(5, 16)), "not aligned"
    assert again(machine, matrix(11, 16), matrix(11, 16))


def test_errors_stay(machine: Machine) -> None:
    known(machine)
    with pytest.raises(RuntimeError, match="broadcast"):
        tk.add(matrix(5, 16), matrix(6, 16))
    with pytest.raises(RuntimeError, match="broadcast"):
        tk.add(matrix(5, 15), matrix(16))


def test_gradients_are_recorded(machine: Machine) -> None:
    for n in (2, 3, 4, 5):
        x = matrix(n, 16).requires_grad_()
        result, was = replayed(machine, lambda x=x: tk.square(x))
        result.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())
        assert was == (n > 3)


def test_a_size_that_comes_again_gets_a_plan_of_its_own(machine: Machine) -> None:
    known(machine)
    again = [
        replayed(machine, lambda: tk.add(matrix(5, 16), matrix(5, 16)))[1]
        for _ in range(_replay.PATIENCE + 3)
    ]
    assert again == [*[True] * _replay.PATIENCE, False, True, True]
