"""Nsight Compute's counters of a provider's kernels, through ``ncu``."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
# Metric → its title in the table. The table shows n/a for metrics that ncu or the GPU lacks.
METRICS = {
    "gpu__time_duration.sum": "µs",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM\n%",
    "dram__bytes.sum": "DRAM\nMB",
    "lts__t_sector_hit_rate.pct": "L2\nhit %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM\n%",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor\n%",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occup.\n%",
    "launch__registers_per_thread": "regs",
    CONFLICTS: "bank\nconfl.",
}
# Summed over the launches of a kernel; other metrics are averaged.
SUMMED = ("gpu__time_duration.sum", "dram__bytes.sum")
UNITS = {  # unit → its factor to microseconds or megabytes
    **{"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3},
    **{"s": 1e6, "second": 1e6, "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3},
}
PATIENCE = 900  # seconds for one provider
MISSING = (
    "ncu is neither on PATH nor in CUDA_HOME's bin; install Nsight Compute, or set CUDA_HOME to "
    "the toolkit's folder"
)

_REMEDIES = {
    "ERR_NVGPUCTRPERM": "this user may not read the GPU's counters: run as root, or have an "
    "administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0 "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)",
    "LibraryNotLoaded": "the driver gives ncu no counters (LibraryNotLoaded), as in a sandbox or a "
    "virtual machine without access to them; profile on another machine",
    "No kernels were profiled": "ncu saw no kernel",
}
_FOR_ALL = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded")  # these would also stop the next provider


@dataclass
class Counted:
    """One kernel: the number of launches, and metric → value, or None without a value."""

    name: str
    launches: int
    values: dict[str, float | None]


@dataclass
class Counters:
    """ncu's counters of a provider's kernels.

    Attributes:
        file: the report, for ncu-ui; None if there is none.
        problem: why nothing was counted, and the remedy; empty if there are counters.
        hopeless: whether the next provider would have the same problem.
    """

    provider: str
    file: Path | None = None
    kernels: list[Counted] = field(default_factory=list)
    problem: str = ""
    hopeless: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The entry in the JSON file."""
        kernels = [asdict(kernel) for kernel in self.kernels]
        return {"provider": self.provider, "kernels": kernels, "problem": self.problem}


def find() -> str | None:
    """The path of ncu, on PATH or in CUDA_HOME's bin; None if it is in neither."""
    if path := shutil.which("ncu"):
        return path
    if home := os.environ.get("CUDA_HOME"):
        return shutil.which("ncu", path=str(Path(home) / "bin"))
    return None


def command(ncu: str, file: Path, program: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """The command line that counts a program's launches between cudaProfilerStart and Stop.

    Clocks are not locked: that would change the machine for other users, and the measured times.
    ncu replays every launch several times, with one group of counters each time. Caches are empty
    at the start of every replay, as in bench.
    """
    return [
        *(ncu, "--clock-control", "none", "--cache-control", "all"),
        *("--profile-from-start", "off", "--target-processes", "application-only"),
        *("--metrics", ",".join(metrics), "--force-overwrite", "--export", str(file)),
        *program,
    ]


def count(ncu: str, provider: str, program: Sequence[str], file: Path) -> Counters:
    """Run the program under ncu. If this ncu does not know some metrics, run it again without
    them."""
    metrics = list(METRICS)
    ran = _run(command(ncu, file, program, metrics))
    if unknown := _unknown(ran.stdout, metrics):
        metrics = [name for name in metrics if name not in unknown]
        ran = _run(command(ncu, file, program, metrics))
    if ran.returncode or not file.exists():
        return Counters(provider, **_problem(ran))
    read = _run([ncu, "--import", str(file), "--csv", "--page", "raw", "--print-units", "base"])
    kernels = parse(read.stdout)
    if not kernels:
        return Counters(provider, file, **_problem(read if read.returncode else ran))
    return Counters(provider, file, kernels)


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no worker processes under ncu
        "COLUMNS": "200",
    }
    try:
        return subprocess.run(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False, timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, f"no answer within {PATIENCE} s")
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, f"{words[0]} does not start: {error}")


def _unknown(output: str, metrics: Sequence[str]) -> list[str]:
    """The metrics that ncu's errors name. ncu may name them by a pattern, so stems are compared."""
    errors = [line for line in output.splitlines() if "==ERROR==" in line and "metric" in line]
    stems = {name: re.compile(rf"\b{re.escape(name.split('.')[0])}\b") for name in metrics}
    return [name for name in metrics if any(stems[name].search(line) for line in errors)]


def _problem(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The fields ``problem`` and ``hopeless`` for a failed run: ncu's error, or a known remedy."""
    for sign, remedy in _REMEDIES.items():
        if sign in ran.stdout:
            return {"problem": remedy, "hopeless": sign in _FOR_ALL}
    lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==")]
    said = [line for line in lines if not line.startswith("==")]
    text = (said or errors or ["no output"])[-1].removeprefix("==ERROR== ")
    return {"problem": f"ncu ended with exit status {ran.returncode}: {text}"}


def parse(text: str) -> list[Counted]:
    """The kernels of ``ncu --csv --page raw``, in the order of their first launch.

    The text has a line of column names, a line of units, and a line per launch. Other lines are
    ignored. Times are returned in microseconds, bytes in megabytes.
    """
    lines = text.splitlines()
    header = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        return []
    rows = list(csv.DictReader(lines[header:]))
    # Some versions print no line of units if no metric has one.
    units = rows.pop(0) if rows and not rows[0]["ID"] else {}
    launches: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if row["ID"].isdigit():
            launches.setdefault(row["Kernel Name"], []).append(row)
    return [
        Counted(name, len(own), {metric: _value(metric, own, units) for metric in METRICS})
        for name, own in launches.items()
    ]


def _value(metric: str, rows: list[dict[str, str]], units: dict[str, str]) -> float | None:
    """A metric's sum or mean over a kernel's launches; None unless every launch has it."""
    values = []
    for row in rows:
        try:
            values.append(float(row[metric].replace(",", "")))
        except (KeyError, ValueError, AttributeError):  # n/a, or text beside the number
            return None
    total = sum(values) * UNITS.get(units.get(metric, ""), 1.0)
    return total if metric in SUMMED else total / len(values)
