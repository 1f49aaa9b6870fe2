"""mutate: how a trial ends, which survivors are explained, and the command on one op."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compare.checking.implementations import unavailable
from compare.cli import app
from compare.mutation import explained, planting, population, tables
from compare.mutation.explained import Explanation
from compare.mutation.mutant import ROOT, Edit, Mutant
from compare.mutation.nurseries import Nursery
from compare.mutation.planting import Plan, Trial
from compare.mutation.tables import Report
from compare.ops import SPECS
from cuda_reference import BuildError
from triton_kernels.gemm.gluon import availability

FLAT = "triton_kernels/_elementwise_kernels.py"
SQUARE = "cuda_reference/csrc/square.cu"
needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)


def planted(file: str, old: str, new: str) -> Mutant:
    """A mutant of our own."""
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    at = text.index(old)
    side = "cuda" if file.endswith(".cu") else "triton"
    return Mutant(side, file, "", Edit("planted", at, at + len(old), new), text)


def tried(*mutants: Mutant, seconds: float = 60) -> list[Trial]:
    """Their trials, in their order."""
    plan = Plan(["square"], most=4, seconds=seconds)
    trials = list(planting.run(list(mutants), plan, jobs=1))
    return sorted(trials, key=lambda trial: mutants.index(trial.mutant))


FORMULA = "return x * x"


def test_ends_of_a_triton_mutant() -> None:
    new = ("x * x + x", "x * x  # the same", "x * undefined", "x *")
    file = "triton_kernels/ops/square.py"
    killed, same, *broken = tried(*(planted(file, FORMULA, f"return {each}") for each in new))
    assert (killed.end, killed.says) == ("killed", "wrong values")
    assert "compare check square" in killed.by
    assert "--impl triton-interpreted" in killed.by
    assert killed.cases >= 1
    assert same.end == "survived"
    assert same.cases == 4 * len([m for m in planting.available() if m.startswith("triton")])
    assert [trial.end for trial in broken] == ["did not compile"] * 2
    assert "NameError" in broken[0].says
    assert "SyntaxError" in broken[1].says


def test_what_hangs_is_no_kill_and_the_next_one_runs() -> None:
    file = "triton_kernels/ops/square.py"
    endless = planted(file, FORMULA, "while True: pass")
    wrong = planted(file, FORMULA, "return x")
    assert [trial.end for trial in tried(endless, wrong, seconds=4)] == ["timed out", "killed"]


def test_slow_cases_share_a_limit() -> None:
    """None of them takes long by itself."""
    slow = planted(
        "triton_kernels/ops/square.py", FORMULA, "import time; time.sleep(3); return x * x"
    )
    plan = Plan(["square"], most=40, limit=8)
    (trial,) = planting.run([slow], plan, jobs=1)
    assert trial.end == "timed out"
    assert trial.seconds < 60


@needs_host
def test_ends_of_a_cuda_mutant() -> None:
    line = "  store<C>(out, out.offset(i), v * v);\n"
    wild = line + "  *reinterpret_cast<volatile int*>(8) = 1;\n"
    removed, crash, broken = tried(
        *(planted(SQUARE, line, new) for new in ("", wild, line.replace("v * v", "v * w")))
    )
    assert removed.end == "killed"
    assert "--impl cuda-host" in removed.by
    assert crash.end == "killed"
    assert "SIGSEGV" in crash.says
    assert broken.end == "did not compile"
    assert "could not build square.cu" in broken.says


@needs_host
def test_what_reads_beside_an_operand_is_seen_by_address_sanitizer() -> None:
    """Its results are right."""
    line = "  const C v = load<C>(x, x.offset(i));\n"
    (trial,) = tried(planted(SQUARE, line, line + "  volatile C beside = load<C>(x, -1);\n"))
    assert (trial.end, trial.says) == ("killed", "AddressSanitizer: heap-buffer-overflow")
    assert trial.by.startswith("python -m compare check square")
    assert trial.by.endswith("--impl cuda-host --sanitize address")


def test_without_a_sanitizer_a_survivor_stays_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_sanitizer(kind: str) -> dict[str, str]:
        raise BuildError(f"g++ has no lib{kind}.so")

    same = replace(mutant_of("a = b", "a = c"), side="cuda")
    survived = Trial(same, "survived")
    monkeypatch.setattr(planting, "sanitizer_environment", no_sanitizer)
    monkeypatch.setattr(planting, "try_one", lambda *_: survived)
    plan = Plan(["square"], modes=("cuda-host",))
    assert list(planting.run([same], plan, jobs=1)) == [survived]
    assert "not run: AddressSanitizer: g++ has no libaddress.so" in capsys.readouterr().err


def test_a_planted_fault_stays_in_its_copy(tmp_path: Path) -> None:
    planting.copy(tmp_path)
    assert (tmp_path / FLAT).read_bytes() == (ROOT / FLAT).read_bytes()
    before = (ROOT / FLAT).read_bytes()
    (trial,) = tried(planted(FLAT, "out_ptr + start + lane, tl", "out_ptr + start + 1 + lane, tl"))
    assert trial.end == "killed"
    assert (ROOT / FLAT).read_bytes() == before


# ---- what is explained ----

ENTRY = """
[[survivor]]
file = "x.py"
function = "kernel"
statement = "a = b + c"
mutant = "a = b"
reason = "equivalent"
because = "c is 0."
"""


def mutant_of(line: str, new: str) -> Mutant:
    return Mutant("triton", "x.py", "kernel", Edit("planted", 0, len(line), new), line + "\n")


def test_entries(tmp_path: Path) -> None:
    file = tmp_path / "explained.toml"
    file.write_text(ENTRY)
    (entry,) = explained.read(file)
    assert entry.covers(mutant_of("a  =  b + c", "a = b"))  # by their words, not their blanks
    assert not entry.covers(mutant_of("a = b + c", "a = c"))
    assert explained.explanation(mutant_of("a = b + c", "a = c"), [entry]) is None
    everything = Explanation("x.py", "kernel", "speed", "Tiles.")
    assert everything.covers(mutant_of("a = b + c", "a = c"))
    assert Explanation("x.py", "kernel", "gpu", "2³¹.", kind="planted").covers(mutant_of("a", "b"))
    assert not Explanation("x.py", "kernel", "gpu", "2³¹.", kind="NaN").covers(mutant_of("a", "b"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"equivalent"', '"because"', "one of equivalent, speed, accuracy, gpu"),
        ('because = "c is 0."', 'because = ""', "one of equivalent, speed, accuracy, gpu"),
        ('statement = "a = b + c"\n', "", "both statements, or none"),
        ("function", "functoin", "functoin"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = tmp_path / "explained.toml"
    file.write_text(ENTRY.replace(old, new))
    with pytest.raises(ValueError, match=says):
        explained.read(file)


def test_stale_entries() -> None:
    there, other = mutant_of("a = b + c", "a = b"), mutant_of("a = b + c", "a = c")
    entry = Explanation("x.py", "kernel", "equivalent", "Zero.", *there.statement)
    gone = Explanation("x.py", "gone", "equivalent", "Zero.", *there.statement)
    at_times = [
        Explanation("x.py", "kernel", reason, "64 bits.", *there.statement)
        for reason in ("gpu", "timing")
    ]
    assert explained.stale([entry, gone], [there, other]) == [gone]
    assert explained.stale([entry], [there, other], survivors=[other]) == [entry]
    assert explained.stale([entry], [there, other], survivors=[there]) == []
    assert explained.stale(at_times, [there, other], survivors=[other]) == []


def test_the_score_leaves_out_what_is_explained() -> None:
    there, other = mutant_of("a = b + c", "a = b"), mutant_of("a = b + c", "a = c")
    entry = Explanation("x.py", "kernel", "equivalent", "Zero.", *there.statement)
    survived = [Trial(there, "survived"), Trial(other, "killed"), Trial(other, "timed out")]
    report = Report(survived, [entry], {})
    assert report.passed
    assert report.score == 1.0
    worse = Report([*survived, Trial(other, "survived")], [entry], {})
    assert not worse.passed
    assert worse.score == 0.5
    assert worse.to_dict()["rows"][0]["explained"]["reason"] == "equivalent"
    ends = {"explained": 1, "killed": 1, "timed out": 1, "survived": 1}
    assert worse.to_dict()["files"] == {"x.py": ends}
    left = [row["end"] for row in worse.summary()["rows"]]
    assert left == ["survived", "timed out", "survived"]


def test_the_entries_are_of_mutants_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        availability, "here", lambda **_: ""
    )  # so that Gluon's are in the population
    mutants = population.population(["triton", "cuda"], list(SPECS))
    assert explained.stale(explained.read(), mutants) == []


def test_nothing_to_try() -> None:
    assert list(planting.run([], Plan(["square"]), jobs=2)) == []


# ---- the command ----


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mutate.json"
    words = ["mutate", "square", "--side", "triton", "--sample", "2", "--seed", "1", "--jobs", "1"]
    words += ["--most", "8"]  # a survivor would run all cases
    done = CliRunner().invoke(app, [*words, "--json", str(file)])
    found = json.loads(file.read_text())
    assert done.exit_code == (0 if found["passed"] else 1), done.output
    assert len(found["rows"]) == 2
    # Which two it draws depends on the sources, and so does how they end.
    ends = [row["end"] for row in found["rows"]]
    assert found["ends"] == {end: ends.count(end) for end in planting.ENDS}
    left = [row for row in found["rows"] if row["end"] == "survived" and not row["explained"]]
    killed = ends.count("killed")
    assert found["score"] == killed / max(1, killed + len(left))
    assert found["passed"] == (not left)
    assert done.output.splitlines()[-1].startswith(f"score {100 * found['score']:.1f} %")

    # Gone on with: what the file has is not tried again; its rows are believed.
    assert not found["interrupted"]
    kept, *_ = found["rows"]
    kept["says"] = "as the file has it"
    file.write_text(json.dumps(found | {"rows": [kept]}))
    words += ["--json", str(file), "--resume"]
    CliRunner().invoke(app, words)
    again = json.loads(file.read_text())["rows"]
    assert [row["mutant"] for row in again] == [row["mutant"] for row in found["rows"]]
    assert [row["says"] == kept["says"] for row in again] == [True, False]

    # Not with trials of other sources.
    file.write_text(json.dumps(found | {"sources": "others"}))
    refused = CliRunner().invoke(app, words, env={"TERM": "dumb", "COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "of other sources" in refused.output


def test_stopped_by_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has ended is kept, and nothing is said to have passed."""
    mutants = [mutant_of("a = b + c", new) for new in ("a = b", "a = c")]

    def stopped(*_: object) -> Iterator[Trial]:
        yield Trial(mutants[1], "killed")
        raise KeyboardInterrupt

    monkeypatch.setattr(planting, "run", stopped)
    report = tables.run(mutants, Plan(["square"]), 1, [])
    assert [trial.mutant for trial in report.trials] == [mutants[1]]
    assert report.interrupted
    assert not report.passed


