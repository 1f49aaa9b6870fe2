"""python -m compare report: files found, refused, and replaced in one step."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from made_up_files import (
    Page,
    bench_case,
    bench_file,
    check_file,
    compile_file,
    entry,
    everything,
    needs_packages,
    text_of_everything,
)
from typer.testing import CliRunner, Result

from compare.cli import app
from compare.numerics import json_safe
from compare.reporting import page, sources, speeds
from compare.reporting.sources import ReportError


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
    # Among the worst, in two sections and the environment; before the other, which has its errors.
    assert found.text.count(str(files[2])) == 6


@needs_packages
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "not what check, mutate, bench, profile or compile write"),
        (
            '{"environment": {}, "rows": []}',
            "not what check, mutate, bench, profile or compile write",
        ),
        ('{"traceEvents": []}', "not what check, mutate, bench, profile or compile write"),
        (b"\xff\xfe\x00", "no JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = run(file, "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert f"report: {file}: {message}" in said(result)
    for command in ("check", "bench", "profile linear_gelu", "compile"):
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
def test_without_peers_the_picture_is_of_the_rungs(tmp_path: Path) -> None:
    """Beside the plain kernel, the slowest first."""
    case = bench_case("add", "float16", (64, 64))
    slow, fast = entry("cuda", 40.0, None), entry("cuda/pack128", 5.0, None)
    case |= {"best_peer": None, "entries": [fast, slow, entry("cuda/scalar", 20.0, None)]}
    (file,) = write(tmp_path, bench=bench_file() | {"cases": [case]})
    target = tmp_path / "picture.svg"
    assert run(file, "--picture", target).exit_code == 0
    text = target.read_text()
    assert "Against the plain CUDA kernel, Tesla X" in text
    words = ["add float16 64×64", "scalar", ">2.00<", "pack128", ">8.00<", "× the plain kernel"]
    assert all(word in text for word in words)
    assert text.index(">2.00<") < text.index(">8.00<")


@needs_packages
def test_a_picture_needs_times(tmp_path: Path) -> None:
    (file,) = write(tmp_path, check=check_file())
    result = run(file, "--picture", tmp_path / "picture.svg")
    assert result.exit_code == 2
    assert "python -m compare bench --json" in said(result)


def test_report_errors_are_values() -> None:
    assert issubclass(ReportError, ValueError)
