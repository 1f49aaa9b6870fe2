"""docs/OWN_KERNELS.md: its files work as they stand, and its faults are found as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from processes import python

from compare.checking.implementations import unavailable


@pytest.fixture(scope="module")
def document(root: Path) -> str:
    if "cuda-host" in unavailable():
        pytest.skip(unavailable()["cuda-host"])
    return (root / "docs" / "OWN_KERNELS.md").read_text()


def written(where: Path, document: str, root: Path) -> Path:
    """The document's files, each of which follows its name, beside this project's packages."""
    files = re.findall(r"`\./(\w+\.\w+)`[^`]*```\w+\n(.*?)^```", document, re.S | re.M)
    assert {name for name, _ in files} == {
        "softmax.py",
        "softmax.cu",
        "test_softmax.py",
        "debug_softmax.py",
        "softmax_spec.py",
        "mean_square.py",
        "mean_square_spec.py",
        "python_softmax.py",
    }
    for name, text in files:
        (where / name).write_text(text)
    for package in ("triton_kernels", "cuda_reference", "compare"):
        (where / package).symlink_to(root / package)
    return where


@pytest.fixture(scope="module")
def folder(document: str, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all that change nothing: what is built of its sources is built once."""
    return written(tmp_path_factory.mktemp("document"), document, root)


@pytest.fixture
def own(document: str, root: Path, tmp_path: Path) -> Path:
    """One to change."""
    return written(tmp_path, document, root)


def documented(document: str, number: int) -> tuple[str, str, str]:
    """What a fault replaces, by what, and what is printed then."""
    found = re.findall(r"<!-- output: (.*?) → (.*?) -->\n```\n(.*?)^```", document, re.S | re.M)
    assert len(found) == 2
    old, new, printed = found[number]
    return old, new, printed


def rough(text: str) -> str:
    """Without the digits in which one processor's exponential differs from another's."""
    return re.sub(r"0x[0-9a-f]+|\d+\.\d+(e[+-]\d+)?", "#", text)


def rougher(text: str) -> list[str]:
    """Lines without numbers, which differ by processor and by compiler, and without columns."""
    lines = (" ".join(re.sub(r"[\d.]+", "#", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


def plant(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


PLUGINS = ("-p", "compare.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist")
TESTS = ("-m", "pytest", "-q", *PLUGINS, "test_softmax.py")


def test_the_test_passes(folder: Path) -> None:
    done = python(folder, *TESTS)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout


def test_the_fault_in_the_triton_kernel(document: str, own: Path) -> None:
    old, new, printed = documented(document, 0)
    plant(own / "softmax.py", old, new)
    done = python(own, "debug_softmax.py")
    lines = done.stdout.splitlines(keepends=True)
    said = "".join(line for line in lines if not line.startswith("compiled:"))  # on a GPU
    assert rough(said) == rough(printed), done.stderr[-3000:]


def test_the_fault_in_the_twin(document: str, own: Path) -> None:
    old, new, printed = documented(document, 1)
    plant(own / "softmax.cu", old, new)
    done = python(own, *TESTS)
    assert done.returncode == 1
    assert printed in done.stdout


def commands(root: Path) -> list[tuple[str, str]]:
    """Each command that the document shows, and what it prints."""
    text = (root / "docs" / "OWN_KERNELS.md").read_text()
    return re.findall(r"<!-- command: (.*?) -->\n```\n(.*?)^```", text, re.S | re.M)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the output is that of a machine without one")
@pytest.mark.parametrize("number", range(7))
def test_commands_print_what_the_document_shows(number: int, root: Path, folder: Path) -> None:
    shown = commands(root)
    assert len(shown) == 7
    words, printed = shown[number]
    jobs = ("--jobs", "1") if words.startswith("check") else ()
    done = python(folder, "-m", "compare", *words.split(), *jobs)
    lines, expected = rougher(done.stdout + done.stderr), rougher(printed)
    start = lines.index(expected[0])
    assert lines[start : start + len(expected)] == expected, done.stdout + done.stderr


def test_from_python(document: str, folder: Path) -> None:
    printed = re.findall(
        r"<!-- output of python_softmax.py -->\n```\n(.*?)^```", document, re.S | re.M
    )
    done = python(folder, "python_softmax.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert rougher(done.stdout)[:2] == rougher(printed[0])
