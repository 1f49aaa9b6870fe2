"""What launches keep of Triton's findings: all calls of one Launch must look the same to Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    Call,
    TensorSpec,
    elementwise_calls,
    gated_units,
    gemm_calls,
    gradients,
    sums,
)
from torch import Tensor

import triton_kernels as tk
from compare.ops import SPECS
from triton_kernels import _launch
from triton_kernels._launch import Launch, _constants, _kind, specialization_key
from triton_kernels.interpreter import cross_compile

CALLS: dict[str, Callable[[str], st.SearchStrategy[Call]]] = {
    "sum_to": sums,
    "act_backward": gradients,
    "act_mul": gated_units,
    "act_mul_backward": gated_units,
    "gemm_bias_act": gemm_calls,
    "linear_act": gemm_calls,
    "linear_gelu": gemm_calls,
}
FACTORS = st.sampled_from([1.0, 0.0, -0.5, 0.3, 1e300])


@st.composite
def alike(draw: st.DrawFn, op: str) -> list[Call]:
    """Calls that differ in where tensors start and in the numbers only."""
    first = draw(CALLS.get(op, elementwise_calls)(op))

    def moved(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return replace(value, offset=draw(st.sampled_from([0, 1, 8, 16])))
        return value

    calls = [first]
    for _ in range(3):
        last = calls[-1]
        if draw(st.booleans()):
            options = {name: moved(value) for name, value in last.options.items()}
            args = tuple(map(moved, last.args))
            calls.append(replace(last, args=args, options=options, out=moved(last.out)))
        else:
            numbers = ("alpha", "beta", "scale", "factor")
            there = {name for name in numbers if isinstance(last.options.get(name), float)}
            options = last.options | {name: draw(FACTORS) for name in there}
            calls.append(replace(last, options=options))
    return calls


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Launch, list[Any]]]:
    """What Triton would specialise on in each launch; nothing is compiled or run. Of two that are
    alike to the project it must be the same."""
    seen: dict[Launch, list[Any]] = {}
    kinds: dict[Any, Any] = {}
    binders: dict[Any, Any] = {}

    def look(self: Launch, device: torch.device, *args: Any, grid: Any = None) -> None:
        if self.kernel not in binders:
            *_, binders[self.kernel] = self.kernel.create_binder()
        _, specialization, options = binders[self.kernel](*args, **self.meta)
        kind = self.kernel, _constants(self.meta), *map(_kind, args)
        constants = [str(self.meta.get(name)) for name in self.kernel.arg_names[len(args) :]]
        chosen = [*specialization, *constants], options
        assert kinds.setdefault(kind, chosen) == chosen
        seen.setdefault(self, []).append([self.kernel.fn.__name__, *specialization])

    monkeypatch.setattr(Launch, "__call__", look)
    with cross_compile.compiling(90):
        yield seen


@pytest.mark.parametrize("op", SPECS)
def test_calls_of_one_launch_look_alike_to_triton(op: str, looks: dict[Launch, list[Any]]) -> None:
    @given(alike(op))
    def holds(calls: list[Call]) -> None:
        for call in calls:
            args, options = call.arguments()
            out = call.out.tensor() if isinstance(call.out, TensorSpec) else None
            getattr(tk, op)(*args, **options, **({} if out is None else {"out": out}))
        for found in looks.values():
            assert all(each == found[0] for each in found), found

    holds()
    assert sum(len(found) > 1 for found in looks.values()) > 10, "some launches came again"
    assert len({repr(found[0]) for found in looks.values()}) > 10, "and there were several"


class Kernel:
    """Stands in for a jit function on a GPU: notes how it is launched."""

    arg_names = ("x", "n", "BLOCK", "ACT")
    pre_run_hooks: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.log: list[str] = []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **meta: Any) -> Any:
            self.log.append(f"chosen {grid} {args} {meta}")
            return Compiled(self.log)

        return launch


class Compiled:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args: self.log.append(f"started {grid} {args}")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr("triton_kernels._launch.interpreted", lambda kernel: False)
    monkeypatch.setattr(_launch, "current_device", lambda: 0)
    return Kernel()


def _act() -> Callable[[Any], Any]:
    def act(x):  # type: ignore[no-untyped-def]
        return x

    return act


DEVICE = torch.device("cuda", 0)
CHOSEN = "chosen (3, 1, 1) (1, 2) {'num_warps': 4, 'ACT': 6, 'BLOCK': 5}"
STARTED = "started (3, 1, 1) (1, 2, 5, 6)"


def test_triton_chooses_once(kernel: Kernel) -> None:
    launch = Launch(kernel, (3,), num_warps=4, ACT=6, BLOCK=5)
    for _ in range(3):
        launch(DEVICE, 1, 2)
    assert kernel.log == [CHOSEN, STARTED, STARTED]


def test_triton_is_not_asked_again_for_what_it_takes_for_the_same(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = DEVICE

    def start(*args: Any, grid: int = 3, **meta: Any) -> str:
        Launch(kernel, (grid,), **{"num_warps": 4, "ACT": 6, "BLOCK": 5} | meta)(device, *args)
        return kernel.log[-1].split()[0]

    asked, known = "chosen", "started"
    x = torch.zeros(64)
    assert [start(x, 32), start(x[4:], 48, grid=5), start(x, 2**30)] == [asked, known, known]
    assert kernel.log[1].startswith("started (5, 1, 1)")
    assert [start(x, n) for n in (1, 2, 3, 2**40, 2**40 + 16)] == [
        asked,
        asked,
        known,
        asked,
        known,
    ]
    assert [start(x[1:], 32), start(x.double(), 32), start(None, 32)] == [asked] * 3
    assert [start(x, (32, None)), start(x, (48, None)), start(x, (32, 1))] == [asked, known, asked]
    assert [start(x, 32, BLOCK=7), start(x, 32, num_warps=8), start(x, 64)] == [asked, asked, known]
    assert [start(x, 0.5), start(x, 1.0), start(x, 1)] == [asked, known, known]
    assert [start(x, object()), start(x, object())] == [asked, asked]
    first, other = triton.jit(_act()), triton.jit(_act())  # of one name
    assert [start(x, 32, ACT=each) for each in (first, other, first)] == [asked, asked, known]
    device = torch.device("cuda", 1)
    monkeypatch.setattr(_launch, "current_device", lambda: 1)
    assert [start(x, 32), start(x, 32)] == [asked, known]
    _launch._compiled.clear()
    assert [start(x, 32), start(x, 48)] == [asked, known]


def test_who_replaces_or_hooks_launches_sees_all_of_them(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(kernel, (3,), num_warps=4, ACT=6, BLOCK=5)
    with monkeypatch.context() as patch:
        patch.setattr(triton.JITFunction, "run", lambda *args, **meta: None)
        launch(DEVICE, 1, 2)
        launch(DEVICE, 1, 2)
    assert kernel.log == [CHOSEN, CHOSEN]
    launch(DEVICE, 1, 2)
    monkeypatch.setattr(kernel, "pre_run_hooks", (print,))
    launch(DEVICE, 1, 2)
    assert kernel.log == [CHOSEN] * 4


def test_an_empty_grid_launches_nothing(kernel: Kernel) -> None:
    Launch(kernel, (3, 0))(DEVICE, 1, 2)
    assert kernel.log == []


def test_kinds() -> None:
    x = torch.zeros(20)
    assert specialization_key(x) == specialization_key(x[4:]) != specialization_key(x[1:])
    assert specialization_key(x) != specialization_key(x.double())
    assert specialization_key(1) == specialization_key(2**31 - 1) != specialization_key(2**31)
    assert (
        len(
            {
                specialization_key(x),
                specialization_key(None),
                specialization_key(1),
                specialization_key(1.0),
                specialization_key(2**40),
            }
        )
        == 5
    )


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_neighbours_of_another_alignment(dtype: torch.dtype) -> None:
    memory = torch.randn(128 * 64 + 1, device="cuda").to(dtype)

    def views(offset: int) -> Tensor:
        return memory[offset : offset + 128 * 64].view(128, 64)

    for _ in range(2):
        for x in (views(0), views(1)):
            torch.testing.assert_close(tk.relu_scale(x, 0.5), torch.relu(x) * 0.5)
            torch.testing.assert_close(tk.sum_to(x, (64,)), x.sum(0), atol=1e-2, rtol=1e-2)
            dx, _ = tk.act_backward(x, x, "relu")
            torch.testing.assert_close(dx, torch.relu(x))
            right = (x.double() @ x.double().t()).to(dtype)
            torch.testing.assert_close(tk.gemm_bias_act(x, x.t()), right, atol=1e-2, rtol=1e-2)
