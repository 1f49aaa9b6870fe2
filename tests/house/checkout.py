"""The checkout: where it is, and copies of it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("triton_kernels", "cuda_reference", "compare")


def copy_folders(where: Path, *folders: str) -> None:
    """The folders as they are, without what was built; with what Python compiled, but for the
    files that another process is writing."""
    ignored = shutil.ignore_patterns("*.pyc.*", "_prebuilt")
    for folder in folders:
        shutil.copytree(ROOT / folder, where / folder, ignore=ignored)
