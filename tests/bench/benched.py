"""`python -m compare bench` on a simulated GPU, as its tests call it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from simulated_gpu import Rig
from typer.testing import CliRunner, Result

from compare.cases import Case
from compare.cli import app


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


def flat(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


SQUARE = ("square", "--dtype", "float16", "--providers", "triton,eager,compile")
SMALL = (*SQUARE, "--shapes", "4096,4096", "--samples", "20")


def entries(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["provider"]: entry for entry in case["entries"]}


def amid_samples(provider: str, rig: Rig, sticky: bool = False) -> Callable[[str, Case], None]:
    calls: dict[str, int] = {}

    def before(name: str, case: Case) -> None:
        calls[str(case)] = calls.get(str(case), 0) + (name == provider)
        if name == provider and case.shape[0] == 4096 and calls[str(case)] > 35:
            rig.gpu.broken = sticky
            raise torch.OutOfMemoryError("CUDA out of memory")

    return before
