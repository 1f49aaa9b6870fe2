"""A wheel and an sdist install where this checkout is not, and pass the check there.

Torch and all else that the package needs is taken from this environment. ``make package`` runs the
whole quick check of what the wheel holds, and one op's of the sdist; a short run one op's of the
wheel.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import PACKAGES, ROOT
from long_runs import LongRun

UNWANTED = (".*", "build", "dist", "*.egg-info", "__pycache__", "_prebuilt", "profile")
CHECK = f"""
import sys, {", ".join(PACKAGES)}
assert all(p.__file__.startswith(sys.prefix) for p in ({", ".join(PACKAGES)})), sys.path
from compare.cli import app
app(["check", "--quick", *sys.argv[1:]])
"""
TYPED = """import torch
import compare
import cuda_reference
import triton_kernels
from triton_kernels import nn

x: torch.Tensor = triton_kernels.gemm_bias_act(torch.ones(2, 3), torch.ones(3, 4), act="relu")
y: torch.Tensor = cuda_reference.square(x)
layer = nn.LinearAct(4, 4, act="gelu")
fused: torch.nn.Module = triton_kernels.fuse(layer)
report: compare.Report = compare.check_fused(layer, [(layer(x),)])
bad: int = triton_kernels.square(x)
bad_argument: torch.Tensor = cuda_reference.square("x")
"""


def version(distribution: str) -> int:
    """The first number of an installed one's version; 0 where there is none."""
    try:
        return int(importlib.metadata.version(distribution).split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


pytestmark = pytest.mark.skipif(
    not version("build") or version("setuptools") < 77,
    reason="building needs build and setuptools from 77 on: pip install -e '.[dev]'",
)


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints; where no variable leads to this checkout."""
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        list(map(str, command)), cwd=folder, env=variables, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout


def build(kinds: list[str], folder: Path) -> list[Path]:
    """The distributions of a copy of the checkout; of two kinds the wheel is made of the sdist."""
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*UNWANTED))
    chosen = ["--wheel"] if kinds == ["wheel"] else []
    command = ("-m", "build", "--no-isolation", *chosen, "--outdir", folder / "dist")
    run(sys.executable, *command, folder / "source", folder=folder)
    shutil.rmtree(folder / "source")
    return [next((folder / "dist").glob(f"*{'.whl' if k == 'wheel' else '.gz'}")) for k in kinds]


def environment(folder: Path) -> Path:
    """The Python of a new environment, which finds this one's packages after its own."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def test_types_of_what_is_installed(tmp_path: Path) -> None:
    """mypy --strict knows the functions of all three, and finds what is wrong in two lines."""
    pytest.importorskip("mypy")
    (wheel,) = build(["wheel"], tmp_path)
    python = environment(tmp_path / "typed")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    alone = ("--no-deps", "--ignore-installed", "--no-build-isolation")
    run(*pip, *alone, wheel, folder=tmp_path)
    (tmp_path / "use.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "use.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    wrong = re.findall(r"use.py:(\d+): error: .*\[(.*)\]", ran.stdout)
    lines = TYPED.splitlines()
    assert [(lines[int(n) - 1][:3], code) for n, code in wrong] == [
        ("bad", "assignment"),
        ("bad", "arg-type"),
    ], ran.stdout


def test_installed_elsewhere_it_passes_the_check(
    tmp_path: Path, long_run: LongRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = long_run.file is None
    if not short:  # which compiles every source anew
        monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "cache"))
    few = ["square", "--dtype", "int8", "--impl", "cuda"]
    whole, part = ["--require", "triton,cuda"], ["square", "--require", "triton,cuda"]
    for distribution in build(["wheel"] if short else ["wheel", "sdist"], tmp_path):
        kind = "wheel" if distribution.suffix == ".whl" else "sdist"
        words = few if short else whole if kind == "wheel" else part
        python = environment(tmp_path / kind)
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
        alone = ("--no-deps", "--ignore-installed", "--no-build-isolation")
        run(*pip, *alone, distribution, folder=tmp_path)
        run(python, "-c", CHECK, *words, "--json", "check.json", folder=tmp_path)
        rows = json.loads((tmp_path / "check.json").read_text())["rows"]
        assert rows
        long_run.add(
            f"installed from the {kind} it passes `compare check --quick` outside the checkout",
            ops=len({row["op"] for row in rows}),
            cases=sum(row["cases"] for row in rows),
            runs=sum(sum(row["runs"].values()) for row in rows),
        )
