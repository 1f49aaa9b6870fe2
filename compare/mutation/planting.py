"""A mutant in a copy of the packages, and what the check there makes of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compare.checking.implementations import MODES, unavailable
from compare.mutation import lines, nurseries, of_targets
from compare.mutation.lines import Lines
from compare.mutation.mutant import PACKAGES, ROOT, Edit, Mutant
from compare.mutation.nurseries import Nursery
from compare.mutation.population import GLUON, is_target, judges
from compare.mutation.reach import CSRC
from compare.mutation.trial import LINED, TOO_LONG
from compare.ops import CUDA, sources

SECONDS = 600  # for all that is tried with one mutant
ENDS = ("killed", "survived", "timed out", "did not compile")


@dataclass(frozen=True)
class Trial:
    """How the check ended: one of ENDS, what it said, and the case that says it again."""

    mutant: Mutant
    end: str
    says: str = ""
    by: str = ""
    cases: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What is tried with a mutant: the ops in question, at a level, ``most`` cases of them, each
    for so many seconds."""

    ops: list[str]
    level: str = "quick"
    most: int | None = None
    seconds: float = 20.0  # of its process; no case takes one on the CPU, compilers some on a GPU
    modes: tuple[str, ...] = field(default_factory=lambda: available())
    lines: Lines | None = None  # what each case executes, where that was recorded

    def request(self, mutant: Mutant) -> str:
        """The arguments of compare.mutation.trial."""
        ops = judges(mutant, self.ops)
        return json.dumps(
            {
                "ops": ops,
                "modes": [mode for mode in self.modes if _sees(mode, mutant)],
                "level": self.level,
                "most": self.most,
                "kernel": mutant.kernel,
                "seconds": self.seconds,
                "numbers": self.lines and self.lines.reaching(mutant, ops),
            }
        )


def _sees(mode: str, mutant: Mutant) -> bool:
    """Whether the mutant runs in a mode."""
    side, device = MODES[mode]
    return side == mutant.side and (device == "cuda" or not mutant.file.startswith(GLUON))


def available() -> tuple[str, ...]:
    """The modes that run here, those on the CPU first: they take less and say more."""
    reasons = unavailable()
    return tuple(sorted((m for m in MODES if m not in reasons), key=lambda m: MODES[m][1]))


def run(mutants: list[Mutant], plan: Plan, jobs: int) -> Iterator[Trial]:
    """Every mutant's trial, in the order in which they end."""
    if mutants:
        jobs = min(jobs, len(mutants))
        ended = nurseries.each(lambda each, nursery: _tried(each, plan, nursery), mutants, jobs)
        yield from filter(None, ended)


def _tried(mutant: Mutant, plan: Plan, nursery: Nursery) -> Trial | None:
    """Its trial; None where there was none, which shall not take the others along."""
    try:
        return try_one(mutant, plan, nursery)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is said
        print(f"not tried: {mutant}: {error!r}", file=sys.stderr, flush=True)
        return None


def recorded(plan: Plan, mutants: list[Mutant], jobs: int) -> Plan:
    """The plan with the lines that cases execute, where they are worth their time."""
    if LINED not in plan.modes:
        return plan
    return replace(plan, lines=lines.record(mutants, plan.level, jobs))


def healthy(sides: list[str], plan: Plan) -> str:
    """Why mutants cannot be judged; "" where they can.

    Nothing is planted, which a few cases of every op must survive; then in a target a line that no
    compiler takes, which none may survive: else its functions are not made of the copy.
    """
    nothing = [edit for side in sides for edit in _nothing(side, plan.ops)]
    for trial in run(nothing, replace(plan, most=FEW), len(sides)):
        if trial.end != "survived":
            return f"the kernels fail before anything is planted: {trial.end}: {trial.says}"
    for side in sides:
        for op in filter(is_target, plan.ops):
            trials = list(_until_noticed(_nonsense(op, side), replace(plan, most=1)))
            if trials and trials[-1].end == "survived":
                return (
                    f"faults would not be seen: {op} runs, whatever stands in the copy of "
                    f"{trials[0].mutant.file}. Is a folder's absolute path in sys.path or in "
                    f"load()? Path(__file__) is the copy's"
                )
    return ""


