"""DTensors and sharded modules on several ranks: CPU processes, or GPUs where there are two.

One start of torchrun runs all of sharded_ops.py and sharded_modules.py: starting takes longest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch

ROOT = Path(__file__).parents[2]
CHECKS = "tests/sharded_main.py"
EXAMPLE = "examples/tensor_parallel.py"

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)


def run(*command: str, seconds: float) -> tuple[int, str]:
    """Exit status and output of a Python command; of torchrun, SIGTERM ends the ranks, too."""
    started = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.terminate()
        output, _ = started.communicate()
        pytest.fail(f"not done after {seconds} s:\n{output}")
    return started.returncode, output


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def torchrun(ranks: int, *command: str) -> tuple[int, str]:
    """--standalone finds a free port itself."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return run(*start, *command, seconds=240)


def gpus() -> int:
    """The GPUs to use, an even number."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"{count} CUDA device, 2 needed")
    return count - count % 2


def test_sharded_on_the_cpu() -> None:
    status, output = torchrun(2, CHECKS, "cpu")
    assert status == 0, output
    assert "checks passed on 2 ranks" in output


@pytest.mark.gpu_only
def test_sharded_on_gpus() -> None:
    ranks = gpus()
    status, output = torchrun(ranks, CHECKS, "cuda")
    assert status == 0, output
    assert f"checks passed on {ranks} ranks" in output


def test_example_on_the_cpu() -> None:
    status, output = torchrun(2, EXAMPLE, "--device=cpu")
    assert status == 0, output
    assert "2 ranks compute what one does" in output


@pytest.mark.gpu_only
def test_example_on_gpus() -> None:
    ranks = gpus()
    status, output = torchrun(ranks, EXAMPLE)
    assert status == 0, output
    assert f"{ranks} ranks compute what one does" in output


def test_example_says_how_to_start_it() -> None:
    done = processes.python(ROOT, EXAMPLE)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).splitlines() == [
        "start it by: torchrun --nproc-per-node 2 examples/tensor_parallel.py"
    ]


def test_without_dtensors_their_modules_are_not_loaded() -> None:
    code = """
import sys, torch, triton_kernels as tk
with tk.interpret():
    tk.add(torch.ones(3, requires_grad=True), torch.ones(3)).sum().backward()
    torch.func.vmap(tk.square)(torch.ones(2, 3))  # by the registered op
heavy = {"torch.distributed.tensor", "triton_kernels._sharding", "torch._dynamo"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    status, output = run("-c", code, seconds=60)
    assert status == 0, output
