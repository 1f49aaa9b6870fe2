"""Two files of one kind on the page: what became slower or less exact; and the worst first."""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from made_up_files import (
    Page,
    bench_case,
    bench_file,
    check_file,
    check_row,
    entry,
    failing_row,
    needs_packages,
    sample_cases,
    text_of_everything,
    whole,
)
from typer.testing import CliRunner

from compare.cli import app
from compare.reporting import changes, checks, page, sources, spreads
from compare.reporting.sources import Source


def benches(*factors: float, **then: Any) -> list[Source]:
    """Two files: in the second our Triton kernel takes a case these times as long."""
    before = {**bench_file(), **then}
    after = copy.deepcopy(bench_file())
    for case, factor in zip(after["cases"], factors):
        case["entries"][0]["median"] *= factor
    return [Source("before.json", "bench", before), Source("after.json", "bench", after)]


def test_what_became_slower_comes_first() -> None:
    (found,) = changes.context(benches(0.8, 1.3))
    lines = [(e["place"], e["provider"], e["change"], e["mark"]) for e in found["lines"]]
    assert lines[0] == ("2048×2048", "triton", "1.30", "bad")
    assert lines[-1] == ("1024×1024", "triton", "0.80", "good")
    assert {line[1] for line in lines} == {"triton", "cuda/f16x8"}  # no peer is ours to judge
    assert (found["bad"], found["good"], found["none"]) == (1, 1, 4)
    assert (found["lines"][0]["then"], found["lines"][0]["now"]) == ("10.00", "13.00")


def test_a_slower_machine_is_no_slower_kernel() -> None:
    """All takes 1.5 times as long, the peers as well."""
    before, after = benches()
    for case in after.data["cases"]:
        for each in case["entries"]:
            each |= {"median": 1.5 * each["median"]} if "median" in each else {}
    (found,) = changes.context([before, after])
    assert {line["change"] for line in found["lines"]} == {"1.00"}


def test_times_taken_in_another_way_are_not_compared() -> None:
    (found,) = changes.context(benches(2.0, cold=False))
    assert not found["lines"]
    assert "with a warm cache (--warm), and then with a cold cache" in found["why"]


def test_files_without_a_common_case_are_not_compared() -> None:
    other = {**bench_file(), "cases": [bench_case("square", "float16", (3, 3))]}
    files = [Source("a", "bench", bench_file()), Source("b", "bench", other)]
    assert changes.context(files) == []
    assert changes.context(sources.read([])) == []  # nor those of the checkout


def test_a_stratum_of_a_sample_is_one_line() -> None:
    before, after = (bench_file(*json.loads(json.dumps(sample_cases()))) for _ in range(2))
    for case, factor in zip(after["cases"][-2:], (1.1, 1.6)):
        case["entries"][0]["median"] *= factor
    (found,) = changes.context([Source("a", "bench", before), Source("b", "bench", after)])
    (line,) = [each for each in found["lines"] if each["place"] == "offset view"]
    assert (line["change"], line["mark"], line["dtype"]) == ("1.33", "bad", "")


def test_what_became_less_exact_comes_first() -> None:
    gemm = "gemm_bias_act"
    before = check_file(check_row("add", "float32", "ulp"))
    after = check_file(failing_row())
    after["rows"][2] = check_row(gemm, "float16", "fraction of the bound")
    after["rows"][2]["worst"] = {"triton-interpreted": 0.4, "cuda-host": 0.8}
    (found,) = changes.context([Source("a", "check", before), Source("b", "check", after)])
    lines = [(e["op"], e["place"], e["then"], e["now"], e["mark"]) for e in found["lines"]]
    assert lines[:2] == [
        ("add", "CUDA, on the CPU", "0 ulp", "wrong", "bad"),
        (gemm, "CUDA, on the CPU", "0.50 b", "0.80 b", "bad"),
    ]
    assert (gemm, "Triton, interpreted", "0.97 b", "0.40 b", "good") in lines
    assert (found["bad"], found["good"], found["none"]) == (2, 1, 5)
    (back,) = changes.context([Source("b", "check", after), Source("a", "check", before)])
    assert back["bad"] == 1  # 0.40 to 0.97 of a bound
    assert back["lines"][0]["now"] == "0.97 b"


@needs_packages
def test_the_page_tells_it() -> None:
    before = Source("a.json", "check", check_file())
    after = Source("b.json", "check", check_file(failing_row()))
    after.data["rows"][2]["worst"] = {"triton-interpreted": 0.4, "cuda-host": 0.8}
    found = Page(page.html([before, after, *benches(0.8, 1.3)]))
    assert "before.json → after.json" in found.text
    assert "✗ 1 slower, 1 faster, 4 as before within 5 %" in found.text
    assert "✗ 1 less exact, 1 more exact, 4 as before." in found.text
    lines = [row[1:] for row in found.rows if row[0] == "add" and "slower" in row[1]]
    assert lines == [["✗ slower", "float16", "2048×2048", "triton", "10.00", "13.00", "1.30"]]
    assert 'href="#changes"' in page.html(benches(1.3))
    assert "changes" not in {a.get("id") for _, a in whole().elements}


