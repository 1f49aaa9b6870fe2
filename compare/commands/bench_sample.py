"""``python -m compare bench --sample``: problems drawn at random, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from compare.specs import Spec
from compare.timing import distributions, providers, sample_tables, sampling, tables
from compare.timing.bench import Work
from compare.timing.results import CaseResult
from compare.timing.sampling import Job
from compare.timing.session import Session

USUAL = ("triton", "peers")  # whom a sample times where nobody is named


def jobs(
    specs: Sequence[Spec], wanted: list[str], dtypes: list[str], count: int, seed: int
) -> list[Job]:
    """The problems and the providers of each; the same for the same seed."""
    found = [
        (work, providers.names(work.spec, work.case, wanted or USUAL, sweep=True))
        for work in sampling.work(specs, dtypes, count, seed)
    ]
    if not found:
        raise typer.BadParameter("no op has problems of these dtypes to be drawn")
    return [(work, names) for work, names in found if names]


def dry_run(jobs: Sequence[Job]) -> None:
    """Say what would be timed."""
    sample_tables.problems(jobs, tables.console())


def run(jobs: Sequence[Job], session: Session, results: list[CaseResult]) -> None:
    """Compile, then measure, with a bar of progress; what is known is not measured again."""
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

        sampling.run(jobs, session, results, tick, done)


def tell(session: Session, results: Sequence[CaseResult]) -> None:
    """Print the distributions, and keep their figures in the file's head."""
    session.saved.head["strata"] = [
        standing.to_dict()
        for provider in distributions.JUDGED
        for standing in distributions.standings(results, provider)
    ]
    session.saved.write()
    out = tables.console()
    sample_tables.distribution(out, results)
    failed = {
        f"{entry.provider}: {entry.problem}": result.case
        for result in results
        for entry in result.entries
        if entry.failed
    }
    for problem, case in failed.items():
        out.print(f"{problem}\n  {distributions.replay(case)}", style="yellow", soft_wrap=True)
