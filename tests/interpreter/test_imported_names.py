"""Kernels whose modules took names from the language before anything was patched."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language import load, program_id, store
from triton.language.extra.libdevice import rsqrt
from triton.language.math import exp2

import compare
import triton_kernels as tk

cast = tl.cast


@triton.jit
def builtins(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = program_id(0) * BLOCK + tl.arange(0, BLOCK)
    store(out_ptr + i, load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def of_libdevice(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, rsqrt(tl.load(x_ptr + i, mask=i < n, other=1.0)), mask=i < n)


@triton.jit
def of_math(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, exp2(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


@triton.jit
def by_another_name(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, cast(tl.load(x_ptr + i, mask=i < n), tl.int32), mask=i < n)


def closing_over(function: Any) -> Any:
    @triton.jit
    def closure(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, function(tl.load(x_ptr + i, mask=i < n)), mask=i < n)

    return closure


ELSEWHERE = """
import triton
from triton.language import exp as exponential
from triton.language.extra.libdevice import rsqrt as root

@triton.jit
def helper(x):
    return exponential(x) * root(x)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module of helpers that has triton.language under no name of its own."""
    file: Path = tmp_path_factory.mktemp("helpers") / "elsewhere.py"
    file.write_text(ELSEWHERE)
    spec = importlib.util.spec_from_file_location("elsewhere", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, torch.nan)
    with tk.interpret():
        kernel[(2,)](x, out, x.numel(), BLOCK=32)
    return out


X = torch.rand(50) + 0.5


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (builtins, X),
        (of_libdevice, X.double().rsqrt()),
        (of_math, X.double().exp2()),
        (by_another_name, X.trunc()),
        (closing_over(tl.exp), X.double().exp()),
    ],
    ids=lambda value: getattr(getattr(value, "fn", None), "__name__", ""),
)
def test_kernels_with_names_of_their_own(kernel: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(run(kernel, X), expected.float())


def test_helpers_in_another_module(elsewhere: ModuleType) -> None:
    expected = (X.double().exp() * X.double().rsqrt()).float()
    torch.testing.assert_close(run(closing_over(elsewhere.helper), X), expected)


def test_closures_of_one_source_stay_apart() -> None:
    first, second = closing_over(tl.exp), closing_over(tl.sqrt)
    for _ in range(2):
        torch.testing.assert_close(run(first, X), X.exp())
        torch.testing.assert_close(run(second, X), X.sqrt())


def test_the_modules_get_back_what_was_theirs(elsewhere: ModuleType) -> None:
    before = {**globals()}, {**vars(elsewhere)}
    with tk.interpret():
        out = torch.empty_like(X)
        builtins[(2,)](X, out, X.numel(), BLOCK=32)
        assert globals()["load"] is not before[0]["load"]
    with contextlib.suppress(ZeroDivisionError), tk.interpret():
        of_libdevice[(2,)](X, out, X.numel(), BLOCK=32)
        raise ZeroDivisionError
    run(closing_over(elsewhere.helper), X)
    for names, module in zip(before, (globals(), vars(elsewhere)), strict=True):
        assert {name: module[name] for name in names} == names
        assert set(module) == set(names)


def test_a_module_that_was_imported_inside_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names are the language's for the compiler, and the interpreter's when interpreted."""
    (tmp_path / "imported_inside.py").write_text(
        "import triton\nimport triton.language as tl\n"
        "from triton.language.extra.libdevice import rsqrt\n"
        "cast = tl.cast\n\n@triton.jit\n"
        "def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + i, mask=i < n, other=1.0)\n"
        "    tl.store(out_ptr + i, rsqrt(cast(x, tl.float32)), mask=i < n)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with tk.interpret():
        module = importlib.import_module("imported_inside")
    monkeypatch.delitem(sys.modules, "imported_inside")
    assert module.rsqrt is rsqrt
    assert module.cast is tl.cast
    compiled = compare.compile_report(module.kernel, (X, X, X.numel()), archs=["sm_90"], BLOCK=32)
    assert compiled, compiled
    torch.testing.assert_close(run(module.kernel, X), X.double().rsqrt().float())
