"""Plants a mutant in a copy of the packages, and runs the check there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
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
from compare.mutation.trial import CASE, LINED, NO_CASE, TOO_LONG
from compare.ops import CUDA, sources
from cuda_reference._compilers import BuildError, sanitizer_environment

SECONDS = 600  # for all cases that are tried with one mutant
ENDS = ("killed", "survived", "timed out", "did not compile")


@dataclass(frozen=True)
class Trial:
    """The end of a check: one of ENDS, its message, and the command line that repeats it."""

    mutant: Mutant
    end: str
    says: str = ""
    by: str = ""
    cases: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What is tried with a mutant: these ops at this level, at most ``most`` cases, and the limits
    of time: ``seconds`` for a case, ``limit`` for all of them."""

    ops: list[str]
    level: str = "quick"
    most: int | None = None
    seconds: float = 20.0  # of CPU time; no case takes 1 s on the CPU, but GPU compilers take some
    modes: tuple[str, ...] = field(default_factory=lambda: available())
    lines: Lines | None = None  # the lines that each case executes, if recorded
    limit: float = SECONDS

    def request(self, mutant: Mutant) -> str:
        """The arguments of compare.mutation.trial."""
        ops = judges(mutant, self.ops)
        return json.dumps(
            {
                "ops": ops,
                "modes": self._modes(mutant),
                "level": self.level,
                "most": self.most,
                "kernel": mutant.kernel,
                "seconds": self.seconds,
                "numbers": self.lines and self.lines.reaching(mutant, ops),
                "variant": "gluon" if mutant.file.startswith(GLUON) else None,  # no other runs it
                "file": mutant.file,
            }
        )

    def reached_by_none(self, mutant: Mutant) -> bool:
        """Whether no case of its target executes the statement, in the only mode."""
        ops = judges(mutant, self.ops)
        if self.lines is None or self._modes(mutant) != [LINED] or not all(map(is_target, ops)):
            return False
        numbers = self.lines.reaching(mutant, ops)
        return numbers is not None and not any(numbers.values())

    def _modes(self, mutant: Mutant) -> list[str]:
        return [mode for mode in self.modes if _sees(mode, mutant)]


def _sees(mode: str, mutant: Mutant) -> bool:
    """Whether the mutant runs in a mode."""
    side, device = MODES[mode]
    return side == mutant.side and (device == "cuda" or not mutant.file.startswith(GLUON))


def available() -> tuple[str, ...]:
    """The modes that run here, those on the CPU first: they take less time and report more."""
    reasons = unavailable()
    return tuple(sorted((m for m in MODES if m not in reasons), key=lambda m: MODES[m][1]))


def run(mutants: list[Mutant], plan: Plan, jobs: int) -> Iterator[Trial]:
    """Every mutant's trial, in the order of completion."""
    if mutants:
        variables = _sanitizer() if SANITIZED in plan.modes else {}
        jobs = min(jobs, len(mutants))
        ended = nurseries.each(
            lambda each, nursery: _tried(each, plan, nursery, variables), mutants, jobs
        )
        yield from filter(None, ended)


SANITIZED = "cuda-host"  # the mode that AddressSanitizer watches


def _sanitizer() -> dict[str, str]:
    """The variables of a process with AddressSanitizer; none if it cannot be had."""
    try:
        return sanitizer_environment("address")
    except BuildError as error:
        print(f"not run: AddressSanitizer: {error}", file=sys.stderr, flush=True)
        return {}


def _tried(
    mutant: Mutant, plan: Plan, nursery: Nursery, variables: Mapping[str, str]
) -> Trial | None:
    """The mutant's trial. None if it failed to run, so that the others go on.

    What survives in a CUDA source is tried again under AddressSanitizer: where a kernel reads what
    is not its own, its results may be right.
    """
    try:
        trial = try_one(mutant, plan, nursery)
        if trial.end == "survived" and mutant.side == "cuda" and variables:
            again = replace(plan, modes=(SANITIZED,))
            watched = try_one(mutant, again, nursery.beside(variables))
            return watched if watched.end == "killed" else trial
        return trial
    except Exception as error:  # noqa: BLE001 - any error is printed
        print(f"not tried: {mutant}: {error!r}", file=sys.stderr, flush=True)
        return None


