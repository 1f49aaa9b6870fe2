"""The context itself: threads, exceptions, compiling in turns with it, and its self-test."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from small_kernels import pairs_bf16, pointwise, reductions, run_pointwise, same

from triton_kernels import interpreter
from triton_kernels.interpreter import (
    assumptions,
    handles,
)


def test_active_and_threads() -> None:
    order: list[str] = []

    def other() -> None:
        order.append(f"active {interpreter.active()}")
        with interpreter.interpreting():
            order.append("other in")

    assert not interpreter.active()
    with interpreter.interpreting():
        with interpreter.interpreting():
            assert interpreter.active()
        assert interpreter.active()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()  # waits for us
        order.append("first out")
    thread.join(10)
    assert order == ["active False", "first out", "other in"]
    assert not interpreter.active()


def test_an_exception_leaves_cleanly() -> None:
    before = tl.load
    with pytest.raises(ZeroDivisionError), interpreter.interpreting():
        raise ZeroDivisionError
    assert tl.load is before
    assert not interpreter.active()


@contextlib.contextmanager
def fake_driver(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class FakeDriver(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_current_device(self) -> int:
            return capability

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            raise RuntimeError("fake driver")

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

    driver = triton.runtime.driver
    old = driver._active
    driver.set_active(FakeDriver())
    try:
        yield
    finally:
        driver._active = old


def test_interpret_and_compile_in_turns(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, y = pairs_bf16(1024)

    def compiled() -> str:
        with fake_driver(80):
            return str(
                pointwise.warmup(x, y, x, 1024, OP="add", BLOCK=1024, grid=(1,)).asm["ptx"]
            ) + str(reductions.warmup(x, x, x, M=8, N=32, grid=(1,)).asm["ptx"])

    def run() -> None:
        with interpreter.interpreting():
            same(run_pointwise("add", x, y), x + y)

    first = compiled()
    run()
    pointwise.device_caches.clear()
    reductions.device_caches.clear()
    gc.collect()
    assert compiled() == first
    run()


def test_compiles_after_interpreting_first(tmp_path: Any) -> None:
    """In a new process: whatever Triton loads late must not have been loaded amid the mends."""
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
import torch, triton_kernels
from triton_kernels.activations import gelu
from triton_kernels.gemm import GPUS, Problem, choose, kernels
a = torch.ones(64, 64)
with triton_kernels.interpret():
    assert float(triton_kernels.gemm_bias_act(a, a, act="gelu").sum()) == 64.0**3
operands = a, a, None, None, a, None, None, None
import test_interpreting, triton.language as tl
sizes = [(64, 64, 64), (64, 1), (64, 1), 0, (0, 0), (64, 1), 1.0, 0.0, 1]
units = dict(UNITS=(1, 1, 1, 1), B_POLICY="", WAITS=False)
options = dict(OP="gemm", ACT=gelu, C=tl.float32, PRECISION="ieee", grid=(1,), **units)
product = Problem(64, 64, 64, torch.float32, torch.float32)
tiles = choose(product, GPUS["sm_90"]).tiles._asdict()
with test_interpreting.fake_driver(90):
    kernel = kernels.gemm_bias_act_kernel.warmup(*operands, *sizes, **options, **tiles)
print("compiled", len(kernel.asm["cubin"]))
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "compiled" in done.stdout, done.stderr[-2000:]


def test_self_test_holds() -> None:
    assert interpreter.self_test() == []


@pytest.mark.parametrize("name", ["_patch_lang", "TensorHandle"])
def test_a_missing_name_is_reported(monkeypatch: Any, name: str) -> None:
    monkeypatch.delattr(handles.upstream, name)
    assumptions.missing_names.cache_clear()
    try:
        assert interpreter.self_test() == [f"triton.runtime.interpreter.{name} is gone"]
        with pytest.raises(RuntimeError, match=f"{name} is gone"), interpreter.interpreting():
            pass
    finally:
        assumptions.missing_names.cache_clear()


def test_a_changed_method_is_reported(monkeypatch: Any) -> None:
    monkeypatch.delattr(handles.upstream.InterpreterBuilder, "create_fma")
    assert any("create_fma is gone" in sentence for sentence in interpreter.self_test())
    monkeypatch.undo()
    monkeypatch.setattr(handles.upstream.InterpreterBuilder, "create_dot", lambda self, a, b: None)
    assert any("create_dot takes" in sentence for sentence in interpreter.self_test())


def test_with_triton_interpret_set() -> None:
    """Kernels imported under TRITON_INTERPRET=1 are InterpretedFunctions; all holds for them."""
    picked = (
        *("test_narrow_floats.py::test_bf16_arithmetic", "test_reductions.py::test_reductions"),
        "test_memory.py::test_bounds_name_the_argument",
        "test_memory.py::test_bounds_of_strided_views",
        "test_memory.py::test_bounds_of_block_pointers",
        *("test_language.py::test_language", "test_observers.py::test_device_assert"),
        "test_dot.py::test_dot_lattice",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *picked],
        cwd=Path(__file__).parent,
        env={**os.environ, "TRITON_INTERPRET": "1", "SUITE_INTERPRETED": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_the_suite_is_the_same_with_triton_interpret_set() -> None:
    """Whoever debugs has it set: kernels that the suite compiles are compiled."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "test_interpreting.py::test_interpret_and_compile_in_turns"],
        cwd=Path(__file__).parent,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "1 passed" in done.stdout
