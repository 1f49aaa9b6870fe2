"""docs/FACTS.md: its tables are those of docs/benchmarks/, and stay what a reader can take in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import made_up_files
import pytest
from typer.testing import CliRunner, Result

from compare.cli import app
from compare.reporting import facts, sources
from compare.reporting.sources import ReportError

CHECK = "<!-- table: check -->\nold\n<!-- end of table -->"
BENCH = "<!-- table: bench -->\nold\n<!-- end of table -->"


@pytest.fixture
def document(root: Path) -> Path:
    return root / "docs" / "FACTS.md"


def report(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_committed_tables_are_those_of_the_committed_files(root: Path, tmp_path: Path) -> None:
    """Mended by: python -m compare report --facts docs/FACTS.md, and the others"""
    tables = []
    for name in ("FACTS.md", "BENCHMARKING.md", "CHECKING.md", "MODELS.md"):
        document, copy = root / "docs" / name, tmp_path / name
        copy.write_text(document.read_text())
        done = report("--facts", copy)
        assert done.exit_code == 0, done.output
        assert copy.read_text() == document.read_text()
        tables += re.findall(r"<!-- table: (\w+) -->", copy.read_text())
    committed = {source.kind for source in sources.read([])}
    assert sorted(tables) == sorted({*(committed & set(facts.TABLES)), "sample"})


def test_models_are_told_a_line_each(tmp_path: Path) -> None:
    """And one for all, with geometric means; a model without times has dashes."""

    def row(name: str, **more: object) -> dict[str, object]:
        return {"request": {"name": name}, "kernels": 7, "problems": [], **more}

    halves = {"triton": [0.5, 0.5], "control": [1.0, 1.0]}
    twice = {"triton": [1.9, 2.1], "control": [0.99, 0.99]}
    rows = [
        row("half", speeds=halves, microseconds={"compile": [100.4, 100.4]}),
        row("twice", speeds=twice, microseconds={"compile": [10.0, 10.0]}),
        row("none", speeds={}, microseconds={}),
    ]
    head = {"environment": {"gpu": "NVIDIA H200"}, "date": "2026-11-26T01:02", "processes": 2}
    (tmp_path / "0.json").write_text(json.dumps({**head, "rows": rows}))
    document = tmp_path / "facts.md"
    document.write_text("<!-- table: models -->\n<!-- end of table -->\n")
    done = report(tmp_path / "0.json", "--facts", document)
    assert done.exit_code == 0, done.output
    cells = [line.strip("| ").split(" | ") for line in document.read_text().splitlines()[3:-1]]
    where = "2026-11-26, NVIDIA H200"
    assert cells == [
        ["half", "forward", "7", "100", "0.500", "0.500, 0.500", "1.000", where],
        ["twice", "forward", "7", "10", "1.997", "1.900, 2.100", "0.990", where],
        ["none", "forward", "7", "–", "–", "–", "–", where],
        ["all", "forward", "", "", "0.999", "0.500, 1.997", "0.995", where],
    ]


def test_samples_are_told_an_op_a_line(tmp_path: Path) -> None:
    """All problems, then those of 4 MB and more; neither fixed shapes nor regrets add a line."""
    data = json.loads((sources.COMMITTED / "h200.json").read_text())
    cases = [case for case in data["cases"] if case["op"] == "add" and not case.get("sweep")][:3]
    for case, value, size in zip(cases, (0.5, 1.0, 2.0), (1000, 4 * 10**6, 10**8)):
        ours = next(e for e in case["entries"] if e["provider"] == "triton")
        ours["speedup"]["value"] = value
        case["entries"].append({**ours, "provider": "control"})
        case |= {"stratum": "dense", "bytes": size}
    cases.append(cases[0] | {"op": "linear_act", "best_peer": ""})
    file, document = tmp_path / "sample.json", tmp_path / "facts.md"
    drawn = {"sample": 3, "seed": 7, "dtypes": ["float16"], "arg": ["alpha=2", "y=row"]}
    file.write_text(json.dumps(data | {"cases": cases, **drawn}))
    document.write_text("<!-- table: sample -->\n<!-- end of table -->\n")
    done = report(sources.COMMITTED / "h200.json", file, "--facts", document)
    assert done.exit_code == 0, done.output
    *_, line, _ = document.read_text().splitlines()
    assert line == (
        "| add float16 alpha=2 y=row | 3 | 1.000, 0.55, 0.50 | 2 | 1.414, 1.05, 1.00 | 1.000, 0.55 "
        f"| 7, {data['environment']['date'][:10]}, NVIDIA H200 |"
    )


def test_other_figures_make_other_tables(tmp_path: Path) -> None:
    """Changed files, and only what stands between the comments."""
    files = []
    for name in ("check", "h200"):
        data = json.loads((sources.COMMITTED / f"{name}.json").read_text())
        if name == "check":
            data["date"] = "2031-01-02T03:04:05+00:00"
            add = data["rows"][0]
            add |= {"cases": add["cases"] + 1000, "passed": False, "verdict": "CUDA: the kernel"}
            add["worst"]["cuda-gpu"] = 7.0
            data["rows"][1]["worst"]["triton-compiled"] = "inf"
        else:
            data["cases"] = [case for case in data["cases"] if case["op"] == "add"][:2]
            for case, value in zip(data["cases"], (2.0, 8.0)):
                ours = next(e for e in case["entries"] if e["provider"] == "triton")
                ours["speedup"]["value"] = value
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(data))
    document = tmp_path / "facts.md"
    document.write_text(f"# Mine\n\n{CHECK}\nbetween 0.5\n{BENCH}\n| after | 1 |\n")
    done = report(*files, "--facts", document)
    assert done.exit_code == 0, done.output
    text = document.read_text()
    assert "old" not in text
    assert text.startswith("# Mine\n\n<!-- table: check -->\n| op |")
    assert "\n<!-- end of table -->\nbetween 0.5\n<!-- table: bench -->\n" in text
    assert text.endswith("\n<!-- end of table -->\n| after | 1 |\n")
    (line,) = re.findall(r"^\| add \| 9 .*CUDA.*$", text, re.M)
    cells = line.strip("| ").split(" | ")
    assert int(cells[2]) > 1000
    assert cells[4:8] == ["0 ulp", "wrong", "0 ulp", "7 ulp"]
    assert cells[-1] == "float16: CUDA: the kernel"
    assert "| add | 4.00 (2.00–8.00) |" in text
    assert "check.json`: 2031-01-02, NVIDIA H200, python" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Nothing here\n", "needs a file with places for tables"),
        (CHECK.replace("check", "chock"), "no table 'chock'; the tables are check, bench"),
        (BENCH, "no file for the table 'bench': python -m compare bench"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_written(
    tmp_path: Path, text: str, message: str
) -> None:
    document = tmp_path / "facts.md"
    document.write_text(text)
    done = report(sources.COMMITTED / "check.json", "--facts", document)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert document.read_text() == text


def test_other_usage_errors(tmp_path: Path) -> None:
    missing = report("--facts", tmp_path / "nothing.md")
    assert missing.exit_code == 2
    assert "No such file" in missing.output
    both = report("--facts", tmp_path / "a.md", "--picture", tmp_path / "b.svg")
    assert both.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_file_that_lacks_something_is_named() -> None:
    broken = sources.Source("check.json", "check", {"rows": [{}]})
    with pytest.raises(ReportError, match=r"check\.json: not as .* writes it"):
        facts.rewritten(CHECK, [broken])


def test_facts_are_short_and_current(document: Path) -> None:
    text = document.read_text()
    assert len(text.splitlines()) <= 150
    hashes = [word for word in re.findall(r"\b[0-9a-f]{7,40}\b", text) if not word.isdigit()]
    assert not hashes
    without = text.split("\n## Without a GPU\n")[1].split("\n## ")[0]
    assert not re.search(r"[HB]\d00", without)


def test_the_readme_is_short(root: Path) -> None:
    assert len((root / "README.md").read_text().splitlines()) <= 220


def test_planted_faults_are_told_a_file_a_line(tmp_path: Path) -> None:
    document, file = tmp_path / "facts.md", tmp_path / "mutate.json"
    file.write_text(json.dumps(made_up_files.mutate_file()))
    document.write_text("<!-- table: mutate -->\n<!-- end of table -->\n")
    done = report(file, "--facts", document)
    assert done.exit_code == 0, done.output
    _, titles, _, *lines, _, made, _ = document.read_text().splitlines()
    ends = "killed | explained | survived | timed out | did not compile"
    assert titles == f"| file | mutants | {ends} |"
    assert lines == ["| `x.py` | 4 | 1 | 1 | 1 | 0 | 1 |", "| all | 4 | 1 | 1 | 1 | 0 | 1 |"]
    assert f"{file}`: 2026-11-23" in made
