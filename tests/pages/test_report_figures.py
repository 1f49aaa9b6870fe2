"""The figures of the page: bars, rooflines, sweeps and errors, as the files' numbers have them."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any

import pytest
from made_up_files import bench_case, bench_file, check_file, needs_packages, sweep_cases, whole

from compare.reporting import checks, figures, host, speeds
from compare.reporting.drawing import ratio_ticks
from compare.reporting.sources import Source


@needs_packages
def test_speeds_are_those_of_the_file() -> None:
    found = whole()
    assert found.line("add", "float16", "2")[3:] == ["1.20", "1.20", "1.20", "50–50"]
    times = [row for row in found.rows if row[1:3] == ["triton", "10.00"]]
    assert {row[3] for row in times} == {"9.00–12.00"}
    assert {row[7] for row in times} == {"1.20 ±0.06"}
    assert "no time: host-bound: launching takes 99 µs" in found.text


def drawing(text: str) -> ET.Element:
    return ET.fromstring(text)


def labels(drawn: ET.Element) -> list[str]:
    return [element.text or "" for element in drawn.iter("text")]


def painted(drawn: ET.Element, variable: str) -> list[ET.Element]:
    return [e for e in drawn.iter("path") if f"fill:var(--{variable})" in e.get("style", "")]


@needs_packages
def test_warm_times_have_no_percentage_of_the_limit() -> None:
    case = bench_case("square", "bfloat16", (512, 512))
    for each in case["entries"][:-1]:
        each["percent_of_limit"] = None
    (mean,) = speeds.means([case])
    assert mean["percents"] == "–"
    assert speeds._row(case)["ours"]["percent"] == "–"


def test_a_figure_has_a_bar_a_shape() -> None:
    data = bench_file(bench_case("add", "float16", (4096, 4096), entries=[]))
    context = speeds.context(Source("bench.json", "bench", data), "k")
    (add,) = [op for op in context["ops"] if op["op"] == "add"]
    drawn = drawing(add["dtypes"][0]["figure"])
    assert labels(drawn).count("1.20") == 2
    assert labels(drawn).count("compile") == 2
    assert {"1024×1024", "2048×2048", "4096×4096", "not timed"} <= set(labels(drawn))
    assert len(painted(drawn, "triton")) == 2


@needs_packages
def test_bars_begin_at_one_and_reach_to_the_ratio() -> None:
    """Twice as fast and half as fast are as long, on either side."""
    fast = bench_case("add", "float16", (1, 1))
    slow = bench_case("add", "float16", (2, 2))
    for case, ratio in ((fast, 2.0), (slow, 0.5)):
        case["entries"][0]["speedup"] = {"value": ratio, "low": ratio, "high": ratio}
    data = {**bench_file(), "cases": [fast, slow]}
    context = speeds.context(Source("bench.json", "bench", data), "k")
    drawn = drawing(context["ops"][0]["dtypes"][0]["figure"])
    spans = []
    for bar in painted(drawn, "triton"):
        xs = [float(x) for x in re.findall(r"[ML] (-?[\d.]+) ", bar.get("d", ""))]
        spans.append((min(xs), max(xs)))
    assert len(spans) == 2
    (right, left) = spans
    assert math.isclose(left[1], right[0], abs_tol=0.02)
    assert math.isclose(right[1] - right[0], left[1] - left[0], abs_tol=0.05)


@needs_packages
def test_a_roofline_has_a_point_a_time_and_both_roofs() -> None:
    context = speeds.context(Source("bench.json", "bench", bench_file()), "k")
    (roofline,) = context["rooflines"]
    assert roofline["points"] == 3 * 4  # three cases, four that have a time
    drawn = drawing(roofline["figure"])
    uses = [e for e in drawn.iter("use") if "--" in e.get("style", "")]
    dots = Counter(re.findall(r"var\(--([\w-]+)\)", e.get("style", ""))[0] for e in uses)
    assert dots["triton"] == dots["compile"] == 3 + 1  # one in the legend
    assert {"measured", "datasheet", "triton", "cuda/pinned", "eager"} <= set(labels(drawn))


def test_work_is_the_files_or_else_the_specs() -> None:
    case = bench_case("add", "float16", (10, 10))
    assert speeds.work({**case, "flops": 5, "bytes": 7}) == (5, 7)
    assert speeds.work(case) == (200, 600)
    assert speeds.work({**case, "op": "unheard-of"}) is None


@needs_packages
def test_a_sweep_is_a_line_a_provider() -> None:
    data = bench_file(*sweep_cases())
    context = speeds.context(Source("bench.json", "bench", data), "k")
    assert context["cases"] == 3  # those of the sweep are counted and drawn apart
    (found,) = context["sweeps"]
    assert found["name"] == "add float16 over numel"
    drawn = drawing(found["figure"])
    assert {"limit", "triton", "eager", "compile", "numel", "GB/s"} <= set(labels(drawn))
    assert {"1024", "4096", "2¹⁴"} <= set(labels(drawn))
    assert len(found["rows"]) == 3


def test_a_sweeps_lines_are_rates_with_their_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "sweep", lambda *given: drawn.append(given) or "")
    data = {**bench_file(), "cases": sweep_cases()[::-1]}
    speeds.context(Source("bench.json", "bench", data), "k")
    ((lines, limit, quantity, unit, *_),) = drawn
    assert (quantity, unit) == ("numel", "GB/s")
    assert [x for x, _ in limit] == [1024, 4096, 16384]  # in order, whatever the file's is
    assert limit[1][1] == pytest.approx(6 * 4096 / 5e3)
    line = next(line for line in lines if line.provider == "triton")
    rate = 6 * 4096 / 10e3
    assert line.points[1] == pytest.approx((4096, rate, rate / 1.2, rate / 0.9))


def test_a_figure_of_errors_gets_the_files_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "errors", lambda *given: drawn.append(given) or "")
    checks.context(Source("check.json", "check", check_file()), "k")
    ((ulps, bounds, fractions, *_),) = drawn
    assert set(ulps) == set(fractions) == {"triton-interpreted", "cuda-host", "cuda-host/tiled"}
    assert ulps["cuda-host"] == {0.0: 500, 0.5: 400, 2.0: 100}
    assert fractions["cuda-host"] == {0.0: 500, 0.25: 400, 1.0: 100}
    assert bounds == {1.0: 1800, 4.0: 900, math.inf: 300}  # of all three


def ends(path: ET.Element) -> list[float]:
    return [float(x) for x in re.findall(r"[ML] (-?[\d.]+) ", path.get("d", ""))]


@needs_packages
def test_an_error_beyond_the_bound_is_drawn_right_of_its_line() -> None:
    drawn = []
    for fractions in ({0.5: 90, 1.0: 10}, {0.5: 90, 2.0: 10}):
        text = figures.errors(
            {"cuda-gpu": {1.0: 100}}, {2.0: 100}, {"cuda-gpu": fractions}, "", "k"
        )
        drawn.append(drawing(text))
    for picture, beyond in zip(drawn, (False, True)):
        lines = [e for e in picture.iter("path") if "stroke:var(--cuda)" in e.get("style", "")]
        (bound,) = [e for e in picture.iter("path") if "stroke:var(--bad)" in e.get("style", "")]
        below = lines[1]  # the first is that of the ULPs
        assert (max(ends(below)) > ends(bound)[0] + 5) == beyond
        assert {"bounds of these elements", "cuda-gpu", "bound "} <= set(labels(picture))


@needs_packages
def test_a_sweep_that_arithmetic_limits_is_drawn_in_operations() -> None:
    cases = sweep_cases()
    cases[2]["rate_unit"] = "TFLOP/s"
    context = speeds.context(Source("b", "bench", {**bench_file(), "cases": cases}), "k")
    assert "TFLOP/s" in labels(drawing(context["sweeps"][0]["figure"]))


@pytest.mark.parametrize(
    ("least", "most"), [(0.98, 1.02), (0.9, 1.1), (0.8, 2.5), (0.2, 3.0), (0.001, 500.0)]
)
def test_the_axis_of_a_ratio_has_ticks_on_both_sides_of_one(least: float, most: float) -> None:
    ticks = ratio_ticks(least, most)
    assert ticks == sorted(set(ticks))
    assert 1.0 in ticks
    assert ticks[0] <= max(least, 0.7) < 1 < min(most, 1.4) <= ticks[-1]
    assert len(ticks) <= 12


def test_host_times_begin_with_what_is_wrong_and_then_the_dearest() -> None:
    def row(op: str, ratio: float, problem: str = "") -> dict[str, Any]:
        ours = {"provider": "triton", "problem": problem, "microseconds": ratio}
        calls = [{**ours, "times_torch": [ratio, ratio, ratio]}]
        return {
            "op": op,
            "dtype": "float16",
            "shape": [2],
            "options": {},
            "what": "",
            "calls": calls,
        }

    rows = [row("cheap", 0.5), row("dear", 3.0), row("even", 1.0), row("wrong", 0.1, "wrong: 1")]
    assert [each["op"] for each in host.rows({"host": rows})] == ["wrong", "dear", "even", "cheap"]
