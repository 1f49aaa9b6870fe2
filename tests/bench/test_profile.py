"""python -m compare profile: torch's profiler on host events, its traces and ncu's tables read."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from compare.cli import app
from compare.commands import profile as command
from compare.profiling import counters, folder, reading, recording, tables
from compare.timing.engine import Candidate

RECORD = recording.record

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


class FakeCuda:
    """torch.cuda as run_in_ranges needs it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.profiler = self.nvtx = self

    def synchronize(self) -> None:
        self.log.append("wait")

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    @contextmanager
    def range(self, name: str) -> Any:
        self.log.append(f"<{name}")
        yield
        self.log.append(f"{name}>")


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


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> Any:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


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


# ---- ncu ----

# As `ncu --csv --page raw` prints it: what it says itself, names, units, a line a launch.
RAW = """==PROF== Connected to process 7 (/usr/bin/python3.12)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","dram__bytes.sum",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",\
"launch__registers_per_thread","lts__t_sector_hit_rate.pct",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","%","ns","register/thread","%","%","%","%"
"0","7","python3.12","127.0.0.1","void mul<float, 4>(int, float *)","1","7","(128, 1, 1)",\
"(8,192, 1, 1)","0","9.0","16,777,216","71.50","5,120","26","33.40","0","41.20","88.75"
"1","7","python3.12","127.0.0.1","relu","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0",\
"1,000,000","50","2,000","16","n/a","0","10","50"
"2","7","python3.12","127.0.0.1","relu","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0",\
"3,000,000","70","4,000","16","40","0","20","70"
"""


def test_counters_are_read() -> None:
    mul, relu = counters.parse(RAW)
    assert (mul.name, mul.launches) == ("void mul<float, 4>(int, float *)", 1)
    assert mul.values == {
        "gpu__time_duration.sum": pytest.approx(5.12),
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": 71.5,
        "dram__bytes.sum": pytest.approx(16.777216),
        "lts__t_sector_hit_rate.pct": 33.4,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 41.2,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 0.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 88.75,
        "launch__registers_per_thread": 26.0,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": None,  # not in the file
    }
    assert (relu.name, relu.launches) == ("relu", 2)
    assert relu.values["gpu__time_duration.sum"] == pytest.approx(6.0)  # the sum
    assert relu.values["sm__throughput.avg.pct_of_peak_sustained_elapsed"] == 15.0  # the mean
    assert relu.values["lts__t_sector_hit_rate.pct"] is None  # one launch has none
    assert counters.parse("==WARNING== No kernels were profiled.\n") == []
    without_units = "\n".join(line for line in RAW.splitlines() if not line.startswith('"",'))
    assert [kernel.name for kernel in counters.parse(without_units)] == [mul.name, "relu"]


def test_table_of_counters() -> None:
    found = counters.Counters("eager", Path("e.ncu-rep"), counters.parse(RAW))
    lines = printed(tables.counted([found, counters.Counters("triton", problem="no luck")]))
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert rows[:2] == [
        ["Nsight Compute,", "DRAM", "DRAM", "L2", "SM", "tensor", "occup.", "bank"],
        ["cold cache", "µs", "%", "MB", "hit %", "%", "%", "%", "regs", "confl."],
    ]
    assert rows[2:] == [
        ["eager"],
        ["mul<float, 4>", "5.12", "71.5", "16.78", "33.4", "41.2", "0.0", "88.8", "26", "n/a"],
        ["relu ×2", "6.00", "60.0", "4.00", "n/a", "15.0", "0.0", "60.0", "16", "n/a"],
        ["triton: no luck"],
    ]
    assert printed(tables.counted([counters.Counters("a", problem="b")])) == ["a: b"]


FAKE_NCU = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if "--import" in words:
    print(pathlib.Path({csv!r}).read_text())
    sys.exit()
metrics = words[words.index("--metrics") + 1].split(",")
unknown = [m for m in metrics if m in {unknown!r}]
if {says!r} or unknown:
    print("==PROF== Connected to process 1 (python)")
    for metric in unknown:
        print("==ERROR== Failed to find metric regex:^" + metric.replace(".", "\\\\.") + "$")
    print({says!r})
    sys.exit({status})
