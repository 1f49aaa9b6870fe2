"""python -m compare report: one page, from made-up files and from the committed ones."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from compare.cases import Case
from compare.checking import histograms, running
from compare.checking.implementations import Implementation
from compare.checking.running import Outcome
from compare.checking.verdicts import Row
from compare.cli import app
from compare.commands.options import write_json
from compare.numerics import json_safe
from compare.ops import SPECS
from compare.reporting import checks, colours, figures, page, sources, speeds
from compare.reporting.sources import ReportError, Source

needs_packages = pytest.mark.usefixtures("packages")
HOSTILE = "<script>alert(1)</script> $x_{1}$ \"'&"
ENVIRONMENT = {"triton_kernels": "0.1.0", "torch": "2.13.0", "triton": "3.7.1", "gpu": "Tesla X"}


@pytest.fixture
def packages() -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")


# ---- files that are made up ----


def check_row(op: str, dtype: str, unit: str, **changes: Any) -> dict[str, Any]:
    worst = {"triton-interpreted": 0.0, "cuda-host": 0.0}
    errors: dict[str, Any] = {name: {"exact_ulp": {"0": 1200}} for name in worst}
    if unit != "ulp":
        worst = {"triton-interpreted": 0.97, "cuda-host": 0.5}
        measured = {
            "ulp": {"0": 500, "0.5": 400, "2": 100},
            "bound_ulp": {"1": 600, "4": 300, "inf": 100},
            "fraction": {"0": 500, "0.25": 400, "1": 100},
        }
        errors = dict.fromkeys([*worst, "cuda-host/tiled"], measured)
    return {
        "op": op,
        "dtype": dtype,
        "cases": 5,
        "seconds": 1.0,
        "runs": dict.fromkeys(worst, 7),
        "worst": worst,
        "unit": unit,
        "errors": errors,
        "triton_equals_cuda": True if unit == "ulp" else None,
        "coverage": "sampled",
        "verdict": "pass",
        "passed": True,
        "mismatches": [],
        **changes,
    }


def check_file(*more: dict[str, Any]) -> dict[str, Any]:
    rows = [
        check_row("add", "float16", "ulp"),
        check_row("add", "int8", "ulp"),
        check_row("gemm_bias_act", "float16", "fraction of the bound"),
        *more,
    ]
    return {
        "passed": not more,
        "environment": ENVIRONMENT,
        "not_run": {"cuda-gpu": "no CUDA device here"},
        "required_but_missing": [],
        "seconds": 12.0,
        "rows": rows,
    }


def failing_row() -> dict[str, Any]:
    deviation = {
        "wrong": 3,
        "total": 91,
        "index": [6, 10],
        "got": "nan (0x7e00)",
        "expected": "2.0 (0x4000)",
        "ulps": "inf",
        "error": "inf",
        "bound": 0.0,
    }
    mismatch = {
        "implementation": "cuda-host/f16x8_pack",
        "case": f"add float32 7x13 {HOSTILE}",
        "problem": "wrong values",
        "deviation": deviation,
        "program_id": [0, 0, 0],
        "replay": "python -m compare check add --shape 7,13",
        "debug": "python -m compare debug add --shape 7,13",
    }
    row = check_row("add", "float32", "ulp", passed=False, verdict="CUDA: the reference kernel")
    row["worst"] = {"triton-interpreted": 0.0, "cuda-host": "inf"}
    row["errors"]["cuda-host"] = {"exact_ulp": {"0": 1197, "4": 1, "inf": 2}}
    return {**row, "mismatches": [mismatch]}


def entry(provider: str, median: float, peer: float | None, **more: Any) -> dict[str, Any]:
    ratio = None if peer is None else peer / median
    return {
        "provider": provider,
        "problem": "",
        "median": median,
        "p20": 0.9 * median,
        "p80": 1.2 * median,
        "samples": 60,
        "replay": median,
        "host": 30.0,
        "first_call_seconds": 0.1,
        "rate": 1000 / median,
        "percent_of_limit": 100 * 5 / median,
        "speedup": ratio and {"value": ratio, "low": 0.95 * ratio, "high": 1.05 * ratio},
        **more,
    }


def bench_case(op: str, dtype: str, shape: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Triton takes 10 µs, eager 20, torch.compile 12."""
    return {
        "op": op,
        "dtype": dtype,
        "shape": list(shape),
        "options": {"alpha": 2} if op == "add" else {},
        "limit": 5.0,
        "rate_unit": "GB/s" if op == "add" else "TFLOP/s",
        "best_peer": "compile",
        "seconds": 1.0,
        "entries": [
            entry("triton", 10.0, 12.0),
            entry("cuda/f16x8", 15.0, 12.0),
            entry("eager", 20.0, 12.0),
            entry("compile", 12.0, None),
            {"provider": "cuda", "problem": "host-bound: launching takes 99 µs"},
        ],
        **more,
    }


