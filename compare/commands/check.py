"""``python -m compare check``: every implementation against the oracle and each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from compare import cases
from compare.cases import Case, Level
from compare.checking import printing
from compare.checking.attack import MOST, attacked
from compare.checking.budgets import Budget
from compare.checking.implementations import (
    MODES,
    applies,
    implementations,
    in_quick_level,
    selected,
    unavailable,
)
from compare.checking.oracles import OracleError
from compare.checking.scheduling import InProcess, InWorkers
from compare.checking.telling import telling_first
from compare.checking.workers import cores
from compare.commands.options import (
    MOST_SEED,
    Targets,
    check_dtype,
    check_implementation_names,
    check_writable,
    dtypes_listed,
    listed,
    named,
    one_case,
    spec_named,
    write_json,
)
from compare.specs import Spec
from cuda_reference import BuildError
from cuda_reference._compilers import sanitizer_environment

TIMEOUT = 300  # seconds; a case takes far less, even on a slow machine
SECONDS_A_STEP = 10  # the same of a step of a search, which runs a case three times


def check(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to check; all by default.")
    ] = None,
    target: Targets = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes only.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Every shape; on a GPU past 2³¹ elements.")
    ] = False,
    most: Annotated[
        int | None,
        typer.Option(help="At most so many cases of each op and dtype, the most telling.", min=1),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="One case of this shape: 33,129; 'scalar' for 0-d.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="One case of this memory layout.")] = None,
    values: Annotated[str | None, typer.Option(help="One case with these input values.")] = None,
    arg: Annotated[
        list[str] | None, typer.Option(help="One case with this option, e.g. alpha=2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0, max=MOST_SEED)] = 0,
    impl: Annotated[
        list[str] | None,
        typer.Option(help="Only these: triton, cuda, a mode (cuda-host), mode/variant."),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="Fail unless these sides or modes ran: triton,cuda."),
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="On a GPU: every float32, every 16-bit pair.")
    ] = False,
    attack: Annotated[
        int | None,
        typer.Option(
            help="From each case search so many steps for inputs with a larger error, against its "
            f"bound. By default from the {MOST} most telling cases of each op and dtype.",
            metavar="STEPS",
            min=1,
        ),
    ] = None,
    sanitize: Annotated[
        str | None,
        typer.Option(help="CUDA on the CPU only, under a sanitizer: address, thread, undefined."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="So many processes run cases, by default one a core; 1: all in this process, for "
            "a debugger.",
            min=1,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help=f"Seconds after which a case counts as hung, by default {TIMEOUT}, but not where "
            "one case is asked for.",
            min=0.001,
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Gigabytes that cases may take at a time, on the host and on a GPU; by default "
            "what is free. Larger ones are left out.",
            min=0.001,
            show_default=False,
        ),
    ] = None,
    require_all: Annotated[
        bool, typer.Option("--require-all", help="Fail if anything is left out.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the results there.")
    ] = None,
) -> None:
    """Run every implementation of the ops against the oracle and each other.

    Exit status: 0 all right, 1 a mismatch or something required that did not run, 2 usage.
    """
    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other")
    if timeout is not None and jobs == 1:
        raise typer.BadParameter("--timeout needs processes that can be ended, not --jobs 1")
    check_writable(json_file)
    if sanitize is not None and os.environ.get("CROSSCHECK_SANITIZE") != sanitize:
        raise typer.Exit(_rerun_sanitized(sanitize))
    if sanitize is not None and not impl:
        impl = ["cuda-host"]
    level: Level = "quick" if quick else "full" if full else "standard"
    specs = [spec_named(name) for name in named(ops, target)]
    dtypes = dtypes_listed(dtype)
    for name in dtypes:
        if name not in cases.DTYPES:
            raise typer.BadParameter(f"--dtype {name}: one of {', '.join(cases.DTYPES)}")
    reasons = unavailable()
    if exhaustive and not {"triton-compiled", "cuda-gpu"} - set(reasons):
        raise typer.BadParameter("--exhaustive needs a GPU")
    wanted = listed(impl)
    check_implementation_names(specs, wanted)
    required = listed(require)
    for name in required:
        if name not in {*MODES, "triton", "cuda"}:
            raise typer.BadParameter(f"--require {name}: triton, cuda or {', '.join(MODES)}")
    one = {"shape": shape, "layout": layout, "values": values, "arg": arg}
    asked = any(value is not None for value in one.values())
    work = []
    for spec in specs:
        for name in dtypes or spec.dtypes:
            if name not in spec.dtypes:
                if dtypes and len(specs) == 1:
                    check_dtype(spec, name)
                continue
            if asked:
                chosen = [one_case(spec, name, seed, one)]
            else:
                chosen = [_with_seed(c, seed) for c in spec.cases(name, level)]
            work.append((spec, name, chosen))
    modes = [mode for mode in MODES if mode not in reasons]
    candidates = {
        spec.name: [
            w
            for w in implementations(spec, modes)
            if selected(w, wanted) and (wanted or asked or not quick or in_quick_level(w, spec))
        ]
        for spec in specs
    }
    if not any(candidates.values()):
        raise typer.BadParameter(f"--impl {','.join(wanted)}: not available here")
    if wanted:  # a requested implementation need not exist for every op and dtype
        work = [
            (spec, name, chosen)
            for spec, name, chosen in work
            if any(
                applies(implementation, spec, c)
                for implementation in candidates[spec.name]
                for c in chosen
            )
        ]
        if not work:
            raise typer.BadParameter(f"--impl {','.join(wanted)}: not made for these cases")
    if attack is not None:
        work = [(spec, name, list(filter(attacked, chosen))) for spec, name, chosen in work]
        work = [each for each in work if each[-1]]
        if not work:
            raise typer.BadParameter(
                "--attack begins with --values normal, contiguous or functional"
            )
        most = most or MOST
    if most is not None:
        every = sum(len(chosen) for *_, chosen in work)
        work = [(spec, name, _telling(spec, chosen, most)) for spec, name, chosen in work]
        typer.echo(f"--most {most}: {sum(len(c) for *_, c in work)} of {every} cases", err=True)
    steps = attack or 0
    if timeout is None and not asked:
        timeout = TIMEOUT + SECONDS_A_STEP * steps
    processes = jobs or cores()
    runner = InProcess(steps) if jobs == 1 else InWorkers(processes, timeout, steps)
    budget = Budget.here(memory, processes)
    try:
        report = printing.run(
            *(work, candidates, reasons, required),
            every_input=exhaustive,
            limit=not asked,
            require_all=require_all,
            budget=budget,
            runner=runner,
        )
    except (BuildError, OracleError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if json_file:
        write_json(json_file, report.to_dict())
    raise typer.Exit(0 if report.passed else 1)


def _rerun_sanitized(kind: str) -> int:
    """Run this command again, in a process that has the sanitizer's runtime loaded."""
    try:
        variables = sanitizer_environment(kind)
    except (ValueError, BuildError) as error:
        raise typer.BadParameter(f"--sanitize: {error}") from None
    command = [sys.executable, "-m", "compare", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


def _telling(spec: Spec, cases: list[Case], most: int) -> list[Case]:
    """The ``most`` most telling cases, in their usual order."""
    kept = telling_first([(spec, case) for case in cases])[:most]
    numbers = {id(case) for _, case in kept}
    return [case for case in cases if id(case) in numbers]


def _with_seed(case: Case, seed: int) -> Case:
    return Case(case.op, case.dtype, case.shape, case.layout, case.values, seed, case.options)
