"""Workers: what crashes or hangs ends as a named case, and everything else runs on."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toy_square
import toys
from typer.testing import CliRunner

from compare import __main__, cli, numerics, ops
from compare.cases import Case
from compare.checking import exhaustive, running, scheduling, verdicts
from compare.checking.implementations import Implementation, unavailable
from compare.checking.scheduling import InWorkers, Run
from compare.checking.verdicts import CaseResult, Row
from compare.checking.workers import Closed, Ended, Worker, Workers

SQUARE = ops.SPECS["square"]


def gone(process: int, seconds: float = 20) -> bool:
    """Whether a process ends in that time."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        return bool(select.select([descriptor], [], [], seconds)[0])


# ---- The mechanism ----


def test_what_ends_its_process_is_named_and_the_others_go_on() -> None:
    items = ["one", "segfault", "two", "abort", "hang", "exit", "three"]
    began = time.monotonic()
    with Workers(2) as workers:
        found = list(workers.map(toys.announced, items, timeout=1))
    assert time.monotonic() - began < 20
    said = [x.how if isinstance(x, Ended) else x for x in found]
    assert said == [
        *("one", "crashed: SIGSEGV", "two", "crashed: SIGABRT", "did not end within 1 s"),
        *("crashed: exit status 3", "three"),
    ]
    ended = [x for x in found if isinstance(x, Ended)]
    assert [x.doing for x in ended] == [
        f"about to {x}" for x in ("segfault", "abort", "hang", "exit")
    ]
    assert [x.late for x in ended] == [False, False, True, False]


def test_values_come_in_order_or_as_they_are_ready() -> None:
    with Workers(2) as workers:
        assert list(workers.map(toys.misbehave, ["late", "a"])) == ["late", "a"]
        assert list(workers.map(toys.misbehave, ["late", "a"], ordered=False)) == ["a", "late"]
        assert list(workers.map(toys.double, [1, 2, 3])) == [2, 4, 6]


def test_a_process_serves_many_calls_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    worker = Worker()
    first, second = worker.call(toys.process), worker.call(toys.process)
    assert first == second
    assert first[0] != os.getpid()
    assert first[1] == "1"
    assert worker.call(toys.misbehave, "segfault").fresh is False
    third = worker.call(toys.process)
    assert third[0] != first[0]
    worker.stop()
    assert gone(third[0])
    assert worker.call(toys.misbehave, "segfault").fresh is True


def test_errors_are_raised_here_and_the_process_lives_on() -> None:
    worker = Worker()
    before = worker.call(toys.process)
    with pytest.raises(KeyError, match="no such thing") as caught:
        worker.call(toys.misbehave, "raise")
    assert "toys.py" in caught.value.__notes__[0]
    for how, error, text in [
        ("leave", SystemExit, "5"),
        ("unspeakable", RuntimeError, "toys.Unspeakable: too much"),
        ("function", Exception, "pickle"),
        ("debug", RuntimeError, "--jobs 1"),
    ]:
        with pytest.raises(error, match=text):
            worker.call(toys.misbehave, how)
    assert worker.call(toys.process) == before
    worker.stop()


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="a worker did not start: exit status 1"):
        Worker().call(toys.double, 1)


def test_closing_ends_calls_at_once() -> None:
    worker = Worker()
    number = worker.call(toys.process)[0]
    threading.Timer(0.2, worker.close).start()
    with pytest.raises(Closed):
        worker.call(toys.misbehave, "hang")
    assert gone(number)
    with pytest.raises(Closed):
        worker.call(toys.double, 1)


KILLED = """
import sys, threading
sys.path[:0] = sys.argv[1:]
import toys
from compare.checking.workers import Worker
idle, busy = Worker(), Worker()
print(idle.call(toys.process)[0], busy.call(toys.process)[0], flush=True)
busy.call(toys.misbehave, "hang")
"""


