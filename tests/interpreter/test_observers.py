"""What observers are told of a launch, and whose line an error or an assertion is laid to."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_kernels
import torch
import triton
import triton.language as tl
from small_kernels import atomics, call_libdevice, copy, same

from triton_kernels import interpreter
from triton_kernels.interpreter import (
    Access,
    Dot,
    Launch,
    Observer,
    Program,
)


@triton.jit
def asserting(x_ptr, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.device_assert(x < LIMIT, "x is too large", mask=x > -5)


def test_device_assert(interpreted: Any) -> None:
    x = torch.arange(32.0)
    asserting[(2,)](x, LIMIT=32, BLOCK=16)
    with pytest.raises(AssertionError) as caught:
        asserting[(2,)](x, LIMIT=30, BLOCK=16)
    for part in ("x is too large", "program (1, 0, 0)", "2 of 16", f"{Path(__file__).name}:"):
        assert part in str(caught.value)
    asserting[(1,)](x - 100, LIMIT=-200, BLOCK=16)


class Recorder(Observer):
    """Keeps all it is told; runs only the programs of ``only``, if given."""

    def __init__(self, only: tuple[int, ...] = ()) -> None:
        self.only = only
        self.launches: list[Launch] = []
        self.accesses: list[Access] = []
        self.dots: list[Dot] = []

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)

    def wants(self, program: Program) -> bool:
        return not self.only or program[0] in self.only

    def access(self, access: Access) -> None:
        self.accesses.append(access)

    def dot(self, dot: Dot) -> None:
        self.dots.append(dot)

    def brief(self) -> list[tuple[str, str, Program]]:
        return [(a.verb, a.argument.name if a.argument else "", a.program) for a in self.accesses]


@triton.jit
def loads_twice(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr, volatile=True) + tl.load(x_ptr))


def test_observer_knows_volatile_loads() -> None:
    recorder = Recorder()
    with interpreter.interpreting(recorder):
        loads_twice[(1,)](torch.ones(1), torch.empty(1))
    assert [access.semantics for access in recorder.accesses] == ["volatile", "", ""]


def test_observer_sees_every_access() -> None:
    x, out = torch.arange(100, dtype=torch.bfloat16), torch.empty(100, dtype=torch.bfloat16)
    recorder, inner = Recorder(), Recorder()
    with interpreter.interpreting(recorder):
        with interpreter.interpreting():  # keeps the outer observer
            copy[(2,)](x, out, 100, BLOCK=64)
        with interpreter.interpreting(inner):
            copy[(2,)](x, out, 100, BLOCK=64)
        atomics[(1,)](torch.zeros(8), 5, BLOCK=8)
    both = [
        *(("load", "x_ptr", (0, 0, 0)), ("store", "out_ptr", (0, 0, 0))),
        *(("load", "x_ptr", (1, 0, 0)), ("store", "out_ptr", (1, 0, 0))),
    ]
    assert inner.brief() == both
    assert recorder.brief() == [*both, ("atomic", "x_ptr", (0, 0, 0))]
    assert [(x.kernel, x.grid) for x in recorder.launches] == [
        ("copy", (2, 1, 1)),
        ("atomics", (1, 1, 1)),
    ]
    assert [a.name for a in recorder.launches[0].arguments] == ["x_ptr", "out_ptr"]
    assert recorder.accesses[4].operation == "fadd"
    loaded, stored = recorder.accesses[2:4]
    assert (stored.pointers.dtype, stored.mask.dtype, stored.mask.sum()) == (
        np.uint64,
        np.bool_,
        36,
    )
    assert stored.argument is not None
    assert stored.argument.elements(stored.pointers[stored.mask]).tolist() == list(range(64, 100))
    same(emulated_bf16(stored.values[stored.mask]), x[64:])
    for access in (loaded, stored):  # a load is told with what it read, bits and numbers
        assert access.dtype == "bf16"
        assert access.numbers[access.mask].tolist() == list(range(64, 100))
    assert (stored.place.file, stored.place.function) == (small_kernels.__file__, "copy")
    assert "tl.store" in linecache.getline(small_kernels.__file__, stored.place.line)


def test_observer_is_told_before_memory_changes() -> None:
    class Reader(Observer):
        seen: list[float] = []  # noqa: RUF012

        def access(self, access: Access) -> None:
            if access.verb == "store":
                self.seen.append(access.argument.tensor[0].item())

    out = torch.full((8,), 7.0)
    with interpreter.interpreting(Reader()):
        copy[(1,)](torch.ones(8), out, 8, BLOCK=8)
    assert Reader.seen == [7.0]
    assert out[0] == 1


def test_observer_chooses_programs() -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    with interpreter.interpreting(Recorder(only=(1,))):
        copy[(4,)](x, out, 100, BLOCK=32)
    assert out.nonzero().flatten().tolist() == list(range(32, 64))


def test_observer_sees_dots() -> None:
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    out, recorder = torch.empty(16, 16), Recorder()
    with interpreter.interpreting(recorder):
        dot_once[(1,)](a, b, out)
    (dot,) = recorder.dots
    assert (dot.precision, dot.program) == ("ieee", (0, 0, 0))
    assert "tl.dot" in linecache.getline(__file__, dot.place.line)
    for got, want in ((dot.a, a), (dot.b, b), (dot.result, out), (dot.c, torch.zeros(16, 16))):
        same(torch.from_numpy(got), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_input_precision_is_about_float32(dtype: torch.dtype) -> None:
    a, recorder = torch.randn(16, 16).to(dtype), Recorder()
    with interpreter.interpreting(recorder):
        dot_once[(1,)](a, a, torch.empty(16, 16))
    (dot,) = recorder.dots
    assert dot.precision == ""


@triton.jit
def dot_once(a_ptr, b_ptr, out_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    out = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    tl.store(out_ptr + at, out)


def test_an_error_is_laid_to_the_kernels_line(interpreted: Any) -> None:
    with pytest.raises(IndexError) as caught:
        copy[(1,)](torch.ones(4), torch.ones(8), 8, BLOCK=8)
    place = interpreter.place_of(caught.value)
    assert (place.file, place.function) == (small_kernels.__file__, "copy")
    assert "tl.load" in linecache.getline(small_kernels.__file__, place.line)
    assert interpreter.place_of(ValueError("never raised")) is None


def emulated_bf16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)


def test_any_exception_names_the_program(interpreted: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call_libdevice[(1,)](torch.ones(16).half(), torch.ones(16), NAME="exp", BLOCK=16)
    assert caught.value.__notes__ == ["in program (0, 0, 0) of kernel call_libdevice"]
