"""Processes forked while another thread is inside a call, as DataLoader's workers are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compare.checking.implementations import unavailable

# Children end themselves if they wait for a lock; a process with threads is best not pytest's own.
COMMON = """
import contextlib, os, signal, sys, threading, time, traceback, warnings
warnings.simplefilter("ignore")  # Python warns of every fork beside a thread
import torch
import cuda_reference, triton_kernels
from cuda_reference import _build
from triton_kernels import _modes, interpreter
from triton_kernels.interpreter import cross_compile

torch.set_num_threads(1)
x = torch.ones(30_000)

def call_cuda():
    assert cuda_reference.add(x, x)[-1] == 2

def call_triton():
    with triton_kernels.interpret():
        assert triton_kernels.add(x, x)[-1] == 2

def forked(work):
    "How a child that does the work ends."
    child = os.fork()
    if not child:
        signal.alarm(20)
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]

@contextlib.contextmanager
def beside(inside):
    "While another thread is inside of a context."
    entered, leave = threading.Event(), threading.Event()
    def run():
        with inside:
            entered.set()
            leave.wait()
    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()
"""


def run(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COMMON + script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(("side", "count"), [("cuda", 20), ("triton", 6)])
def test_while_a_thread_calls_in_a_loop(side: str, count: int) -> None:
    mode = "cuda-host" if side == "cuda" else "triton-interpreted"
    if reason := unavailable().get(mode):
        pytest.skip(f"{mode}: {reason}")
    run(f"""
call, stop = call_{side}, threading.Event()
call()

def loop():
    while not stop.is_set():
        call()

thread = threading.Thread(target=loop, daemon=True)
thread.start()
for _ in range({count}):
    assert forked(call) == 0
stop.set()
thread.join()
call()
""")


def test_while_a_thread_builds_a_library() -> None:
    """The fork waits: the child would have the lock, and not the thread that is to release it."""
    if reason := unavailable().get("cuda-host"):
        pytest.skip(f"cuda-host: {reason}")
    run("""
lock = threading.Event()

def build():
    with _build._load_lock:
        lock.set()
        time.sleep(0.2)

thread = threading.Thread(target=build)
thread.start()
lock.wait()
assert forked(call_cuda) == 0
thread.join()
call_cuda()
""")


def test_while_a_thread_interprets_or_cross_compiles() -> None:
    """The child is outside of the other thread's context, and Triton is there as it was; inside of
    one that the forking thread itself has entered."""
    run("""
import triton
import triton.language as tl

patching, drivers = interpreter.patching, cross_compile._drivers

def state():
    patched = [triton.JITFunction.run, triton.JITFunction.__call__, tl.load, tl.reduce]
    builder = patching.upstream.interpreter_builder
    return patched, type(builder), dict(vars(builder)), vars(tl.tensor).get("T"), drivers._active

before = state()

def outside():
    assert state() == before
    assert not interpreter.active() and not _modes.compiling()
    call_triton()
    with cross_compile.compiling(90):
        assert cross_compile.capability() == 90
    assert state() == before

def inside():
    assert interpreter.active()
    assert triton_kernels.add(x, x)[-1] == 2
    call_triton()

for context in (triton_kernels.interpret(), cross_compile.compiling(80)):
    with beside(context):
        during = state()
        assert during != before
        assert forked(outside) == 0
        assert state() == during
    assert state() == before
with triton_kernels.interpret():
    assert forked(inside) == 0
    inside()
outside()
""")
