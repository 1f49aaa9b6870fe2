"""--pdb and --break: Python's debugger in one program."""

from __future__ import annotations

import bdb
import re
import sys
from pathlib import Path
from typing import Any

import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from typed_commands import Typed
from typer.testing import CliRunner

import triton_kernels
from compare import debug
from compare.cli import app
from compare.debugging.stepping import breakpoints, sessions
from triton_kernels import interpreter

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


line_of = marked_lines.finder("# here: ", __file__)


@triton.jit
def twice(x):  # here: def
    """A helper."""
    y = x + x  # here: helper

    # here: comment
    return y


@triton.heuristics({"BLOCK": lambda args: 8})
@triton.jit
def holed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # here: first
    x = tl.load(  # here: load
        x_ptr + i,
        mask=i < n,  # here: mask
        other=0.0,
    )
    y = twice(x)  # here: call
    keep = (i < n) & (i != 13)
    tl.store(out_ptr + i, y, mask=keep)  # here: store


@triton.jit
def no_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # here: no_mask
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x)  # here: out of bounds


@triton.jit
def many(x_ptr, bf_ptr, out_ptr, M, N):
    i = tl.arange(0, 4)[:, None]
    j = tl.arange(0, 8)[None, :]
    both = x_ptr + i * N + j
    wide = bf_ptr + tl.arange(0, 4)
    half = tl.load(wide, mask=tl.arange(0, 4) < 3, other=0.0)
    tile = tl.load(both, mask=j < N, other=-1.0)
    tl.store(out_ptr, tl.sum(tile) + tl.sum(half))  # here: many


X = torch.arange(20.0)


def run_holed(**more: Any) -> Any:
    return debug(holed, (3,), (X, torch.zeros(20), 20), oracle=lambda: 2 * X, **more)


# ---- stepping ----


def test_stops_at_the_first_line_of_the_program_at_fault_only(typed: Typed) -> None:
    banner, where, *_ = typed("p tl.program_id(0); c", lambda: run_holed(pdb=True))
    assert banner.startswith("── holed: program (1, 0, 0) of (3, 1, 1) ──\n")
    assert "out_ptr float32 (20,): 1 of 20 elements wrong" in banner
    assert f"test_stepping.py:{line_of('store')} in holed: tl.store(" in banner
    assert sessions.HELP in banner
    assert typed.stops() == [("holed", line_of("first"))]
    assert where == "int32 1\n"
    assert len(typed.answers) == 3, "c goes to the end"
    assert [e.what for e in typed.result.trace.events] == ["load", "store"]
    assert typed.result.trace.ended == ""


def test_steps_over_statements_and_into_helpers(typed: Typed) -> None:
    """A statement of many lines is one step; Triton's own functions are none."""
    answers = typed("n; s; s; s; w; u; p i; d; r; n; n; c", lambda: run_holed(pdb=True))
    lines = [line for _, line in typed.stops()]
    marks = ("first", "load", "call", "def", "helper")
    assert lines[:5] == [line_of(mark) for mark in marks]
    assert answers[3].startswith("--Call--")
    stack = [line for line in answers[5].splitlines() if "(" in line and not line.startswith("->")]
    assert [re.sub(r".*\(\d+\)(\w+)\(\)", r"\1", line) for line in stack] == ["holed", "twice"]
    assert answers[7] == "int32[8] [ 8  9 10 11 12 13 14 15]\n"
    assert "--Return--" in answers[9]
    assert ("holed", line_of("store") - 1) in typed.stops()
    assert {name for name, _ in typed.stops()} == {"holed", "twice"}
    typed("; ".join("s" * 40), lambda: run_holed(pdb=True))
    assert {name for name, _ in typed.stops()} == {"holed", "twice"}, "no frame of Triton's"
    assert len(typed.stops()) == 10


def test_source_has_the_right_numbers(typed: Typed) -> None:
    answers = typed("l; ll; q", lambda: run_holed(pdb=True))
    assert f"{line_of('first')}  ->\t    i = tl.program_id(0)" in answers[1]
    assert f"{line_of('store')}  \t    tl.store(out_ptr + i, y, mask=keep)" in answers[2]