def test_workers_end_with_a_process_that_is_killed(root: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(root), str(root / "tests")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert len(workers) == 2
    assert all(map(gone, workers))


# ---- Cases in workers ----


def named(*names: str) -> list[Implementation]:
    """Implementations that toys.run_case runs."""
    return [Implementation(*name.split("/"), SQUARE.cuda) for name in names]


def results(
    monkeypatch: pytest.MonkeyPatch, able: list[Implementation], count: int
) -> tuple[list[CaseResult], list[str]]:
    """What a worker makes of these implementations in several cases, and what it left out."""
    monkeypatch.setattr(scheduling, "run_case", toys.run_case)
    cases = [SimpleNamespace(op="square", dtype="int8") for _ in range(count)]  # without torch
    runs: Any = [Run(SQUARE, case, able) for case in cases]
    with InWorkers(1, timeout=20) as runner:
        found = list(runner.results(runs))
        return found, runner.left_out(Row("square", "int8", True))


def problems(result: CaseResult) -> dict[str | None, str | None]:
    return {o.implementation.variant: o.mismatch and o.mismatch.problem for o in result.outcomes}


def test_the_others_of_a_case_run_without_the_one_that_crashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    able = named("cuda-host/right", "cuda-host/segfault", "cuda-host/fine")
    (result,), left_out = results(monkeypatch, able, 1)
    assert problems(result) == {"right": None, "segfault": "crashed: SIGSEGV", "fine": None}
    assert not left_out


def test_after_three_crashes_an_implementation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found, left_out = results(monkeypatch, named("cuda-host/right", "cuda-host/abort"), 5)
    assert [problems(result).get("abort") for result in found] == ["crashed: SIGABRT"] * 3 + [
        None
    ] * 2
    assert all(problems(result)["right"] is None for result in found)
    assert left_out == ["square int8 on cuda-host/abort: 2 cases, after 3 that ended their process"]


def test_a_crash_that_does_not_come_again_is_a_failure_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = results(monkeypatch, named("cuda-host/right", "cuda-host/segfault after others"), 2)
    assert problems(found[0]) == {"right": None, "segfault after others": None}
    said = problems(found[1])
    assert said["right"] is None
    assert str(said["segfault after others"]).startswith(
        "crashed: SIGSEGV, but not when run by itself: a case before it may have written"
    )


def test_after_a_broken_cuda_context_the_gpu_goes_on_in_a_fresh_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    able = named("cuda-gpu/right", "cuda-gpu/loses the GPU", "cuda-gpu/fine")
    found, left_out = results(monkeypatch, able, 5)
    assert [len(result.outcomes) for result in found] == [3, 3, 3, 2, 2]
    assert left_out[0].startswith("square int8 on cuda-gpu/loses the GPU: 2 cases")


def test_a_lost_gpu_ends_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def breaks(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        ran.append(x)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    inputs = [(torch.zeros(2, dtype=torch.float32),)] * 2
    monkeypatch.setattr(exhaustive, "_every_input", lambda dtype, arity: iter(inputs))
    monkeypatch.setattr(running, "gpu_is_lost", lambda: bool(ran))
    able = [Implementation("cuda-gpu", name, breaks) for name in ("one", "two")]
    outcomes = exhaustive.wrong(SQUARE, "float32", able)
    assert outcomes is not None
    assert [outcome.implementation.variant for outcome in outcomes] == ["one"]
    assert "illegal memory access" in str(outcomes[0].mismatch)
    assert len(ran) == 1


def test_a_hang_a_wild_write_and_a_segfault_end_as_named_cases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a kernel that is right in other cases; each with the command that replays it."""
    if "cuda-host" in unavailable():
        pytest.skip(unavailable()["cuda-host"])
    sizes = (toy_square.SEGFAULT, toy_square.WILD, 5, 7, 9, toy_square.HANG)
    chosen = [Case("square", "float32", (n,)) for n in sizes]
    toy = SQUARE.changed(cuda=toy_square.square, cases=lambda dtype, level: iter(chosen))
    monkeypatch.setitem(ops.SPECS, "square", toy)
    monkeypatch.setattr(scheduling, "run_case", toy_square.run_case)
    report = tmp_path / "report.json"
    words = ["--dtype", "float32", "--impl", "triton-interpreted,cuda-host"]
    words += ["--json", str(report), "--jobs", "2", "--timeout", "8"]
    done = CliRunner().invoke(cli.app, ["check", "square", *words])
    assert done.exit_code == 1, done.output
    assert "square float32: CUDA: the reference kernel" in done.output
    (row,) = json.loads(report.read_text())["rows"]
    assert row["cases"] == 6
    assert row["runs"] == {"triton-interpreted": 6, "cuda-host": 36}
    by_case = {m["case"]: m for m in row["mismatches"] if m["implementation"] == "cuda-host"}
    said = {
        toy_square.HANG: "did not end within 8 s",
        toy_square.SEGFAULT: "crashed: SIGSEGV",
        toy_square.WILD: "crashed: SIGSEGV",
    }
    assert len(by_case) == len(row["mismatches"]) == len(said)
    for size, how in said.items():
        found = by_case[f"square float32 {size} contiguous normal seed=0"]
        assert found["problem"] == how
        assert found["replay"] == chosen[sizes.index(size)].command("cuda-host")
        if size != toy_square.WILD:  # which is printed once with the other of its kind
            assert (
                f"cuda-host: {found['case']}: {how}\n    replay: {found['replay']}" in done.output
            )


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        report = tmp_path / f"{jobs}.json"
        words = ["check", "square", "linear_gelu", "--dtype", "int8,float32", "--quick"]
        done = CliRunner().invoke(cli.app, [*words, "--json", str(report), "--jobs", jobs])
        assert done.exit_code == 0, done.output
        read = json.loads(report.read_text())
        for part in (read, *read["rows"]):
            del part["seconds"]
        del read["date"]
        found.append(read)
    assert found[0] == found[1]
    assert [row["op"] for row in found[0]["rows"]] == ["square", "square", "linear_gelu"]


def test_numpy_computes_alike_in_one_process_and_in_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products in the interpreter have other last bits on two threads."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "unset next, and restored in the end")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    found = []
    monkeypatch.setattr(
        cli, "app", lambda prog_name: found.append(os.environ["OPENBLAS_NUM_THREADS"])
    )
    __main__.main()
    assert found == ["1"]


def test_ctrl_c_ends_the_workers_without_tracebacks(root: Path) -> None:
    command = [sys.executable, "-m", "compare", "check", "square", "add", "--quick", "--jobs", "2"]
    command += ["--impl", "triton-interpreted,cuda-host"]  # a GPU has a third worker
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # What a shell starts in the background ignores the signal, and so do the tests' children.
    pipes["preexec_fn"] = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=root, start_new_session=True, **pipes) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        workers = [int(word) for task in tasks for word in task.read_text().split()]
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)
    assert first.startswith("square float16: ")
    assert len(workers) == 2
    assert all(map(gone, workers))
    assert process.returncode == 130
    assert "Traceback" not in "".join(said)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--jobs", "0"], "'--jobs'"),
        (["--jobs", "1", "--timeout", "5"], "not --jobs 1"),
        (["--timeout", "0"], "'--timeout'"),
    ],
)
def test_usage(words: list[str], says: str) -> None:
    done = CliRunner().invoke(cli.app, ["check", "square", *words])
    assert done.exit_code == 2
    assert says in " ".join(done.output.replace("│", " ").split())


# ---- Results that stay in their processes ----


def test_digests_are_equal_where_bits_are() -> None:
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        payloads = {torch.float32: torch.int32}.get(dtype, torch.int16)
        nan = torch.tensor([-1, 0, 0], dtype=payloads).view(dtype)
        assert numerics.digest(nan) == numerics.digest(torch.tensor([torch.nan, 0, 0], dtype=dtype))
        assert numerics.digest(nan) != numerics.digest(
            torch.tensor([torch.nan, 0, -0.0], dtype=dtype)
        )
    rows = torch.arange(12).reshape(3, 4)
    assert numerics.digest(rows.T) == numerics.digest(rows.T.contiguous())
    assert numerics.digest(rows.T) != numerics.digest(rows)


@pytest.mark.parametrize(("change", "agree"), [((1, 1), True), ((1, 2), False), ((0, 1), False)])
def test_sides_agree_where_both_are_wrong_alike(change: tuple[int, int], agree: bool) -> None:
    def off_by(n: int) -> Any:
        return lambda x, out: torch.add(x * x, n, out=out)

    able = [
        Implementation(mode, None, off_by(n))
        for mode, n in zip(("triton-interpreted", "cuda-host"), change)
    ]
    result = verdicts.check_case(SQUARE, Case("square", "int32", (5,)), able)
    assert result.agree is agree
    assert verdicts.agreement(result.outcomes[:1]) is None
