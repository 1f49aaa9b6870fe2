"""Triton's language as kernels use it: scalars, helpers, heuristics, autotuning, views; and nothing
of it is left behind."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import numpy as np
import pytest
import small_kernels
import torch
import triton
import triton.language as tl
from small_kernels import copy, run_pointwise, same, wrapping
from triton.language.extra import libdevice

from triton_kernels import interpreter
from triton_kernels.interpreter import (
    handles,
    launching,
)

INTERPRET_AT_IMPORT = os.environ.get("TRITON_INTERPRET") == "1"
HALF = tl.constexpr(0.5)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def twice(x):
    return relu(x) * 2


@triton.jit
def both_ways(out_ptr, a, b):
    tl.store(out_ptr, a + b)
    tl.store(out_ptr + 1, a * b)


def test_integers_beyond_int32_are_64_bits_wide(interpreted: Any) -> None:
    out = torch.zeros(2, dtype=torch.int64)
    both_ways[(1,)](out, 3_000_000_000, 2_500_000_000)
    assert out.tolist() == [5_500_000_000, 7_500_000_000_000_000_000]


@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def with_heuristics(out_ptr, n, EVEN: tl.constexpr):
    tl.store(out_ptr, EVEN)


@triton.autotune([triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def autotuned(out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr, BLOCK + EVEN)


@triton.jit
def language(x_ptr, out_ptr, n, pair, alpha, ACT: tl.constexpr, STEPS: tl.constexpr):
    total = 0.0
    for i in range(n):  # run-time bound: numpy >= 2.4 breaks this in Triton 3.6
        total += tl.load(x_ptr + i)
    for i in tl.range(0, n, num_stages=2):
        total += tl.load(x_ptr + i)
    for i in tl.static_range(STEPS):
        total += i
    i = 0
    while i < n:
        i += 1
    first, second = pair
    total = ACT(total * alpha) + first * second + tl.cdiv(n, 2) + i * HALF
    tl.store(out_ptr, total)


@triton.jit
def scalars(out_ptr, plain, wide: tl.float64, flag, count: tl.int64):
    tl.static_assert(plain.dtype == tl.float32)
    tl.static_assert(wide.dtype == tl.float64)
    tl.static_assert(flag.dtype == tl.int1 and count.dtype == tl.int64)
    if flag:
        tl.store(out_ptr, plain)
        tl.store(out_ptr + 1, wide)
        tl.store(out_ptr + 2, wide + count)


def test_language(interpreted: Any) -> None:
    x, out = torch.ones(5), torch.zeros(1)
    language[(1,)](x, out, 5, (2, 3), 0.5, ACT=twice, STEPS=3)
    assert out.item() == 2 * (13 * 0.5) + 6 + 3 + 2.5
    with_heuristics[(1,)](out, 4)
    assert out.item() == 1
    autotuned[lambda meta: (32 // meta["BLOCK"],)](out, 4)
    assert out.item() == 1 + 4 * 9
    numbers = torch.zeros(3, dtype=torch.float64)
    scalars[(1,)](numbers, 0.1, 0.1, True, 2)
    assert numbers.tolist() == [float(np.float32(0.1)), 0.1, 2.1]


@triton.jit
def logic(out_ptr, n, FLAG: tl.constexpr, NOTHING: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    out = tl.where(i > 1 and i < n, 1, 0) + tl.where(i < 2 or i > 5, 2, 0)
    out += tl.where(not (i < 4), 4, 0) + tl.where(i > 6 and FLAG, 8, 0)
    if NOTHING is not None and NOTHING.gone:
        out += 16
    if FLAG and not NOTHING:
        out += 32
    tl.store(out_ptr + i, out)


def test_and_or_not_of_tensors(interpreted: Any) -> None:
    """Element by element, as compiled; Python's own `and` would return its second operand."""
    out = torch.empty(8, dtype=torch.int32)
    logic[(1,)](out, 6, FLAG=True, NOTHING=None, BLOCK=8)
    want = [(1 < i < 6) + 2 * (i < 2 or i > 5) + 4 * (i >= 4) + 8 * (i > 6) + 32 for i in range(8)]
    assert out.tolist() == want


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32])
def test_no_warnings_and_wrapping(interpreted: Any, dtype: torch.dtype) -> None:
    big = torch.iinfo(dtype).max if not dtype.is_floating_point else 3e38
    x = torch.tensor([big, 1, 2, 3], dtype=dtype)
    out = torch.empty_like(x)
    wrapping[(1,)](x, out, BLOCK=4)
    same(out, x * x + x)
    if dtype.is_floating_point:
        run_pointwise("div", x, x * 0)
        run_pointwise("sub", x / 0, x / 0)


