"""A package from elsewhere, with a Triton kernel and its CUDA twin, for the tests of targets."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGES = ("triton_kernels", "cuda_reference", "compare")
TARGET = "rowwise.specs:SOFTMAX"
PROJECT = """
[project]
name = "rowwise"
version = "0.1"

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""


def files(document: str) -> dict[str, str]:
    """The files that docs/OWN_KERNELS.md shows, each of which follows its name."""
    return dict(re.findall(r"`\./(\w+\.\w+)`[^`]*```\w+\n(.*?)^```", document, re.S | re.M))


def make(folder: Path, root: Path) -> None:
    """The document's files as a package, its tests beside it, and this project's packages."""
    shown = files((root / "docs" / "OWN_KERNELS.md").read_text())
    package, tests = folder / "rowwise", folder / "tests"
    package.mkdir()
    tests.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text('"""Softmax of rows."""\n')
    (package / "softmax.py").write_text(shown["softmax.py"])
    (package / "softmax.cu").write_text(shown["softmax.cu"])
    specs = shown["softmax_spec.py"].replace("from softmax ", "from rowwise.softmax ")
    (package / "specs.py").write_text(specs)
    (tests / "test_softmax.py").write_text(TESTS)
    for name in PACKAGES:
        (folder / name).symlink_to(root / name)


TESTS = """
import compare
import torch
from rowwise.specs import SOFTMAX


def test_the_spec():
    report = compare.check(SOFTMAX, level="quick")
    assert report, report


def test_the_pair(cross_check):
    cross_check(
        triton=SOFTMAX.triton,
        cuda=SOFTMAX.cuda,
        oracle=SOFTMAX.oracle,
        inputs=[(torch.randn(3, 5),)],
        max_ulps=16,
    )


def test_speed(gpu_benchmark):
    gpu_benchmark(SOFTMAX.triton, torch.randn(64, 64, device="cuda"))
"""