def bench_file(*more: dict[str, Any]) -> dict[str, Any]:
    product = bench_case("gemm_bias_act", "float16", (64, 64, 64), flops=2 * 64**3, bytes=24576)
    return {
        "environment": ENVIRONMENT,
        "commit": "0123abc",
        "state_before": {"sm_clock_mhz": 1980.0, "power_w": 120.0, "throttling": []},
        "state_after": {"sm_clock_mhz": 1500.0, "power_w": 650.0, "throttling": ["power cap"]},
        "ceilings": {
            "bandwidth": 4e12,
            "rates": {"float16": 7e14, "bfloat16": 7e14},
            "name": "Tesla X",
            "datasheet": {"bytes": 5e12, "float16": 9e14},
        },
        "cases": [
            bench_case("add", "float16", (1024, 1024)),
            bench_case("add", "float16", (2048, 2048)),
            product,
            *more,
        ],
    }


def sweep_cases() -> list[dict[str, Any]]:
    return [
        bench_case("add", "float16", (n,), sweep="numel", x=n, flops=2 * n, bytes=6 * n)
        for n in (1024, 4096, 16384)
    ]


def compile_file() -> dict[str, Any]:
    figures = {
        "registers": 77,
        "spills": 8,
        "stack": 16,
        "shared": 2048,
        "loads": {"32": 1, "128": 2},
        "stores": {"64": 4},
        "tensor": {"HMMA": 12},
    }
    triton = {"kernel": "flat_kernel", "config": {}, "error": "", "figures": figures}
    cuda = {"kernel": "add<float>", "config": {}, "error": "ptxas: <boom>", "figures": None}
    problems = [
        {"side": "triton", "problem": "spills 8 bytes a thread", "accepted": "once a tile"},
        {"side": "cuda", "problem": "does not compile: ptxas: <boom>", "accepted": ""},
    ]
    place = {"arch": "sm_90", "op": "add", "dtype": "float16"}
    return {
        "passed": False,
        "environment": ENVIRONMENT,
        "archs": {"sm_90": {"shared_limit": 232448}},
        "not_compiled": {},
        "seconds": 3.0,
        "rows": [
            {**place, "label": "flat", "triton": triton, "cuda": cuda, "problems": problems},
            {**place, "label": "naive", "triton": None, "cuda": None, "problems": []},
        ],
    }


def everything() -> list[Source]:
    return [
        Source("check.json", "check", check_file(failing_row())),
        Source("bench.json", "bench", bench_file(*sweep_cases())),
        Source("compile.json", "compile", compile_file()),
    ]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def said(result: Result) -> str:
    """Everything that was printed, as one line: boxes break lines where the terminal ends."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def write(folder: Path, **files: Any) -> list[Path]:
    found = []
    for name, data in files.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(json_safe(data)))
        found.append(file)
    return found


# ---- reading the page ----

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """A page's elements, its text, and whether every tag is closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.declared = False
        self.feed(text)
        self.close()
        assert not self.open
        assert self.declared

    def handle_decl(self, decl: str) -> None:
        self.declared = decl == "doctype html"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def line(self, *starts: str) -> list[str]:
        """The one row of a table that begins so."""
        found = [row for row in self.rows if [w.strip() for w in row[: len(starts)]] == [*starts]]
        assert len(found) == 1, (starts, found)
        return [" ".join(word.split()) for word in found[0]]


def read(found: list[Source]) -> Page:
    return Page(page.html(found))