# ---- the worst first ----


@needs_packages
def test_the_slowest_case_and_the_largest_error_are_on_top() -> None:
    slow = bench_case("add", "float16", (7, 7), entries=[entry("triton", 24.0, 12.0)])
    text = page.html(
        [
            Source("c.json", "check", check_file(failing_row())),
            Source("b.json", "bench", bench_file(slow)),
        ]
    )
    found = Page(text)
    rows = found.rows
    first = rows.index(["op", "× best peer", "dtype", "shape", "peer"]) + 1
    assert rows[first] == ["add", "0.50", "float16", "7×7", "compile"]
    assert [row[1] for row in rows[first : first + 4]] == ["0.50", "1.20", "1.20", "1.20"]
    first = rows.index(["op", "worst error", "dtype", "implementation"]) + 1
    assert rows[first] == ["add", "✗ wrong", "float32", "CUDA, on the CPU"]
    assert [row[1] for row in rows[first + 1 : first + 3]] == ["✓ 0.97 b", "✓ 0.50 b"]
    at = [text_of_everything().index(f'<h2 id="{section}"') for section in
          ("worst", "verdicts", "speed", "samples", "mutants", "errors")]  # fmt: skip
    assert at == sorted(at)
    # The means, too: add has one of 0.5 and two of 1.2.
    means = [row[0] for row in rows if len(row) == 7 and row[1] == "float16" and row[2] in "13"]
    assert means == ["add", "gemm_bias_act"]


def test_what_must_be_exact_and_is_is_not_among_the_worst() -> None:
    assert checks.nearest([check_row("add", "int8", "ulp")]) == []


# ---- a case: its samples, its command ----


@pytest.mark.parametrize("name", ["h200.json", "sweeps.json"])
@needs_packages
def test_the_command_beside_a_case_times_that_case(name: str) -> None:
    """The first of every op: as a dry run takes it."""
    file = sources.COMMITTED / name
    data = json.loads(file.read_text())
    cases = {case["op"]: case for case in reversed(data["cases"])}
    text = page.html([Source(name, "bench", {**data, "cases": list(cases.values())})])
    commands = re.findall(r"again: <code>(.*?)</code>", text)
    assert len(commands) == len(cases)
    for command, case in zip(sorted(commands), sorted(cases.values(), key=lambda c: c["op"])):
        words = shlex.split(command)
        assert words[:4] == ["python", "-m", "compare", "bench"]
        done = CliRunner().invoke(app, [*words[3:], "--dry-run"])
        assert done.exit_code == 0, done.output
        shape = "x".join(map(str, case["shape"]))
        assert done.output.startswith(f"{case['op']} {case['dtype']} {shape} contiguous")
        for key, value in case["options"].items():
            assert f"{key}={value}" in done.output


def test_strips_are_histograms_on_one_axis() -> None:
    ours, theirs, none = spreads.strips([[10.0, 10.0, 10.0, 30.0], [20.0] * 4, []])
    assert none == ""
    bars = re.findall(r"M(\d+) 16v-(\d+)", ours)
    # The axis ends where 95 % of theirs do: what lies beyond stands at its end.
    assert bars == [("0", "16"), (str(spreads.WIDTH - 1), "5")]
    assert re.findall(r"M(\d+) 16v-(\d+)", theirs) == [(str(spreads.WIDTH - 1), "16")]
    assert spreads.strips([[], []]) == ["", ""]
    assert spreads.strips([[5.0, 5.0]]) == ["M0 16v-16"]


@needs_packages
def test_a_case_shows_its_samples() -> None:
    data: dict[str, Any] = bench_file()
    data["cases"][0]["entries"][0]["microseconds"] = [9.0, 10.0, 10.0, 11.0]
    text = page.html([Source("bench.json", "bench", data)])
    assert text.count('class="strip"') == 1  # the others kept none
    row = next(row for row in Page(text).rows if row[1:2] == ["triton"])
    assert row[2] == "10.00"


def test_files(tmp_path: Path) -> None:
    """Two names on the command line are compared in the order given."""
    names = []
    for name, source in zip(("b", "a"), benches(1.3)):
        names.append(tmp_path / f"{name}.json")
        names[-1].write_text(json.dumps(source.data))
    (found,) = changes.context(sources.read(names))
    assert [Path(found[end]).name for end in ("then", "now")] == ["b.json", "a.json"]
