"""Compiling before timing, in as many processes as there are cores.

Each process calls the providers on the case's own inputs, which fills the caches of Triton and
torch.compile on disk. The process that times finds the compiled kernels there. torch.compile
chooses between kernels by timing them. The timing process repeats that, since here all processes
share the GPU; max-autotune is left to it, too.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from compare.cases import Case
from compare.ops import spec_of
from compare.timing import bench, configurations, providers

COMPILED = ("triton", "compile", configurations.NAME)  # beginnings of providers' names
FEW = 4  # cases that do not repay the start of a process

Job = tuple[Case, tuple[str, ...]]  # a case and its providers


def compile_all(jobs: Sequence[tuple[Case, Sequence[str]]], done: Callable[[], None]) -> list[str]:
    """Compile what the providers of these cases need; ``done`` is called after each case.

    Errors end nothing here, because the timing process compiles what is missing. They are returned
    in words.
    """
    left = [(case, names) for case, wanted in jobs if (names := _compiled(wanted))]
    for _ in range(len(jobs) - len(left)):
        done()
    if len(left) < FEW:
        for _ in left:
            done()
        return []
    if any("compile" in names for _, names in left):
        _choose_anew()
    said: list[str] = []
    workers = min(len(left), len(os.sched_getaffinity(0)))
    # Not forked: this process may have a CUDA context.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        futures = [pool.submit(compile_one, case, names) for case, names in left]
        try:
            for future in as_completed(futures):
                try:
                    said += future.result()
                except BrokenProcessPool as error:
                    said.append(f"a compiling process ended: {error}")
                done()
        except BaseException:  # Ctrl-C: do not wait for calls that have not begun
            pool.shutdown(cancel_futures=True)
            raise
    return list(dict.fromkeys(said))


def _compiled(wanted: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in wanted if name.partition("/")[0] in COMPILED)


def _begin() -> None:
    """In a new process: torch.compile starts no further ones, since each core has one already."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)


def _choose_anew() -> None:
    """Do not save torch.compile's choices of kernels for other processes."""
    settings: Any = importlib.import_module("torch._inductor.config")
    settings.autotune_local_cache = False


def compile_one(case: Case, names: Sequence[str]) -> list[str]:
    """Call each provider once on a case. Returns their errors, in words."""
    said = []
    spec = spec_of(case.op)
    if "compile" in names:
        _choose_anew()
    try:
        args, kwargs = bench.inputs(spec, case, 0)
        for candidate in bench.candidates(spec, case, names):
            try:
                with providers.torchs_precision(case):
                    candidate.call(args, kwargs)
            except Exception as error:  # noqa: BLE001 - reported again where the candidate is timed
                said.append(f"{candidate.name}, {case}: {type(error).__name__}")
        torch.cuda.synchronize()
        del args, kwargs
        torch.cuda.empty_cache()
    except Exception as error:  # noqa: BLE001 - as above
        said.append(f"{case}: {type(error).__name__}")
    return said
