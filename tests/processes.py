"""Python processes of their own that need not load torch and triton first, which takes seconds.

Each is a fork of a server that has loaded both and nothing of this project. What tests how a
process starts, or sets what torch and triton read as they load, starts a Python of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

OURS = {"triton_kernels", "cuda_reference", "compare"}
LOADED = ["numpy", "torch", "triton", "triton.language", "rich.progress", "rich.table", "typer"]


def run(
    where: Path, module: str, words: Sequence[str], environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """``python -m module words`` with the packages that lie in a folder, started there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        process = context.Process(
            target=_main, args=(where, module, words, dict(environment), said)
        )
        process.start()
        process.join()
        texts = [file.read_text(encoding="utf-8") for file in said]
    return subprocess.CompletedProcess([module, *words], process.exitcode, *texts)


def _main(
    where: Path,
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    said: Sequence[Path],
) -> None:
    assert not OURS & set(sys.modules)  # or it would be those of the checkout
    for number, file in enumerate(said, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(where)
    sys.path.insert(0, str(where))
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)
