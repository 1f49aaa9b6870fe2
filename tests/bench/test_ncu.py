"""ncu: its tables read, its complaints told, its report kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from profiled import RAW, Ncu
from rich.console import Console

from compare.profiling import counters, tables


def printed(renderable: Any) -> list[str]:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


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
