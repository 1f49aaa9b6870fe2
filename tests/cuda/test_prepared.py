"""Calls that come again: as right as the first, as well checked, and little work on the host."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_function import IN_PLACE, PAIRS, functions
from function_calls import calls_of
from kept_calls import forget, registered
from torch import Tensor
from torch.autograd import forward_ad

import cuda_reference
from compare.checking.implementations import MODES
from cuda_reference import (
    _build,
    _gemm,
    _launch,
    _prepared,
    _registered,
)

MODE = pytest.mark.parametrize("mode", ["cuda-host", "cuda-gpu"], indirect=True)
pytestmark = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


def again(call: Callable[[], Any], checks: list[str]) -> Any:
    """What a call returns that was made once, and kept when it came again."""
    call()
    call()
    checks.clear()
    result = call()
    assert not checks
    return result


@MODE
def test_they_are_right(mode: str, device: torch.device, checks: list[str]) -> None:
    """With other values, elsewhere, and in every function and variant."""
    forget()  # calls that earlier tests made
    for function in functions(mode):
        kept = []
        for seed in range(3):
            torch.manual_seed(seed)
            inputs = {
                name: torch.rand(t.shape).to(t) for name, t in function.inputs(device).items()
            }
            checks.clear()
            found = function(inputs)
            assert bool(checks) == (seed == 0), function
            checks.clear()
            out = function.results(device)
            assert all(a is b for a, b in zip(function(inputs, out), out)), function
            assert bool(checks) == (seed == 0), function
            forget()
            right = function(inputs)
            assert all(map(torch.equal, found, right)), function
            assert all(map(torch.equal, out, right)), function
            kept.append((inputs, found, out))
            for _ in range(2):  # kept for the next round
                function(inputs)
                function(inputs, function.results(device))
        assert len({t.data_ptr() for _, found, _ in kept for t in found}) == 3 * len(found)


@MODE
def test_in_place(mode: str, device: torch.device, checks: list[str]) -> None:
    for function in functions(mode):
        if function.op not in IN_PLACE or function.op in PAIRS:
            continue
        for name in function.inputs(device):
            for _ in range(3):
                inputs = function.inputs(device)
                if inputs[name].shape != function.results(device)[0].shape:
                    continue
                (right,) = function(function.inputs(device))
                before = inputs[name]._version
                assert function(inputs, [inputs[name]])[0] is inputs[name]
                assert torch.equal(inputs[name], right), (function, name)
                assert inputs[name]._version > before


def test_one_tensor_twice(checks: list[str]) -> None:
    """First: what is kept of it is nothing for two."""
    x, y = torch.rand(77), torch.rand(77)
    again(lambda: cuda_reference.add(x, x), checks)
    for _ in range(3):
        assert torch.equal(cuda_reference.add(x, y), x + y)
        assert torch.equal(cuda_reference.add(x, x), x + x)
        assert torch.equal(cuda_reference.add(y, y), y + y)
    assert torch.equal(again(lambda: cuda_reference.add(x, x), checks), x + x)


def test_numbers_that_are_equal_and_yet_differ() -> None:
    x, n = torch.ones(3), torch.ones(3, dtype=torch.int32)
    for _ in range(3):
        for scale in (0.0, -0.0, math.nan, math.inf):
            right = torch.relu(x) * scale
            found = cuda_reference.relu_scale(x, scale)
            assert torch.equal(found.signbit(), right.signbit())
            torch.testing.assert_close(found, right, equal_nan=True)
        assert cuda_reference.add(n, n, alpha=1).tolist() == [2] * 3
        with pytest.raises(TypeError, match="'alpha' must be an integer"):
            cuda_reference.add(n, n, alpha=1.0)
        with pytest.raises(TypeError, match="'alpha' must be a number"):
            cuda_reference.add(n, n, alpha=True)
        assert cuda_reference.add(n, True).dtype == torch.int32
        assert cuda_reference.add(n, 1.0).dtype == torch.float32
        assert cuda_reference.sum_to(x[None], (1, 3)).tolist() == [[1.0] * 3]
        with pytest.raises(TypeError, match="'shape'"):
            cuda_reference.sum_to(x[None], (True, 3))


def test_the_default_dtype_is_looked_at() -> None:
    n = torch.arange(3)
    for dtype in (torch.float32, torch.float64) * 3:
        torch.set_default_dtype(dtype)
        try:
            assert cuda_reference.add(n, 0.5).dtype == dtype
        finally:
            torch.set_default_dtype(torch.float32)


# ---- every check protects them, too ----


def test_tensors_of_another_kind(checks: list[str]) -> None:
    x = torch.rand(2, 3)
    again(lambda: cuda_reference.square(x), checks)
    negated = torch._neg_view(torch.rand(2, 3))
    with pytest.raises(RuntimeError, match="lazily negated"):
        cuda_reference.square(negated)
    with pytest.raises(TypeError, match="must be strided"):
        cuda_reference.square(x.to_sparse())
    with pytest.raises(TypeError, match="must be strided"):
        cuda_reference.square(x.to_mkldnn())
    with pytest.raises(TypeError, match="nested tensor"):
        cuda_reference.square(torch.nested.nested_tensor([x[0], x[1]]))
    with pytest.raises(RuntimeError, match="meta"):
        cuda_reference.square(x.to("meta"))
    freed = torch.rand(2, 3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match="storage was freed"):
        cuda_reference.square(freed)
    with pytest.raises(TypeError, match="complex64"):
        cuda_reference.square(x.to(torch.complex64))
    assert cuda_reference.square(x.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        assert not cuda_reference.square(x.clone().requires_grad_()).requires_grad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="'x' carries a forward-mode tangent"):
            cuda_reference.square(dual)
    with pytest.raises(TypeError, match="the result is a GradTrackingTensor"):
        torch.func.grad(lambda y: (cuda_reference.square(x), y.sum())[1])(torch.rand(3))


def test_results_that_overlap(checks: list[str]) -> None:
    memory = torch.rand(24)  # shifted by a vector: its alignment is that of x
    x, apart, shifted = memory[:8], memory[8:16], memory[4:12]
    square = cuda_reference.square
    for out in (apart, x, apart):
        before = x.clone()
        again(lambda: square(x, out=out), checks)  # noqa: B023
        x.copy_(before)
    right = x * x
    with pytest.raises(RuntimeError, match="overlaps 'x'"):
        square(x, out=shifted)
    with pytest.raises(RuntimeError, match="overlaps 'x'"):
        square(shifted, out=x)
    assert torch.equal(square(x, out=x), right)
    with pytest.raises(RuntimeError, match="'out' overlaps itself"):
        square(x, out=memory[:1].expand(8))
    with pytest.raises(RuntimeError, match="requires grad"):
        square(x, out=torch.zeros(8, requires_grad=True))


def test_interleaved_results_are_checked_every_time_and_fine() -> None:
    memory = torch.rand(8)
    x, out = memory[::2], memory[1::2]
    for _ in range(4):
        assert torch.equal(cuda_reference.square(x, out=out), x * x)


def test_pairs_of_results_that_overlap(checks: list[str]) -> None:
    x, y, memory = torch.rand(2, 3), torch.rand(2, 3), torch.zeros(18)
    one, two = memory[:6].view(2, 3), memory[6:12].view(2, 3)
    call = cuda_reference.act_mul_backward
    again(lambda: call(x, x, y, "silu", out=(one, two)), checks)
    with pytest.raises(RuntimeError, match="overlaps 'the other result'"):
        call(x, x, y, "silu", out=(one, memory[4:10].view(2, 3)))
    with pytest.raises(TypeError, match="two tensors"):
        call(x, x, y, "silu", out=(one,))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="overlaps 'the other result'"):
        cuda_reference.act_backward(x, y, "silu", out=(one, memory[4:7]))


def test_where_a_vector_begins_is_looked_at() -> None:
    memory = torch.rand(16)
    for start in (0, 0, 0, 1, 1, 0, 1):  # kept before another one comes
        x, out = memory[start : start + 5], torch.empty(5)
        if start:
            with pytest.raises(ValueError, match="variant 'stream' takes tensors that lie alike"):
                cuda_reference.square(x, out=out, variant="stream")
        else:
            assert torch.equal(cuda_reference.square(x, out=out, variant="stream"), x * x)


def test_explain_prints_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.rand(5)
    for _ in range(4):
        cuda_reference.square(x, variant="auto")
        cuda_reference.square(x, variant="auto", explain=True)
        assert "variant 'auto' is 'pack128'" in capsys.readouterr().out


def test_the_precision_of_torch_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    launch = _launch.launch
    monkeypatch.setattr(
        _launch,
        "launch",
        lambda stem, symbol, *r, **n: (launched.append(symbol), launch(stem, symbol, *r, **n))[1],
    )
    x = torch.rand(16, 16)
    for precision in ("ieee", "tf32", "ieee", "tf32", "ieee", "tf32"):
        monkeypatch.setattr(_gemm, "_of_torch", lambda: precision)  # noqa: B023
        cuda_reference.gemm_bias_act(x, x.t().contiguous())
    assert launched == ["gemm_bias_act_naive", "gemm_bias_act_wmma"] * 2  # then they are kept


def test_a_tool_that_is_asked_for_gets_its_library(
    monkeypatch: pytest.MonkeyPatch, checks: list[str]
) -> None:
    x = torch.rand(9)
    again(lambda: cuda_reference.square(x), checks)
    monkeypatch.setenv("CROSSCHECK_SANITIZE", "watch")
    assert torch.equal(cuda_reference.square(x), x * x)
    assert checks == ["square"]


def test_memory_that_lies_low(monkeypatch: pytest.MonkeyPatch, checks: list[str]) -> None:
    """As a process has it that is not loaded at random places."""
    monkeypatch.setattr(_prepared, "NEVER", 1 << 63)
    x = torch.rand(7)
    assert torch.equal(again(lambda: cuda_reference.square(x), checks), x * x)


@MODE
def test_a_launch_that_fails_says_so(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: Tensor) -> Tensor:
        return cuda_reference.act_mul(x, x, "relu", variant="pack128")

    forget()
    x = torch.rand(5, device=device)
    for _ in range(2):
        call(x)
    (known,) = [each for op in registered() for each in op._known.values()]
    monkeypatch.setattr(known, "_entry", lambda *_: 1)
    text = r"act_mul_rung\(\) on gate \[7\], up \[7\], act relu: launch failed: "
    with pytest.raises(RuntimeError, match=text):
        call(torch.rand(7, device=device))
    assert torch.equal(call(x), x * x)  # what failed is not kept


# ---- what is kept ----


def test_no_tensor_is_kept_alive(checks: list[str]) -> None:
    alive = []

    def call() -> Tensor:
        x, y = torch.rand(3, 5), torch.rand(5)
        result = cuda_reference.add(x, y)
        alive.extend(weakref.ref(t) for t in (x, y, result))
        return result

    again(call, checks)
    gc.collect()
    assert len(alive) == 9
    assert all(ref() is None for ref in alive)


def test_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registered, "_KEPT", 3)
    (op,) = [each for each in registered() if each.name == "square"]
    forget()
    for n in range(2, 20):
        x = torch.rand(n, 3)
        assert torch.equal(cuda_reference.square(x.t()), x.t() * x.t())
        assert 1 <= len(op._known) <= 3
        cuda_reference.square(x)  # of one form
    assert len(op._known) > 1


def test_threads_do_not_mix_their_tensors() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(200):
            x = torch.full((64,), float(number * 1000 + step))
            if not torch.equal(cuda_reference.add(x, 1.0), x + 1):
                wrong.append(number)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert not wrong


def calls_again(function: Callable[[], Any]) -> int:
    """Those of a call that has been kept."""
    for _ in range(3):
        function()
    return calls_of(function)


def test_they_are_little_work_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they were kept, add made 114 calls, and with out= 380."""
    monkeypatch.setattr(_prepared, "NEVER", 0)  # memory that lies low is looked at twice
    x, y, out = torch.rand(4, 4), torch.rand(4, 4), torch.empty(4, 4)
    assert calls_again(lambda: cuda_reference.add(x, y)) <= 47
    assert calls_again(lambda: cuda_reference.add(x, y, out=out)) <= 57
    assert calls_again(lambda: cuda_reference.relu_scale(x, 0.5)) <= 60
    assert calls_again(lambda: cuda_reference.linear_act(x, y, act="relu")) <= 50
