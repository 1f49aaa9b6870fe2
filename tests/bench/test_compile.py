"""python -m compare compile: every kernel as machine code, without a GPU."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from triton.runtime import driver
from typer.testing import CliRunner, Result

import triton_kernels
from compare.cases import Case
from compare.cli import app
from compare.compiling import cross_compile, machine_code, walk
from compare.compiling.cross_compile import Accepted, Kernel, Row
from compare.compiling.machine_code import SHARED_LIMIT, Figures, readable
from compare.ops import SPECS
from compare.specs.products import PRECISIONS
from cuda_reference import _build, _compilers
from triton_kernels import _modes
from triton_kernels.gemm import Tiles
from triton_kernels.gemm.gluon import availability
from triton_kernels.interpreter import cross_compile as without_gpu

needs_nvcc = pytest.mark.skipif(
    cross_compile.nvcc_missing() is not None, reason=str(cross_compile.nvcc_missing())
)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["compile", *words])


def figures(arch: str, call: Callable[[], Any]) -> Figures:
    """Of the one kernel that ``call`` launches."""
    with without_gpu.compiling(int(arch[3:])) as launches:
        call()
    (launch,) = launches
    assert launch.error is None
    return machine_code.of_triton([(launch.cubin, launch.shared)], arch)[0]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@cache
def add_rows(arch: str) -> dict[str, Row]:
    sides = ("triton",) if cross_compile.nvcc_missing() else ("triton", "cuda")
    rows = cross_compile.compile_op("add", arch, sides)
    return {f"{row.dtype} {row.label}": row for row in rows}


# ---- what the compilers must make ----


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_triton_vector_variants_move_128_bits(arch: str) -> None:
    """Twice: in the blocks that are whole, and in the last one, under its mask."""
    rows = add_rows(arch)
    wide = ["float32 f32x4", "float16 f16x8", "float16 f16x8_pack"]
    wide += ["bfloat16 bf16x8", "bfloat16 bf16x8_pack"]
    wide += [f"{dtype} flat" for dtype in SPECS["add"].dtypes]
    for name in ("x", "y"):  # a kernel each: the formula has its operands in another order
        figures = rows[f"float32 flat {name} scalar"].triton.figures
        assert (figures.loads, figures.stores) == ({"128": 2}, {"128": 2}), name
    for name in wide:
        found = rows[name].triton.figures
        assert found.loads == {"128": 4}, name
        assert found.stores == {"128": 2}, name
    assert rows["float16 f16x2"].triton.figures.loads == {"32": 4}
    assert rows["float32 f32"].triton.figures.loads == {"32": 4}


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cuda_vector_variants_move_what_their_source_says(arch: str) -> None:
    """x8 is four 32-bit accesses a tensor by design, _pack one of 128; the rest is the tail's."""
    rows = add_rows(arch)
    wide = ("float32 f32x4", "float16 f16x8_pack", "bfloat16 bf16x8_pack")
    for name in wide:
        found = rows[name].cuda.figures
        assert (found.loads["128"], found.stores["128"]) == (2, 1), name
    for name in ("float16 f16x8", "bfloat16 bf16x8"):
        found = rows[name].cuda.figures
        assert (found.loads["32"], found.stores["32"]) == (8, 4), name


@needs_nvcc
def test_every_cuda_kernel_of_add_has_its_row() -> None:
    rows = add_rows("sm_90")
    cubin, _ = _build.cubin("add", "sm_90")
    symbols = {name for name, _ in machine_code._code_sections(cubin)}
    assert len(symbols) == 3 + 19 + 15  # plain, rungs of dense tensors, and of other layouts
    assert {row.cuda.name for row in rows.values()} == {readable(name) for name in symbols}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("arch", "wanted"), [("sm_80", "HMMA"), ("sm_90", "HGMMA")])
