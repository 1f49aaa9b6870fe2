"""What findings say: on one screen, amid interruption, with the history of the worst element."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import broken_kernels
import marked_lines
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from broken_kernels import X, flat, linear_with, nested, square

from compare import debug, numerics
from compare.checking import progress
from compare.debugging import investigation
from compare.debugging.findings.findings import LINES
from compare.debugging.findings.traces import WIDTH
from compare.debugging.observers.tracing import Tracer
from triton_kernels import interpreter

line_of = marked_lines.finder("# fault: ", __file__, broken_kernels.__file__)


# ---- interruption ----


def test_ctrl_c_keeps_the_trace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Tracer.access

    def access(self: Tracer, access: Any) -> None:
        inner(self, access)
        if len(self.trace.events) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Tracer, "access", access)
    args = (torch.ones(20), torch.zeros(30), 30, 20)
    found = debug(nested, (1,), args, program=(0,))
    assert found.partial
    assert not found
    assert len(found.trace.events) == 5
    assert "stopped: by Ctrl-C, this is the trace so far" in str(found)
    assert "interrupted" in str(found).splitlines()[0]
    assert json.loads(found.to_json())["partial"] is True
    assert not interpreter.active()


def test_ctrl_c_in_the_run_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = investigation._Watch.access

    def access(self: Any, access: Any) -> None:
        inner(self, access)
        if access.program == (2, 0, 0):
            raise KeyboardInterrupt

    monkeypatch.setattr(investigation._Watch, "access", access)
    found = flat(square)
    assert found.partial
    assert found.trace is None
    assert "interrupted in program (2, 0, 0) at " in found.notes[0]
    assert "in square" in found.notes[0]


def test_progress_shows_on_stderr_and_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.Bar("interpreting square") as bar:
        bar.timer.join()
        with interpreter.interpreting(investigation._Watch(bar)):
            square[(4,)](X, torch.zeros(1000), 1000, BLOCK=256)
        assert bar.progress.tasks[0].fields["done"] == "3 of 4 programs"
        assert bar.progress.live.is_started
    assert not bar.progress.live.is_started
    captured = capsys.readouterr()
    assert "interpreting square" in captured.err
    assert not captured.out


def test_a_quick_run_shows_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for patience, terminal in ((600.0, "1"), (600.0, ""), (0.0, "")):  # never into a file
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setenv("FORCE_COLOR", terminal)
        assert flat(square)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


# ---- the findings ----


def test_findings_fit_a_screen_and_json_holds_everything() -> None:
    for fault in ("bias", "K tail", "none"):
        found = linear_with(fault, torch.randn(40, 500), torch.randn(500, 50))
        lines = str(found).splitlines()
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= WIDTH
        text = found.to_json()
        assert json.loads(text) == json.loads(json.dumps(numerics.json_safe(found.to_dict())))
    found = linear_with("bias", torch.randn(40, 500), torch.randn(500, 50))
    data = json.loads(found.to_json(tiles=True), parse_constant=pytest.fail)
    events = data["trace"]["events"]
    assert len(events) == len(found.trace.events) == 3 * 16 + 2
    assert [e["what"] for e in events[:3]] == ["load", "load", "dot"]
    assert np.array_equal(events[0]["values"], found.trace.events[0].values)
    assert events[-1]["line"] == line_of("linear")
    assert data["wrong"][0]["worst"]["stored_by"]["line"] == line_of("linear")
    assert data["passed"] is False
    assert "values" not in json.loads(found.to_json())["trace"]["events"][0]


def test_tiles_are_printed() -> None:
    found = debug(square, (1,), (X, torch.zeros(8), 5), BLOCK=8, program=(0,))
    text = found.trace.tiles()
    assert "1 load  x_ptr[0:5]  8  5/8 on" in text
    assert "[-3.0 -2.99" in text
    assert "-- -- --]" in text


# ---- the history of the worst element ----


@triton.jit
def cube_half(v):
    cubed = v * v * v
    return cubed * 0.5


@triton.jit
def way_kernel(x_ptr, w_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + m * N + n)
    w = tl.load(w_ptr + m * N + n)
    acc = tl.dot(x, w, input_precision="ieee")
    row = tl.sum(x, axis=1)
    for i in range(3):
        acc = acc + i
    out = cube_half(acc) + row[:, None]
    tl.store(out_ptr + m * N + n, out)


def test_the_way_of_the_worst_element() -> None:
    """Every variable that the element came of, with its value in the lanes that count."""
    x = torch.zeros(16, 16)
    x[3, 5], w, out = 2.0, torch.eye(16), torch.empty(16, 16)
    expected = torch.full((16, 16), 13.5).double() + x.sum(1, keepdim=True)  # (0 + 0 + 1 + 2)³ / 2
    found = debug(way_kernel, (1,), (x, w, out, 16, 16), oracle=lambda: expected, BLOCK=16)
    assert found.wrong[0].deviation.index == (3, 5)
    history = {(step.place.function, step.name): step for step in found.wrong[0].lane_history}
    assert set(history) == {
        *(("way_kernel", name) for name in ("acc", "i", "out", "m", "n", "x", "w", "row", "")),
        *(("cube_half", name) for name in ("cubed", "return")),
    }
    assert str(history["way_kernel", "x"]) == "x = 0…2 (16 lanes)"  # a row of the product's
    assert str(history["way_kernel", "w"]) == "w = 0…1 (16 lanes)"  # and a column
    assert str(history["way_kernel", "row"]) == "row = 2"
    assert str(history["cube_half", "cubed"]) == "cubed = 125"
    assert str(history["cube_half", "return"]) == "returns 62.5"
    assert str(history["way_kernel", "i"]) == "i = 0, …, 2 (3 times)"
    accumulated = [str(s) for s in found.wrong[0].lane_history if s.name == "acc"]
    assert accumulated == ["acc = 2", "acc = 2, …, 5 (3 times)"]
    text = str(found)
    assert "on the way to out_ptr[3, 5], lane [3, 5]" in text
    line = way_kernel.fn.__code__.co_firstlineno
    assert re.search(rf"out = 64\.5 +:{line + 9} out = cube_half\(acc\) \+ row", text)
    names = [step["name"] for step in found.to_dict()["wrong"][0]["lane_history"]]
    assert names[-2:] == ["out", ""]  # the last one is the store
    assert sys.gettrace() is None


def test_a_tracer_from_elsewhere_is_put_back() -> None:
    """A debugger's, or a coverage tool's."""
    x, out = torch.ones(4), torch.empty(4)
    ours = sys.gettrace()
    events = []
    sys.settrace(lambda *event: events.append(event))
    tracer = sys.gettrace()
    try:
        debug(nothing_right, (1,), (x, out), oracle=lambda: x, BLOCK=4)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(ours)


@triton.jit
def nothing_right(x_ptr, out_ptr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    tl.store(out_ptr + n, tl.load(x_ptr + n) + 1.0)


def test_the_variables_in_the_lane_of_an_error() -> None:
    """Out of bounds and device_assert know the lane that they happened in."""
    x, out = torch.zeros(20), torch.empty(20)
    found = debug(doubled, (1,), (x, out, 19), BLOCK=32)
    assert found.failure is not None
    assert (found.failure.lane, found.failure.shape) == ((20,), (32,))
    assert "what led there, in lane [20]\n" in str(found)
    assert [str(step) for step in found.failure.lane_history] == ["offsets = 20", ""]
    x[3] = -1.0
    found = debug(doubled, (1,), (x[:16], out, 19), BLOCK=16)
    assert found.failure is not None
    assert found.failure.lane == (3,)
    assert [step.last for step in found.failure.lane_history if step.name == "x"] == ["-1"]
    assert found.to_dict()["failure"]["lane_history"][1]["last"] == "-1"


@triton.jit
def doubled(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    inside = offsets < N
    x = tl.load(x_ptr + offsets)
    tl.device_assert(x >= 0)
    tl.store(out_ptr + offsets, 2 * x, mask=inside)


# ---- several outputs ----


@triton.jit
def near_and_far(x_ptr, near_ptr, far_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(near_ptr + tl.arange(0, N), x * 1.000001)
    tl.store(far_ptr + tl.arange(0, N), -x)


def test_an_output_just_past_its_bound_is_not_the_one_replayed() -> None:
    x = torch.arange(1.0, 9.0)
    args = x, torch.empty(8), torch.empty(8)
    oracle = {"near_ptr": x, "far_ptr": x}
    found = debug(near_and_far, (1,), args, oracle=lambda: oracle, max_ulps=4, N=8)
    assert [wrong.output for wrong in found.wrong] == ["far_ptr", "near_ptr"]
    assert "on the way to far_ptr[" in str(found)
    # Otherwise they are in the order of the arguments.
    found = debug(near_and_far, (1,), args, oracle=lambda: oracle, max_ulps=0.1, N=8)
    assert [wrong.output for wrong in found.wrong] == ["near_ptr", "far_ptr"]