pathlib.Path(words[words.index("--export") + 1]).write_text("report")
print("==PROF== Disconnected from process 1")
"""


class Ncu:
    """An ncu that answers what a test wants, first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "log"
        self.bin = folder / "bin"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", str(self.bin))
        self.answers()

    def answers(
        self, says: str = "", csv: str = RAW, status: int = 1, unknown: tuple[str, ...] = ()
    ) -> None:
        (self.folder / "csv").write_text(csv)
        text = FAKE_NCU.format(
            python=sys.executable, log=str(self.log), csv=str(self.folder / "csv"), says=says,
            status=status, unknown=unknown,
        )  # fmt: skip
        tool = self.bin / "ncu"
        tool.write_text(text)
        tool.chmod(0o755)

    def commands(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ncu:
    home = tmp_path / "ncu"
    home.mkdir()
    return Ncu(home, monkeypatch)


def test_ncu_counts_and_keeps_its_report(ncu: Ncu, tmp_path: Path) -> None:
    file = tmp_path / "a.ncu-rep"
    found = counters.count(counters.find() or "", "triton", ["python", "x.py"], file)
    assert (found.problem, found.file, len(found.kernels)) == ("", file, 2)
    counting, importing = ncu.commands()
    assert counting[:2] == ["--clock-control", "none"]  # the machine's clocks are not ours
    assert counting[-2:] == ["python", "x.py"]
    assert set(counting[counting.index("--metrics") + 1].split(",")) == set(counters.METRICS)
    assert importing[:2] == ["--import", str(file)]


def test_a_metric_that_ncu_does_not_know_costs_only_itself(ncu: Ncu, tmp_path: Path) -> None:
    unknown = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "dram__bytes.sum")
    ncu.answers(unknown=unknown)
    found = counters.count("ncu", "triton", ["python"], tmp_path / "a.ncu-rep")
    assert found.problem == ""
    first, second, _ = ncu.commands()
    asked = [set(words[words.index("--metrics") + 1].split(",")) for words in (first, second)]
    assert asked[0] - asked[1] == set(unknown)


@pytest.mark.parametrize(
    ("says", "problem", "hopeless"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.",
            "run as root, or have an administrator",
            True,
        ),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "another machine", True),
        ("==WARNING== No kernels were profiled.", "ncu saw no kernel", False),
        ("Traceback\nRuntimeError: boom\n==ERROR== The application returned an error code (1).",
         "ncu ended with exit status 3: RuntimeError: boom", False),
        ("==ERROR== Unknown option", "ncu ended with exit status 3: Unknown option", False),
    ],
)  # fmt: skip
def test_what_ncu_complains_of(
    ncu: Ncu, tmp_path: Path, says: str, problem: str, hopeless: bool
) -> None:
    ncu.answers(says=says, status=3)
    found = counters.count("ncu", "triton", ["python"], tmp_path / "a.ncu-rep")
    assert problem in found.problem
    assert found.hopeless is hopeless
    assert found.file is None
    assert len(ncu.commands()) == 1  # no second try, for no metric is named


def test_an_empty_report_is_a_problem(ncu: Ncu, tmp_path: Path) -> None:
    ncu.answers(csv="")
    found = counters.count("ncu", "triton", ["python"], tmp_path / "a.ncu-rep")
    assert found.problem.startswith("ncu ended with exit status 0")
    missing = counters.count(str(tmp_path / "none"), "triton", ["python"], tmp_path / "b.ncu-rep")
    assert "does not start" in missing.problem


