"""The cache after builds that were killed, and under several builds at once: it serves the library
of the source as it is, and what is left of a killed build goes with a later one.

``make kills`` does this a hundred times with a source of this package's.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cached import SOURCE, needs_host_target
from long_runs import LongRun

from cuda_reference import _build, _compilers, _storage

pytestmark = needs_host_target
LONG_AGO = (1e9, 1e9)
LOADED, WRONG = 0, 1  # how a child ends


class Builds:
    """A source whose library returns a number, built and loaded in processes forked off."""

    def __init__(self, csrc: Path, source: str) -> None:
        self._csrc, self._source, self.number = csrc, source, 0
        self.change()

    def change(self) -> None:
        """Another number, and so another library."""
        self.number += 1
        answer = f'extern "C" int answer() {{ return {self.number}; }}\n'
        (self._csrc / "sample.cu").write_text(f"{self._source}\n{answer}")

    def start(self, first: Callable[[], object] = lambda: None) -> int:
        """A process, with a group of its own, that calls ``first``, then builds and loads."""
        child = os.fork()
        if child:
            return child
        status = WRONG
        try:
            os.setsid()
            first()
            if _build.library("sample", "host", csrc=self._csrc).answer() == self.number:
                status = LOADED
        finally:
            os._exit(status)

    def run(self, first: Callable[[], object] = lambda: None) -> int:
        """How such a process ends: its exit status, or minus the signal."""
        return ended(self.start(first))


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(builds: Builds, seconds: float, group: bool) -> bool:
    """Kill a build after so long, with its compilers or alone; whether it had not ended by then."""
    child = builds.start()
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):  # of a group that is not there yet
        (os.killpg if group else os.kill)(child, signal.SIGKILL)
    status = ended(child)
    assert status in (LOADED, -signal.SIGKILL)
    return status != LOADED


@pytest.fixture
def builds(csrc: Path, cache: Path, long_run: LongRun) -> Builds:
    """Of a source that compiles in a moment; in a long run, of one of ours."""
    ours = (_compilers.CSRC / "square.cu").read_text()
    plain = SOURCE.replace('extern "C" int answer() { return 42; }', "")
    return Builds(csrc, plain if long_run.file is None else ours)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compilers would leave their files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def check_cache(cache: Path, builds: Builds) -> None:
    """Whole libraries and their records, and nothing else once what is left has become old."""
    assert builds.run() == LOADED
    for left in cache.glob("build-*"):
        os.utime(left, LONG_AGO)
    builds.change()
    assert builds.run() == LOADED
    records = set(cache.glob("*.json"))
    libraries = {_storage.find(record)[0] for record in records}
    assert set(cache.iterdir()) == records | libraries


def test_killed_at_any_moment(
    builds: Builds, cache: Path, temporary: Path, long_run: LongRun
) -> None:
    start = time.monotonic()
    assert builds.run() == LOADED
    takes = time.monotonic() - start
    builds.change()
    chance, kills, built, groups = random.Random(0), 0, 0, 0
    while kills < long_run.amount(4, 100):
        group = chance.random() < 0.5
        if killed(builds, chance.uniform(0, takes), group):
            kills, groups = kills + 1, groups + group
        else:
            built += 1
            builds.change()
    check_cache(cache, builds)
    assert not list(temporary.iterdir())
    long_run.add(
        "after builds killed at random moments the cache serves the right library, and a later "
        "build removes what they left",
        **{"kills": kills, "with the compilers": groups, "builds in between that ended": built},
    )


@pytest.mark.parametrize("step", ["before both", "between them", "after both"])
def test_killed_while_files_are_put_in_place(
    step: str, builds: Builds, cache: Path, long_run: LongRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments that chance does not meet."""
    replace, steps = os.replace, iter(["before both", "between them"])

    def deadly(*files: str) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*files)
        if step == "after both" and Path(files[1]).suffix == ".json":
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", deadly)
        assert builds.run() == -signal.SIGKILL
    check_cache(cache, builds)
    long_run.add("the same, killed at each step that puts files in place", kills=1)


def test_what_killed_compilers_left_lies_in_the_cache(
    builds: Builds, cache: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a later build removes it, and not wherever compilers put their files."""
    script = temporary.parent / "c++"
    script.write_text('#!/bin/sh\ntouch "$TMPDIR/half.s"\nkill -9 $BUILDER\n')
    script.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(script))
        assert builds.run(lambda: os.environ.update(BUILDER=str(os.getpid()))) == -signal.SIGKILL
    assert len(list(cache.glob("build-*/half.s"))) == 1
    assert not list(temporary.iterdir())


def test_processes_that_build_at_once(builds: Builds, cache: Path, long_run: LongRun) -> None:
    """All of them load the right library, whoever built it."""
    count = long_run.amount(4, 8)
    reads, writes = os.pipe()

    def wait_for_the_others() -> None:
        os.close(writes)
        os.read(reads, 1)

    for _ in range(long_run.amount(1, 10)):
        waiting = [builds.start(wait_for_the_others) for _ in range(count)]
        os.close(writes)
        assert [ended(child) for child in waiting] == [LOADED] * count
        os.close(reads)
        reads, writes = os.pipe()
        builds.change()
        long_run.add(
            f"{count} processes that build and load one library at once get the right one",
            processes=count,
        )
    os.close(reads)
    os.close(writes)
    check_cache(cache, builds)