def recorded(plan: Plan, mutants: list[Mutant], jobs: int) -> Plan:
    """The plan with the lines that cases execute, if recording them pays."""
    if LINED not in plan.modes:
        return plan
    return replace(plan, lines=lines.record(mutants, plan.level, jobs, plan.lines))


def recorded_targets(plan: Plan, mutants: list[Mutant]) -> Plan:
    """The plan with the lines that the cases of targets execute in the interpreter."""
    known = Lines()
    for op in filter(is_target, plan.ops) if LINED in available() else ():
        own = [each for each in mutants if each.side == "triton" and each.file in sources(op)[1]]
        if not own:
            continue
        with tempfile.TemporaryDirectory(prefix="lines-") as folder:
            copy(Path(folder))
            copy_target(Path(folder), op, own[0])
            files = sorted({mutant.file for mutant in own})
            try:
                more = lines.record_target(op, files, plan.level, folder)
            except RuntimeError as error:  # then every mutant is tried
                last = str(error).strip().splitlines()[-1]
                print(f"which lines {op} executes is not known: {last}", file=sys.stderr)
                return plan
        for file, executed in more.imported.items():
            known.imported.setdefault(file, set()).update(executed)
        known.masks.update(more.masks)
    return replace(plan, lines=known) if known.masks else plan


def healthy(sides: list[str], plan: Plan) -> str:
    """Why mutants cannot be judged; "" if they can.

    A few cases of every op must pass on an unchanged copy. A target must also fail with a line that
    no compiler accepts; otherwise its functions are not made from the copy.
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
    """Edits that change nothing: in the file that most ops use, and in one of each target."""
    nothing = Edit("nothing", 0, 0, "")
    if not all(map(is_target, ops)):
        file = {"triton": "triton_kernels/_elementwise.py", "cuda": f"{CSRC}/elementwise.cuh"}[side]
        text = (ROOT / file).read_text(encoding="utf-8")
        yield Mutant(side, file, "", nothing, text)
    for op in filter(is_target, ops):
        for mutant in of_targets.mutants(op, [side])[:1]:
            yield replace(mutant, function="", edit=nothing)


def _nonsense(op: str, side: str) -> list[Mutant]:
    """An edit of each file of a target that makes it invalid, except in Python files that it does
    not import."""
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
    """Plant the mutant, run the check, and return how it ended."""
    if plan.reached_by_none(mutant):
        return Trial(mutant, "survived", NO_CASE)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy(folder)
        for op in filter(is_target, plan.ops):
            copy_target(folder, op, mutant)
        planted = folder / mutant.file
        planted.unlink()  # it is a link to the original
        planted.write_text(mutant.mutated, encoding="utf-8")
        environment = {}
        if mutant.side == "cuda" or not all(map(is_target, plan.ops)):
            (folder / "libraries").mkdir(mode=0o700)
            environment["CUDA_REFERENCE_CACHE"] = str(folder / "libraries")
            environment["CUDA_REFERENCE_LIBRARIES"] = ""  # built from the original sources
        said = folder / "output"
        status = nursery.run(
            plan.limit,
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
    if report := re.search(r"ERROR: (AddressSanitizer: \S+)", output):
        *_, by = re.findall(rf"^{CASE}(.*)", output[: report.start()], re.M) or [""]
        return Trial(mutant, "killed", report[1], by, seconds=seconds)
    last = output.splitlines()[-1] if output.splitlines() else ""
    if status is None or -status in TOO_LONG:
        return Trial(mutant, "timed out", last, seconds=seconds)
    if status < 0:
        return Trial(mutant, "killed", f"ended by {signal.Signals(-status).name}", seconds=seconds)
    return Trial(mutant, "did not compile", last, seconds=seconds)


def digest() -> str:
    """A digest of the packages' sources, on which a trial depends."""
    whole = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".h"):
                whole.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def copy(folder: Path, root: Path = ROOT) -> None:
    """Copy the packages; files are linked if the file system supports it."""
    ignored = shutil.ignore_patterns("*.pyc.*")  # another process is writing them
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=ignored, copy_function=_link)


def copy_target(folder: Path, op: str, mutant: Mutant) -> None:
    """Copy a target's files. For a fault in a Triton kernel the CUDA sources are symbolic links,
    which are followed, so that their existing library is used."""
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
