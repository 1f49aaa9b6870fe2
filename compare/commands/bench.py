"""``python -m compare bench``: the times of every implementation and of other libraries."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from compare.commands import bench_host, bench_sample
from compare.commands.options import (
    MOST_SEED,
    NO_GPU,
    Targets,
    check_writable,
    drawn_case,
    dtypes_listed,
    listed,
    need_gpu,
    spec_named,
)
from compare.ops import SPECS
from compare.specs import Spec
from compare.timing import baseline as baselines
from compare.timing import bench as benchmarks
from compare.timing import nvml, providers, saved, tables, third_party
from compare.timing.bench import Mode, Work
from compare.timing.engine import Budget, DeviceLostError
from compare.timing.gpu import NoMemoryError
from compare.timing.host import Effort
from compare.timing.results import CaseResult
from compare.timing.session import Session

Job = tuple[Work, list[str]]  # a case and its providers


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="OP", help="Ops to time, all by default; --sweep's names, too."),
    ] = None,
    target: Targets = None,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "--providers", help="Only these: triton, cuda/tiled, eager, …; or ours, peers."
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None, typer.Option(help="These shapes instead: 4096,4096 or 512,4096,1024.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Every shape of these sizes: 1024,2048 are four shapes of two sizes; given twice, "
            "first sizes × second."
        ),
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="How the tensors of --shapes lie; as check's.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE, an option of the cases of --shapes or --sample; as check's."
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes.")] = None,
    sample: Annotated[
        int | None,
        typer.Option(help="So many problems of each op instead, drawn at random.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what --sample draws.", min=0, max=MOST_SEED)] = 0,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="A range of sizes instead; name sweeps beside OP to choose."),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Everything: all sweeps, max-autotune everywhere.")
    ] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="With a warm L2: the same call comes just before.")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="Time each call as the replay of a CUDA graph.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Samples of each candidate.", min=3)] = 60,
    seconds: Annotated[float, typer.Option(help="Or so many seconds of each a case.")] = 1.0,
    regret: Annotated[
        bool,
        typer.Option(
            "--regret", help="Of --sample or --shapes, time every configuration of our products."
        ),
    ] = False,
    host: Annotated[
        bool,
        typer.Option("--host", help="Time what a call costs the host instead, beside torch's."),
    ] = False,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Print each provider's first results, too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be timed; needs no GPU.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="A file of --json; slower than it means exit status 1.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="How much slower, in per cent.")] = 5.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything there, after every case.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with that file: what it has is not timed again.")
    ] = False,
) -> None:
    """Time the ops on the GPU: cold cache, random inputs, results checked, in random order.

    A ratio is the fastest peer's median over this one's, with half its 95 % interval: above 1 is
    faster. Ctrl-C keeps what is measured. Exit status: 0 all right; 1 a wrong result, one of
    ours that did not run, a regression, or a GPU that failed; 2 usage; 3 no GPU, or none of its
    memory free.
    """
    check_writable(json_file)
    words = [*(ops or []), *(target or [])]
    dtypes = dtypes_listed(dtype)
    mode, budget = Mode(cold=not warm, graph=graph), Budget(samples, seconds)
    specs, sweeps = _ops_and_sweeps(words, sweep)
    shapes = [*(shapes or []), *_grid(specs, grid or [])]
    _check_options(specs, listed(wanted), dtypes, bool(shapes), sweep, full)
    if resume and json_file is None:
        raise typer.BadParameter("--resume goes on with a file: --json FILE")
    if (layout and not shapes) or (arg and not (shapes or sample)):
        told = "--layout says what the cases of --shapes are, --arg also those of --sample"
        raise typer.BadParameter(told)
    if sample and (shapes or sweep or full):
        raise typer.BadParameter("only one of --sample, --shapes, --sweep, --full")
    if host:
        others = (shapes, sample, sweep, full, warm, graph, regret, baseline, resume, show_values)
        if any(others):
            raise typer.BadParameter("--host takes ops, --dtype, --providers, --samples and --json")
        names = bench_host.providers(listed(wanted))
        rows = bench_host.jobs(specs, dtypes, model=not words)
        if dry_run:
            for row in rows:
                typer.echo(f"{row.case}, {row.what}: {', '.join(names)}")
            return
        need_gpu("time")
        right = bench_host.run(rows, names, Effort(samples), json_file)
        raise typer.Exit(0 if right else 1)
    drawn: dict[str, Any] = {}
    if targets := [spec.name for spec in specs if spec.own]:
        drawn["targets"] = saved.of_targets(targets)
    if regret and baseline:
        raise typer.BadParameter("--baseline holds times of providers, --regret has none")
    if regret:
        specs = bench_sample.configured(specs, words, bool(sample or shapes), listed(wanted))
        drawn["regret"] = True
    if sample:
        names = [spec.name for spec in specs]
        drawn |= {"sample": sample, "seed": seed, "dtypes": dtypes, "ops": names, "arg": arg}
        jobs = bench_sample.jobs(specs, listed(wanted), dtypes, sample, seed, regret, arg)
    elif layout or arg or regret:
        one = {"layout": layout, "arg": arg}
        jobs = _replayed(specs, listed(wanted), dtypes, shapes, one)
        jobs = bench_sample.of_configurations(jobs) if regret else jobs
    else:
        jobs = _jobs(specs, listed(wanted), dtypes, shapes, sweeps, full)
    try:
        before = baselines.read(baseline, mode) if baseline else None
    except baselines.BaselineError as error:
        raise typer.BadParameter(f"--baseline {baseline}: {error}") from None
    if dry_run:
        if sample:
            bench_sample.dry_run(jobs)
        else:
            for work, names in jobs:
                typer.echo(f"{work.case}: {', '.join(names)}")
        absent = third_party.missing()  # they offer nothing for kernels from elsewhere
        if absent and not all(work.spec.own for work, _ in jobs):
            typer.echo(f"not installed: {', '.join(absent)}")
        return
    need_gpu("time")
    kept = saved.Saved(json_file, saved.head(mode, budget, listed(wanted), full, **drawn))
    out = tables.console()
    if reason := nvml.missing():
        out.print(f"clocks, power and throttling are not watched: {reason}", markup=False)
    try:
        if resume and (count := kept.resume()):
            out.print(f"{json_file}: going on after {count} cases")
    except saved.ResumeError as error:
        raise typer.BadParameter(f"--resume {error}") from None
    session, results, lost = Session(kept, mode, budget), list[CaseResult](), False
    try:
        if sample:
            bench_sample.run(jobs, session, results, regret)
        else:
            _run(jobs, session, results, show_values)
        session.end("")
    except KeyboardInterrupt:
        session.end("interrupted")
    except DeviceLostError:
        lost = True
    except NoMemoryError as error:
        typer.echo(f"nothing to time: {error}", err=True)
        raise typer.Exit(NO_GPU) from None
    if sample:
        bench_sample.tell(session, results, regret)
    else:
        out.print(tables.summary(results))
    if ended := kept.head["ended"]:
        out.print(f"{ended}: {len(results)} of {len(jobs)} cases are timed", markup=False)
    if slowed := sum(bool(result.throttled) for result in results):
        out.print(f"[yellow]the GPU was slowed in {slowed} of {len(results)} cases[/]")
    now = [result.to_dict() for result in results]
    slower = baselines.regressions(now, before, threshold / 100) if before else []
    for line in slower:
        out.print(f"[red]{line}[/]")
    failed = any(entry.failed for result in results for entry in result.entries)
    raise typer.Exit(1 if slower or failed or lost else 0)


def _ops_and_sweeps(words: list[str], sweep: bool) -> tuple[list[Spec], list[str] | None]:
    """The ops and, with --sweep, the sweeps that the words name."""
    benchmarked = [spec for spec in SPECS.values() if spec.benchmarked]
    if not sweep:
        return [spec_named(word) for word in words] or benchmarked, None
    named = [spec_named(word) for word in words if ":" in word or word in SPECS]
    known = dict.fromkeys(
        name
        for spec in [*SPECS.values(), *named]
        for name, _, _ in spec.sweeps(spec.dtypes[0], spec.default_options)
    )
    names = [word for word in words if word in known]
    for word in words:
        if word not in known and word not in SPECS and ":" not in word:
            both = f"the ops are {', '.join(SPECS)}, the sweeps {', '.join(known)}"
            raise typer.BadParameter(f"no op or sweep {word!r}; {both}")
    return named or benchmarked, names


def _check_options(
    specs: list[Spec], wanted: list[str], dtypes: list[str], shapes: bool, sweep: bool, full: bool
) -> None:
    if (shapes and (sweep or full)) or (sweep and full):
        raise typer.BadParameter("only one of --shapes, --sweep, --full (which has all sweeps)")
    known = {name for spec in specs for name in providers.names(spec)} | {"ours", "peers"}
    for name in wanted:
        if name in third_party.missing():
            raise typer.BadParameter(f"--providers {name}: it is not installed")
        if name not in known:
            raise typer.BadParameter(f"--providers {name}: {', '.join(sorted(known))}")
    own = (name for spec in specs if spec.own for name in spec.dtypes)
    timed = list(dict.fromkeys((*benchmarks.DTYPES, *own)))
    for name in dtypes:
        if name not in timed:
            raise typer.BadParameter(f"--dtype {name}: one of {', '.join(timed)}")


def _jobs(
    specs: list[Spec],
    wanted: list[str],
    dtypes: list[str],
    shapes: list[str],
    sweeps: list[str] | None,
    full: bool,
) -> list[Job]:
    """The cases, each with its providers."""
    jobs = list(benchmarks.work(specs, dtypes, [_shape(text) for text in shapes], sweeps, full))
    if not jobs:
        what = "numbers of sizes than --shapes gives" if shapes else "sweeps"
        raise typer.BadParameter(f"these ops have other {what}")
    named = [
        (work, providers.names(work.spec, work.case, wanted, full, bool(work.sweep)))
        for work in jobs
    ]
    return [(work, names) for work, names in named if names]


def _replayed(
    specs: list[Spec], wanted: list[str], dtypes: list[str], shapes: list[str], one: dict[str, Any]
) -> list[Job]:
    """The given shapes of one op, with a given layout and given options."""
    if len(specs) != 1:
        raise typer.BadParameter("--layout and --arg are for one op")
    (spec,) = specs
    cases = [
        drawn_case(spec, name, {**one, "shape": shape})
        for name in dtypes or benchmarks.DTYPES
        if name in spec.dtypes
        for shape in shapes
    ]
    named = [(Work(spec, case), providers.names(spec, case, wanted, sweep=True)) for case in cases]
    return [(work, names) for work, names in named if names]


def _run(jobs: list[Job], session: Session, results: list[CaseResult], show_values: bool) -> None:
    """Measure and print each case. The cases of a sweep are printed together at its end."""
    out = tables.console()
    progress = tables.progress(out)
    together: list[CaseResult] = []
    with progress:
        task = progress.add_task("what the device can do", total=len(jobs))
        out.print(tables.heading(session.ceilings, session.saved.head["state_before"]))
        try:
            for work, names in jobs:

                def tick(name: str, what: str = f"{work.case.op} {work.case.dtype}") -> None:
                    progress.update(task, description=f"{what} {name}")

                result = session.known(work)
                known = result is not None
                if together and _place(together[0]) != _place(work):
                    out.print(tables.sweep(together, out.width))
                    together.clear()
                result = result or session.measure(work, names, tick)
                results.append(result)
                progress.advance(task)
                if work.sweep:
                    together.append(result)
                elif not known:
                    out.print(tables.block(result, show_values))
        finally:
            if together:
                out.print(tables.sweep(together, out.width))


def _place(each: Work | CaseResult) -> tuple[str, ...]:
    return each.case.op, each.case.dtype, each.sweep


def _grid(specs: list[Spec], texts: list[str]) -> list[str]:
    """The shapes of --grid: one list of sizes for all dimensions, or a list per dimension."""
    if not texts:
        return []
    sizes = [_shape(text, "--grid") for text in texts]
    ranks = {len(spec.default_shape) for spec in specs}
    if len(sizes) > 1 and ranks != {len(sizes)}:
        told = " or ".join(map(str, sorted(ranks)))
        raise typer.BadParameter(f"--grid given {len(sizes)} times: the shapes have {told} sizes")
    every = [sizes] if len(sizes) > 1 else [sizes * rank for rank in sorted(ranks)]
    return [",".join(map(str, shape)) for each in every for shape in itertools.product(*each)]


def _shape(text: str, option: str = "--shapes") -> tuple[int, ...]:
    try:
        sizes = tuple(int(word) for word in text.replace("x", ",").split(","))
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: sizes with commas, as 4096,4096") from None
    if any(n < 1 for n in sizes):
        raise typer.BadParameter(f"{option} {text}: sizes are positive")
    return sizes
