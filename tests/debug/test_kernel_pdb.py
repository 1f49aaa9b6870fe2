"""The pytest plugin's --kernel-pdb, --kernel-program and --kernel-break."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typed_commands import Typed
from typer.testing import CliRunner

from compare.cli import app

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")
PLUGIN = ("-p", "compare.pytest_plugin", "-p", "no:cacheprovider")


def command(stdin: str, *words: str) -> Any:
    return CliRunner().invoke(app, ["debug", *words], input=stdin.replace("; ", "\n") + "\n")


FOREIGN = """
import pytest
import torch
import triton
import triton.language as tl
import triton_kernels as tk
import compare

@triton.jit
def no_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * 2)

@triton.jit
def holed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * 2, mask=(i < n) & (i != 13))

x = torch.arange(20.0)

def call(x):
    out = torch.zeros_like(x)
    holed[(3,)](x, out, 20, BLOCK=8)
    return out

def test_expected_errors_open_nothing():
    with tk.interpret(), pytest.raises(IndexError):
        no_mask[(3,)](x, torch.zeros(20), 20, BLOCK=8)
    found = compare.debug(no_mask, (3,), (x, torch.zeros(20), 20), BLOCK=8)
    assert not found

@pytest.mark.interpreted_only
def test_raises():
    print("captured")
    no_mask[(3,)](x, torch.zeros(20), 20, BLOCK=8)

def test_cross_check(cross_check):
    cross_check(triton=call, cuda=lambda x: x * 2, oracle=lambda x: x * 2, inputs=[(x,)])

def test_debug():
    args = (x, torch.zeros(20), 20)
    found = compare.debug(holed, (3,), args, oracle=lambda: x * 2, BLOCK=8)
    assert bool(found)

def test_without_a_kernel():
    assert False
"""


def child(folder: Path, root: Path, stdin: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_foreign.py").write_text(FOREIGN)
    settings = {**os.environ, "PYTHONPATH": str(root), "HOME": str(folder), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-W", "error", "--tb=no", *options]
    return subprocess.run(
        command,
        cwd=folder,
        env=settings,
        input=stdin.replace("; ", "\n") + "\n",
        capture_output=True,
        text=True,
        check=False,
    )


def test_kernel_pdb_opens_where_a_test_fails(root: Path, tmp_path: Path) -> None:
    said = "p tl.sum(x); w; c; p tl.program_id(0); c; p tl.program_id(0); n; c"
    ran = child(tmp_path, root, said, "--kernel-pdb", "-rf")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "4 failed, 1 passed" in ran.stdout
    banner, total, where, _, program, wrong, again, line, _ = ran.stdout.split("(Pdb) ")
    assert "── no_mask: program (2, 0, 0) of (3, 1, 1) ──\nIndexError: out-of-bounds" in banner
    assert "test_expected" not in banner
    assert "-> tl.store(out_ptr + i, x * 2)" in banner
    assert total == "fp32 70.0\n"
    assert where.count("no_mask()") == 1
    assert "python.py" not in where, "no frame of pytest's"
    assert program == "int32 1\n"
    assert "holed: program (1, 0, 0) of (3, 1, 1)" in wrong
    assert "worst out_ptr[13]: got 0.0" in wrong
    assert again == "int32 1\n"
    assert "-> x = tl.load(" in line
    assert ran.stdout.count("holed: program (1, 0, 0)") == 2
    assert ran.stdout.count("── ") == 3, "one session a failing test with a kernel"


@pytest.fixture
def foreign(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    file = pytester.path / "test_foreign.py"
    file.write_text(FOREIGN)
    return file


def test_kernel_program_stops_in_every_launch(
    typed: Typed, pytester: pytest.Pytester, foreign: Path
) -> None:
    said = "p tl.program_id(0); c; p tl.program_id(0); q"
    options = ("--kernel-program", "1", *PLUGIN, "--capture=sys", "-k", "raises or cross_check")
    first, *answers = typed(said, lambda: pytester.inline_run(*options))
    assert typed.result.ret == pytest.ExitCode.INTERRUPTED
    assert "the kernel's debugger was quit" in answers[-1]
    assert "no_mask: program (1, 0, 0) of (3, 1, 1)" in first
    assert answers[0].startswith("int32 1\n")
    assert "holed: program (1, 0, 0)" in answers[1]
    assert answers[2] == "int32 1\n"
    assert "captured" not in first


def test_kernel_break_stops_at_its_line_and_nowhere_before(
    typed: Typed, pytester: pytest.Pytester, foreign: Path
) -> None:
    line = FOREIGN.splitlines().index("    tl.store(out_ptr + i, x * 2)") + 1
    options = ("--kernel-program", "1", "--kernel-break", f"test_foreign.py:{line}")
    options += (*PLUGIN, "--capture=sys", "-k", "raises or cross_check")
    first, *answers = typed("p tl.program_id(0); c", lambda: pytester.inline_run(*options))
    assert "no_mask: program (1, 0, 0) of (3, 1, 1)" in first
    assert f"({line})no_mask()" in first
    assert answers[0] == "int32 1\n"
    assert "program (1, 0, 0)" not in "".join(answers[1:])


def test_a_kernel_program_that_no_launch_has_brings_a_warning(
    pytester: pytest.Pytester, foreign: Path
) -> None:
    ran = pytester.runpytest(*PLUGIN, "--kernel-program", "9", "-k", "cross_check")
    ran.stdout.fnmatch_lines(
        ["*--kernel-program (9, 0, 0): no launch of this test has that program; the grids are*"]
    )
    assert "no launch" not in pytester.runpytest(*PLUGIN, "-k", "cross_check").stdout.str()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--kernel-pdb", "-p", "xdist", "-n", "2"),
            "*pytest-xdist's workers do not have: add -n 0",
        ),
        (("--kernel-program", "1,x"), "*--kernel-program 1,x: up to three numbers, as 1,0,0"),
        (("--kernel-break", "nowhere.py:1"), "*--kernel-break nowhere.py*no such file*"),
    ],
    ids=["xdist", "program", "break"],
)
def test_wrong_options(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: Any, says: str
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    if "xdist" in options:
        pytest.importorskip("xdist")
    pytester.makepyfile("def test_nothing(): pass")
    ran = pytester.runpytest(*PLUGIN, *options)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([says])


def test_a_run_without_the_options_has_no_debugger(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.getplugin("compare.kernel_debugger") is None
