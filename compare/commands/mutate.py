"""``python -m compare mutate``: plants faults in the kernels and sees whether check finds them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from compare.checking import workers
from compare.checking.implementations import MODES, unavailable
from compare.commands.options import (
    MOST_SEED,
    Targets,
    check_writable,
    listed,
    named,
    spec_named,
    write_json,
)
from compare.mutation import explained, of_targets, planting, population, tables
from compare.mutation.explained import Explanation
from compare.mutation.planting import SECONDS, Plan
from compare.ops import SPECS, elsewhere, sources


def mutate(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to mutate; all by default.")
    ] = None,
    target: Targets = None,
    side: Annotated[list[str] | None, typer.Option(help="Only this side: triton or cuda.")] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the sample that is drawn.", min=0, max=MOST_SEED)
    ] = 0,
    sample: Annotated[
        int | None,
        typer.Option(help="Only so many mutants, drawn among the unexplained ones.", min=1),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Only what that JSON file leaves to a GPU, in the modes that it did not have: "
            "survivors, unexplained or for want of one, and what it did not try.",
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(help="At most so many cases a mutant and mode, the telling ones.", min=1),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every case; on a GPU past 2³¹ elements.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="Begin no trial and wait for none after so long, as Ctrl-C does.", min=1),
    ] = None,
    limit: Annotated[
        float, typer.Option(help="Seconds for all cases of a mutant; then it timed out.", min=1)
    ] = SECONDS,
    jobs: Annotated[
        int | None, typer.Option(help="Mutants at a time; the number of cores by default.", min=1)
    ] = None,
    explained_file: Annotated[
        Path | None,
        typer.Option(
            "--explained",
            metavar="FILE",
            help="Why mutants of a target survive; explained.toml beside its module by default.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write every trial there.")
    ] = None,
    summary_file: Annotated[
        Path | None,
        typer.Option("--summary", help="Also write how many of each file, and what survived."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with that file: what it has is not tried again.")
    ] = False,
) -> None:
    """Plant faults in the kernels, one at a time, and see whether the check catches them.

    Each fault is checked with the quick cases of the ops on its side, in a copy of the packages, on
    the CPU first, until one case mismatches. A fault that takes too long or does not compile does
    not count as caught. Ctrl-C keeps the trials that have ended.

    Exit status: 0 all right; 1 a mutant survives that explained.toml does not explain, or an entry
    there is stale; 2 usage.
    """
    check_writable(json_file)
    check_writable(summary_file)
    if resume and json_file is None:
        raise typer.BadParameter("--resume goes on with a file: --json FILE")
    chosen = list(dict.fromkeys(spec_named(name).name for name in named(ops, target)))
    targets = [name for name in chosen if population.is_target(name)]
    known_of_targets = _of_targets(targets, explained_file)
    wanted = listed(side)
    for name in wanted:
        if name not in ("triton", "cuda"):
            raise typer.BadParameter(f"--side {name}: triton or cuda")
    jobs = jobs or workers.cores()
    plan = Plan(chosen, "full" if full else "quick", most, limit=limit)
    before = None
    if after is not None:
        with _refused("--after"):
            # What quick cases leave may show in others, but not the other way round.
            before = tables.load(after) if full else tables.load(after, level=plan.level)
        plan = replace(plan, modes=tuple(m for m in plan.modes if m not in before["modes"]))
    sides = []
    for name in (name for name in ("triton", "cuda") if name in wanted or not wanted):
        if any(MODES[mode][0] == name for mode in plan.modes):
            sides.append(name)
        else:
            reasons = (why for mode, why in unavailable().items() if MODES[mode][0] == name)
            reason = next(reasons, f"{after} has all that runs here")
            typer.echo(f"not run: {name}: {reason}", err=True)
    mutants, known = population.population(sides, chosen), explained.read() + known_of_targets
    if "triton" in sides and (reason := population.gluon_missing(chosen)):
        typer.echo(f"not run: {population.GLUON}: {reason}", err=True)
        known = [each for each in known if not each.file.startswith(population.GLUON)]
    others = {each for name in targets for each in of_targets.unreached(name, sides)}
    others -= {(each.file, each.function) for each in mutants}  # files of another target
    if others:
        names = _some(sorted({function for _, function in others}))
        typer.echo(f"not mutated, as {' and '.join(targets)} cannot run them: {names}", err=True)
    if not mutants:
        folders = " or ".join(sorted({str(sources(name)[0]) for name in targets}))
        where = f" in {folders}, where faults are planted: no kernel of {', '.join(targets)}"
        if away := sorted({str(file) for name in targets for file in elsewhere(name)}):
            where += f"; its CUDA sources lie elsewhere: {_some(away)}"
        raise typer.BadParameter(f"nothing to mutate{where if targets else ' here'}")
    conditions = {"level": plan.level, "modes": list(plan.modes), "most": most}
    saved = None
    if resume and json_file and json_file.exists() and json_file.stat().st_size:
        with _refused("--resume"):
            saved = tables.load(json_file, **conditions)
    if broken := planting.healthy(sides, plan):
        typer.echo(broken, err=True)
        raise typer.Exit(1)
    if targets:
        plan = planting.recorded_targets(plan, mutants)
        idle = [each for each in mutants if plan.lines and not plan.lines.run(each)]
        if idle:
            functions = dict.fromkeys((each.file, each.function) for each in idle)
            names = _some(f"{function} ({file})" for file, function in functions)
            whose = " or ".join(targets)
            typer.echo(f"not mutated, as no case of {whose} runs them: {names}", err=True)
            mutants = [each for each in mutants if each not in idle]
            others |= set(functions)
    drawn = mutants if before is None else tables.left_over(before, mutants, known)
    if sample is not None:
        unexplained = [m for m in drawn if explained.explanation(m, known) is None]
        drawn = random.Random(seed).sample(unexplained, min(sample, len(unexplained)))
        drawn.sort(key=unexplained.index)
    options = {"ops": chosen, "sides": sides, "seed": seed, "sample": sample}
    tried = {} if saved is None else tables.trials(saved, drawn)
    plan = planting.recorded(plan, [mutant for mutant in drawn if mutant not in tried], jobs)

    def keep(report: tables.Report) -> None:
        if json_file:
            write_json(json_file, report.to_dict())

    report = tables.run(drawn, plan, jobs, known, tried, seconds, keep, **options, **conditions)
    partly = bool(sample or after)
    whole = chosen == list(SPECS) and sides == ["triton", "cuda"] and not report.interrupted
    if whole:  # the entries are about the whole population
        report.stale = explained.stale(known, mutants, None if partly else report.survivors)
    if targets and not report.interrupted:
        about = [
            each
            for each in known_of_targets
            if _side(each.file) in sides and (each.file, each.function) not in others
        ]
        survivors = None if partly else report.survivors
        report.stale += explained.stale(about, mutants, survivors)
    tables.print_report(report)
    keep(report)
    if summary_file:
        write_json(summary_file, report.summary())
    raise typer.Exit(0 if report.passed else 1)


def _some(names: Iterable[str]) -> str:
    """The names in a line; of very many the first ones and a count."""
    every = list(names)
    more = len(every) - NAMED
    return ", ".join(every[:NAMED]) + (f" and {more} more" if more > 0 else "")


NAMED = 20


@contextlib.contextmanager
def _refused(option: str) -> Iterator[None]:
    """Turn an error about the file of an option into a usage error."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{option} {error}") from None


def _of_targets(targets: list[str], file: Path | None) -> list[Explanation]:
    """The explanations for survivors of targets: of the given file, or of those beside them."""
    if file is not None and not targets:
        raise typer.BadParameter("--explained is about a target's kernels: --target MODULE:SPEC")
    if file is not None and not file.is_file():
        raise typer.BadParameter(f"--explained {file}: there is no such file")
    beside = dict.fromkeys(path for path in map(explained.beside, targets) if path.is_file())
    try:
        return [entry for path in ([file] if file else beside) for entry in explained.read(path)]
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--explained {error}") from None


def _side(file: str) -> str:
    """The side to which a source belongs."""
    return "triton" if file.endswith(".py") else "cuda"
