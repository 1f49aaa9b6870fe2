"""NVIDIA's compute-sanitizer finds nothing in the kernels of both sides, on a GPU.

``make sanitizers`` has its four tools watch the quick check of all ops; a short run has one op.
Where that cannot be, a long run ends with status 3.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from long_runs import LongRun

from compare.debugging.cuda.side import GPU_TOOLS, compute_sanitizer, missing
from compare.ops import SPECS

TOOLS = GPU_TOOLS[1:]  # but for "values", which is a comparison
OPTIONS = {"memcheck": ["--report-api-errors", "no"]}  # torch asks for what may not be there
# "ERROR SUMMARY: 0 errors"; racecheck: "RACECHECK SUMMARY: 0 hazards displayed (0 errors, …"
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?|hazards? displayed)\b")


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_find_nothing(tool: str, root: Path, long_run: LongRun) -> None:
    short = long_run.file is None
    if reason := missing("cuda-gpu").get(tool):
        if short:
            pytest.skip(reason)
        pytest.exit(f"the sanitizers cannot run here: {reason}", returncode=3)
    start = time.monotonic()
    few = [["square", "--dtype", "float32"]] if short else [[op] for op in SPECS]
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        errors = sum(pool.map(lambda words: _errors(tool, words, root), few))
    assert errors == 0
    figures = {f"errors by {tool}": errors, f"s of {tool}": round(time.monotonic() - start)}
    long_run.add("compute-sanitizer finds nothing in the quick check of all ops", **figures)


def _errors(tool: str, words: list[str], root: Path) -> int:
    """What the tool counts in a quick check."""
    impl = "triton-compiled,cuda-gpu"
    check = [sys.executable, "-m", "compare", "check", *words, "--quick", "--impl", impl]
    check += ["--require", "triton,cuda", "--jobs", "1"]  # in the process that the tool watches
    subprocess.run(check, cwd=root, check=True)  # compiles, which no tool needs to watch
    # Each tensor its own allocation, whose end the tool knows.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ran = subprocess.run(
        [compute_sanitizer() or "", "--tool", tool, *OPTIONS.get(tool, []), *check],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said[-4000:]
    errors = [int(number) for number in SUMMARY.findall(said)]
    assert errors == [0], said[-4000:]
    return errors[0]