def test_views_of_one_storage_and_in_place(interpreted: Any) -> None:
    storage = torch.arange(64.0)
    copy[(1,)](storage[:32], storage[32:], 32, BLOCK=32)
    assert torch.equal(storage[32:], torch.arange(32.0))
    run_in_place = storage[8:16]
    wrapping[(1,)](run_in_place, run_in_place, BLOCK=8)
    assert storage[9].item() == 90


def test_no_torch_operation_runs(interpreted: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    x, out = torch.ones(64), torch.empty(64)
    with Spy():
        copy[(1,)](x, out, 64, BLOCK=64)
    assert calls == []


def test_tensors_of_another_device(monkeypatch: Any, interpreted: Any) -> None:
    """The way of CUDA tensors, to the host and back, walked with CPU tensors."""
    elsewhere = [types.SimpleNamespace(device=torch.device("cuda"))]
    monkeypatch.setattr(launching, "_tensors", lambda values: elsewhere)
    base = torch.arange(200.0)
    x, out = base[:100], torch.zeros(100)
    copy[(2,)](x, out, 100, BLOCK=64)
    same(out, x)
    with pytest.raises(IndexError, match="offset 100 of x_ptr"):
        copy[(2,)](x, out, 128, BLOCK=64)


def test_made_interpreted() -> None:
    for kernel in (copy, with_heuristics, autotuned):
        assert interpreter.made_interpreted(kernel) is INTERPRET_AT_IMPORT


def language_state() -> dict[Any, Any]:
    spaces = (
        *(tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base),
        *(libdevice, sys.modules["triton.language.extra.cuda.libdevice"]),
        *(triton.runtime.jit, triton.runtime.JITFunction, triton.runtime.Autotuner),
        *(
            handles.upstream,
            handles.upstream.InterpretedFunction,
            handles.upstream.FunctionRewriter,
        ),
        handles.upstream.interpreter_builder,
    )
    return {(str(s), k): v for s in spaces for k, v in vars(s).items()}


def test_nothing_is_left_behind() -> None:
    with interpreter.interpreting():  # first rewriting of helpers adds two names to their modules
        test_language(None)
        copy[(1,)](torch.zeros(8), torch.zeros(8), 8, BLOCK=8)
    before, kind = language_state(), type(handles.upstream.interpreter_builder)
    names = set(globals()), set(vars(small_kernels))
    with interpreter.interpreting():
        test_language(None)
        with pytest.raises(IndexError):
            copy[(2,)](torch.zeros(8), torch.zeros(8), 128, BLOCK=64)
    after = language_state()
    assert type(handles.upstream.interpreter_builder) is kind
    assert before.keys() == after.keys()
    assert [key for key, value in before.items() if value is not after[key]] == []
    assert (set(globals()), set(vars(small_kernels))) == names
    assert not {"np", "ast", "textwrap", "T"} & set(vars(tl.standard))


@triton.jit
def constants_first(x_ptr, out_ptr):
    i = tl.arange(0, 8)
    x = tl.load(x_ptr + i)
    half = tl.exp(HALF * x) + (HALF - x) / (HALF + x)
    tl.store(out_ptr + i, tl.where(HALF < x, half, HALF))


def test_a_constexpr_of_the_module_left_of_a_tensor(interpreted: Any) -> None:
    """It makes a tensor, on which the language's functions work."""
    x, out = torch.arange(8.0), torch.zeros(8)
    constants_first[(1,)](x, out)
    want = torch.where(x > 0.5, torch.exp(0.5 * x) + (0.5 - x) / (0.5 + x), 0.5)
    torch.testing.assert_close(out, want)


@triton.jit
def every_second(out_ptr, n):
    for i in range(0, n, step=2):
        tl.store(out_ptr + i, i)
    for i in tl.range(0, n, step=2):
        tl.store(out_ptr + n + i, i)


def test_keywords_of_a_loop_s_range(interpreted: Any) -> None:
    """The compiler drops those of Python's range, and reads tl.range's."""
    out = torch.zeros(8, dtype=torch.int32)
    with pytest.warns(UserWarning, match="ignores step= of Python's range: the loop's step is 1"):
        every_second[(1,)](out, 4)
    assert out.tolist() == [0, 1, 2, 3, 0, 0, 2, 0]
