"""Python processes of their own that need not load torch and triton first, which takes seconds.

Each is a fork of a server that has loaded both and nothing of this project. What tests how a
process starts, or sets what torch and triton read as they load, starts a Python of its own.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS = {"triton_kernels", "cuda_reference", "compare"}


def python(
    where: Path, *words: str, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """``python words``, which may begin with -m, -c or a file, with the packages that lie in a
    folder, started there."""
    from compare.mutation.nursery import LOADED  # not at the top, which a fork runs, too

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        if words[0] == "-c":
            (Path(folder) / "code.py").write_text(words[1])
            words = (str(Path(folder) / "code.py"), *words[2:])
        process = context.Process(target=_main, args=(where, words, dict(environment), said))
        process.start()
        process.join()
        texts = [file.read_text(encoding="utf-8") for file in said]
    return subprocess.CompletedProcess(list(words), process.exitcode, *texts)


def forked(
    command: list[str], *, env: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """In place of subprocess.run, of a Python program: only what a sanitizer's runtime is loaded
    into as it starts is a Python of its own."""
    if command[0] != sys.executable or "LD_PRELOAD" in env:
        return subprocess.run(command, env=env, **options)
    return python(Path.cwd(), *command[1:], environment=env)


def _main(
    where: Path, words: tuple[str, ...], environment: dict[str, str], said: list[Path]
) -> None:
    gc.freeze()  # what the server loaded is not searched for garbage by each of them
    gc.set_threshold(10_000, 20, 50)
    assert not OURS & set(sys.modules)  # or it would be those of the checkout
    for number, file in enumerate(said, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(where)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(where), *filter(None, path)]
    if words[0] == "-m":
        sys.argv[1:] = words[2:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")
