"""compare.bench, compare.profile and compare.compile_report: what any function can be put to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from simulated_gpu import Rig
from torch import Tensor

import compare
import cuda_reference
from compare.cases import CPU, Case
from compare.checking.oracles import OracleError
from compare.compiling import cross_compile
from compare.compiling.cross_compile import nvcc_missing
from compare.timing import bench as benchmarks
from compare.timing.engine import Candidate
from compare.user_kernels import profiling
from compare.user_kernels.given import Given

X = torch.arange(12.0, dtype=torch.float16).reshape(3, 4)


def double(x: Tensor) -> Tensor:
    return x * 2


# ---- bench ----


def timed(**options: object) -> compare.Benchmark:
    return compare.bench(
        triton=double,
        cuda=double,
        peers={"theirs": double},
        inputs=[(X,), (X[:, :2],)],
        name="double",
        samples=10,
        **options,  # type: ignore[arg-type]
    )


def test_bench(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    rig.factor = {"triton": 1.0, "cuda": 2.0, "theirs": 1.5}
    found = timed(json=file, flops=100, bytes=1 << 24)
    assert found
    assert [entry["provider"] for entry in found.cases[0]["entries"]] == [
        "triton",
        "cuda",
        "theirs",
    ]
    limit = (1 << 24) / 4e6
    assert found.median("triton") == pytest.approx(limit)
    assert found.median("theirs", 1) == pytest.approx(1.5 * limit)
    assert "best peer" in str(found)
    assert "double float16 3×4 inputs=0" in str(found)
    saved = json.loads(file.read_text())
    assert [case["shape"] for case in saved["cases"]] == [[3, 4], [3, 2]]

    rig.factor["triton"] = 1.3
    slower = timed(baseline=file, flops=100, bytes=1 << 24)
    assert not slower
    assert "triton" in slower.slower[0]
    assert slower.slower[0] in str(slower)


def test_bench_of_a_spec(rig: Rig) -> None:
    spec = compare.Function(
        "double", triton=double, oracle=double, eager=double, dtypes=["float16"], shapes=[(8, 8)]
    )
    (case,) = compare.bench(spec, samples=10).cases
    assert [entry["provider"] for entry in case["entries"]] == ["triton", "eager", "compile"]
    found = compare.bench(spec, sweep=True, samples=10)
    assert [case["x"] for case in found.cases] == [4**k for k in range(6, 15)]
    assert "double float16, GB/s and × best peer" in str(found)  # no operations were told
    (row,) = (line for line in str(found).splitlines() if line.split()[0] == "4096")
    assert row.split()[1:3] == ["3200", "1.00"]
    with pytest.raises(ValueError, match="no such cases"):
        compare.bench(spec, dtypes=["int8"])


def test_what_a_spec_returns_is_checked_before_it_is_timed() -> None:
    """As check does: of another dtype; and its oracle's error is told with the line."""
    x = torch.randn(8, 8)
    for out_dtype, oracle, says in (
        (None, double, "returned torch.float16, expected torch.float32"),
        ("float16", lambda x: (2 * x).half(), ""),
        ("float16", lambda x: x @ 3, "oracle: its oracle raises TypeError"),
    ):
        spec = compare.Function(
            "oracle", triton=double, oracle=oracle, shapes=[(8, 8)], out_dtype=out_dtype
        )
        check = benchmarks.Checker(spec, Case("oracle", "float32", (8, 8)))
        candidate = Candidate("triton", lambda: None)
        if says.startswith("oracle"):
            with pytest.raises(OracleError, match=says):
                check(candidate, double(x).half(), ((x,), {}))
        else:
            assert check(candidate, double(x).half(), ((x,), {})) == says


def given(oracle: object = None, **bound: object) -> Given:
    functions = {"triton": double, "cuda": None, "peers": {"theirs": double}}
    options = {"max_ulps": 1.0, "bound": None, **bound}
    return Given("double", [(X.t(),)], oracle, flops=0, moved=None, **options, **functions)  # type: ignore[arg-type]