def test_tensors_print_as_arrays_and_the_language_works(typed: Typed) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    low = torch.tensor([1.0, 2.5, -3.0, 9.0], dtype=torch.bfloat16)
    args = (x, low, torch.zeros(1), 4, 6)
    answers = typed(
        "p half; p tile; p both; p wide; p tl.sum(tile, 1); pp N; p x_ptr; p [half]; "
        "p tl.load(x_ptr + 7); p (x_ptr + 100); !tile = tile + 1; p tl.max(tile); a; c",
        lambda: debug(many, (1,), args, breakpoints=[f"test_stepping.py:{line_of('many')}"]),
    )
    assert answers[1] == "bf16[4] [ 1.   2.5 -3.   0. ]\n"
    assert answers[2].startswith("fp32[4, 8]\n[[ 0.  1.  2.  3.  4.  5. -1. -1.]")
    assert answers[3].startswith("pointer<fp32>[4, 8] ")
    assert "2 of 32 outside, the first at element offset 24 of x_ptr" in answers[3]
    assert answers[4] == "pointer<bf16>[4] bf_ptr[0:4]\n"
    assert answers[5] == "fp32[4] [ 13.  49.  85. 121.]\n"
    assert answers[6] == "int32 6\n"
    assert answers[7] == "pointer<fp32> x_ptr[0, 0]\n"
    assert answers[8] == "[bf16[4] [ 1.   2.5 -3.   0. ]]\n"
    assert answers[9] == "fp32 7.0\n"
    assert answers[10].startswith("pointer<fp32> outside: element offset 100 of x_ptr")
    assert answers[12] == "fp32 24.0\n"
    assert answers[13].startswith("x_ptr = pointer<fp32> x_ptr[0, 0]\nbf_ptr = ")
    events = typed.result.trace.events
    assert [e.what for e in events] == ["load", "load", "store"], "the prompt's load is no event"
    assert typed.stops() == [("many", line_of("many"))]


def test_breaks_in_that_program_without_a_stop_at_the_first_line(typed: Typed) -> None:
    for mark, function in (("mask", "holed"), ("helper", "twice")):
        at = f"{__file__}:{line_of(mark)}"
        typed("p tl.program_id(0); c", lambda at=at: run_holed(breakpoints=[at]))
        line = line_of("load") if mark == "mask" else line_of(mark)
        assert typed.stops() == [(function, line)]
        assert typed.answers[1] == "int32 1\n"
    both = [f"test_stepping.py:{line_of(mark)}" for mark in ("store", "helper")]
    typed("c; c; c", lambda: run_holed(pdb=True, breakpoints=both, program=(2,)))
    assert [line for _, line in typed.stops()] == [line_of(m) for m in ("first", "helper", "store")]
    typed("c", lambda: run_holed(breakpoints=[f"test_stepping.py:{line_of('many')}"]))
    assert typed.answers == [""]
    assert "got to none of the breakpoints" in str(typed.result)


def test_q_and_the_end_of_stdin_end_it_cleanly(typed: Typed) -> None:
    for commands in ("n; n; q", "n; n"):
        typed(commands, lambda: run_holed(pdb=True))
        found = typed.result
        assert found.trace.ended == "by q in the debugger"
        assert [e.what for e in found.trace.events] == ["load"]
        assert found.wrong[0].deviation.index == (13,)
        assert len(typed.stops()) == 3
        assert "Traceback" not in "".join(typed.answers)


def test_an_error_opens_the_kernel_where_it_was_raised(typed: Typed) -> None:
    def run(**more: Any) -> Any:
        return debug(no_mask, (3,), (X, torch.zeros(20), 20), BLOCK=8, **more)

    here = ("no_mask", line_of("out of bounds"))
    typed("c; w; p x; p tl.sum(x); p tl.program_id(0); q", lambda: run(pdb=True))
    assert typed.stops() == [("no_mask", line_of("no_mask")), here, here]
    assert typed.answers[1].startswith("IndexError: out-of-bounds store through out_ptr")
    assert typed.answers[3] == "fp32[8] [16. 17. 18. 19.  0.  0.  0.  0.]\n"
    assert typed.answers[4:6] == ["fp32 70.0\n", "int32 2\n"]
    assert typed.result.failure.program == (2, 0, 0)
    assert typed.result.trace.ended == "by the error above"
    # Stepped upon, it is shown once.
    typed("n; n; n; c", lambda: run(pdb=True))
    lines = [line for _, line in typed.stops()]
    assert lines == [here[1] - 2, here[1] - 1, here[1], here[1]]
    assert "".join(typed.answers).count("program (2, 0, 0) of (3, 1, 1)") == 1


def test_results_stay_and_a_foreign_tracer_comes_back(typed: Typed) -> None:
    outer: list[str] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        outer.append(frame.f_code.co_name)

    def run(**more: Any) -> torch.Tensor:
        sys.settrace(tracer)
        try:
            found = run_holed(**more)
            assert sys.gettrace() is tracer
        finally:
            sys.settrace(None)
        return found.trace.events[-1].values

    plain = run()
    runs = outer.count("twice") + 1  # that of the replay, which debug follows by itself
    outer.clear()
    typed("n; n; n; c", lambda: run(pdb=True))
    assert (plain == typed.result).all()
    assert outer.count("twice") == runs - 1, "the one that was stepped over"
    outer.clear()
    typed("n; c", lambda: run(pdb=True))
    assert outer.count("twice") == runs, "from c on all is as before"
    assert "_notes" in outer


