"""What tests keep of a long run, and the table of docs/FACTS.md that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from long_runs import LongRun

from compare.reporting import facts, page, sources
from compare.reporting.sources import ReportError

PLACE = "<!-- table: long -->\nold\n<!-- end of table -->"


def written(folder: Path, name: str, **numbers: int) -> Path:
    run = LongRun(folder / f"{name}.json")
    for key, number in numbers.items():
        run.add(f"{name} is right", **{key: number})
    run.end(failed=False)
    assert run.file is not None
    return run.file


def test_a_short_run_does_little_and_keeps_nothing(tmp_path: Path) -> None:
    assert LongRun().amount(3, 1000) == 3
    assert LongRun(tmp_path / "x.json").amount(3, 1000) == 1000
    LongRun(figures={"claim": {"calls": 1}}).end(failed=False)
    assert not list(tmp_path.iterdir())


def test_figures_add_up_and_say_whence_they_are(tmp_path: Path) -> None:
    run = LongRun(tmp_path / "fuzz.json")
    for _ in range(3):
        run.add("right", calls=1, runs=4)
    run.end(failed=False)
    found = json.loads((tmp_path / "fuzz.json").read_text())
    assert found["figures"] == {"right": {"calls": 3, "runs": 12}}
    assert found["command"] == "make fuzz"
    assert {"gpu", "python", "torch", "triton"} <= found["environment"].keys()
    assert found["date"].startswith("20")
    assert found["seconds"] >= 0


@pytest.mark.parametrize(("figures", "failed"), [({"right": {"calls": 1}}, True), ({}, False)])
def test_a_run_that_failed_or_did_nothing_keeps_what_was(
    figures: dict[str, dict[str, float]], failed: bool, tmp_path: Path
) -> None:
    file = tmp_path / "fuzz.json"
    file.write_text("of before")
    LongRun(file, figures).end(failed)
    assert file.read_text() == "of before"


def test_all_files_make_one_table(tmp_path: Path) -> None:
    files = [written(tmp_path, "fuzz", calls=10_000), written(tmp_path, "kills", kills=100)]
    text = facts.rewritten(PLACE, sources.read(files))
    lines = text.splitlines()
    assert lines[1] == "| claim | figure | command | where, when |"
    assert lines[3].startswith("| fuzz is right | 10000 calls | `make fuzz` | ")
    assert lines[4].startswith("| kills is right | 100 kills | `make kills` | ")
    assert "torch 2." in lines[4]
    assert len(lines) == 6


def test_a_page_is_made_beside_them(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    files = [sources.COMMITTED / "check.json", written(tmp_path, "fuzz", calls=7)]
    found = sources.read(files)
    assert [source.kind for source in found] == ["check", "long"]
    assert "fuzz is right" not in page.html(found)


def test_without_a_file_the_table_names_the_commands(tmp_path: Path) -> None:
    check = sources.read([sources.COMMITTED / "check.json"])
    with pytest.raises(ReportError, match=r"no file for the table 'long': make fuzz \(kills"):
        facts.rewritten(PLACE, check)