def test_16_bit_products_use_the_tensor_cores(dtype: torch.dtype, arch: str, wanted: str) -> None:
    for M in (512, 2048):
        a, b = meta(M, 64, dtype=dtype), meta(64, 2048, dtype=dtype)
        found = figures(arch, lambda a=a, b=b: triton_kernels.gemm_bias_act(a, b))
        assert set(found.tensor) == {wanted}
        assert found.spills == 0
        assert 0 < found.shared <= SHARED_LIMIT[arch]


def test_ieee_float32_stays_off_the_tensor_cores() -> None:
    a, b = meta(64, 64), meta(64, 64)
    assert figures("sm_90", lambda: triton_kernels.gemm_bias_act(a, b)).tensor == {}


def test_a_launch_is_specialised_as_on_a_gpu() -> None:
    """Without a length divisible by 16 Triton cannot tell that the mask keeps a vector whole."""
    x = meta(64, 4096)
    assert set(figures("sm_90", lambda: triton_kernels.square(x[:, :2048])).loads) == {"128"}
    assert "128" not in figures("sm_90", lambda: triton_kernels.square(x[:, :2047])).loads


@pytest.mark.parametrize("capability", [80, 86, 90, 120])
def test_the_cases_cover_every_tile_configuration(
    monkeypatch: pytest.MonkeyPatch, capability: int
) -> None:
    """Whatever a launch can be cut into is compiled: the sizes here are not those of the cases."""
    depths = 16, 128, 1025, 4096
    launched: set[tuple[Any, ...]] = set()

    def record(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        if "BLOCK_M" not in options:  # it copies, or splits, or has one way to be cut
            return
        tile = tuple(options[name] for name in Tiles._fields)
        launched.add((kernel.fn.__name__, dtype, options.get("PRECISION"), tile))

    monkeypatch.setattr(without_gpu, "launch", record)
    sizes = [1, 2, 4, 7, *(16 * 2**i for i in range(12)), 17, 33, 65, 127, 333, 3000]
    with without_gpu.compiling(capability), availability.only("tl"):
        for dtype in SPECS["gemm_bias_act"].dtypes:
            for case in SPECS["gemm_bias_act"].to_compile(dtype, {}):
                arguments, options = SPECS["gemm_bias_act"].inputs(case, torch.device("meta"))
                triton_kernels.gemm_bias_act(*arguments, **options)
        covered, launched = launched, set()
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for M, N, K, by_columns in itertools.product(sizes, sizes, depths, (False, True)):
                if by_columns and M > 32:
                    continue
                a, b = (
                    torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
                    for shape in ((M, K), (N, K) if by_columns else (K, N))
                )
                b = b.t() if by_columns else b
                for precision in PRECISIONS if dtype == "float32" else ("ieee",):
                    triton_kernels.gemm_bias_act(a, b, precision=precision)
                    triton_kernels.gemm_bias_act(a, b, c=a[:1, :1], precision=precision)
    assert covered == launched


@pytest.mark.parametrize("op", SPECS)
def test_every_op_reaches_the_compiler(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every dtype, with all its launches; what the compiler makes of them is left out here."""

    def note(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        without_gpu._launches.append(without_gpu.Launch(kernel.fn.__name__, options))

    monkeypatch.setattr(without_gpu, "launch", note)
    monkeypatch.setattr(machine_code, "of_triton", lambda kernels, arch: [None] * len(kernels))
    found = cross_compile._triton_kernels(SPECS[op], "sm_90")
    assert {dtype.partition("/")[0] for dtype, *_ in found} == set(SPECS[op].dtypes)
    labels = [label for _, label, variant in found if variant is None]
    assert all(re.search(r"\w", label) for label in labels)
    assert any(label.startswith("act_backward 32×64") for label in labels) == (op == "act_backward")


# ---- the verdict ----


def plant(
    monkeypatch: pytest.MonkeyPatch, op: str, dtype: str, case: Case | None = None, **meta: Any
) -> None:
    """One case of an op, launched with other meta-parameters than the op gives."""
    spec = SPECS[op]
    case = case or Case(op, dtype, (64, 64), options=spec.default_options)
    changed = spec.changed(dtypes=(dtype,), to_compile=lambda *_: iter([case]))
    monkeypatch.setitem(SPECS, op, changed)
    monkeypatch.setattr(walk, "sample", lambda arch: ())
    launch = without_gpu.launch
    monkeypatch.setattr(without_gpu, "launch", lambda *a, **own: launch(*a, **{**own, **meta}))


def test_a_spill_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ["gemm_bias_act", "--arch", "sm_80", "--side", "triton", "--json", str(file)]
    case = Case("gemm_bias_act", "float16", (512, 2048, 64))
    with monkeypatch.context() as planted:
        plant(planted, "gemm_bias_act", "float16", case, maxnreg=64)
        done = run(*words)
    assert done.exit_code == 1, done.output
    assert "gemm_bias_act float16 64×128×64 w4 s4: spills" in done.output
    assert "1 of them FAIL" in done.output
    found = json.loads(file.read_text())
    assert found["passed"] is False
    (row,) = found["rows"]
    assert row["triton"]["figures"]["registers"] <= 64
    assert row["triton"]["figures"]["spills"] == row["triton"]["figures"]["stack"] > 0
    assert row["triton"]["config"]["maxnreg"] == 64
    plant(monkeypatch, "gemm_bias_act", "float16", case)
    assert run(*words).exit_code == 0


def test_too_much_shared_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("gemm_bias_act", "float16", (512, 2048, 64))
    plant(monkeypatch, "gemm_bias_act", "float16", case, BLOCK_K=128, num_stages=6)
    done = run("gemm_bias_act", "--arch", "sm_80", "--side", "triton")
    assert done.exit_code == 1, done.output
    assert "bytes of shared memory, and sm_80 has 166912" in done.output


def test_a_kernel_that_does_not_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "square", "float32", BLOCK=100)
    done = run("square", "--arch", "sm_80,sm_90", "--side", "triton")
    assert done.exit_code == 1, done.output
    assert "sm_80 triton square float32 flat: does not compile: " in done.output
    assert "arange's range must be a power of 2" in done.output
    assert "2 of them FAIL" in done.output


def test_only_a_listed_spill_within_its_bytes_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Accepted("triton", "add", ("float32",), ("flat",), 32, "because")
    monkeypatch.setattr(cross_compile, "ACCEPTED", [entry])

    def reasons(label: str, spills: int, shared: int = 0) -> list[str]:
        kernel = Kernel("flat_kernel", Figures(255, spills, spills, shared))
        row = Row("sm_80", "add", "float32", label, triton=kernel)
        return [reason for *_, reason in row.problems()]

    assert reasons("flat", 0) == []
    assert reasons("flat", 32) == ["because"]
    assert reasons("flat", 40) == [""]
    assert reasons("strided", 8) == [""]
    assert reasons("flat", 8, SHARED_LIMIT["sm_80"] + 1) == [""]
    assert reasons("flat", 0, SHARED_LIMIT["sm_80"]) == []


# Two kernels with a stack frame: an array that is indexed at run time, and spilled registers.
STACKS = """
extern "C" __global__ void indexed(float* p, const int* at) {
  float v[32];
  for (int i = 0; i < 32; ++i) v[at[i]] = p[i];
  p[threadIdx.x] = v[at[threadIdx.x]];
}
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* p) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = p[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) p[i * 1024 + threadIdx.x] = v[63 - i] * v[i];
}
extern "C" __global__ void sharing(float* p) {
  __shared__ float tile[300];
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = tile[299 - threadIdx.x];
}
"""


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_cuda_spills_and_arrays_are_told_apart(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "stacks.cu").write_text(STACKS)
    found = machine_code.of_cuda(*_build.cubin("stacks", arch, csrc=tmp_path), arch)
    assert found["indexed"].spills == 0
    assert found["indexed"].stack == 128
    assert found["spilling"].spills > 0
    assert found["spilling"].registers <= 32
    assert found["sharing"].shared == 1200  # and not the system's kilobyte beside it


@needs_nvcc
def test_a_cubin_is_built_once_and_a_failure_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "cache"))
    csrc = tmp_path / "csrc"
    csrc.mkdir()
    source = csrc / "one.cu"
    source.write_text('extern "C" __global__ void one(float* p) { *p = 1; }\n')
    first = _build.cubin("one", "sm_80", csrc=csrc)
    with monkeypatch.context() as idle:
        idle.setattr(subprocess, "run", None)
        assert _build.cubin("one", "sm_80", csrc=csrc) == first
    source.write_text('extern "C" __global__ void one(float* p) { *q = 1; }\n')
    with pytest.raises(
        _compilers.BuildError, match=r'one.cu:1: error: identifier "q" is undefined'
    ):
        _build.cubin("one", "sm_80", csrc=csrc)


@needs_nvcc
def test_a_source_that_does_not_compile_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(stem: str, arch: str) -> tuple[bytes, str]:
        raise _compilers.BuildError(f"could not build {stem}.cu for the cuda target:")

    monkeypatch.setattr(_build, "cubin", broken)
    done = run("square", "--arch", "sm_80", "--side", "cuda")
    assert done.exit_code == 1
    assert "does not compile: could not build square.cu" in done.output


# ---- the command ----


@needs_nvcc
def test_both_sides_stand_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = run("relu_scale", "--arch", "sm_90", "--json", str(file))
    assert done.exit_code == 0, done.output
    assert "all fit: 43 kernels for sm_90" in done.output
    assert max(map(len, done.output.splitlines())) <= 120
    (line,) = [
        line
        for line in done.output.splitlines()
        if line.startswith("float32 ") and " flat  " in line
    ]
    assert re.fullmatch(r"\d+ · · 128/128 · \d+ · · 64/64 ·", " ".join(line.split()[2:]))
    found = json.loads(file.read_text())
    assert found["passed"] is True
    row = next(row for row in found["rows"] if row["label"] == "tiled 1024×1×1 64-bit")
    assert row["triton"]["kernel"] == "tiled_kernel"
    assert row["triton"]["config"]["NDIM"] == 2
    assert row["cuda"]["kernel"] == "relu_scale_kernel<float>"


def test_without_nvcc_the_triton_side_compiles_and_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_compilers, "_toolkits", lambda: iter(()))
    monkeypatch.setenv("PATH", "")
    done = run("relu_scale", "--arch", "sm_90")
    assert done.exit_code == 0, done.output
    assert "all fit: 9 kernels" in done.output
    assert (
        "not compiled: cuda: nvcc not found: pip install 'triton-kernels-crosscheck[nvcc]'"
        in done.output
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cube"], "no op 'cube'; the ops are add"),
        (["add", "--arch", "sm_42"], "--arch sm_42: one of sm_80, sm_86"),
        (["add", "--side", "opencl"], "--side opencl: triton or cuda"),
        (["add", "--json", "no/such/folder/x.json"], "cannot write there"),
    ],
)
def test_usage_errors_exit_2(words: list[str], says: str) -> None:
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.replace("│", " ").split())


def test_under_triton_interpret_one_clear_error(root: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = processes.python(root, "-m", "compare", "compile", "square", environment=environment)
    assert done.returncode == 2
    assert "TRITON_INTERPRET=1 is set" in done.stderr
    assert "Traceback" not in done.stderr


# ---- nothing leaks ----


def test_the_driver_comes_back_also_after_an_error() -> None:
    before = driver._active

    def fail() -> None:
        with without_gpu.compiling(90):
            assert driver._active is not before
            assert _modes.compiling()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert driver._active is before
    assert not _modes.compiling()
    with pytest.raises(RuntimeError, match="Triton compiles for GPUs only"):
        triton_kernels.square(torch.ones(4))
    assert triton_kernels.square(meta(4)).device.type == "meta"  # nothing is compiled any more


def test_compiled_and_interpreted_take_turns() -> None:
    x = torch.arange(4.0)
    before = figures("sm_80", lambda: triton_kernels.square(x))
    with triton_kernels.interpret():
        assert triton_kernels.square(x).tolist() == [0, 1, 4, 9]
        with pytest.raises(RuntimeError, match="interpreted here"), without_gpu.compiling(80):
            pass
    assert figures("sm_80", lambda: triton_kernels.square(x)) == before
    inner = without_gpu.compiling(90)
    with without_gpu.compiling(80), pytest.raises(RuntimeError, match="twice"), inner:
        pass


def test_nothing_runs_while_compiling() -> None:
    out = torch.full((64,), 7.0)
    with without_gpu.compiling(90) as launches:
        triton_kernels.square(torch.ones(64), out=out)
    assert [launch.kernel for launch in launches] == ["flat_kernel"]
    assert out.unique().tolist() == [7.0]
    assert not _modes.compiling()


# ---- names ----


def test_compiled_kernels_are_called_after_what_they_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a profiler shows; the jit functions are the same for all."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # its key leaves the name out
    x, half = torch.empty(64, 64, device="meta"), torch.empty(64, 256, device="meta").half()
    calls = {
        "relu_scale_add_flat": lambda: triton_kernels.relu_scale_add(x, x, 2),
        "square_tiled": lambda: triton_kernels.square(x[:, ::2]),
        "linear_gelu_gluon": lambda: triton_kernels.linear_gelu(half, half),
        "gemm_pointers": lambda: triton_kernels.gemm_bias_act(x, x[:, :32]),
        "gemm_gluon_fma": lambda: triton_kernels.gemm_bias_act(x, x),
    }
    for name, call in calls.items():
        with without_gpu.compiling(90) as launches:
            call()
        assert [name.encode() in launch.cubin for launch in launches] == [True], name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (
            "_Z17add_vector_kernelI13__nv_bfloat16S0_Li1EEvPT_PKS1_S4_fx",
            "add_vector_kernel<__nv_bfloat16, __nv_bfloat16, 1>",
        ),
        (
            "_Z17add_vector_kernelI6__half6float4Li8EEvPT_PKS2_S5_fx",
            "add_vector_kernel<__half, float4, 8>",
        ),
        ("_Z10add_kernelIyEv6TensorS0_b6ScalarS0_S1_x", "add_kernel<u64>"),
        ("_Z5plainPf", "plain"),
        ("_Z17bias_relu6_kernelIN3c104HalfEEvPKT_S4_PS2_ll", "bias_relu6_kernel<c10::Half>"),
        ("_Z4bothIN3c104HalfENS0_8BFloat16EEvPT_PT0_", "both<c10::Half, c10::BFloat16>"),
        ("_ZN4mine6kernelIlLi2EEEvPT_", "mine::kernel<long, 2>"),
        ("_ZN4mineL5innerEPf", "mine::inner"),
        ("_ZN12_GLOBAL__N_16hiddenIbEEvPT_", "(anonymous)::hidden<bool>"),
        ("c_name", "c_name"),
        ("_Z3oddIPKcEvT_", "_Z3oddIPKcEvT_"),
    ],
)
def test_readable(symbol: str, name: str) -> None:
    assert readable(symbol) == name


@needs_nvcc
def test_tensor_core_kernels_stand_beside_wmma(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel of each dtype and precision: all of them take minutes to compile."""
    first: dict[tuple[str, Any], Any] = {}
    for each in cross_compile._cases(SPECS["gemm_bias_act"]):
        first.setdefault((each[0], each[2].options.get("precision")), each)
    monkeypatch.setattr(cross_compile, "_cases", lambda spec: iter(first.values()))
    rows = cross_compile.compile_op("gemm_bias_act", "sm_90", ("cuda", "triton"))
    for dtype, cores in (
        ("bfloat16", "BFloat16Cores, false"),
        ("float32/tf32", "TF32Cores, false"),
        ("float32/tf32x3", "TF32Cores, true"),
    ):
        twins = [row.cuda for row in rows if row.dtype == dtype]
        assert twins
        for twin in twins:
            assert twin is not None
            assert twin.name == f"gemm_wmma_kernel<{cores}>"
            assert twin.figures is not None
            assert "HMMA" in twin.figures.tensor
