"""``python -m compare profile``: where an op's time goes, as tables and as files to open."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from compare.cases import Case
from compare.checking.progress import Bar
from compare.commands.options import (
    Target,
    check_writable,
    listed,
    need_gpu,
    need_gpu_memory,
    one_named,
    spec_named,
    timed_case,
    write_json,
)
from compare.profiling import counters, folder, reading, recording, tables
from compare.specs import Spec
from compare.timing import bench, providers, saved
from compare.timing.engine import Candidate
from compare.timing.tables import console


def profile(
    op: Annotated[str | None, typer.Argument(metavar="OP", help="The op to profile.")] = None,
    target: Target = None,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "--providers",
            help="Only these: cuda, eager, …; ours, peers. Default: triton,peers; all of a target.",
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Its dtype; float16 if it has that.", show_default=False)
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Its shape: 2048,2048 or M,N,K; a timed one by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the files; profile/OP if not given.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also lay the trace out for TensorBoard.")
    ] = False,
    ncu: Annotated[
        bool | None,
        typer.Option(help="Count with Nsight Compute, too. Default: where it is installed."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps to record.", min=1)] = 5,
    calls: Annotated[int, typer.Option(help="Calls of each provider in a step.", min=1)] = 10,
    ranges_only: Annotated[
        bool,
        typer.Option(
            "--ranges-only",
            help="Only run the steps, in NVTX ranges, for a profiler around this process.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures there, for a report.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; needs no GPU.")
    ] = False,
) -> None:
    """Show where an op's time goes on the GPU: kernels, launches, counters, and a trace to open.

    To compare times, use bench: a profiler makes launches slower, and here the cache is warm.
    Exit status: 0 all right; 1 a wrong result, one of ours that did not run, or no kernels in the
    trace; 2 usage; 3 no GPU, or none of its memory free.
    """
    check_writable(json_file)
    spec = spec_named(one_named(op, target))
    case = timed_case(spec, dtype, shape)
    names = _names(spec, case, listed(wanted) or ["ours" if spec.own else "triton", "peers"])
    files = out or Path("profile") / spec.file_name
    plan = _Plan(case, names, files, tensorboard, _ncu(ncu), steps, calls, json_file)
    outside = recording.started_under()
    if json_file and (ranges_only or outside):
        raise typer.BadParameter("--json has nothing to write: NVTX ranges are all that is made")
    if not ranges_only and not outside and (wrong := folder.check(files)):
        raise typer.BadParameter(f"--out {files} {wrong}")
    if dry_run:
        typer.echo(plan.told())
        return
    need_gpu("profile")
    with need_gpu_memory("profile"):
        arguments = bench.inputs(spec, case, 0)
    problems, ready = _prepared(spec, case, names, arguments)
    for name, problem in problems.items():
        typer.echo(f"{name}: {problem}", err=True)
    if outside and not ranges_only:
        typer.echo(
            f"{outside} runs this process: the steps are NVTX ranges, without torch.profiler"
        )
    if ranges_only or outside:
        recording.run_in_ranges(ready, arguments, steps, calls)
        raise typer.Exit(1 if _failed(problems) else 0)
    seen = _profiled(plan, ready, arguments, problems) if ready else False
    if ready and ncu is None and plan.ncu is None:
        typer.echo(f"no counters: {counters.MISSING}")
    raise typer.Exit(1 if _failed(problems) or not seen else 0)


class _Plan:
    """What is to be done, and the commands for it."""

    def __init__(
        self,
        case: Case,
        names: list[str],
        folder: Path,
        tensorboard: bool,
        ncu: str | None,
        steps: int,
        calls: int,
        json_file: Path | None = None,
    ) -> None:
        self.case, self.names, self.folder = case, names, folder
        self.tensorboard, self.ncu, self.json_file = tensorboard, ncu, json_file
        self.steps, self.calls = steps, calls

    def program(self, names: list[str], steps: int, calls: int) -> list[str]:
        """This command, for another profiler to run."""
        words = ["-m", "compare", "profile", *self.case.words, "--dtype", self.case.dtype]
        words += ["--shape", ",".join(map(str, self.case.shape)), "--providers", ",".join(names)]
        return [*words, "--steps", str(steps), "--calls", str(calls), "--ranges-only"]

    def nsys(self) -> str:
        """The command line for Nsight Systems. Its file goes beside the folder, which is ours."""
        report = self.folder.with_name(f"{self.folder.name}.nsys-rep")
        words = ["nsys", "profile", "--trace=cuda,nvtx", "--capture-range=cudaProfilerApi"]
        words += ["--force-overwrite=true", f"--output={report}"]
        return shlex.join([*words, "python", *self.program(self.names, self.steps, self.calls)])

    def report(self, provider: str) -> Path:
        """ncu's file."""
        return self.folder / f"{provider.replace('/', '-')}.ncu-rep"

    def trace(self) -> Path:
        """The Chrome trace."""
        return self.folder / f"{self.case.op.replace(':', '_')}.trace.json"

    def told(self) -> str:
        """The text of --dry-run."""
        name = self.names[0]
        recorded = f"{self.steps} steps of {self.calls} calls, after {recording.WAIT} that is not"
        lines = [
            f"{self.case}: {', '.join(self.names)}",
            f"torch.profiler: {recorded} recorded and {recording.WARM_UP} to warm up → "
            f"{self.trace()}",
        ]
        if self.tensorboard:
            lines.append(f"for TensorBoard → {self.folder / 'tensorboard'}")
        if self.ncu:
            program = ["python", *self.program([name], 1, 1)]
            words = counters.command("ncu", self.report(name), program, list(counters.METRICS))
            lines.append(f"Nsight Compute, for every provider as for this one: {shlex.join(words)}")
        else:
            lines.append("Nsight Compute: not asked for, or ncu is not on PATH or in CUDA_HOME/bin")
        return "\n".join([*lines, f"Nsight Systems, to run by yourself: {self.nsys()}"])

    def opened(self, counted: list[counters.Counters]) -> str:
        """Which file to open with which program."""
        files = {str(self.trace()): "https://ui.perfetto.dev or chrome://tracing"}
        if self.tensorboard:
            logs = self.folder / "tensorboard"
            files[str(logs)] = f"tensorboard --logdir {logs}  (pip install torch-tb-profiler)"
        for profile in counted:
            if profile.file:
                files[str(self.report(profile.provider))] = (
                    f"ncu-ui {self.report(profile.provider)}"
                )
        files[str(self.folder / folder.SUMMARY)] = "these figures"
        width = max(map(len, files))
        lines = ["open", *(f"  {file:<{width}}  {how}" for file, how in files.items())]
        return "\n".join(
            [*lines, "for a time line of Nsight Systems, with NVTX ranges:", f"  {self.nsys()}"]
        )


