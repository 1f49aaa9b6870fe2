"""The checkout: where it is, copies of it, and Python in a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("triton_kernels", "cuda_reference", "compare")


def copy_folders(where: Path, *folders: str) -> None:
    """The folders as they are, without what was built or compiled."""
    ignored = shutil.ignore_patterns("__pycache__", "_prebuilt")
    for folder in folders:
        shutil.copytree(ROOT / folder, where / folder, ignore=ignored)


def python(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the packages that lie in a folder, started there."""
    environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
