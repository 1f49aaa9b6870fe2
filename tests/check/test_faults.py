"""Planted faults: each one, edited into a copy of the sources, must be caught and blamed rightly.

A fault names one case of the quick check that shows it, and only that case runs: through the real
command line, in a copy of the three packages. Only the modes that every machine has take part: on a
GPU a wild access would take the whole CUDA context along.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import processes
import pytest

from compare.checking.implementations import unavailable
from compare.ops import SPECS

pytestmark = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)

PACKAGES = ("triton_kernels", "cuda_reference", "compare")


class Fault(NamedTuple):
    """An edit to one file, the case that must notice, and the words that must be said."""

    file: str
    old: str
    new: str
    case: str
    says: str


ENGINE = "triton_kernels/_elementwise.py"
ELEMENTWISE = "triton_kernels/_elementwise_kernels.py"
TRITON_GEMM = "triton_kernels/gemm/kernels.py"
TRITON_GEMM_CHOICE = "triton_kernels/gemm/choice.py"
CUDA_GEMM = "cuda_reference/csrc/gemm.cuh"
CUDA_WMMA = "cuda_reference/csrc/gemm_wmma.cuh"
K_MASK = "(a_rows < m_end) & (a_depth < a_end - k0)"

FAULTS = {
    "mask dropped in a Triton kernel": Fault(
        ELEMENTWISE,
        "tl.store(out_ptr + start + lane, tl.cast(out, RESULT), mask=mask)",
        "tl.store(out_ptr + start + lane, tl.cast(out, RESULT))",
        "square float32 1 contiguous normal seed=0",
        "Triton: the kernel's logic",
    ),
    "tail dropped in f16x8_pack": Fault(
        "cuda_reference/csrc/rungs.cuh",
        "    compute_one<T>(formula, at, packs * SIZE",
        "    if (sizeof(V) != 16 || sizeof(T) != 2) compute_one<T>(formula, at, packs * SIZE",
        "add float16 1 contiguous normal seed=0",
        "CUDA: the reference kernel (only f16x8_pack, pack128)",
    ),
    "stride swapped": Fault(
        TRITON_GEMM,
        "a_ptr + a_rows * stride_am + a_depth.to(tl.int64) * stride_ak",
        "a_ptr + a_rows * stride_ak + a_depth.to(tl.int64) * stride_am",
        "gemm_bias_act float32 17x9x64 distant lattice bias=True c=full seed=0",
        "Triton: the kernel's logic",
    ),
    "accumulate in float16": Fault(
        TRITON_GEMM,
        "acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=C)",
        "acc = tl.dot(a, b, acc.to(tl.float16), out_dtype=tl.float16).to(C)",
        "gemm_bias_act float16 7x13x200 contiguous normal seed=0",
        "Triton: the kernel's logic",
    ),
    "bias indexed by row": Fault(
        CUDA_GEMM,
        "load<C>(bias, n * bias.stride[0])",
        "load<C>(bias, m % bias.size[0] * bias.stride[0])",
        "linear_gelu float32 3x5x0 contiguous normal seed=0",
        "CUDA: the reference kernel",
    ),
    "NaN swallowed by relu, CUDA": Fault(
        "cuda_reference/csrc/relu_scale.cu",
        "return x < C(0) ? C(0) : x;",
        "return x > C(0) ? x : C(0);",
        "relu_scale bfloat16 1043 misaligned special scale=0.1 seed=0",
        "CUDA: the reference kernel",
    ),
    "NaN swallowed by relu, Triton": Fault(
        "triton_kernels/ops/relu_scale.py",
        "return tl.where(x < 0, 0.0, x) * scale",
        "return tl.where(x > 0, x, 0.0) * scale",
        "relu_scale float16 1043 misaligned special scale=0.1 seed=0",
        "Triton: the kernel's logic",
    ),
    "a gradient at zero, Triton": Fault(
        "triton_kernels/ops/relu_scale.py",
        "tl.where(x <= 0, 0.0, grad * scale)",
        "tl.where(x < 0, 0.0, grad * scale)",
        "relu_scale_backward float16 1043 misaligned special scale=0.1 seed=0",
        "Triton: the kernel's logic",
    ),
    "a gradient that forgets its factor, CUDA": Fault(
        "cuda_reference/csrc/square.cu",
        "g * (C(2) * promoted<C>(x, x.offset(i), out.dtype))",
        "g * promoted<C>(x, x.offset(i), out.dtype)",
        "square_backward bfloat16 1 contiguous normal seed=0",
        "CUDA: the reference kernel",
    ),
    "a part of a tall sum ends early, Triton": Fault(
        "triton_kernels/ops/sum_to.py",
        "end = tl.minimum(begin + part, reduced)",
        "end = tl.minimum(begin + part - 1, reduced)",
        "sum_to float16 5x8192 contiguous integers to=column seed=0",
        "Triton: the kernel's logic",
    ),
    "K tail unmasked, Triton": Fault(
        TRITON_GEMM,
        K_MASK,
        "m[:, None] < m_end",
        "gemm_bias_act float32 1x1x1 contiguous normal seed=0",
        "Triton: the kernel's logic",
    ),
    "each step of K starts anew, with descriptors": Fault(
        TRITON_GEMM,
        "acc = tl.dot(a, b, acc, input_precision=PRECISION)\n        if SUBTILES",
        "acc = tl.dot(a, b, input_precision=PRECISION)\n        if SUBTILES",
        "gemm_bias_act float16 70x40x200 contiguous normal c=row seed=0",
        "Triton: the kernel's logic",
    ),
    "a digit of gelu's polynomial": Fault(
        "triton_kernels/activations.py",
        "0.10626228469658319",
        "0.10726228469658319",
        "linear_gelu float16 1x1x1 contiguous normal seed=0",
        "Triton: the kernel's logic",
    ),
    "tiles of the second group of rows forgotten": Fault(
        TRITON_GEMM,
        "first_m = tile // (GROUP_M * tiles_n) * GROUP_M",
        "first_m = tile // (GROUP_M * tiles_n)",
        "linear_gelu float32 580x70x5 contiguous lattice multiprocessors=132 seed=0",
        "Triton: the kernel's logic",
    ),
    "a program's second tile forgotten": Fault(
        TRITON_GEMM,
        "tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True)",
        "tl.range(tl.program_id(0), PROGRAMS, PROGRAMS, flatten=True)",
        "linear_gelu bfloat16 194x392x40 contiguous lattice multiprocessors=2 seed=0",
        "Triton: the kernel's logic",
    ),
    "a part of a split sum forgotten": Fault(
        TRITON_GEMM,
        "tl.range(1, parts, loop",
        "tl.range(2, parts, loop",
        "gemm_bias_act float16 40x40x1288 contiguous lattice multiprocessors=132 seed=0",
        "Triton: the kernel's logic",
    ),
    "the second half of a tile at the first one's columns": Fault(
        TRITON_GEMM,
        "n + i * (BLOCK_N // SUBTILES),",
        "n,",
        "linear_gelu float16 194x392x40 contiguous lattice multiprocessors=2 seed=0",
        "Triton: the kernel's logic",
    ),
    "a step of K in 32 bits": Fault(
        TRITON_GEMM,
        "step = tl.full((), BLOCK_K, tl.int64)",
        "step = tl.full((), BLOCK_K, tl.int32)",
        "linear_gelu float32 17x9x65 distant_transposed lattice seed=0",
        "Triton: the kernel's logic",
    ),
    "a row of c in 32 bits, with descriptors": Fault(
        TRITON_GEMM,
        "m = m0.to(tl.int64) + ",
        "m = m0 + ",
        "gemm_bias_act float16 40x40x200 distant lattice bias=True c=full seed=0",
        "Triton: the kernel's logic",
    ),
    "rows on multiples of 8 bytes taken by a descriptor": Fault(
        TRITON_GEMM_CHOICE,
        "matrix.data_ptr() % 16 == 0",
        "matrix.data_ptr() % 8 == 0",
        "linear_gelu bfloat16 70x40x200 half-aligned normal seed=0",
        "Triton: the kernel's logic",
    ),
    "the result kept in place of the pre-activation": Fault(
        TRITON_GEMM,
        "store_tile(pre, tile,",
        "store_tile(pre, ACT(tile),",
        "linear_gelu float64 33x65x70 functional lattice training=pre bias=True seed=0",
        "Triton: the kernel's logic",
    ),
    "the result kept in place of the pre-activation, with descriptors": Fault(
        TRITON_GEMM,
        "store_tile(pre, tile, m0",
        "store_tile(pre, ACT(tile), m0",
        "linear_gelu bfloat16 33x65x70 functional lattice training=pre bias=True seed=0",
        "Triton: the kernel's logic",
    ),
    "a digit of gelu_tanh's constant, Triton": Fault(
        "triton_kernels/activations.py",
        "0.044715 * x * x * x",
        "0.0447 * x * x * x",
        "linear_gelu float32 2x256x0 contiguous normal approximate=tanh seed=0",
        "Triton: the kernel's logic",
    ),
    "a digit of gelu_tanh's constant, CUDA": Fault(
        "cuda_reference/csrc/activations.cuh",
        "C(0.79788456080286536) * cubic",
        "C(0.7979) * cubic",
        "linear_gelu float32 2x256x0 contiguous normal approximate=tanh seed=0",
        "CUDA: the reference kernel",
    ),
    "a constant of gelu in single precision": Fault(
        "cuda_reference/csrc/activations.cuh",
        "C(0.70710678118654752)",
        "C(0.70710678118654752f)",
        "linear_gelu float64 1x1x1 contiguous normal seed=0",
        "CUDA: the reference kernel",
    ),
    "operands cut off to tf32, not rounded": Fault(
        CUDA_WMMA,
        "part = nvcuda::wmma::__float_to_tf32(whole);",
        "part = nvcuda::wmma::__float_to_tf32(whole) - (fabsf(whole) < 2 ? 0x1p-10f : 0);",
        "gemm_bias_act float32 16x16x24 contiguous tf32 precision=tf32 seed=0",
        "CUDA: the reference kernel (only wmma)",
    ),
    "what an infinity leaves over in tf32x3 added": Fault(
        CUDA_WMMA,
        "if (correction.x[i] - correction.x[i] == 0.0f) ",
        "",
        "gemm_bias_act float32 33x65x70 contiguous special precision=tf32x3 seed=0",
        "CUDA: the reference kernel (only wmma)",
    ),
    "a wrong derivative, Triton": Fault(
        "triton_kernels/activations.py",
        "tl.erf(x * 0.7071067811865476)) + x * density",
        "tl.erf(x * 0.7071067811865476)) + density",
        "act_backward bfloat16 17x19 contiguous normal act=gelu grad_dtype=float16 seed=0",
        "Triton: the kernel's logic",
    ),
    "a wrong derivative, CUDA": Fault(
        "cuda_reference/csrc/activations.cuh",
        "return on + x * on * off;",
        "return on + x * on * on;",
        "act_backward float16 33x129 contiguous normal act=silu seed=0",
        "CUDA: the reference kernel",
    ),
    "a bias gradient without the last rows": Fault(
        "triton_kernels/ops/act_backward.py",
        "            total += tl.where(mask, dx, 0.0)",
        "            total += tl.where(mask & (m[:, None] < end - 1), dx, 0.0)",
        "act_backward float32 1x1 contiguous normal act=gelu seed=0",
        "Triton: the kernel's logic",
    ),
    "K tail unmasked, CUDA": Fault(
        CUDA_GEMM,
        "const bool in_a = m < M && k0 + column < K;",
        "const bool in_a = m < M;",
        "gemm_bias_act float32 17x9x65 distant lattice bias=True c=full seed=0",
        "CUDA: the reference kernel (only tiled)",
    ),
    "missing __syncthreads before the tiles are read": Fault(
        CUDA_GEMM,
        "    __syncthreads();  // the tiles are complete\n",
        "",
        "gemm_bias_act float32 1x1x1 contiguous normal seed=0",
        "CUDA: the reference kernel (only tiled)",
    ),
    "missing __syncthreads before the tiles are overwritten": Fault(
        CUDA_GEMM,
        "    __syncthreads();  // nobody reads them any more\n",
        "",
        "linear_gelu float64 7x13x200 contiguous normal seed=0",
        "CUDA: the reference kernel (only tiled)",
    ),
    "missing __syncthreads before the fragments are loaded": Fault(
        CUDA_WMMA,
        "    __syncthreads();  // the tiles are complete\n",
        "",
        "linear_gelu bfloat16 7x13x200 contiguous normal seed=0",
        "CUDA: the reference kernel (only wmma)",
    ),
    "a product of tf32x3 forgotten": Fault(
        CUDA_WMMA,
        "      wmma::mma_sync(correction, a_part, b_rest, correction);\n",
        "",
        "gemm_bias_act float32 16x16x24 contiguous tf32 precision=tf32x3 seed=0",
        "CUDA: the reference kernel (only wmma)",
    ),
}


def run_check(
    where: Path, wanted: str, report: Path
) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Both sides on one case of the quick check, in a copy."""
    op, dtype, *_ = wanted.split()
    case = {str(case): case for case in SPECS[op].cases(dtype, "quick")}[wanted]
    words = shlex.split(case.command("triton-interpreted,cuda-host"))
    words = [*words[words.index("check") :], "--require", "triton,cuda", "--json", str(report)]
    words += ["--jobs", "1"]
    done = processes.python(where, "-m", "compare", *words)
    return done, json.loads(report.read_text()) if report.exists() else {}