def _names(spec: Spec, case: Case, wanted: list[str]) -> list[str]:
    known = {*providers.names(spec), "ours", "peers"}
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(f"--providers {name}: {', '.join(sorted(known))}")
    names = providers.names(spec, case, wanted)
    if not names:
        raise typer.BadParameter(f"--providers {','.join(wanted)}: none takes {case}")
    return names


def _ncu(asked: bool | None) -> str | None:
    if asked is False:
        return None
    tool = counters.find()
    if asked and tool is None:
        raise typer.BadParameter(f"--ncu: {counters.MISSING}")
    return tool


def _prepared(
    spec: Spec, case: Case, names: list[str], arguments: Any
) -> tuple[dict[str, str], list[Candidate]]:
    """The candidates that run and are right, compiled and warm; and the problems of the others."""
    check, problems, ready = bench.Checker(spec, case), {}, []
    with Bar("first calls", "providers") as bar:
        for done, candidate in enumerate(providers.candidates(spec, case, names)):
            bar.describe(f"first call of {candidate.name}")
            bar.update(done, len(names))
            try:
                for _ in range(2):  # some compile at the second call
                    result = candidate.call(*arguments)
                torch.cuda.synchronize()
                problem = check(candidate, result, arguments)
            except Exception as error:  # noqa: BLE001 - a peer may raise anything; the rest go on
                problem = " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            if problem:
                problems[candidate.name] = problem
            else:
                ready.append(candidate)
    return problems, ready


def _failed(problems: dict[str, str]) -> bool:
    """Whether a result is wrong, or one of our providers did not run."""
    return any(
        not providers.is_peer(name) or problem.startswith("wrong")
        for name, problem in problems.items()
    )


def _profiled(
    plan: _Plan, ready: list[Candidate], arguments: Any, problems: dict[str, str]
) -> bool:
    """Record, count and print. Returns whether every trace has kernels."""
    names = [candidate.name for candidate in ready]
    case = plan.case
    summary: dict[str, Any] = {
        "op": case.op,
        "dtype": case.dtype,
        "shape": case.shape,
        "options": dict(case.options),
        "steps": plan.steps,
        "calls": plan.calls,
        "environment": saved.environment(),
        "problems": problems,
    }
    out = console()
    with folder.filled(plan.folder, summary) as made:
        file, logs = made / plan.trace().name, made / "tensorboard"
        with Bar("recording", "steps") as bar:
            recording.record(
                ready, arguments, file, plan.steps, plan.calls,
                logs if plan.tensorboard else None, tick=bar.update,
            )  # fmt: skip
        profiles = reading.read(json.loads(file.read_text()), names, plan.calls)
        summary["profiles"] = [profile.to_dict() for profile in profiles]
        out.print(
            f"{case}: {plan.steps} steps of {plan.calls} calls each, warm cache\n", style="bold"
        )
        out.print(tables.overview(profiles), "", tables.kernels(profiles), "")
        seen = all(profile.kernels for profile in profiles)
        if not seen:
            typer.echo(
                "torch.profiler saw no kernels of some providers: another profiler may hold CUPTI, "
                "or their work was launched by other threads",
                err=True,
            )
        counted = _counted(plan, names, made) if plan.ncu else []
        summary["counters"] = [profile.to_dict() for profile in counted]
        if counted:
            out.print(tables.counted(counted), "")
    if plan.json_file:
        write_json(plan.json_file, summary)
    typer.echo(plan.opened(counted))
    return seen


def _counted(plan: _Plan, names: list[str], made: Path) -> list[counters.Counters]:
    counted: list[counters.Counters] = []
    with Bar("Nsight Compute", "providers") as bar:
        for done, name in enumerate(names):
            bar.describe(f"Nsight Compute counts {name}")
            bar.update(done, len(names))
            program = [sys.executable, *plan.program([name], 1, 1)]
            counted.append(
                counters.count(plan.ncu or "ncu", name, program, made / plan.report(name).name)
            )
            if counted[-1].hopeless:
                break
    return counted