def test_a_trial_has_one_thread(tmp_path: Path) -> None:
    """Trials run side by side: a thread for each core in each of them would be too many."""
    (tmp_path / "threads.py").write_text("import torch\nprint(torch.get_num_threads())\n")
    nursery = Nursery()
    try:
        said = tmp_path / "output"
        request = {"folder": str(tmp_path), "output": str(said), "environment": {}}
        assert nursery.run(60, **request, words=["threads"]) == 0
        assert said.read_text() == "1\n"
    finally:
        nursery.close()


def test_stopped_after_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants = [mutant_of("a = b + c", new) for new in ("a = b", "a = c")]
    monkeypatch.setattr(planting, "run", lambda *_: (Trial(each, "killed") for each in mutants))
    report = tables.run(mutants, Plan(["square"]), 1, [], seconds=1e-9)
    assert [trial.mutant for trial in report.trials] == mutants[:1]
    assert report.interrupted
    assert not tables.run(mutants, Plan(["square"]), 1, [], seconds=600).interrupted


def test_one_that_cannot_be_tried_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutants = [mutant_of("a = b + c", new) for new in ("a = b", "a = c")]

    def try_one(mutant: Mutant, plan: Plan, nursery: Nursery) -> Trial:
        if mutant == mutants[0]:
            raise OSError("no room")
        return Trial(mutant, "killed")

    monkeypatch.setattr(planting, "try_one", try_one)
    report = tables.run(mutants, Plan(["square"]), 1, [])
    assert [trial.mutant for trial in report.trials] == mutants[1:]
    assert report.interrupted  # --resume goes on with it
    assert "not tried: x.py:1 kernel: planted: OSError('no room')" in capsys.readouterr().err


