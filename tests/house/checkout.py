"""The checkout: where it is, and copies of it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("triton_kernels", "cuda_reference", "compare")


def copy_folders(where: Path, *folders: str) -> None:
    """The folders as they are, without what was built or compiled."""
    ignored = shutil.ignore_patterns("__pycache__", "_prebuilt")
    for folder in folders:
        shutil.copytree(ROOT / folder, where / folder, ignore=ignored)
