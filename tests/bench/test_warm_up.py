"""Compiling before timing: in processes of their own, where what goes wrong ends nothing."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from compare.cases import Case
from compare.specs import Spec
from compare.timing import bench, providers, warm_up
from compare.timing.engine import Candidate

CASES = [Case("square", "float16", (n, 16)) for n in range(1, 7)]


def test_only_what_compiles_is_called_and_errors_are_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def candidates(spec: Spec, case: Case, wanted: Sequence[str]) -> Iterator[Candidate]:
        for name in wanted:

            def call(args: Any, kwargs: Any, name: str = name) -> None:
                called.append(name)
                if name == "compile":
                    raise torch.OutOfMemoryError("CUDA out of memory")

            yield Candidate(name, call)

    monkeypatch.setattr(providers, "candidates", candidates)
    monkeypatch.setattr(warm_up, "_choose_anew", lambda: None)
    monkeypatch.setattr(bench, "inputs", lambda spec, case, seed: ((), {}))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    said = warm_up.compile_one(CASES[0], ["compile", "triton"])
    assert called == ["compile", "triton"]
    assert said == [f"compile, {CASES[0]}: OutOfMemoryError"]


def test_no_inputs_are_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(spec: Spec, case: Case, seed: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "inputs", inputs)
    assert warm_up.compile_one(CASES[0], ["triton"]) == [f"{CASES[0]}: OutOfMemoryError"]


def test_processes_do_it_and_every_case_counts() -> None:
    """Real processes; without a GPU each says that there is none."""
    done: list[int] = []
    jobs: list[tuple[Case, list[str]]] = [(case, ["triton", "eager"]) for case in CASES]
    jobs.append((CASES[0], ["eager"]))  # nothing to compile
    said = warm_up.compile_all(jobs, lambda: done.append(1))
    assert len(done) == len(jobs)
    if not torch.cuda.is_available():
        assert sorted(line.split(":")[0] for line in said) == sorted(map(str, CASES))


def test_a_few_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "ProcessPoolExecutor", None)
    done: list[int] = []
    jobs = [(case, ["triton"]) for case in CASES[:3]]
    assert warm_up.compile_all(jobs, lambda: done.append(1)) == []
    assert len(done) == 3


def test_ctrl_c_does_not_wait_for_what_has_not_begun() -> None:
    jobs = [(Case("square", "float16", (n, 16)), ["triton"]) for n in range(1, 2000)]

    def done() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_up.compile_all(jobs, done)
    assert not multiprocessing.active_children()


def test_torch_compile_does_not_keep_what_it_chose_while_others_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither in the processes nor in the one that times, which else would not find the kernels."""
    import torch._inductor.config as settings

    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    warm_up._begin()
    # By torch's own means: monkeypatch would delete the setting, and Inductor fail from then on.
    with settings.patch(autotune_local_cache=True):
        warm_up.compile_one(CASES[0], ["triton"])
        assert settings.autotune_local_cache is True
        warm_up.compile_one(CASES[0], ["triton", "compile"])
        assert settings.autotune_local_cache is False
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert not set(warm_up._compiled(["eager", "max-autotune", "cublaslt"]))
