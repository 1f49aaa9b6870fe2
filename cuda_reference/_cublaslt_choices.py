"""Times the ways to compute a product by cublasLt, and keeps the choices for the user.

A choice is valid for one version of the library and one model of GPU. There is a file for each such
pair, in the folder cublaslt of the library cache (CUDA_REFERENCE_CACHE).
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_reference import _build, _compilers, _storage

_WARMUPS, _ROUNDS, _LAUNCHES = 2, 5, 10

Choice = dict[str, Any]  # "way", and "algorithm" as bytes in hexadecimal


def fastest(ways: Sequence[Callable[[], object]]) -> int:
    """The index of the launch on the current stream with the lowest minimum of times."""
    times = [float("inf")] * len(ways)
    for way in ways:
        for _ in range(_WARMUPS):
            way()
    for _ in range(_ROUNDS):
        for at, way in enumerate(ways):
            times[at] = min(times[at], _milliseconds(way))
    return min(range(len(ways)), key=times.__getitem__)


def _milliseconds(way: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(_LAUNCHES):
        way()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def kept(gpu: str, version: int, key: str) -> Choice | None:
    """The kept choice for a problem, or None."""
    choice = _choices(gpu, version).get(key)
    whole = isinstance(choice, dict) and all(
        isinstance(choice.get(name), str) for name in ("way", "algorithm")
    )
    return choice if whole else None


def keep(gpu: str, version: int, key: str, choice: Choice) -> None:
    """Keep a choice for this process, and for later ones if the cache can be written."""
    _choices(gpu, version)[key] = choice
    with contextlib.suppress(_compilers.BuildError, OSError):
        file = _file(gpu, version)
        every = _read(file) | {key: choice}  # with choices that other processes have added
        with _build.workspace(file.parent) as work:
            _storage.write({file: json.dumps(every, indent=1).encode()}, work)


@functools.cache
def _choices(gpu: str, version: int) -> dict[str, Any]:
    try:
        return _read(_file(gpu, version))
    except _compilers.BuildError:
        return {}


def _file(gpu: str, version: int) -> Path:
    name = re.sub(r"[^\w.-]+", "-", gpu)
    return _compilers.cache_directory("cublaslt") / f"{name}-{version}.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        choices = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return choices if isinstance(choices, dict) else {}