def test_where_ncu_is_looked_for(ncu: Ncu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counters.find() == str(ncu.bin / "ncu")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert counters.find() is None
    monkeypatch.setenv("CUDA_HOME", str(ncu.folder))
    assert counters.find() == str(ncu.bin / "ncu")


# ---- the folder ----


def test_a_run_takes_the_place_of_a_former_one_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "add"
    assert folder.check(target) == ""
    with folder.filled(target, {"op": "add"}) as made:
        (made / "a.json").write_text("1")
        (made / "logs").mkdir()
        (made / "logs" / "b.json").write_text("2")
        assert not target.exists()
    assert json.loads((target / folder.SUMMARY).read_text())["files"] == ["a.json", "logs/b.json"]
    (target / "notes.txt").write_text("mine")
    assert folder.check(target) == ""

    def interrupted() -> None:
        with folder.filled(target, {}) as made:
            (made / "a.json").write_text("3")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (target / "a.json").read_text() == "1"
    with folder.filled(target, {}) as made:
        (made / "a.json").write_text("4")
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"a.json", "notes.txt", folder.SUMMARY}  # what is not ours stays
    assert (target / "a.json").read_text() == "4"


def test_folders_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert folder.check(file) == "is a file; name a folder"
    assert "is not empty and no former run's" in folder.check(tmp_path)
    assert "cannot be made" in folder.check(file / "below")
    for text in ("{}", '{"made_by": "someone", "files": []}', "no json", "[]"):
        (tmp_path / folder.SUMMARY).write_text(text)
        assert "is not empty and no former run's" in folder.check(tmp_path)
    # A list of files that points elsewhere deletes nothing there.
    target = tmp_path / "ours"
    target.mkdir()
    listed = {"made_by": folder.MADE_BY, "files": ["../file", "gone"]}
    (target / folder.SUMMARY).write_text(json.dumps(listed))
    assert folder.check(target) == ""
    with folder.filled(target, {}):
        pass
    assert file.exists()


# ---- the command ----


def profile(*words: str) -> Result:
    return CliRunner().invoke(app, ["profile", *words])