def wrong(spec: Given, result: Tensor, provider: str = "triton") -> str:
    case = spec.case(0)
    check = benchmarks.Checker(spec, case)
    return check(Candidate(provider, double), result, benchmarks.inputs(spec, case, 0, "cpu"))


def test_results_are_checked_before_they_are_timed() -> None:
    """By the oracle, or by the norm of the difference to the first peer's."""
    right = double(X.t())
    off = right.clone()
    off[1, 1] *= 1 + 2**-9
    assert wrong(given(double), right) == ""
    assert wrong(given(double), off) == "wrong: 1 of 12 elements"
    assert wrong(given(double, bound=lambda reference, x: 0.1), off) == ""
    assert wrong(given(double), off, "theirs") == ""
    assert wrong(given(), off) == ""
    assert wrong(given(), right + 1).startswith("wrong: off by")


def test_given_inputs_lie_as_they_did() -> None:
    spec = given()
    (x,), options = spec.inputs(spec.case(0), CPU)
    assert not options
    assert x.stride() == X.t().stride()
    assert torch.equal(x, X.t())
    assert x.data_ptr() != X.data_ptr()
    assert spec.cost(spec.case(0)) == (0, 2 * X.numel() * 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "needs a spec, or 'triton' or 'cuda'"),
        ({"triton": double, "inputs": X}, "must be a list of argument tuples"),
        ({"triton": double, "inputs": [], "oracle": double}, "nothing to time"),
        ({"triton": double, "inputs": [(1,)], "oracle": double}, "nothing to time"),
        ({"triton": double, "inputs": [(X,)]}, "give an oracle, or a peer"),
        ({"triton": 3, "inputs": [(X,)], "oracle": double}, "'triton' must be a function"),
        (
            {"triton": double, "inputs": [(X,)], "peers": {"cuda/fast": double}},
            "a peer cannot be called 'cuda/fast'",
        ),
    ],
)
def test_arguments_of_bench(arguments: dict[str, object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        compare.bench(**arguments)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(RuntimeError, match="nothing to time: no CUDA device"):
        timed()
    with pytest.raises(RuntimeError, match="nothing to profile: no CUDA device"):
        compare.profile(double, X)


@pytest.mark.gpu_only
def test_on_a_gpu() -> None:
    x = torch.randn(1 << 22, device="cuda")
    found = compare.bench(triton=double_triton, peers={"eager": double}, inputs=[(x,)])
    assert found, found
    assert found.median("triton") < 5 * found.median("eager")
    assert found.cases[0]["entries"][0]["percent_of_limit"] > 10
    profiled = compare.profile(double_triton, x)
    assert any("double_kernel" in kernel.name for kernel in profiled.kernels), profiled
    assert profiled.gpu > 1


# ---- profile ----


def test_a_profile(tmp_path: Path) -> None:
    """The host's side of it, without a GPU."""
    file = tmp_path / "trace.json"
    candidate = Candidate("double", lambda: double(X))
    found = profiling._recorded(candidate, file, steps=2, calls=3, device="cpu")
    assert found.host > 0
    assert found.kernels == []
    assert "none seen" in str(found)
    assert f"open {file}" in str(found)
    assert json.loads(found.to_json())["provider"] == "double"
    assert json.loads(file.read_text())["traceEvents"]


# ---- compile_report ----


@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def kernel_that_does_not_compile(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.arange(0, BLOCK))


tuned = triton.autotune(
    [triton.Config({"BLOCK": size}, num_warps=warps) for size in (128, 1024) for warps in (1, 4)],
    key=["n"],
)(double_kernel)


def double_triton(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def test_compile_report_of_a_kernel() -> None:
    x = torch.empty(4096, dtype=torch.float16)
    report = compare.compile_report(
        double_kernel, (x, x, 4096), archs=["sm_80", "sm_90"], asm="ptx", BLOCK=1024, num_warps=4
    )
    assert report, report
    for kernel in report.kernels:
        assert kernel.name == "double_kernel"
        assert kernel.config["BLOCK"] == 1024
        assert kernel.figures is not None
        assert kernel.figures.spills == 0
        assert kernel.figures.loads == {"128": 1}  # eight at a time, since all is aligned
    first, second = report.kernels
    assert ".target sm_80" in first.asm
    assert ".target sm_90" in second.asm
    assert len(json.loads(report.to_json())) == 2
    report = compare.compile_report(
        double_kernel, (x[1:], x[1:], 4095), asm="sass", BLOCK=1024, num_warps=4
    )
    (kernel,) = report.kernels
    assert kernel.figures is not None
    assert set(kernel.figures.loads) == {"16"}
    assert "LDG.E.U16" in kernel.asm
    assert "double_kernel BLOCK=1024" in str(report)


@pytest.mark.skipif(torch.cuda.is_available(), reason="then results are on the GPU")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_compile_report_of_a_function_that_asks_for_a_gpu(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty(x.shape, device="cuda")
        double_kernel[(4,)](x.cuda(), out, x.numel(), BLOCK=1024)
        return out

    report = compare.compile_report(function, (torch.empty(4096, device=device),), archs=["sm_90"])
    assert report, report
    assert [kernel.name for kernel in report.kernels] == ["double_kernel"]


def test_compile_report_of_functions() -> None:
    """Of every launch that one makes; of every configuration."""
    report = compare.compile_report(double_triton, (torch.empty(4096),), asm="ttgir")
    (kernel,) = report.kernels
    assert "tt.load" in kernel.asm
    report = compare.compile_report(tuned, (torch.empty(4096), torch.empty(4096), 4096))
    found = [(kernel.config["BLOCK"], kernel.config["num_warps"]) for kernel in report.kernels]
    assert found == [(128, 1), (128, 4), (1024, 1), (1024, 4)]


def test_compile_report_of_what_is_wrong() -> None:
    report = compare.compile_report(kernel_that_does_not_compile, (X,), BLOCK=8)
    assert not report
    assert "does not compile" in str(report)
    with pytest.raises(ValueError, match="launched no Triton kernel"):
        compare.compile_report(double, (X,))
    with pytest.raises(ValueError, match="no architecture 'sm_9'"):
        compare.compile_report(double_kernel, (X, X, 12), archs=["sm_9"], BLOCK=8)
    with pytest.raises(ValueError, match="asm must be one of"):
        compare.compile_report(double_kernel, (X, X, 12), asm="mlir", BLOCK=8)
    with pytest.raises(TypeError, match="must be a kernel, but got int"):
        compare.compile_report(3)


def test_compile_report_of_a_cuda_function() -> None:
    if reason := nvcc_missing():
        pytest.skip(reason)
    source = """
    __global__ void copy_kernel(const float4* x, float4* out) { out[threadIdx.x] = x[threadIdx.x]; }
    void copy(const float* x, float* out, cudaStream_t stream) {
      copy_kernel<<<1, 32, 0, stream>>>((const float4*)x, (float4*)out);
    }
    """
    declared = {"copy": "const float* x, float* out, cudaStream_t stream"}
    module = cuda_reference.load_inline(source, declared)
    report = compare.compile_report(module.copy, asm="sass")
    assert report, report
    (kernel,) = report.kernels
    assert kernel.name == "copy_kernel"
    assert kernel.figures is not None
    assert kernel.figures.loads == kernel.figures.stores == {"128": 1}
    assert "LDG.E.128" in kernel.asm
    with pytest.raises(ValueError, match="has no ptx, only sass"):
        compare.compile_report(module.copy, asm="ptx")

    def copied(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        module.copy(x.contiguous(), out)
        module.copy(x.contiguous(), out)
        return out

    report = compare.compile_report(copied, (torch.empty(128),), archs="sm_80")
    assert [kernel.name for kernel in report.kernels] == ["copy_kernel"]
    spec = compare.Function("copied", cuda=copied, oracle=lambda x: x, shapes=[(0,), (128,)])
    assert not cross_compile.sourceless(spec)
    assert list(cross_compile._cuda_kernels(spec, "sm_80")) == ["copy_kernel"]
    none = spec.changed(cuda=lambda x: x.clone())
    assert "calls nothing of cuda_reference.load" in cross_compile.sourceless(none)