def test_what_has_ended_is_kept_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants = [mutant_of("a = b + c", new) for new in ("a = b", "a = c")]
    monkeypatch.setattr(planting, "run", lambda *_: (Trial(each, "killed") for each in mutants))
    monkeypatch.setattr(tables, "KEEP", 0)
    kept: list[tuple[int, bool]] = []
    tables.run(
        mutants,
        *(Plan(["square"]), 1, []),
        keep=lambda report: kept.append((len(report.trials), report.interrupted)),
    )
    assert kept == [(1, True), (2, False)]


def test_what_is_left_to_a_gpu() -> None:
    mutants = [mutant_of("a = b + c", f"a = {n}") for n in range(5)]
    killed, survived, on_a_gpu, equivalent, untried = mutants
    known = [
        Explanation("x.py", "kernel", reason, "It is.", *mutant.statement)
        for mutant, reason in ((on_a_gpu, "gpu"), (equivalent, "equivalent"))
    ]
    ends = {killed: "killed", survived: "survived", on_a_gpu: "survived", equivalent: "survived"}
    before = Report([Trial(mutant, end) for mutant, end in ends.items()], known, {}).to_dict()
    assert tables.left_over(before, mutants, known) == [survived, on_a_gpu, untried]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "no op 'nothing'"),
        (["--side", "left"], "--side left"),
        (["--sample", "0"], "--sample"),
        (["--jobs", "0"], "--jobs"),
        (["--resume"], "--json FILE"),
        (["--after", "nowhere.json"], "nowhere.json"),
    ],
)
def test_usage(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["mutate", *words], env={"TERM": "dumb", "COLUMNS": "200"})
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.parametrize(
    ("level", "words", "refused"),
    [("quick", [], False), ("quick", ["--full"], False), ("full", [], True)],
)
def test_after_a_file_of_some_level(
    tmp_path: Path, level: str, words: list[str], refused: bool
) -> None:
    """What quick cases left may be tried with all. The file has every mode there is here, so that
    nothing runs."""
    file = tmp_path / "before.json"
    content = {"sources": planting.digest(), "level": level, "modes": planting.available()}
    file.write_text(json.dumps({**content, "rows": []}))
    words = ["mutate", "square", "--after", str(file), *words]
    done = CliRunner().invoke(app, words, env={"TERM": "dumb", "COLUMNS": "400"})
    assert done.exit_code == 2
    assert ("of other level" in done.output) is refused
    assert ("not run: triton: " in done.output) is not refused
