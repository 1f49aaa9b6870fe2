"""Calls without end: memory does not grow, threads do not disturb each other, children can call.

``make endurance`` makes a hundred thousand of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice

import every_function
import torch
from long_runs import LongRun
from torch import Tensor

import triton_kernels
from compare import numerics
from compare.checking.implementations import MODES, unavailable

Work = Callable[[], list[Tensor]]
MIB = 1 << 20
# Of the interpreter, which takes milliseconds a call.
INTERPRETED = 5000
# Of 100 000 calls 20 bytes each, in which no lost object fits; of 5000 400, less than a tensor.
GROWTH = 2 * MIB


@contextlib.contextmanager
def entered(mode: str) -> Iterator[torch.device]:
    """Where Triton's kernels run in the mode, and its device."""
    interpreted = mode == "triton-interpreted"
    with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
        yield torch.device(MODES[mode][1])


def works(mode: str, device: torch.device, training: bool = True) -> list[Work]:
    """A call of every public function of the mode's side, of every variant and, of what autograd
    follows, a step of training if there is to be any."""
    found: list[Work] = []
    for function in every_function.functions(mode):
        inputs = function.inputs(device)
        results = function.results(device)
        found.append(lambda f=function, i=inputs: f(i))
        if function.op not in every_function.PAIRS:
            found.append(lambda f=function, i=inputs, r=results: f(i, r))
        followed = MODES[mode][0] == "triton" and function.variant is None and len(results) == 1
        if training and followed:
            found.append(lambda f=function, i=inputs: trained(f, i))
    return found


def trained(function: every_function.Function, inputs: dict[str, Tensor]) -> list[Tensor]:
    leaves = {name: t.detach().requires_grad_() for name, t in inputs.items()}
    (result,) = function(leaves)
    result.backward(torch.ones_like(result))
    return [t.grad for t in leaves.values() if t.grad is not None]


def memory(device: torch.device) -> tuple[int, int]:
    """Bytes of this process on the host, and of torch's on the GPU, nothing left to collect."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        host = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cpu":
        return host, 0
    torch.cuda.synchronize()
    return host, torch.cuda.memory_allocated()


def growth(calls: list[Work], count: int, device: torch.device) -> tuple[int, int]:
    """Bytes by which memory grows in so many calls, on the host and on the GPU, after some."""
    for call in islice(cycle(calls), len(calls) + count // 5):
        call()
    before = memory(device)
    for call in islice(cycle(calls), count):
        call()
    after = memory(device)
    return after[0] - before[0], after[1] - before[1]


def test_memory_does_not_grow(mode: str, long_run: LongRun) -> None:
    long = INTERPRETED if mode == "triton-interpreted" else 100_000
    count = long_run.amount(20 if mode == "triton-interpreted" else 1000, long)
    with entered(mode) as device:
        host, gpu = growth(works(mode, device), count, device)
    assert host <= GROWTH
    assert gpu <= 0
    figures = {f"calls {mode}": count, f"KiB more after {mode}": host // 1024}
    if device.type == "cuda":
        figures[f"bytes more on the GPU after {mode}"] = gpu
    long_run.add("memory does not grow with calls", **figures)


def test_the_measure_sees_what_grows() -> None:
    kept: list[Tensor] = []
    device = torch.device("cpu")
    host, _ = growth([lambda: kept.append(torch.ones(2048)) or kept], 4000, device)
    assert host > GROWTH


@contextlib.contextmanager
def stream(device: torch.device) -> Iterator[None]:
    """A stream of this thread's own, on a GPU."""
    with (
        contextlib.nullcontext() if device.type == "cpu" else torch.cuda.stream(torch.cuda.Stream())
    ):
        yield


def test_threads_do_not_disturb_each_other(mode: str, long_run: LongRun) -> None:
    """Every thread gets the bits that one thread alone gets, on a GPU in a stream of its own."""
    threads = 16 if mode != "triton-interpreted" else long_run.amount(2, 16)
    rounds = long_run.amount(1, 3 if mode == "triton-interpreted" else 100)
    failures: list[BaseException] = []
    together = threading.Barrier(threads, timeout=60)

    def compute(expected: list[list[Tensor]]) -> None:
        try:
            together.wait()
            for _ in range(rounds):  # one thread at a time interprets
                with entered(mode) as device, stream(device):
                    for call, right in zip(works(mode, device), expected):
                        for a, b in zip(call(), right):
                            assert bool(numerics.same_bits(a.cpu(), b).all())
        except BaseException as error:  # noqa: BLE001 - told by the test, in its own thread
            failures.append(error)
            together.abort()

    with entered(mode) as device:
        expected = [[t.cpu() for t in call()] for call in works(mode, device)]
    started = [threading.Thread(target=compute, args=(expected,)) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not failures, failures[0]
    long_run.add(
        "threads at once get the bits that one alone gets",
        **{f"calls by {threads} threads {mode}": threads * rounds * len(expected)},
    )


def call_everything(mode: str, training: bool) -> None:
    """What a child does; it fails by its exit status."""
    with entered(mode) as device:
        for call in works(mode, device, training):
            assert all(bool(t.isfinite().all()) for t in call())


def test_children_call(long_run: LongRun) -> None:
    """In a child that is forked after CUDA was used neither CUDA works nor torch's autograd, which
    has a thread a device."""
    modes = [mode for mode in MODES if mode not in unavailable()]
    on_host = [mode for mode in modes if MODES[mode][1] == "cpu"]
    no_gpu = len(on_host) == len(modes)
    methods = {"fork": on_host, "spawn": modes, "forkserver": modes}
    if long_run.file is None:  # such a child takes seconds to import
        methods = {"fork": on_host[-1:], "spawn": modes[-1:]}
    for method, modes in methods.items():
        context = multiprocessing.get_context(method)
        children = [
            context.Process(target=call_everything, args=(mode, method != "fork" or no_gpu))
            for mode in modes
            for _ in range(long_run.amount(1, 4))
        ]
        for child in children:
            child.start()
        end = time.monotonic() + 300
        for child in children:
            child.join(max(0, end - time.monotonic()))
        statuses = [child.exitcode for child in children]
        for child in children:
            child.kill()
        assert statuses == [0] * len(children), method
        long_run.add("children call every function", **{f"by {method}": len(children)})
