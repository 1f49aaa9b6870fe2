"""``python -m compare bench --sample``: random problems, and the distributions of ratios."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import typer

from compare.commands.options import read_options
from compare.ops import SPECS
from compare.specs import Spec
from compare.timing import (
    configurations,
    distributions,
    providers,
    sample_tables,
    sampling,
    scores,
    tables,
)
from compare.timing import regret as regrets
from compare.timing.bench import Work
from compare.timing.results import CaseResult
from compare.timing.sampling import Job
from compare.timing.session import Session

USUAL = ("triton", "peers")  # the providers of a sample by default


def jobs(
    specs: Sequence[Spec],
    wanted: list[str],
    dtypes: list[str],
    count: int,
    seed: int,
    regret: bool = False,
    arg: list[str] | None = None,
) -> list[Job]:
    """The problems with their providers, or with our configurations; equal for equal seeds. Options
    given by ``arg`` replace drawn ones."""
    given = {spec.name: read_options(spec, arg) for spec in specs}
    drawn: list[Job] = []
    for work in sampling.work(specs, dtypes, count, seed):
        case = dataclasses.replace(work.case, options={**work.case.options, **given[work.case.op]})
        if reason := work.spec.refuses(case):
            raise typer.BadParameter(f"no case {case}: {reason}")
        names = providers.names(work.spec, case, wanted or USUAL, sweep=True)
        drawn.append((work._replace(case=case), names))
    if not drawn:
        raise typer.BadParameter("--sample: none of these has problems of these dtypes to be drawn")
    return of_configurations(drawn) if regret else [job for job in drawn if job[1]]


def of_configurations(jobs: Sequence[Job]) -> list[Job]:
    """The jobs with all configurations of a product instead of its providers."""
    return [(work, [configurations.NAME]) for work, _ in jobs]


def configured(specs: list[Spec], named: list[str], chosen: bool, wanted: list[str]) -> list[Spec]:
    """The ops whose configurations --regret times."""
    if not chosen:
        raise typer.BadParameter("--regret needs problems: --sample or --shapes")
    if wanted:
        raise typer.BadParameter("--regret times our configurations, and no --providers")
    timed = [spec for spec in specs if spec.configured]
    if not timed or (named and len(timed) < len(specs)):
        names = ", ".join(spec.name for spec in SPECS.values() if spec.configured)
        raise typer.BadParameter(f"--regret is for ops with configurations to choose: {names}")
    return timed


def dry_run(jobs: Sequence[Job]) -> None:
    """Print what would be timed."""
    sample_tables.problems(jobs, tables.console())


def run(
    jobs: Sequence[Job], session: Session, results: list[CaseResult], regret: bool = False
) -> None:
    """Compile, then measure with a progress bar; saved problems are not measured again."""
    out = tables.console()
    with tables.progress(out) as progress:
        task = progress.add_task("what the device can do", total=len(jobs))
        out.print(tables.heading(session.ceilings, session.saved.head["state_before"]))
        unknown = [work for work, _ in jobs if session.known(work) is None]
        compiling = progress.add_task("compiling", total=len(unknown))
        for said in sampling.compile_first(jobs, session, lambda: progress.advance(compiling)):
            out.print(f"compiling: {said}", markup=False)
        progress.remove_task(compiling)

        def tick(work: Work, name: str) -> None:
            what = f"{work.case.op} {work.stratum}: {name}"
            progress.update(task, description=what)

        def done(left: int) -> None:
            measured = progress.tasks[0].completed + 1
            progress.update(task, completed=measured, total=measured + left)

        doubtful = regrets.doubtful if regret else distributions.doubtful
        sampling.run(jobs, session, results, doubtful, tick, done)


def tell(session: Session, results: Sequence[CaseResult], regret: bool = False) -> None:
    """Print the distributions and which scores are right, and save both in the file's head."""
    if regret:
        figures = [each.to_dict() for each in regrets.standings(results)]
    else:
        figures = [
            standing.to_dict()
            for provider in distributions.JUDGED
            for standing in distributions.standings(results, provider)
        ]
    session.saved.head["strata"] = figures
    judged = [] if regret else scores.standings(results, measured=True)
    session.saved.head["scores"] = [each.to_dict() for each in judged]
    session.saved.write()
    out = tables.console()
    (sample_tables.regrets if regret else sample_tables.distribution)(out, results)
    sample_tables.scores(out, judged)
    failed = {
        f"{entry.provider}: {entry.problem}": result.case
        for result in results
        for entry in result.entries
        if entry.failed
    }
    for problem, case in failed.items():
        again = distributions.replay(case, *(["--regret"] if regret else []))
        out.print(f"{problem}\n  {again}", style="yellow", soft_wrap=True, markup=False)
