"""The report's part about samples: a distribution a stratum, from a file that bench wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_up_files import Page, bench_file, needs_packages, sample_cases
from simulated_gpu import Rig
from typer.testing import CliRunner

from compare.cli import app
from compare.reporting import facts, page, samples
from compare.reporting.sources import Source


def sampled(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "sample.json"
    words = ("bench", "square", "--sample", "21", "--seed", "9", "--dtype", "float16")
    done = CliRunner().invoke(app, [*words, "--json", str(file)])
    assert done.exit_code == 0, done.output
    return dict(json.loads(file.read_text()))


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    rig = Rig()
    rig.factor = {"triton": 1.6, "eager": 2.0, "compile": 1.25}
    with monkeypatch.context() as patch:
        for owner, name, value in rig.replaced():
            patch.setattr(owner, name, value)
        return sampled(tmp_path)


@needs_packages
def test_the_page_draws_a_dot_a_problem_and_one_of_the_control(data: dict[str, Any]) -> None:
    text = page.html([Source("sample.json", "bench", data)])
    read = Page(text)
    (section,) = re.findall(r'<section aria-labelledby="samples">.*?</section>', text, re.S)
    assert section.count("<svg") == 1
    assert 'aria-label="square: how many times' in section
    dots = re.findall(r"<use [^>]*>", section)
    assert len(dots) >= 2 * 21
    rows = [row for row in read.rows if row[0] == "odd count"]
    assert rows == [["odd count", "3", *["0.781", "0.78", "0.78 0.78 0.78"], *rows[0][5:]]]
    assert rows[0][5:] == ["1.000", "1.00", "1.00 1.00 1.00"]
    assert [row[1] for row in read.rows if row[0] == "all"] == ["21"]
    assert section.count("python -m compare bench square --dtype float16") == 21
    assert "21 problems, seed 9, sample.json" in text
    assert 'href="#samples"' in text
    # A sample is no list of shapes: no bars, no geometric mean of it among those.
    assert "times of all providers" not in text
    assert "× best peer</b>" not in text


@needs_packages
def test_a_sample_changes_nothing_of_the_fixed_shapes(data: dict[str, Any]) -> None:
    plain = bench_file()
    mixed = {**plain, "cases": [*plain["cases"], *data["cases"]]}
    assert page.picture([Source("b", "bench", plain)]) == page.picture(
        [Source("b", "bench", mixed)]
    )
    place = "<!-- table: bench -->\n<!-- end of table -->"
    tables = [facts.rewritten(place, [Source("b", "bench", each)]) for each in (plain, mixed)]
    assert tables[0] == tables[1]


@needs_packages
def test_without_a_sample_the_page_says_what_makes_one() -> None:
    text = page.html([Source("bench.json", "bench", bench_file())])
    assert 'id="samples"' not in text
    assert "samples of drawn problems" in text


def test_the_axis_has_room_for_every_dot() -> None:
    assert samples.ends([]) == (2**-0.5, 2**0.5)
    assert samples.ends([0.9, 1.1]) == (2**-0.5, 2**0.5)
    low, high = samples.ends([0.1, 3.0])
    assert low == 2**-3.5
    assert high == 4


@needs_packages
def test_choices_have_a_table_of_their_own() -> None:
    (case, *_) = sample_cases()
    names = {"triton": "triton chosen 64×64", "eager": "triton 128×64"}
    entries = [
        {**each, "provider": names[each["provider"]], "speedup": None}
        for each in case["entries"]
        if each["provider"] in names
    ]
    entries[1]["microseconds"] = [8.0] * 3
    made = {**bench_file(), "regret": True}
    made["cases"] = [{**case, "entries": entries, "best_peer": "", "stratum": "dense"}]
    text = page.html([Source("r.json", "bench", made)])
    rows = [row for row in Page(text).rows if row[:2] == ["add", "dense"]]
    assert rows == [["add", "dense", "1", "1.250", "1.25", "1.25"]]
    assert 'id="samples"' not in text
