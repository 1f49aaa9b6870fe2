"""Where an interpreted kernel raises an error, pytest shows the kernel's line."""

from __future__ import annotations

from pathlib import Path

import processes

FOREIGN = """
import pytest, torch, triton, triton.language as tl

@triton.jit
def helper(x_ptr, i):
    return tl.load(x_ptr + i)  # no mask

@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, helper(x_ptr, i), mask=i < n)

@triton.jit
def transposes(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.trans(tl.arange(0, BLOCK), 1, 2, 3))

def launch(x):
    copy[(2,)](x, torch.empty_like(x), x.numel(), BLOCK=8)

@pytest.mark.interpreted_only
def test_bounds():
    launch(torch.ones(10))

@pytest.mark.interpreted_only
def test_language():
    transposes[(1,)](torch.ones(8), BLOCK=8)

@pytest.mark.interpreted_only
def test_chained():
    try:
        launch(torch.ones(10))
    except IndexError as error:
        raise RuntimeError("chained") from error

def test_outside_of_kernels():
    helper[(1,)](torch.ones(10), 1, 2, 3)
"""


def test_frames_of_the_interpreter_are_hidden(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "test_foreign.py"
    file.write_text(FOREIGN)
    words = ("-m", "pytest", "-p", "compare.pytest_plugin", "-p", "no:cacheprovider", str(file))
    said = processes.python(root, *words, "--rootdir", str(tmp_path), "-c", "/dev/null").stdout
    shown = said[: said.index("test_outside_of_kernels ___")]
    assert ">       return tl.load(x_ptr + i)  # no mask" in shown
    assert ">       tl.store(x_ptr, tl.trans(tl.arange(0, BLOCK), 1, 2, 3))" in shown
    assert "RuntimeError: chained" in shown
    assert shown.count("test_foreign.py:6: IndexError") == 2
    for machinery in ("triton_kernels/interpreter", "triton/runtime", "triton/language"):
        assert machinery not in shown
    assert "triton/runtime/jit.py" in said  # as ever


def test_all_frames_on_request(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "test_foreign.py"
    file.write_text(FOREIGN)
    words = ("-m", "pytest", "-p", "compare.pytest_plugin", "-p", "no:cacheprovider", str(file))
    ran = processes.python(root, *words, "-c", "/dev/null", "--full-trace", "-k", "bounds")
    assert "triton_kernels/interpreter/builder.py" in ran.stdout
