"""bench goes on where another run ended, and with nobody else's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benched import SQUARE, amid_samples, bench, entries, flat
from simulated_gpu import Rig

from compare.cases import Case
from compare.timing import gpu, saved


def interrupted(rig: Rig, size: int) -> None:
    def before(name: str, case: Case) -> None:
        if case.shape[0] == size:
            raise KeyboardInterrupt

    rig.before = before


WHOLE = (*SQUARE, "--samples", "5")


def test_a_run_goes_on_where_another_ended(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*WHOLE, "--json", str(tmp_path / "b.json"), "--resume")
    interrupted(rig, 4096)
    done = bench(*words)
    assert "interrupted: 2 of 4 cases are timed" in done.output
    then = json.loads((tmp_path / "b.json").read_text())
    assert then["ended"] == "interrupted"
    rig.before, rig.timed = (lambda name, case: None), []
    slower = gpu.Ceilings(2e12, {"float16": 4e14}, "Simulated")
    monkeypatch.setattr(gpu, "ceilings", lambda: slower)
    done = bench(*words)
    assert done.exit_code == 0, done.output
    assert "going on after 2 cases" in done.output
    assert rig.timed == ["square float16 4096x4096", "square float16 16384x16384"]
    now = json.loads((tmp_path / "b.json").read_text())
    assert now["cases"][:2] == then["cases"]
    assert [case["shape"][0] for case in now["cases"]] == [1024, 2048, 4096, 16384]
    assert now["ended"] == ""
    assert now["ceilings"] == then["ceilings"]  # that the cases before were judged by
    assert [entries(case)["triton"]["percent_of_limit"] for case in now["cases"]] == (
        pytest.approx([80] * 4)
    )
    rig.timed = []
    done = bench(*words)  # all is there: the summary, and nothing measured
    assert rig.timed == []
    assert flat(done.output).count("square float16 4 ") == 1


def test_what_failed_before_still_fails_a_resumed_run(rig: Rig, tmp_path: Path) -> None:
    rig.before = amid_samples("triton", rig)
    words = (*SQUARE, "--samples", "20", "--json", str(tmp_path / "b.json"), "--resume")
    assert bench(*words).exit_code == 1
    rig.before, rig.timed = (lambda name, case: None), []
    assert bench(*words).exit_code == 1
    assert rig.timed == []


@pytest.mark.parametrize(
    ("words", "patched", "says"),
    [
        (["--warm"], None, "cold was True and is False"),
        (["--providers", "eager"], None, "providers was ['triton', 'eager', 'compile'] and is"),
        (["--samples", "6"], None, "samples was 5 and is 6"),
        ([], (saved, "sources", lambda: "f00"), "the sources are not those that were measured"),
        ([], (torch, "__version__", "9.9"), "and is '9.9'"),
        ([], (torch.cuda, "get_device_name", lambda: "Other"), "gpu was 'Simulated' and is 'Other"),
    ],
)
def test_a_run_does_not_go_on_with_anothers_file(
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    patched: Any,
    says: str,
) -> None:
    file = tmp_path / "b.json"
    assert bench(*WHOLE, "--json", str(file)).exit_code == 0
    kept = file.read_text()
    if patched:
        monkeypatch.setattr(*patched)
    done = bench(*WHOLE, *words, "--json", str(file), "--resume")
    assert done.exit_code == 2
    assert says in flat(done.stderr), done.stderr
    assert file.read_text() == kept


def test_a_commit_alone_changes_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*WHOLE, "--json", str(tmp_path / "b.json"), "--resume")
    assert bench(*words).exit_code == 0
    monkeypatch.setattr(saved, "commit", lambda: "0" * 40)
    rig.timed = []
    assert bench(*words).exit_code == 0
    assert rig.timed == []


def test_no_file_to_go_on_with(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"cases": []}')
    done = bench(*WHOLE, "--json", str(tmp_path / "b.json"), "--resume")
    assert done.exit_code == 2
    assert "no file to go on with" in flat(done.stderr)


def test_the_file_is_whole_after_every_case(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, in a case or amid writing, leaves what was measured before it."""
    file = tmp_path / "b.json"

    def before(name: str, case: Case) -> None:
        if case.shape[0] == 4096:
            assert len(json.loads(file.read_text())["cases"]) == 2
            raise SystemExit(9)  # as a process that is killed: nothing runs after it

    rig.before = before
    assert bench(*WHOLE, "--json", str(file)).exit_code == 9
    whole = file.read_text()
    assert len(json.loads(whole)["cases"]) == 2
    write = Path.write_text

    def breaks(path: Path, text: str) -> int:
        write(path, text[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", breaks)
    rig.before = lambda name, case: None
    assert isinstance(bench(*WHOLE, "--json", str(file)).exception, OSError)
    assert file.read_text() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]
