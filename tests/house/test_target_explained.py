"""mutate on a target: what its own explained.toml explains, and what of that is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign
import pytest
from foreign import TARGET
from processes import python
from typer.testing import CliRunner, Result

from compare.checking.implementations import unavailable
from compare.cli import app
from compare.mutation import planting
from compare.mutation.mutant import Mutant
from compare.mutation.planting import Trial
from compare.ops import _targets

pytestmark = pytest.mark.skipif("cuda-host" in unavailable(), reason="no C++ compiler")
WORDS = ("mutate", "--target", TARGET, "--side", "triton")
EVERY = """
[[survivor]]
file = "rowwise/softmax.py"
function = "softmax_kernel"
reason = "speed"
because = "To draw none of them."
"""
GONE = """
[[survivor]]
file = "rowwise/softmax.py"
function = "softmax_kernel"
statement = "no = such + line"
mutant = "no = such - line"
reason = "equivalent"
because = "It was here once."
"""
AXIS = """
[[survivor]]
file = "rowwise/softmax.py"
function = "softmax_kernel"
statement = "powers = tl.exp(x - tl.max(x, axis=0))"
mutant = "powers = tl.exp(x - tl.max(x, axis=1))"
reason = "equivalent"
because = "A vector has one axis."
"""
TWIN = """
[[survivor]]
file = "rowwise/softmax.cu"
function = "no_such_kernel"
reason = "speed"
because = "Of a side that is not tried."
"""


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    foreign.make(folder, root)
    return folder


@pytest.fixture
def beside(folder: Path) -> Iterator[Path]:
    """The file that is read without being named."""
    file = folder / "rowwise" / "explained.toml"
    yield file
    file.unlink(missing_ok=True)


def test_the_file_beside_the_module(folder: Path, beside: Path) -> None:
    """All is explained, so that nothing is drawn, and one entry is of a line that is gone."""
    beside.write_text(EVERY + GONE)
    done = python(folder, "-m", "compare", *WORDS, "--sample", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 mutants" in done.stdout
    says = "stale: rowwise/softmax.py softmax_kernel: no = such + line → no = such - line"
    assert says in done.stdout


@pytest.fixture
def command(
    folder: Path, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, set[str]]]:
    """The command, whose trials are not run: mutants that become a line of the set survive."""
    survive: set[str] = set()

    def run(mutants: list[Mutant], plan: Any, jobs: int) -> Iterator[Trial]:
        for each in mutants:
            lives = each.statement[1] in survive
            yield Trial(each, "survived" if lives else "killed")

    monkeypatch.setattr(planting, "healthy", lambda sides, plan: "")
    monkeypatch.setattr(planting, "run", run)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, [*WORDS, *words])

    yield invoke, survive
    for module in [name for name in sys.modules if name.partition(".")[0] == "rowwise"]:
        del sys.modules[module]
    _targets.target.cache_clear()
    _targets.sources.cache_clear()


LIVES = "powers = tl.exp(x - tl.max(x, axis=1))"


def test_a_survivor_fails_until_it_is_explained(command: Any, beside: Path) -> None:
    invoke, survive = command
    survive.add(LIVES)
    assert invoke().exit_code == 1
    beside.write_text(AXIS)
    done = invoke()
    assert done.exit_code == 0, done.output
    assert "stale" not in done.output


def test_an_entry_whose_mutant_is_killed_is_stale(command: Any, beside: Path) -> None:
    invoke, _ = command
    beside.write_text(AXIS)
    done = invoke()
    assert done.exit_code == 1
    assert f"axis=0)) → {LIVES}: no such mutant survives" in done.output
    beside.write_text(AXIS.replace('"equivalent"', '"gpu"') + TWIN)  # neither can be told here
    done = invoke()
    assert done.exit_code == 0, done.output


def test_another_file(command: Any, beside: Path, tmp_path: Path) -> None:
    """It is read in place of the one beside the module."""
    invoke, survive = command
    survive.add(LIVES)
    beside.write_text(GONE)
    file = tmp_path / "mine.toml"
    file.write_text(AXIS)
    assert invoke("--explained", str(file)).exit_code == 0
    assert invoke().exit_code == 1


def test_what_is_no_such_file(command: Any, tmp_path: Path) -> None:
    invoke, _ = command
    for text, says in (
        ("[[survivor", "mine.toml: "),
        (AXIS.replace("equivalent", "luck"), "a reason, one of equivalent"),
        (None, "there is no such file"),
    ):
        file = tmp_path / "mine.toml"
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        done = invoke("--explained", str(file))
        assert done.exit_code == 2, done.output
        assert says in " ".join(done.output.replace("│", " ").split())
    done = CliRunner().invoke(app, ["mutate", "square", "--explained", str(tmp_path)])
    assert done.exit_code == 2
    assert "--explained is about a target's kernels" in " ".join(
        done.output.replace("│", " ").split()
    )