@cache
def text_of_everything() -> str:
    return page.html(everything())


def whole() -> Page:
    return Page(text_of_everything())


# ---- the page ----

SECTIONS = {"verdicts", "errors", "speed", "roofline", "sweeps", "compiled", "environment"}


@needs_packages
def test_every_section_is_there_and_listed() -> None:
    found = whole()
    ids = {attributes["id"] for tag, attributes in found.elements if tag == "h2"}
    assert ids == SECTIONS
    links = {a["href"] for tag, a in found.elements if tag == "a"}
    assert links == {f"#{name}" for name in SECTIONS}
    assert "Not on this page" not in found.text


@needs_packages
@pytest.mark.parametrize(
    ("kind", "gone", "command"),
    [
        ("check", {"verdicts", "errors"}, "compare check --json"),
        ("bench", {"speed", "roofline", "sweeps"}, "compare bench --json"),
        ("compile", {"compiled"}, "compare compile --json"),
    ],
)
def test_a_section_without_a_file_is_left_out_with_its_command(
    kind: str, gone: set[str], command: str
) -> None:
    found = read([source for source in everything() if source.kind != kind])
    ids = {attributes["id"] for tag, attributes in found.elements if tag == "h2"}
    assert ids == SECTIONS - gone
    assert command in found.text.split("Not on this page")[1]


@needs_packages
def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = text_of_everything()
    found = Page(text)
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in found.elements}
    for tag, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "data", "srcset", "action", "poster"):
                assert value.startswith("#") or value == "data:,", (tag, value)
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.startswith("#"), (tag, value)
    style = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]


@needs_packages
def test_ids_are_unique_and_every_reference_has_its_target() -> None:
    found = whole()
    ids = Counter(a["id"] for _, a in found.elements if "id" in a)
    assert max(ids.values()) == 1, ids.most_common(3)
    used = {
        target
        for _, attributes in found.elements
        for value in attributes.values()
        for target in re.findall(r"^#(.+)$|url\(#(.+?)\)", value)
    }
    assert len(used) > 20
    assert {a or b for a, b in used} <= set(ids)


@needs_packages
def test_names_from_files_are_text() -> None:
    check, bench, compiled = (copy.deepcopy(source.data) for source in everything())
    check["rows"][0]["op"] = bench["cases"][0]["op"] = compiled["rows"][0]["op"] = HOSTILE
    check["environment"] = bench["environment"] = {"gpu": HOSTILE, HOSTILE: "1"}
    check["rows"][2]["op"] = bench["cases"][0]["entries"][0]["provider"] = HOSTILE
    check["not_run"] = {"cuda-gpu": HOSTILE}
    bench["cases"][1]["best_peer"] = bench["cases"][3]["sweep"] = HOSTILE
    compiled["rows"][1]["label"] = HOSTILE
    files = [(HOSTILE, "check", check), (HOSTILE, "bench", bench), (HOSTILE, "compile", compiled)]
    found = read([Source(*file) for file in files])
    assert "script" not in {tag for tag, _ in found.elements}
    assert found.text.count(HOSTILE) >= 10
    drawn = [a["aria-label"] for tag, a in found.elements if tag == "svg"]
    assert any(HOSTILE in label for label in drawn)


@needs_packages
def test_the_same_files_make_the_same_page() -> None:
    once, again = text_of_everything(), page.html(everything())
    assert once == again
    assert not re.search(r"\b20\d\d-\d\d-\d\dT", once)


@needs_packages
def test_every_figure_says_what_it_shows() -> None:
    found = whole()
    drawn = [a for tag, a in found.elements if tag == "svg"]
    assert len(drawn) == 1 + 1 + 2 + 1 + 1  # errors, all ratios, an op and dtype, roofline, sweep
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in drawn)
    titles = [tag for tag, _ in found.elements].count("title")
    assert titles == len(drawn) + 1


@needs_packages
def test_colours_are_variables_of_the_page() -> None:
    text = text_of_everything()
    body = text.split("</style>")[1]
    assert not re.search(r"(?:fill|stroke):\s*#", body)
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert {"triton", "compile", "ink", "grid"} <= used <= set(colours.VARIABLES)
    for scheme in (":root{color-scheme:light dark;", "(prefers-color-scheme:dark){:root{"):
        declared = set(re.findall(r"--([\w-]+):", text.split(scheme)[1].split("}")[0]))
        assert declared == set(colours.VARIABLES)


