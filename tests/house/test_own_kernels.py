"""docs/OWN_KERNELS.md: its files work as they stand, and its faults are found as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import python

from compare.checking.implementations import unavailable


@pytest.fixture(scope="module")
def document(root: Path) -> str:
    if "cuda-host" in unavailable():
        pytest.skip(unavailable()["cuda-host"])
    return (root / "docs" / "OWN_KERNELS.md").read_text()


@pytest.fixture
def folder(document: str, root: Path, tmp_path: Path) -> Path:
    """The document's files, each of which follows its name, beside this project's packages."""
    files = re.findall(r"`\./(\w+\.\w+)`[^`]*```\w+\n(.*?)^```", document, re.S | re.M)
    assert {name for name, _ in files} == {
        "softmax.py",
        "softmax.cu",
        "test_softmax.py",
        "debug_softmax.py",
    }
    for name, text in files:
        (tmp_path / name).write_text(text)
    for package in ("triton_kernels", "cuda_reference", "compare"):
        (tmp_path / package).symlink_to(root / package)
    return tmp_path


def documented(document: str, number: int) -> tuple[str, str, str]:
    """What a fault replaces, by what, and what is printed then."""
    found = re.findall(r"<!-- output: (.*?) → (.*?) -->\n```\n(.*?)^```", document, re.S | re.M)
    assert len(found) == 2
    old, new, printed = found[number]
    return old, new, printed


def rough(text: str) -> str:
    """Without the digits in which one processor's exponential differs from another's."""
    return re.sub(r"0x[0-9a-f]+|\d+\.\d+(e[+-]\d+)?", "#", text)


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


def test_the_fault_in_the_triton_kernel(document: str, folder: Path) -> None:
    old, new, printed = documented(document, 0)
    plant(folder / "softmax.py", old, new)
    done = python(folder, "debug_softmax.py")
    lines = done.stdout.splitlines(keepends=True)
    said = "".join(line for line in lines if not line.startswith("compiled:"))  # on a GPU
    assert rough(said) == rough(printed), done.stderr[-3000:]


def test_the_fault_in_the_twin(document: str, folder: Path) -> None:
    old, new, printed = documented(document, 1)
    plant(folder / "softmax.cu", old, new)
    done = python(folder, *TESTS)
    assert done.returncode == 1
    assert printed in done.stdout
