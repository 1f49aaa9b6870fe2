"""Processes in which trials run, when they are ended from outside."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from compare.mutation import nurseries
from compare.mutation.nurseries import Nursery

SLEEPS = "import sys, time; sys.stdin.readline(); time.sleep(60)"


def test_a_trial_whose_process_is_ended_meanwhile_has_no_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(_: object) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-S", "-c", SLEEPS]
        return subprocess.Popen(command, text=True, start_new_session=True, **pipes)

    monkeypatch.setattr(nurseries, "_started", started)
    for moment in (0.0, 0.001, 0.01, 0.05) * 8:  # before, while and after it is written to
        nursery = Nursery()
        ends = threading.Timer(moment, nursery.end)
        ends.start()
        assert nursery.run(60, words=["any"] * 10_000) is None
        ends.join()
        assert nursery.run(60, words=[]) is None  # there is no other


def test_one_beside_another_ends_with_it() -> None:
    nursery = Nursery()
    beside = nursery.beside({"A": "1"})
    assert nursery.beside({"A": "1"}) is beside
    nursery.end()
    assert beside.run(60, words=[]) is None
    late = Nursery()
    late.end()
    assert late.beside({}).run(60, words=[]) is None