def copy_packages(root: Path, where: Path) -> None:
    """With what Python compiled, but for the files that another process is writing."""
    for package in PACKAGES:
        shutil.copytree(root / package, where / package, ignore=shutil.ignore_patterns("*.pyc.*"))


HEALTHY = "square float32 33x129 contiguous normal seed=0"


def test_the_unmodified_copy_passes(root: Path, tmp_path: Path) -> None:
    copy_packages(root, tmp_path)
    done, report = run_check(tmp_path, HEALTHY, tmp_path / "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert report["passed"]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, root: Path, tmp_path: Path) -> None:
    assert_caught(FAULTS[name], root, tmp_path)


def assert_caught(fault: Fault, root: Path, tmp_path: Path) -> None:
    copy_packages(root, tmp_path)
    source = tmp_path / fault.file
    text = source.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} no longer has exactly one {fault.old!r}"
    source.write_text(text.replace(fault.old, fault.new))
    done, report = run_check(tmp_path, fault.case, tmp_path / "report.json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert fault.says in done.stdout, done.stdout
    assert "replay: python -m compare check" in done.stdout
    (row,) = report["rows"]
    assert row["verdict"] == fault.says
    other = "cuda-host" if fault.says.startswith("Triton") else "triton-interpreted"
    assert not any(m["implementation"].startswith(other) for m in row["mismatches"])
