"""Python processes of their own that need not load torch and triton first, which takes seconds.

Each is a fork of a server that has loaded both: one also this checkout's packages, for programs
that would load these, under the same settings of Triton; the other nothing of this project. What
tests how a process starts, or sets what torch and triton read as they load, starts a Python of its
own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NoReturn

OURS = {"triton_kernels", "cuda_reference", "compare"}
CHECKOUT = Path(__file__).resolve().parent.parent


def python(
    where: Path, *words: str, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """``python words``, which may begin with -m, -c or a file, with the packages that lie in a
    folder, started there."""
    from compare.mutation.nursery import LOADED  # not at the top, which a fork runs, too

    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("stdout", "stderr")]
        code = words[0] == "-c"
        if code:
            (Path(folder) / "code.py").write_text(words[1])
            words = (str(Path(folder) / "code.py"), *words[2:])
        status = None
        # Code of a test's own may ask what importing the packages does; pytest rewrites a plugin.
        if not code and words[:2] != ("-m", "pytest") and _loads_the_checkout(where, environment):
            status = _SERVER.run(where, words, environment, said)
        if status is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(LOADED)
            process = context.Process(target=_main, args=(where, words, dict(environment), said))
            process.start()
            process.join()
            status = process.exitcode
        texts = [file.read_text(encoding="utf-8") for file in said]
    return subprocess.CompletedProcess(list(words), status, *texts)


def forked(
    command: list[str], *, env: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """In place of subprocess.run, of a Python program: only what a sanitizer's runtime is loaded
    into as it starts is a Python of its own."""
    if command[0] != sys.executable or "LD_PRELOAD" in env:
        return subprocess.run(command, env=env, **options)
    return python(Path.cwd(), *command[1:], environment=env)


def _loads_the_checkout(where: Path, environment: Mapping[str, str]) -> bool:
    """Whether such a process would import this checkout's packages, and triton as it is here."""
    path = [str(where), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    folders = [Path(folder).resolve() for folder in path if folder]
    found = next((f for f in folders if any((f / name).exists() for name in OURS)), None)
    ours, theirs = (
        {name: value for name, value in variables.items() if name.startswith("TRITON_")}
        for variables in (os.environ, environment)
    )
    return found == CHECKOUT and ours == theirs


class _Server:
    """A process that has loaded this checkout's packages, and forks for one call at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(
        self, where: Path, words: Sequence[str], environment: Mapping[str, str], said: list[Path]
    ) -> int | None:
        """The exit status; None while it is at another call."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                )
            assert self._process.stdin
            assert self._process.stdout
            call = [str(where), list(words), dict(environment), list(map(str, said))]
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        finally:
            self._lock.release()

    def end(self) -> None:
        """End it, if it was started."""
        if self._process is not None:
            self._process.communicate()


_SERVER = _Server()
atexit.register(_SERVER.end)


def _serve() -> None:
    """The server: a child for every line, one after the other, until its starter ends."""
    from compare.mutation.nursery import LOADED

    for name in (*LOADED, "compare.cli"):
        importlib.import_module(name)
    gc.collect()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _end_with(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _end_with(
    where: str, words: list[str], environment: dict[str, str], said: list[str]
) -> NoReturn:
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _main(Path(where), tuple(words), environment, list(map(Path, said)), loaded=OURS)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _main(
    where: Path,
    words: tuple[str, ...],
    environment: dict[str, str],
    said: list[Path],
    loaded: Set[str] = frozenset(),
) -> None:
    gc.freeze()  # what the server loaded is not searched for garbage by each of them
    gc.set_threshold(10_000, 20, 50)
    assert OURS & set(sys.modules) == loaded  # of a copy it would be those of the checkout
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


if __name__ == "__main__":
    _serve()
