"""Inline PTX, operations on single elements, and atomic operations through descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

import triton_kernels
from compare import debug
from triton_kernels.interpreter import ptx

SOFTPLUS = tl.constexpr("""{
    .reg .pred large;   // where the exponential adds nothing
    setp.gt.f32 large, $1, 0f41A00000;
    @large mov.b32 $0, $1;
    @!large mul.f32 $0, $1, 1.4426950408889634;
    @!large ex2.approx.ftz.f32 $0, $0;
    @!large add.f32 $0, $0, 1.0;
    @!large lg2.approx.ftz.f32 $0, $0;
    @!large mul.rn.f32 $0, $0, 0.6931471805599453;
}""")
NARROWED = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
PARTS = tl.constexpr("shr.s32 $0, $2, 4; and.b32 $1, $2, 0xf;")


@triton.jit
def assembly(x_ptr, i_ptr, soft_ptr, half_ptr, high_ptr, low_ptr, N: tl.constexpr):
    lane = tl.arange(0, N)
    x, i = tl.load(x_ptr + lane), tl.load(i_ptr + lane)
    soft = tl.inline_asm_elementwise(SOFTPLUS, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    half = tl.inline_asm_elementwise(
        NARROWED, "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
    )
    high, low = tl.inline_asm_elementwise(
        PARTS, "=r,=r,r", [i], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
    )
    tl.store(soft_ptr + lane, soft)
    tl.store(half_ptr + lane, half)
    tl.store(high_ptr + lane, high)
    tl.store(low_ptr + lane, low)


@pytest.fixture
def interpreted() -> Iterator[None]:
    with triton_kernels.interpret():
        yield


def test_predicates_pairs_and_several_results(interpreted: None) -> None:
    x = torch.linspace(-30, 30, 16)
    i = torch.arange(-8, 8, dtype=torch.int32)
    soft, half = torch.empty(16), torch.empty(16, dtype=torch.bfloat16)
    high, low = torch.empty_like(i), torch.empty_like(i)
    assembly[(1,)](x, i, soft, half, high, low, N=16)
    assert torch.allclose(soft, torch.nn.functional.softplus(x), rtol=1e-5, atol=1e-7)
    assert torch.equal(half, x.bfloat16())
    assert torch.equal(high, i >> 4)
    assert torch.equal(low, i & 15)


def run(asm: str, *registers: np.ndarray) -> np.ndarray:
    (out,) = ptx.run(asm, 1, [r.view("u4") for r in registers], len(registers[0]))
    return out.astype("u4")


def test_instructions() -> None:
    x = np.array([-2.5, -0.0, 3.5, np.inf], np.float32)
    y = np.array([2, 3, -4, 5], np.int32)
    assert run("fma.rn.f32 $0, $1, $1, 1.0;", x).view("f4").tolist() == [7.25, 1, 13.25, np.inf]
    assert run("cvt.rzi.s32.f32 $0, $1;", x).view("i4").tolist() == [-2, 0, 3, 2**31 - 1]
    assert run("cvt.rn.f32.s32 $0, $1;", y).view("f4").tolist() == y.tolist()
    assert run("shl.b32 $0, $1, 40;", y).tolist() == [0] * 4
    assert run("shr.s32 $0, $1, 40;", y).view("i4").tolist() == [0, 0, -1, 0]
    swapped = run("mov.b32 {low, high}, $1; mov.b32 $0, {high, low};", y)
    assert swapped.tolist() == [2 << 16, 3 << 16, 0xFFFCFFFF, 5 << 16]
    chosen = "setp.lt.s32 p, $1, 3; selp.b32 $0, 7, $1, p; bar.sync 0;"
    assert run(chosen, y).tolist() == [7, 3, 7, 5]
    assert run("mul.hi.s32 $0, $1, 0x40000000;", y).view("i4").tolist() == [0, 0, -1, 1]
    assert run("mul.hi.u32 $0, $1, $1;", y).tolist() == [0, 0, 0xFFFFFFF8, 0]
    wide = "mul.wide.s32 both, $1, $1; mov.b64 {$0, high}, both;"
    assert run(wide, y).tolist() == [4, 9, 16, 25]
    for other in (
        "mul.hi.s64 $0, $1, $1",
        "@q mov.u32 $0, $1",
        "add.bf16 $0, $1, $1",
        "mov.u32 $0, %laneid",
        "?",
    ):
        with pytest.raises(ptx.Unknown, match=r"^" + other.replace("$", r"\$").replace("?", r"\?")):
            run(f"{other};", y)


def test_comparisons_of_nan() -> None:
    """An instruction with a u is true for it."""
    x = np.array([1, 2, np.nan], np.float32)
    for name, expected in {
        **{"lt": [1, 0, 0], "ne": [1, 0, 0], "eq": [0, 1, 0], "num": [1, 1, 0]},
        **{"ltu": [1, 0, 1], "neu": [1, 0, 1], "equ": [0, 1, 1], "nan": [0, 0, 1]},
        **{"gtu": [0, 0, 1], "geu": [0, 1, 1], "leu": [1, 1, 1]},
    }.items():
        asm = f"setp.{name}.f32 p, $1, 2.0; selp.u32 $0, 1, 0, p;"
        assert run(asm, x).tolist() == expected, name
    whole = np.array([1, 2, -3], np.int32)
    assert run("setp.hi.u32 p, $1, 2; selp.u32 $0, 1, 0, p;", whole).tolist() == [0, 0, 1]


def test_conversions_to_integers_saturate() -> None:
    x = np.array([2.0**70, -(2.0**70), np.nan, 2.0**62, 2.0**63], np.float32)
    for to, limits in {
        "s64": [2**63 - 1, -(2**63), 0, 2**62, 2**63 - 1],
        "u64": [2**64 - 1, 0, 0, 2**62, 2**63],
        "u32": [2**32 - 1, 0, 0, 2**32 - 1, 2**32 - 1],
    }.items():
        (bits,) = ptx.run(f"cvt.rzi.{to}.f32 $0, $1;", 1, [x.view("u4")], len(x))
        assert bits.view("i8" if to == "s64" else "u8").tolist() == limits


@triton.jit
def larger(a, b):
    if a > b:
        out = a - b
    else:
        out = 2 * b
    return out


@triton.jit
def crossed(a0, a1, b0, b1):
    return a0 + b1, a1 + b0


@triton.jit
def by_element(x_ptr, y_ptr, out_ptr, pairs_ptr, n, N: tl.constexpr):
    lane = tl.arange(0, N)
    x, y = tl.load(x_ptr + lane, mask=lane < n), tl.load(y_ptr + lane)
    tl.store(out_ptr + lane, tl.map_elementwise(larger, x, y))
    tl.store(pairs_ptr + lane, tl.map_elementwise(crossed, y, y, pack=2)[0])


def test_map_elementwise() -> None:
    N = 256  # two elements a thread, which pack=2 requires on a GPU
    x, y = torch.randn(2, N)
    out, pairs = torch.empty(N), torch.empty(N)
    expected = torch.where(x > y, x - y, 2 * y), y + y.view(-1, 2).flip(1).flatten()
    arguments = (x, y, out, pairs)
    assert debug(by_element, (1,), (*arguments, N), oracle=lambda: expected, N=N)
    text = str(debug(by_element, (1,), (*arguments, N - 9), oracle=lambda: expected, N=N))
    assert "depends on lanes that a load masked off, without other=" in text
    assert "in larger: if a > b:" in text


@triton.jit
def histogram_rows(x_ptr, out_ptr, most_ptr, M, N, B: tl.constexpr, STEP: tl.constexpr):
    x_rows = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [B, B])
    sums = tl.make_tensor_descriptor(out_ptr, [B, N], [N, 1], [B, B])
    most = tl.make_tensor_descriptor(most_ptr, [B, N], [N, 1], [B, B])
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    x = x_rows.load([m, n])
    sums.atomic_add([0, n + STEP], x)
    most.atomic_max([0, n], x.to(tl.int32))


def test_atomic_operations_through_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # triton 3.6 cannot compile it
    x = torch.randint(-9, 9, (32, 20)).float()
    out, most = torch.zeros(16, 20), torch.full((16, 20), -99, dtype=torch.int32)
    expected = {"out_ptr": x.view(2, 16, 20).sum(0), "most_ptr": x.view(2, 16, 20).amax(0).int()}
    given = histogram_rows, (2, 2), (x, out, most, 32, 20)
    found = debug(*given, oracle=lambda: expected, B=16, STEP=0)
    assert found, found
    text = str(debug(*given, oracle=lambda: expected, B=16, STEP=1))
    assert "in histogram_rows: sums.atomic_add([0, n + STEP], x)" in text


@triton.jit
def after_another_launch(x_ptr, out_ptr, clock_ptr, N: tl.constexpr):
    gdc_wait()
    lane = tl.arange(0, N)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane) + tl.extra.cuda.smid())
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(clock_ptr, tl.extra.cuda.globaltimer())


@triton.jit
def asks_for_warps(out_ptr):
    tl.store(out_ptr, tl.extra.cuda.num_warps())


def test_functions_of_cuda(interpreted: None) -> None:
    x, out, clock = torch.randn(8), torch.empty(8), torch.zeros(1, dtype=torch.int64)
    after_another_launch[(1,)](x, out, clock, N=8, launch_pdl=True)
    assert torch.equal(out, x)
    first = clock.item()
    after_another_launch[(1,)](x, out, clock, N=8)
    assert clock.item() >= first > 0
    with pytest.raises(NotImplementedError, match=r"tl\.extra\.cuda\.num_warps runs only compiled"):
        asks_for_warps[(1,)](out)