def test_dry_run_says_what_would_be_done(ncu: Ncu, tmp_path: Path) -> None:
    words = ["--tensorboard", "--out", str(tmp_path / "o"), "--providers", "cuda/tiled,eager"]
    done = profile("linear_gelu", "--dry-run", *words, "--steps", "3", "--shape", "64,48,32")
    assert done.exit_code == 0, done.output
    heading, torchs, board, counting, nsys = done.stdout.splitlines()
    assert heading.startswith("linear_gelu float16 64x48x32 ")
    assert heading.endswith(": cuda/tiled, eager")
    assert torchs == (
        "torch.profiler: 3 steps of 10 calls, after 1 that is not recorded and 1 to warm up → "
        f"{tmp_path}/o/linear_gelu.trace.json"
    )
    assert board == f"for TensorBoard → {tmp_path}/o/tensorboard"
    assert f"--export {tmp_path}/o/cuda-tiled.ncu-rep python -m compare profile" in counting
    assert "--clock-control none" in counting
    words = shlex.split(nsys.split(": ", 1)[1])
    assert words[:3] == ["nsys", "profile", "--trace=cuda,nvtx"]
    assert f"--output={tmp_path}/o.nsys-rep" in words
    # Its program is this command, which takes these very words.
    program = words[words.index("-m") + 1 :]
    assert program[:2] == ["compare", "profile"]
    again = profile(*program[2:], "--dry-run")
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[0] == heading
    assert "not asked for" in profile("add", "--dry-run", "--no-ncu").stdout
    assert profile("add", "--dry-run").stdout.startswith("add float16 2048x2048 ")
    assert ": triton, eager, compile" in profile("add", "--dry-run").stdout
    assert " 2048x2048x2048 " in profile("gemm_bias_act", "--dry-run").stdout
    assert not ncu.log.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_nothing_to_profile(tmp_path: Path) -> None:
    done = profile("add", "--out", str(tmp_path / "o"))
    assert done.exit_code == 3
    assert "nothing to profile: no CUDA device (--dry-run shows" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ad"], "no op 'ad'"),
        (["add", "--providers", "cudnn"], "--providers cudnn: "),
        (["add", "--providers", "triton/f32"], "--providers triton/f32: none takes add float16"),
        (["add", "--dtype", "int7"], "--dtype int7: one of "),
        (["add", "--shape", "4x"], "--shape 4x: sizes with commas"),
        (["add", "--shape", "8,8,8"], "--shape 8,8,8: add has 2 sizes"),
        (["add", "--ncu"], "--ncu: ncu is neither on PATH nor in CUDA_HOME's bin"),
        (["add", "--out", "/dev/null"], "--out /dev/null is a file; name a folder"),
        (["add", "--steps", "0"], "Invalid value for '--steps'"),
    ],
)
def test_profile_usage_errors(words: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "find", lambda: None)
    done = profile(*words)
    assert done.exit_code == 2
    assert says in re.sub(r"[\s│]+", " ", done.stderr), done.stderr


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command without a GPU: eager on the CPU, and kernels put into its trace."""
    record = functools.partial(recording.record, device="cpu")

    def recorded(them: Any, arguments: Any, file: Path, *words: Any, **more: Any) -> None:
        record(them, arguments, file, *words, **more)
        trace = json.loads(file.read_text())
        ranges = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
        for number, found in enumerate(ranges):
            if found["name"] == "eager":
                at = found["ts"]
                trace["traceEvents"] += [
                    event("cuda_runtime", "cudaLaunchKernel", at, 1, number),
                    event("kernel", "void relu<float>(int)", at + 9, 2, number),
                ]
        file.write_text(json.dumps(trace))

    monkeypatch.setattr(command, "need_gpu", lambda what: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(command.recording, "record", recorded)
    monkeypatch.setattr(command.bench, "inputs", lambda spec, case, seed: spec.inputs(case))


def test_the_whole_command(pretended: None, ncu: Ncu, tmp_path: Path) -> None:
    target = tmp_path / "o"
    words = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--out", str(target)]
    done = profile(*words, "--tensorboard", "--steps", "2", "--calls", "1")
    assert done.exit_code == 0, done.output
    assert re.search(r"^eager +2\.00 +1 ", done.stdout, re.M), done.stdout
    assert re.search(r"^  relu<float> +1 +2\.00 +100 %", done.stdout, re.M), done.stdout
    assert re.search(r"^  relu ×2 +6.00 +60.0 ", done.stdout, re.M), done.stdout
    opened = done.stdout[done.stdout.index("\nopen\n") :]
    assert f"{target}/relu_scale.trace.json  https://ui.perfetto.dev" in opened
    assert f"tensorboard --logdir {target}/tensorboard" in opened
    assert f"ncu-ui {target}/eager.ncu-rep" in opened
    assert "nsys profile" in opened
    found = json.loads((target / folder.SUMMARY).read_text())
    board = next(name for name in found["files"] if name.startswith("tensorboard/"))
    assert set(found["files"]) == {"eager.ncu-rep", "relu_scale.trace.json", board}
    assert all((target / name).is_file() for name in found["files"])
    assert found["profiles"][0]["kernels"] == [
        {"name": "void relu<float>(int)", "count": 1.0, "microseconds": pytest.approx(2.0)}
    ]
    assert [kernel["launches"] for kernel in found["counters"][0]["kernels"]] == [1, 2]
    counting = ncu.commands()[0]
    assert counting[-5:] == ["--steps", "1", "--calls", "1", "--ranges-only"]
    # Once more, over it; then not over what is not ours.
    assert profile(*words, "--no-ncu").exit_code == 0
    assert not (target / "eager.ncu-rep").exists()
    (target / folder.SUMMARY).unlink()
    refused = profile(*words)
    assert refused.exit_code == 2
    assert "is not empty and no former" in re.sub(r"[\s│]+", " ", refused.stderr)


def test_one_hopeless_ncu_is_enough(pretended: None, ncu: Ncu, tmp_path: Path) -> None:
    ncu.answers(says="==ERROR== ERR_NVGPUCTRPERM - no")
    found = command._counted(
        command._Plan(command.timed_case(command.spec_named("add"), "float16", "8,8"), ["a", "b"],
                      tmp_path / "o", False, "ncu", 1, 1),
        ["a", "b"], tmp_path,
    )  # fmt: skip
    assert [each.provider for each in found] == ["a"]
    words = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--out", str(tmp_path / "o")]
    done = profile(*words)
    assert done.exit_code == 0  # the trace is there all the same
    text = re.sub(r"\s+", " ", done.stdout)
    assert "eager: this user may not read the GPU's counters: run as root" in text
    assert "ncu-ui" not in text


def test_a_trace_without_kernels_fails(
    pretended: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command.recording, "record", functools.partial(RECORD, device="cpu"))
    words = ["--providers", "eager", "--shape", "8,8", "--no-ncu", "--out", str(tmp_path / "o")]
    done = profile("relu_scale", *words)
    assert done.exit_code == 1
    assert "torch.profiler saw no kernels of some providers" in done.stderr
    assert "none seen" in done.stdout


def test_what_is_wrong_is_left_out_and_told(
    pretended: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(spec: Any, case: Any, names: Any) -> Any:
        def fail(*arguments: Any) -> None:
            raise RuntimeError("no such kernel\nsecond line")

        yield Candidate("triton", fail)
        yield Candidate("eager", lambda args, kwargs: spec.eager(*args, **kwargs))
        yield Candidate("compile", lambda args, kwargs: args[0] + 1)

    monkeypatch.setattr(command.providers, "candidates", broken)
    words = ["relu_scale", "--shape", "8,8", "--no-ncu", "--out", str(tmp_path / "o")]
    done = profile(*words)
    assert done.exit_code == 1
    assert "triton: RuntimeError no such kernel\n" in done.stderr
    assert "compile: wrong: off by " in done.stderr
    found = json.loads((tmp_path / "o" / folder.SUMMARY).read_text())
    assert [each["provider"] for each in found["profiles"]] == ["eager"]
    assert set(found["problems"]) == {"triton", "compile"}


def test_under_another_profiler_only_the_ranges_run(
    pretended: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(
        command.recording, "run_in_ranges", functools.partial(recording.run_in_ranges, cuda=cuda)
    )
    words = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--steps", "1"]
    words += ["--out", str(tmp_path / "o")]
    done = profile(*words, "--ranges-only")
    assert (done.exit_code, done.stdout) == (0, "")
    expected = ["wait", "start", "<step 0", "<eager", "eager>", "wait", "step 0>", "stop"]
    assert cuda.log == expected
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    done = profile(*words)
    assert done.exit_code == 0, done.output
    assert "Nsight Systems runs this process" in done.stdout
    assert cuda.log == 2 * expected
    assert not (tmp_path / "o").exists()


# ---- on a GPU ----


@pytest.mark.gpu_only
def test_profile_on_a_gpu(tmp_path: Path) -> None:
    target = tmp_path / "o"
    words = ["relu_scale", "--providers", "triton,eager", "--shape", "1024,1024", "--no-ncu"]
    done = profile(*words, "--steps", "2", "--tensorboard", "--out", str(target))
    assert done.exit_code == 0, done.output
    found = json.loads((target / folder.SUMMARY).read_text())
    triton, eager = found["profiles"]
    assert [kernel["count"] for kernel in triton["kernels"]] == [1.0]  # a call is one kernel
    assert sum(kernel["count"] for kernel in eager["kernels"]) == 2.0  # relu, then mul
    assert 0 < triton["gpu"] < 1000
    assert triton["first"] > 0


@pytest.mark.gpu_only
@pytest.mark.skipif(counters.find() is None, reason="ncu is not installed")
def test_ncu_on_a_gpu(tmp_path: Path) -> None:
    target = tmp_path / "o"
    words = ["relu_scale", "--providers", "triton", "--shape", "4096,4096", "--ncu"]
    done = profile(*words, "--steps", "1", "--out", str(target))
    assert done.exit_code == 0, done.output
    (found,) = json.loads((target / folder.SUMMARY).read_text())["counters"]
    if found["problem"] and ("root" in found["problem"] or "machine" in found["problem"]):
        pytest.skip(found["problem"])
    (kernel,) = found["kernels"]
    values = kernel["values"]
    assert kernel["launches"] == 1
    assert 5 < values["gpu__time_duration.sum"] < 1000
    assert 16 < values["dram__bytes.sum"] < 100  # 33.6 MB are read, and up to as much written
    assert values["launch__registers_per_thread"] >= 16
    assert (target / "triton.ncu-rep").stat().st_size > 0
