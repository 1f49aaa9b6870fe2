"""torch's profiler on host events, and its traces read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled import FakeCuda, event
from rich.console import Console

from compare.profiling import reading, recording, tables
from compare.timing.engine import Candidate

# ---- recording: torch's own profiler, on the CPU ----

X = torch.arange(64.0)


def candidates(log: list[str] | None = None) -> list[Candidate]:
    def call(name: str, function: Any) -> Candidate:
        def run(x: torch.Tensor) -> torch.Tensor:
            if log is not None:
                log.append(name)
            return function(x)

        return Candidate(name, run)

    return [call("triton", torch.sin), call("eager", torch.cos)]


def names_of(trace: dict[str, Any], category: str) -> list[str]:
    return [e["name"] for e in trace["traceEvents"] if e.get("cat") == category]


def test_recording_follows_the_schedule(tmp_path: Path) -> None:
    log: list[str] = []
    ticks: list[tuple[int, int]] = []
    file = tmp_path / "a.trace.json"
    recording.record(
        candidates(log), (X,), file, 2, 3, device="cpu", tick=lambda *t: ticks.append(t)
    )
    assert log == (["triton"] * 3 + ["eager"] * 3) * 4  # one step waited, one to warm up, two
    assert ticks == [(1, 4), (2, 4), (3, 4), (4, 4)]
    trace = json.loads(file.read_text())
    ranges = [n for n in names_of(trace, "user_annotation") if not n.startswith("ProfilerStep")]
    assert ranges == ["triton", "eager"] * 2
    operators = names_of(trace, "cpu_op")
    assert operators.count("aten::sin") == operators.count("aten::cos") == 6
    found = reading.read(trace, ["eager", "triton"], 3)
    assert [profile.provider for profile in found] == ["eager", "triton"]
    assert all(p.host > 0 and not p.kernels and p.idle is None for p in found)
    assert list(tmp_path.iterdir()) == [file]


def test_tensorboard_gets_the_same_trace_in_its_layout(tmp_path: Path) -> None:
    file, logs = tmp_path / "add.trace.json", tmp_path / "tensorboard"
    recording.record(candidates(), (X,), file, 1, 1, logs, device="cpu")
    (written,) = logs.iterdir()
    # What torch-tb-profiler looks for: worker, a number, suffix.
    assert re.fullmatch(r"add\.\d+\.pt\.trace\.json", written.name)
    assert written.read_bytes() == file.read_bytes()


def test_ranges_for_a_profiler_around_the_process() -> None:
    cuda = FakeCuda()
    recording.run_in_ranges(candidates(cuda.log), (X,), 2, 2, cuda)
    step = ["<triton", "triton", "triton", "triton>", "wait"]
    step += ["<eager", "eager", "eager", "eager>", "wait"]
    assert cuda.log == [
        *("wait", "start", "<step 0", *step, "step 0>", "<step 1", *step, "step 1>", "stop")
    ]


@pytest.mark.parametrize(
    ("variable", "tool"),
    [
        ("NSYS_PROFILING_SESSION_ID", "Nsight Systems"),
        ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "Nsight Compute"),
    ],
)
def test_a_profiler_around_the_process_is_seen(
    monkeypatch: pytest.MonkeyPatch, variable: str, tool: str
) -> None:
    assert recording.started_under() == ""
    monkeypatch.setenv(variable, "1")
    assert recording.started_under() == tool


# ---- reading a trace with GPU events ----

TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        # Two steps of two calls: triton launches through the driver, one kernel a call.
        event("user_annotation", "ProfilerStep#2", 0, 500),
        event("user_annotation", "triton", 100, 40),
        event("cuda_driver", "cuLaunchKernelEx", 105, 3, 1),
        event("cuda_driver", "cuLaunchKernelEx", 125, 3, 2),
        event("kernel", "flat_kernel", 112, 4, 1),
        event("kernel", "flat_kernel", 132, 4, 2),
        event("gpu_user_annotation", "triton", 112, 24),
        # eager: two kernels and a memset a call, launched long before they run; two overlap.
        event("user_annotation", "eager", 200, 20),
        event("cuda_runtime", "cudaLaunchKernel", 201, 1, 3),
        event("cuda_runtime", "cudaLaunchKernel", 203, 1, 4),
        event("cuda_runtime", "cudaMemsetAsync", 205, 1, 5),
        event("cuda_runtime", "cudaLaunchKernel", 211, 1, 6),
        event("cuda_runtime", "cudaLaunchKernel", 213, 1, 7),
        event("cuda_runtime", "cudaMemsetAsync", 215, 1, 8),
        event("kernel", "mul", 230, 10, 3),
        event("kernel", "relu", 235, 10, 4),
        event("gpu_memset", "Memset (Device)", 250, 5, 5),
        event("kernel", "mul", 255, 10, 6),
        event("kernel", "relu", 265, 10, 7),
        event("gpu_memset", "Memset (Device)", 275, 5, 8),
        # Of no provider: launched between the ranges, or before them.
        event("cuda_runtime", "cudaLaunchKernel", 240, 1, 9),
        event("kernel", "stray", 280, 1000, 9),
        event("kernel", "early", 50, 1000, 98),
        event("user_annotation", "triton", 600, 60),
        event("cuda_driver", "cuLaunchKernelEx", 605, 3, 11),
        event("cuda_driver", "cuLaunchKernelEx", 635, 3, 12),
        event("kernel", "flat_kernel", 614, 6, 11),
        event("kernel", "flat_kernel", 644, 6, 12),
    ]
}


def test_a_trace_in_numbers() -> None:
    triton, eager = reading.read(TRACE, ["triton", "eager"], 2)
    assert triton.kernels == [reading.Kernel("flat_kernel", 1.0, 5.0)]
    assert (triton.host, triton.gpu, triton.first) == (25.0, 5.0, 13.0)
    assert triton.idle == pytest.approx(1 - 20 / (24 + 36))
    assert [(k.name, k.count, k.microseconds) for k in eager.kernels] == [
        ("mul", 1.0, 10.0),
        ("relu", 1.0, 10.0),
        ("Memset (Device)", 1.0, 5.0),
    ]
    assert (eager.host, eager.first) == (10.0, 30.0)
    assert eager.gpu == pytest.approx((15 + 5 + 10 + 10 + 5) / 2)  # an overlap counts once
    assert eager.idle == pytest.approx(1 - 45 / 50)


def test_kernels_whose_launch_is_not_in_the_trace() -> None:
    events = [e for e in TRACE["traceEvents"] if e.get("cat") != "cuda_driver"]
    assert reading.read({"traceEvents": events}, ["triton", "eager"], 2) == reading.read(
        TRACE, ["triton", "eager"], 2
    )


def test_a_provider_without_a_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="no range 'compile'"):
        reading.read(TRACE, ["compile"], 2)


def printed(renderable: Any) -> list[str]:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_tables_of_a_trace() -> None:
    profiles = reading.read(TRACE, ["eager", "triton"], 2)
    rows = [re.split(r"\s{2,}", line) for line in printed(tables.overview(profiles))]
    assert rows == [
        ["", "first kernel", "GPU waits"],
        ["a call", "GPU µs", "kernels", "host µs", "after µs", "between"],
        ["triton", "5.00", "1", "25.00", "13.00", "67 %"],
        ["eager", "22.50", "3", "10.00", "30.00", "10 %"],
    ]
    lines = printed(tables.kernels(profiles))
    assert [re.split(r"\s{2,}", line.strip()) for line in lines] == [
        ["kernel", "a call", "µs", "share"],
        ["triton"],
        ["flat_kernel", "1", "5.00", "100 %"],
        ["eager"],
        ["mul", "1", "10.00", "40 %"],
        ["relu", "1", "10.00", "40 %"],
        ["Memset (Device)", "1", "5.00", "20 %"],
    ]
    many = reading.Profile("p", 1.0, 1.0, 1.0, 0.0, [reading.Kernel("k", 0.5, 1.0)] * 10)
    lines = printed(tables.kernels([many]))
    assert re.split(r"\s{2,}", lines[2].strip()) == ["k", "0.50", "1.00", "10 %"]
    assert re.split(r"\s{2,}", lines[-1].strip()) == ["2 more", "2.00", "20 %"]
    nothing = printed(tables.overview([reading.Profile("p", 3.0)]))
    assert re.split(r"\s{2,}", nothing[-1]) == ["p", "none seen", "0", "3.00", "–", "–"]


@pytest.mark.parametrize(
    ("name", "shortened"),
    [
        ("triton_poi_fused_mul_relu_0", "triton_poi_fused_mul_relu_0"),
        ("void kernel<float>(float*, int)", "kernel<float>"),
        ("(anonymous namespace)::flat(Tensor, long)", "flat"),
        (
            "void at::native::vectorized_elementwise_kernel<4, "
            "at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul> >"
            "(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul>)",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add<Half>, ar…>",
        ),
        (
            "void at::native::unrolled<(int)4, at::native::(anonymous namespace)::f(int)::lambda"
            "(), 2>(int)",
            "unrolled<4, f(int)::lambda(), 2>",
        ),
        ("Memset (Device)", "Memset (Device)"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("nvjet_" + 80 * "x" + "_NTT", "nvjet_" + 24 * "x" + "…" + 25 * "x" + "_NTT"),
    ],
)
def test_kernel_names_are_short(name: str, shortened: str) -> None:
    assert reading.short(name) == shortened
    assert len(shortened) <= reading.LONGEST + 1