# ---- check ----


@needs_packages
def test_the_matrix_marks_right_and_wrong_by_colour_and_by_sign() -> None:
    found = whole()
    head = found.line("op", "float16")
    assert head == ["op", "float16", "float32", "int8"]
    assert found.line("add Triton, interpreted")[1:] == ["✓ 0 ulp"] * 3
    assert found.line("add CUDA, on the CPU")[1:] == ["✓ 0 ulp", "✗ wrong", "✓ 0 ulp"]
    assert found.line("gemm_bias_act Triton, interpreted")[1:] == ["✓ 0.97 b", "–", "–"]
    assert "n/a, CUDA, on the GPU: no CUDA device here" in found.text
    signs = {"good": "✓", "bad": "✗"}
    cells = re.findall(r'<td class="(good|bad)">(.)', text_of_everything())
    assert {kind for kind, _ in cells} == set(signs)
    assert all(signs[kind] == sign for kind, sign in cells)


@needs_packages
def test_a_mismatch_is_told_with_its_commands() -> None:
    text = whole().text
    assert "✗ add float32: CUDA: the reference kernel" in text
    assert "element (6, 10): got nan (0x7e00), expected 2.0 (0x4000); 3 of 91" in text
    assert "python -m compare check add --shape 7,13" in text
    assert "python -m compare debug add --shape 7,13" in text
    row = failing_row()
    row["mismatches"] *= checks.SHOWN + 4
    assert "and 4 more failing runs" in read([Source("c", "check", check_file(row))]).text


@needs_packages
def test_exact_errors_are_counted_in_bins_of_ulps() -> None:
    found = whole()
    # 0, 3–4, and inf or NaN; nothing lies elsewhere
    (head,) = {tuple(row) for row in found.rows if row[:2] == ["dtype", "implementation"]}
    assert head[2:] == ("0 ulp", "3–4 ulp", "> 65536, inf, NaN ulp")
    line = found.line("float32", "CUDA, on the CPU")
    assert line[2:] == ["1 197", "✗ 1", "✗ 2"]
    assert "✗ 3 of 7 200 elements are off." in found.text


@needs_packages
def test_a_file_from_before_errors_were_counted_still_makes_a_page() -> None:
    data = check_file()
    for row in data["rows"]:
        del row["errors"]
    found = read([Source("old.json", "check", data)])
    assert "errors" not in {a.get("id") for _, a in found.elements}
    assert "✓ 0 ulp" in found.text


# ---- bench ----


@needs_packages
def test_speeds_are_those_of_the_file() -> None:
    found = whole()
    assert found.line("add", "float16", "2")[3:] == ["1.20", "1.20", "1.20", "50–50"]
    times = [row for row in found.rows if row[1:3] == ["triton", "10.00"]]
    assert {row[3] for row in times} == {"9.00–12.00"}
    assert {row[6] for row in times} == {"1.20 ±0.06"}
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


# ---- compile, environment ----


@needs_packages
def test_both_compilers_figures_stand_side_by_side() -> None:
    found = whole()
    line = found.line("flat", "float16")
    assert line[2:8] == ["77", "8 / 16 (accepted)", "2048", "2×128, 1×32", "4×64", "12 HMMA"]
    assert line[8] == "✗ ptxas: <boom>"
    assert found.line("naive", "float16")[2] == "–"
    assert "✗ cuda sm_90 add float16 flat: does not compile" in found.text
    assert "1 accepted: once a tile" in found.text


@needs_packages
def test_the_environment_tells_versions_clocks_power_and_ceilings() -> None:
    text = whole().text
    for words in ("1980 → 1500 MHz", "120 → 650 W", "none → power cap", "0123abc", "Tesla X",
                  "4000 GB/s (datasheet: 5000)", "700 TFLOP/s (datasheet: 900)"):  # fmt: skip
        assert words in text, words


