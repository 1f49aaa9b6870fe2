"""NVIDIA's compute-sanitizer finds nothing in the kernels of both sides, on a GPU.

``make sanitizers`` has its four tools watch telling cases of all ops; a short run has one op.
Where that cannot be, a long run ends with status 3.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest
import torch
from long_runs import LongRun

from compare.checking.implementations import implementations
from compare.debugging.cuda.side import GPU_TOOLS, compute_sanitizer, missing
from compare.ops import SPECS
from triton_kernels.gemm.gluon import kernels as gluon_kernels

TOOLS = GPU_TOOLS[1:]  # but for "values", which is a comparison
OPTIONS = {"memcheck": ["--report-api-errors", "no"]}  # torch asks for what may not be there
# "ERROR SUMMARY: 0 errors"; racecheck: "RACECHECK SUMMARY: 0 hazards displayed (0 errors, …"
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?|hazards? displayed)\b")
RUNS = re.compile(r"(\d+) cases, (\d+) runs")
# racecheck's, its other accesses on lines of their own: "Race reported between Write access at …"
RACE = re.compile(r"Race reported between .*(?:\n=+ +and .*)*")
ACCESS = re.compile(r" access at (?:\w+_gluon\+0x\w+ in kernels\.py:(\d+)\b)?")  # "" elsewhere
MOST = "4"  # cases an op and dtype; a tool slows each launch down many times
A_GPU = 4  # processes at a time on one GPU, where more wait for each other


class Watched(NamedTuple):
    """An op's cases under a tool."""

    tool: str
    op: str
    status: int
    said: str
    seconds: float

    @property
    def errors(self) -> list[int]:
        """What each summary counts, but for races in what Triton hands its warps over with.

        ``gl.warp_specialize`` becomes a byte a warp: a store, a barrier of all threads, a load.
        racecheck says in some blocks that the two race, in PTX with nothing else between them.
        """
        errors = [int(number) for number in SUMMARY.findall(self.said)]
        races = [ACCESS.findall(race) for race in RACE.findall(self.said)]
        handed_over = sum(all(line in _handing_over() for line in race) for race in races)
        return [count - handed_over for count in errors]

    @property
    def runs(self) -> int:
        return sum(int(runs) for _, runs in RUNS.findall(self.said))


@pytest.fixture(scope="session")
def watched(root: Path, long_run: LongRun) -> list[Watched]:
    """Every op under every tool."""
    short = long_run.file is None
    if reasons := [reason for tool in TOOLS if (reason := missing("cuda-gpu").get(tool))]:
        if short:
            pytest.skip(reasons[0])
        pytest.exit(f"the sanitizers cannot run here: {reasons[0]}", returncode=3)
    gpus = list(range(torch.cuda.device_count()))
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in gpus * A_GPU:
        free.put(gpu)

    def compiled(op: str) -> Watched:
        return _watched("", op, root, zlib.crc32(op.encode()) % len(gpus))

    def watch(work: tuple[str, str]) -> Watched:
        gpu = free.get()
        try:
            return _watched(*work, root, gpu)
        finally:
            free.put(gpu)

    ops = ["square"] if short else list(SPECS)
    with ThreadPoolExecutor(len(ops)) as pool:  # no tool needs to watch the compilers
        plain = list(pool.map(compiled, ops))
    assert [done for done in plain if done.status] == []
    plain.sort(key=lambda done: -done.seconds)  # the longest first, lest it run last and alone
    with ThreadPoolExecutor(free.qsize()) as pool:
        return list(pool.map(watch, [(tool, done.op) for done in plain for tool in TOOLS]))


@pytest.mark.parametrize(
    "other", ["gemm_gluon+0x44d0 in kernels.py:1", "add+0x10 in kernels.py:{}"]
)
def test_only_races_of_the_hand_over_are_left_out(other: str) -> None:
    line = min(_handing_over(), key=int)
    race = "Error: Race reported between Read access at gemm_gluon+0xf0 in kernels.py:{}\n"
    race += "=========     and Write access at {} [7 hazards]\n"
    said = race.format(line, f"linear_gluon+0x20 in kernels.py:{line}")
    said += race.format(line, other.format(line)) + "RACECHECK SUMMARY: 2 hazards displayed (2"
    assert Watched("racecheck", "linear_act", 0, said, 1.0).errors == [1]


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_find_nothing(tool: str, watched: list[Watched], long_run: LongRun) -> None:
    ran = [done for done in watched if done.tool == tool]
    for done in ran:
        assert (done.status, done.errors) == (0, [0]), done.said[-4000:]
        assert done.runs > 0
    claim = "compute-sanitizer finds nothing in telling cases of all ops"
    figures = {f"runs under {tool}": sum(done.runs for done in ran)}
    figures[f"s of {tool}"] = round(sum(done.seconds for done in ran))
    long_run.add(claim, **figures)


@functools.cache
def _handing_over() -> set[str]:
    """The lines of gemm_gluon_kernel that no access of its own has: its head and the calls."""
    lines, first = inspect.getsourcelines(gluon_kernels.gemm_gluon_kernel.fn)
    head = next(n for n, line in enumerate(lines) if line.startswith("def "))
    calls = [n for n, line in enumerate(lines) if line.strip() == "gl.warp_specialize("]
    return {str(first + n) for call in calls for n in (head, call - 1, call)}  # "if" or "else", too


def _implementations(tool: str, op: str) -> str:
    """Those that the tool can judge. What the library's kernels store through the tensor memory
    accelerator initcheck takes for never written: of torch.mm's results it says so, too."""
    gpu = [each for each in implementations(SPECS[op], ["cuda-gpu"]) if each.variant]
    if tool != "initcheck" or all(each.variant != "cublaslt" for each in gpu):
        return "triton-compiled,cuda-gpu"
    others = [each.name for each in gpu if each.variant != "cublaslt"]
    return ",".join(["triton-compiled", *others])


def _watched(tool: str, op: str, root: Path, gpu: int) -> Watched:
    """An op's cases under a tool, or under none."""
    check = [sys.executable, "-m", "compare", "check", op, "--quick", "--most", MOST]
    check += ["--impl", _implementations(tool, op), "--require", "triton,cuda"]
    check += ["--jobs", "1"]  # in the process that the tool watches
    under = [compute_sanitizer() or "", "--tool", tool, *OPTIONS.get(tool, [])] if tool else []
    # Each tensor its own allocation, whose end the tool knows.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_VISIBLE_DEVICES": str(gpu)}
    start = time.monotonic()
    ran = subprocess.run(
        [*under, *check],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = ran.stdout + ran.stderr
    done = Watched(tool, op, ran.returncode, said, time.monotonic() - start)
    errors = f"{sum(done.errors)} errors" if tool else "compiled"
    print(f"{op} {tool}: {done.runs} runs, {errors}, {done.seconds:.0f} s", file=sys.stderr)
    return done