FEW = 12


def _nothing(side: str, ops: list[str]) -> Iterator[Mutant]:
    """Edits that change nothing: in the file that most ops are made of, and in one of a target."""
    nothing = Edit("nothing", 0, 0, "")
    if not all(map(is_target, ops)):
        file = {"triton": "triton_kernels/_elementwise.py", "cuda": f"{CSRC}/elementwise.cuh"}[side]
        text = (ROOT / file).read_text(encoding="utf-8")
        yield Mutant(side, file, "", nothing, text)
    for op in filter(is_target, ops):
        for mutant in of_targets.mutants(op, [side])[:1]:
            yield replace(mutant, function="", edit=nothing)


def _nonsense(op: str, side: str) -> list[Mutant]:
    """An edit of each file of a target that leaves it in no language; not of Python files that it
    does not import."""
    edit = Edit("nonsense", 0, 0, "#error planted\n)\n")
    first = {mutant.file: mutant for mutant in reversed(of_targets.mutants(op, [side]))}
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    root, _ = sources(op)
    every = [replace(mutant, function="", edit=edit) for mutant in first.values()]
    return [m for m in every if side == "cuda" or str(root / m.file) in imported]


def _until_noticed(mutants: list[Mutant], plan: Plan) -> Iterator[Trial]:
    for mutant in mutants:
        for trial in run([mutant], plan, 1):
            yield trial
            if trial.end != "survived":
                return


def try_one(mutant: Mutant, plan: Plan, nursery: Nursery) -> Trial:
    """Plant it, check, and say how that ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy(folder)
        for op in filter(is_target, plan.ops):
            copy_target(folder, op, mutant)
        planted = folder / mutant.file
        planted.unlink()  # it is a link to the file itself
        planted.write_text(mutant.mutated, encoding="utf-8")
        environment = {}
        if mutant.side == "cuda" or not all(map(is_target, plan.ops)):
            (folder / "libraries").mkdir(mode=0o700)
            environment["CUDA_REFERENCE_CACHE"] = str(folder / "libraries")
            environment["CUDA_REFERENCE_LIBRARIES"] = ""  # they are of other sources
        said = folder / "output"
        status = nursery.run(
            SECONDS,
            folder=name,
            output=str(said),
            environment=environment,
            words=["compare.mutation.trial", plan.request(mutant)],
        )
        output = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    seconds = time.monotonic() - began
    try:
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        says = " ".join(answer.get("says", []))
        return Trial(
            mutant, answer["end"], says, answer.get("by", ""), answer.get("cases", 0), seconds
        )
    except (IndexError, KeyError, TypeError, ValueError):
        pass
    last = output.splitlines()[-1] if output.splitlines() else ""
    if status is None or -status in TOO_LONG:
        return Trial(mutant, "timed out", last, seconds=seconds)
    if status < 0:
        return Trial(mutant, "killed", f"ended by {signal.Signals(-status).name}", seconds=seconds)
    return Trial(mutant, "did not compile", last, seconds=seconds)


def digest() -> str:
    """A digest of everything that a trial depends on: the packages' sources."""
    whole = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".h"):
                whole.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def copy(folder: Path, root: Path = ROOT) -> None:
    """The packages, their files linked where the file system can."""
    ignored = shutil.ignore_patterns("*.pyc.*")  # that another process is writing
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=ignored, copy_function=_link)


def copy_target(folder: Path, op: str, mutant: Mutant) -> None:
    """What belongs to a target. Where the fault is in a Triton kernel the CUDA sources are links,
    which are followed: their library is built."""
    root, own = sources(op)
    for file in own:
        new = folder / file
        new.parent.mkdir(parents=True, exist_ok=True)
        if new.exists():
            continue  # of two targets
        if mutant.side == "triton" and file.endswith(CUDA):
            new.symlink_to(root / file)
        else:
            _link(str(root / file), str(new))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
