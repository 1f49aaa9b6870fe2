"""Ranges in profiles round the ops' calls and launches."""

from __future__ import annotations

import os
from pathlib import Path

import processes
import pytest
import torch
from torch.profiler import ProfilerActivity

import compare
import triton_kernels as tk
from triton_kernels._launch import Launch
from triton_kernels._operator import Operator

X = torch.ones(4, 6)


def ranges(profile: torch.profiler.profile) -> list[tuple[str, str]]:
    """Each range, and the one that it is in."""
    names = "triton_kernels.", "tiled_kernel", "flat_kernel"
    ours = [event for event in profile.events() if event.name.startswith(names)]
    return [(e.name, e.cpu_parent.name if e.cpu_parent else "") for e in ours]


def profiled() -> torch.profiler.profile:
    return torch.profiler.profile(activities=[ProfilerActivity.CPU])


@pytest.mark.interpreted_only
def test_calls_and_launches() -> None:
    with profiled() as profile, compare.annotate():
        assert torch.equal(tk.add(X, X[0].half(), alpha=2), X + 2)
        tk.square(X)
    (add, _), (kernel, inside), (square, _), _ = ranges(profile)
    assert add == "triton_kernels.add(float32[4, 6], float16[6], 2)"
    assert inside == add
    name, *words = kernel.split()
    assert name == "flat_kernel"
    assert any(word.startswith("BLOCK") for word in words)
    assert square == "triton_kernels.square(float32[4, 6])"


@pytest.mark.interpreted_only
def test_gradients_are_calls_too() -> None:
    x = X.clone().requires_grad_()
    with profiled() as profile, compare.annotate():
        tk.square(x).sum().backward()
    assert torch.equal(x.grad, 2 * X)
    names = [name.partition("(")[0] for name, _ in ranges(profile)]
    assert "triton_kernels.square" in names
    assert "triton_kernels.square_backward" in names


@pytest.mark.interpreted_only
def test_off_nothing_is_in_the_way() -> None:
    before = Operator.__call__, Launch.__call__
    with compare.annotate():
        with compare.annotate():
            assert (Operator.__call__, Launch.__call__) != before
        assert (Operator.__call__, Launch.__call__) != before
    assert (Operator.__call__, Launch.__call__) == before
    with profiled() as profile:
        tk.square(X)
    assert ranges(profile) == []
    with pytest.raises(TypeError), compare.annotate():
        tk.square("x")
    assert (Operator.__call__, Launch.__call__) == before


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_turns_it_on(value: str, root: Path) -> None:
    code = """if True:
        from triton_kernels._launch import Launch
        print(Launch.__call__.__module__)"""
    environment = {**os.environ, "TRITON_KERNELS_PROFILE": value}
    done = processes.python(root, "-c", code, environment=environment)
    expected = "annotating" if value == "1" else "_launch"
    assert done.stdout.strip() == f"triton_kernels.{expected}"


@pytest.mark.gpu_only
def test_on_a_gpu() -> None:
    x = torch.randn(1024, device="cuda")
    compiled = torch.compile(lambda x: tk.square(x) + 1)
    with compare.annotate(), profiled() as profile:
        tk.square(x)
        assert torch.allclose(compiled(x), x * x + 1)
    assert "triton_kernels.square(float32[1024])" in [name for name, _ in ranges(profile)]