@needs_packages
def test_a_state_may_be_told_by_the_cases() -> None:
    data = {**bench_file(), "state_before": {}, "state_after": {}, "cold": False, "ended": "Ctrl-C"}
    for case, watts in zip(data["cases"], (100.0, 200.0, 300.0)):
        case["state_before"], case["state_after"] = {"power_w": watts}, {"power_w": watts + 9}
    text = read([Source("bench.json", "bench", data)]).text
    assert "100 → 309 W" in text
    assert "cache warm" in text
    assert "Ctrl-C" in text


# ---- the command ----


@needs_packages
def test_the_committed_files_make_a_page(tmp_path: Path) -> None:
    result = run("--out", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "report.html").read_text()
    assert len(text) < 3_000_000
    found = Page(text)
    ids = {a["id"] for tag, a in found.elements if tag == "h2"}
    assert ids >= {"verdicts", "errors", "speed", "roofline", "compiled", "environment"}
    committed = json.loads((sources.COMMITTED / "h200.json").read_text())
    cases = [c for c in committed["cases"] if not c.get("sweep")]
    for case in cases:
        assert speeds.shape(case) in found.text
    assert f"{sources.COMMITTED.parent.name}/benchmarks/h200.json" in found.text
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@needs_packages
def test_files_are_recognised_by_what_is_in_them(tmp_path: Path) -> None:
    files = write(tmp_path, a=compile_file(), b=bench_file(), c=check_file(), d=check_file())
    assert [s.kind for s in sources.read(files)] == ["check", "check", "bench", "compile"]
    result = run(*files, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    found = Page((tmp_path / "page.html").read_text())
    assert found.text.count(str(files[2])) == 3  # two sections and its environment


@needs_packages
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "not what check, bench or compile write"),
        ('{"environment": {}, "rows": []}', "not what check, bench or compile write"),
        (b"\xff\xfe\x00", "no JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = run(file, "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert f"report: {file}: {message}" in said(result)
    for command in ("check", "bench", "compile"):
        assert f"python -m compare {command} --json" in said(result)
    assert not (tmp_path / "page.html").exists()


@needs_packages
def test_a_file_that_lacks_something_is_named(tmp_path: Path) -> None:
    data = bench_file()
    del data["cases"][1]["entries"][0]["median"]
    (file,) = write(tmp_path, half=data)
    result = run(file, "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert f"{file}: not as `python -m compare bench" in said(result)
    assert "'median'" in said(result)
    assert [p.name for p in tmp_path.iterdir()] == ["half.json"]


@needs_packages
def test_a_missing_file_and_a_missing_checkout_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path / "none.json", "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "No such file" in said(result)
    monkeypatch.setattr(sources, "COMMITTED", tmp_path / "docs")
    result = run("--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "no FILE is given" in said(result)
    assert "compare bench --json" in said(result)


def test_a_folder_that_is_not_there_is_refused_first(tmp_path: Path) -> None:
    for option in ("--out", "--picture"):
        result = run(option, tmp_path / "no" / "page.html")
        assert result.exit_code == 2
        assert option in said(result)
        assert "cannot write there" in said(result)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run("--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert package in said(result)
    assert "pip install 'triton-kernels-crosscheck[report]'" in said(result)
    assert not list(tmp_path.iterdir())


@needs_packages
def test_a_page_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = write(tmp_path, bench=bench_file())
    out = tmp_path / "page.html"
    out.write_text("before")

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(page.os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        page.write(out, "after")
    assert out.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.json", "page.html"]
    monkeypatch.undo()
    assert run(file, "--out", out).exit_code == 0
    assert out.read_text().startswith("<!doctype html>")
    assert out.stat().st_mode & 0o777 == file.stat().st_mode & 0o777


@needs_packages
def test_matplotlib_is_left_as_it_was_and_its_settings_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # to import it is an error
    expected = text_of_everything()
    with matplotlib.rc_context({"font.size": 17.0, "axes.grid": True, "svg.fonttype": "path"}):
        before = matplotlib.rcParams.copy()
        assert page.html(everything()) == expected
        assert matplotlib.rcParams.copy() == before


@needs_packages
def test_the_picture_is_a_file_of_its_own(tmp_path: Path) -> None:
    (file,) = write(tmp_path, bench=bench_file())
    target = tmp_path / "picture.svg"
    result = run(file, "--picture", target)
    assert result.exit_code == 0, result.output
    root = ET.parse(target).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.get("width", "0")) > 300
    text = target.read_text()
    assert "prefers-color-scheme:dark" in text
    assert "Triton against the fastest peer, Tesla X" in text
    assert text.count(">1.20<") == 2  # an op and dtype each
    assert 'href="http' not in text
    assert not (tmp_path / "report.html").exists()


@needs_packages
def test_a_picture_needs_times(tmp_path: Path) -> None:
    (file,) = write(tmp_path, check=check_file())
    result = run(file, "--picture", tmp_path / "picture.svg")
    assert result.exit_code == 2
    assert "python -m compare bench --json" in said(result)


def test_report_errors_are_values() -> None:
    assert issubclass(ReportError, ValueError)


# ---- what check counts ----


def test_values_are_counted_by_powers_of_two() -> None:
    values = [0.0, 1e-9, 0.5, 0.51, 1.0, 2.0, 3.0, 4.0, 65536.0, 65537.0, math.inf, math.nan]
    assert histograms.counted(torch.tensor(values, dtype=torch.float64)) == {
        "0": 1,
        "0.00390625": 1,
        "0.5": 1,
        "1": 2,
        "2": 1,
        "4": 2,
        "65536": 1,
        "inf": 3,
    }
    assert histograms.counted(torch.empty(0)) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    values = torch.tensor([1.0, -1.5, 2.0, 3e-3, info.smallest_normal, smallest], dtype=dtype)
    following = torch.nextafter(values.abs(), torch.full_like(values, math.inf))
    expected = following.double() - values.abs().double()
    assert torch.equal(histograms.spacing(values.double(), dtype), expected)
    assert histograms.spacing(torch.zeros(1), dtype).item() == smallest


def shifted(by: float) -> Outcome:
    """linear_gelu in float32, off by a fraction of the bound everywhere."""
    spec = SPECS["linear_gelu"]
    case = Case("linear_gelu", "float32", (4, 8, 16), options=spec.default_options)
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    way = Implementation("triton-interpreted", None, spec.triton)
    bound = spec.bound(way.name, arguments, reference, torch.float32)  # type: ignore[misc]
    result = (reference + by * bound).float()
    return running.judge(spec, case, way, arguments, result, reference)


def test_a_check_counts_every_element_of_every_run() -> None:
    right, wrong = shifted(0.7), shifted(3.0)
    assert right.mismatch is None
    assert wrong.mismatch is not None
    assert right.errors["fraction"] == {"1": 32}
    assert wrong.errors["fraction"] == {"4": 32}
    row = Row("linear_gelu", "float32", exact=False)
    for outcome in (right, right, wrong):
        row.add_outcome(outcome)
    found = row.to_dict()["errors"]["triton-interpreted"]
    assert found["fraction"] == {"1": 64, "4": 32}
    assert sum(found["ulp"].values()) == sum(found["bound_ulp"].values()) == 96
    assert right.errors["fraction"] == {"1": 32}  # the row's sum is the row's own


def test_exact_errors_are_counted_in_ulps() -> None:
    spec = SPECS["square"]
    case = Case("square", "float32", (4,))
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0])
    way = Implementation("cuda-host", None, spec.cuda)
    same = running.judge(spec, case, way, arguments, reference.clone(), reference)
    assert same.errors == {"exact_ulp": {"0": 4}}
    off = reference.clone().view(torch.int32)
    off[1] += 1
    off[2] += 3
    found = running.judge(spec, case, way, arguments, off.view(torch.float32), reference)
    assert found.errors == {"exact_ulp": {"0": 2, "1": 1, "4": 1}}


def test_a_row_is_a_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    found = {"passed": True, "rows": [{"worst": math.inf}, {"worst": 0.5}], "archs": {"sm_90": 1}}
    write_json(file, found)
    assert json.loads(file.read_text()) == {**found, "rows": [{"worst": "inf"}, {"worst": 0.5}]}
    assert len(file.read_text().splitlines()) == 8
    write_json(file, {"rows": []})
    assert json.loads(file.read_text()) == {"rows": []}