def test_a_breakpoint_of_someone_else_stays() -> None:
    before = bdb.Breakpoint(__file__, 1)
    try:
        session = sessions.Session([(__file__, line_of("store"))])
        with session.open() as debugger:
            assert debugger.get_break(__file__, line_of("store"))
        assert bdb.Breakpoint.bpbynumber[before.number] is before
    finally:
        before.deleteMe()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gemm.py", "FILE:LINE, as gemm_bias_act.py:104"),
        ("gemm.py:x", "FILE:LINE"),
        ("nowhere.py:3", "no such file, nor a loaded module of that name"),
        ("test_stepping.py:1", "nearest is "),
        ("investigation.py:10", "has no @triton.jit function"),
        ("__init__.py:1", "may mean "),
    ],
)
def test_lines_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        breakpoints.resolved(text)
    with pytest.raises(ValueError, match=r"debug\(\): breakpoint .*" + re.escape(says)):
        run_holed(breakpoints=[text])


def test_the_nearest_lines_are_named() -> None:
    comment = line_of("comment")
    near = rf"test_stepping.py:{comment}: .* the nearest are {comment - 2} and {comment + 1}"
    with pytest.raises(ValueError, match=near):
        breakpoints.resolved(f"test_stepping.py:{comment}")
    with pytest.raises(ValueError, match=f"the nearest is {line_of('helper')}"):
        breakpoints.resolved(f"test_stepping.py:{line_of('helper') - 1}")  # the docstring
    name = str(Path("tests") / "debug" / "test_stepping.py")
    assert breakpoints.resolved(f"{name}:{line_of('mask')}") == (__file__, line_of("load"))


# ---- the command ----


def command(stdin: str, *words: str) -> Any:
    return CliRunner().invoke(app, ["debug", *words], input=stdin.replace("; ", "\n") + "\n")


def test_the_command(typed: Typed) -> None:
    case = ("gemm_bias_act", "--dtype", "float32", "--shape", "64,100,30")
    typed_in = "p tl.program_id(0); n; n; n; n; n; n; p pid_n; c"
    done = command(typed_in, *case, "--pdb", "--program", "1")
    assert done.exit_code == 0, done.output
    assert "gemm_bias_act_kernel: program (1, 0, 0) of (2, 1, 1)" in done.output
    assert done.output.count("(Pdb) int32 1\n") == 2
    assert done.output.count("-> pid_m, pid_n = swizzle(") == 1
    assert "nothing wrong found" in done.output
    file = triton_kernels.gemm.kernels.__file__
    line = next(
        n for n, text in enumerate(Path(file).read_text().splitlines(), 1) if "b = tl." in text
    )
    done = command("p k0; c; p k0; q", *case, "--break", f"gemm/kernels.py:{line}")
    assert done.exit_code == 0, done.output
    assert re.findall(r"\(Pdb\) int32 (\d+)\n", done.output) == ["0", "16"]
    assert "stopped: by q in the debugger" in done.output
    done = command("", *case, "--break", f"gemm/kernels.py:{line - 1000}")
    assert done.exit_code == 2
    assert "FILE:LINE" in done.output
    done = command("", *case, "--break", "gemm/kernels.py:1")
    assert done.exit_code == 2
    assert "the nearest is" in " ".join(done.output.replace("│", " ").split())


# ---- a breakpoint alone ----


def test_a_breakpoint_alone_stops_in_the_first_program_that_gets_there(typed: Typed) -> None:
    @triton.jit
    def later(x_ptr, BLOCK: tl.constexpr):
        if tl.program_id(0) > 1:
            tl.store(x_ptr, BLOCK)  # here: later

    def run() -> None:
        session = sessions.Session([(__file__, line_of("later"))], first=False)
        with (
            session.open() as debugger,
            interpreter.watched(sessions.Step(session, debugger, None)),
        ):
            for n in (4, 1, 3):
                with triton_kernels.interpret():
                    later[(n,)](torch.zeros(1), BLOCK=n)

    typed("p tl.program_id(0); p BLOCK; c; p tl.program_id(0); p BLOCK; c", run)
    assert [typed.answers[i] for i in (1, 2, 4, 5)] == ["int32 2\n", "4\n", "int32 2\n", "3\n"]
    assert len(typed.stops()) == 2


def test_an_onlooker_hears_of_runs_that_began_before_it_came(typed: Typed) -> None:
    def run() -> None:
        session = sessions.Session([(__file__, line_of("out of bounds"))], first=False)
        with triton_kernels.interpret(), session.open() as debugger:
            with interpreter.watched(sessions.Step(session, debugger, (0, 0, 0))):
                no_mask[(1,)](X, torch.zeros(20), 20, BLOCK=8)
            no_mask[(1,)](X, torch.zeros(20), 20, BLOCK=8)

    typed("c; c", run)
    assert typed.stops() == [("no_mask", line_of("out of bounds"))]
