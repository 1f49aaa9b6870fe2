"""``python -m compare debug``: from a wrong result to the program and line that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import triton_kernels
from compare.cases import Case
from compare.commands.debug_cuda import debug_cuda
from compare.commands.options import (
    MOST_SEED,
    check_dtype,
    check_implementation_names,
    check_writable,
    one_case,
    spec_named,
)
from compare.debugging import investigation
from compare.debugging.compiled import bisection
from compare.debugging.findings.findings import Findings
from compare.debugging.shrink import shrinking
from compare.debugging.shrink.reproduction import check_output
from compare.debugging.stepping import sessions
from compare.debugging.subjects import Op
from compare.specs import Spec


def debug(
    op: Annotated[str, typer.Argument(metavar="OP", help="The op to look into.")],
    dtype: Annotated[str | None, typer.Option(help="Its dtype.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="The case's shape: 33,129; 'scalar' for 0-d.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="The case's memory layout.")] = None,
    values: Annotated[str | None, typer.Option(help="The case's input values.")] = None,
    arg: Annotated[
        list[str] | None, typer.Option(help="An option of the case, e.g. alpha=2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0, max=MOST_SEED)] = 0,
    side: Annotated[
        str | None, typer.Option(help="triton, or cuda: the CUDA kernel under the tools below.")
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these of the CUDA side's tools: values, initcheck, address, undefined, "
            "thread; on a GPU memcheck, racecheck, initcheck, synccheck."
        ),
    ] = None,
    impl: Annotated[
        str | None,
        typer.Option(help="As check names implementations: triton, cuda-host/tiled, …"),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="A pinned variant, e.g. f16x2.")] = None,
    program: Annotated[
        str | None, typer.Option(help="Run this program again: X,Y,Z. Else the one at fault.")
    ] = None,
    sanitize: Annotated[
        bool,
        typer.Option(help="Look for hazards, too: what may be wrong though the result is right."),
    ] = True,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Stop in that program, at its first line and at errors.")
    ] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option("--break", metavar="FILE:LINE", help="Stop at this line of that program."),
    ] = None,
    bisect: Annotated[
        bool | None,
        typer.Option(
            help="On a GPU: precision, compiler or logic? Default: if only one of interpreted and "
            "compiled is right."
        ),
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option("--shrink", help="Find the smallest case that still fails, and write a file."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="The file that --shrink writes; reproduce_OP.py if not given."),
    ] = None,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Also print the values of every traced tile.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write findings and the whole trace there.")
    ] = None,
) -> None:
    """Find the program and line of a kernel that make a result wrong.

    Runs one case in the interpreter, maps the worst wrong element to the program that stored it,
    and runs that program again, traced; or, with --side cuda, runs the CUDA kernel under every
    tool this machine has. Takes the options of a check's replay line. Exit status: 0 nothing
    wrong found, 1 findings, 2 usage.
    """
    check_writable(json_file)
    spec = spec_named(op)
    side = _side(side, impl, tool)
    if side == "cuda":
        others: dict[str, Any] = {
            "--program": program,
            "--tiles": tiles,
            "--pdb": pdb,
            "--break": breaks,
        }
        others |= {"--bisect": bisect, "--shrink": shrink, "--output": output}
        for option, value in others.items():
            if value:
                raise typer.BadParameter(f"{option} is for the Triton side")
        one = {"shape": shape, "layout": layout, "values": values, "arg": arg}
        status = debug_cuda(spec, dtype, one, seed, impl, variant, tool, json_file)
        raise typer.Exit(status)
    variant = _debugged_variant(spec, impl, variant)
    function = triton_kernels.variants(spec.name)[variant] if variant else spec.triton
    one = {"shape": shape, "layout": layout, "values": values, "arg": arg}
    if dtype is not None:
        check_dtype(spec, dtype)
    possible = [one_case(spec, name, seed, one) for name in ([dtype] if dtype else spec.dtypes)]
    taken = [case for case in possible if spec.takes("triton", variant, case)]
    if not taken:
        raise typer.BadParameter(f"variant {variant} is not made for this case")
    plain = [case for case in taken if case.dtype == "float32"]
    try:
        wanted = None if program is None else [int(word) for word in program.split(",")]
        if wanted is not None and not 1 <= len(wanted) <= 3:
            raise ValueError
    except ValueError:
        raise typer.BadParameter(f"--program {program}: up to three numbers, as 1,0,0") from None
    case = (plain or taken)[0]
    subject = Op(spec, case, variant, function)
    try:
        session = sessions.session(pdb, breaks or [])
    except ValueError as error:
        raise typer.BadParameter(f"--break {error}") from None
    if bisect and (reason := bisection.impossible(subject)):
        raise typer.BadParameter(f"--bisect: {reason}")
    if output is not None and not shrink:
        raise typer.BadParameter("--output is for --shrink")
    if shrink:
        for option, given in {"--program": program, "--pdb": session, "--bisect": bisect}.items():
            if given:
                raise typer.BadParameter(f"{option} and --shrink exclude each other")
        file = output or Path(f"reproduce_{spec.name}.py")
        findings = _shrunk(spec, case, variant, function, sanitize, file)
    else:
        try:
            findings = investigation.investigate(
                subject, wanted, sanitize=sanitize, session=session, bisect=bisect
            )
        except ValueError as error:
            raise typer.BadParameter(f"--program: {error}") from None
    typer.echo(str(findings))
    if tiles and findings.trace is not None:
        typer.echo("\n" + findings.trace.tiles())
    if json_file:
        json_file.write_text(findings.to_json(tiles) + "\n")
    raise typer.Exit(0 if findings else 1)


def _shrunk(
    spec: Spec, case: Case, variant: str | None, function: Any, sanitize: bool, file: Path
) -> Findings:
    """The findings of the smallest case that fails; of this one, if it does not."""
    try:
        check_output(file)
    except ValueError as error:
        raise typer.BadParameter(f"--output {error}") from None
    try:
        return shrinking.shrink_case(spec, case, variant, function, sanitize, file)
    except shrinking.NothingToShrink as reason:
        findings = investigation.investigate(Op(spec, case, variant, function), sanitize=sanitize)
        findings.notes.append(str(reason))
        return findings


def _side(side: str | None, impl: str | None, tool: list[str] | None) -> str:
    """The side that --side, --impl and --tool agree on; Triton's where none says."""
    named = "cuda" if (impl or "").startswith("cuda") else "triton" if impl else None
    if side not in (None, "triton", "cuda"):
        raise typer.BadParameter(f"--side {side}: triton or cuda")
    if side and named and side != named:
        raise typer.BadParameter(f"--side {side} and --impl {impl} exclude each other")
    chosen = side or named or ("cuda" if tool else "triton")
    if tool and chosen == "triton":
        raise typer.BadParameter("--tool is for the CUDA side: --side cuda")
    return chosen


def _debugged_variant(spec: Spec, impl: str | None, variant: str | None) -> str | None:
    """The Triton variant that --impl and --variant ask for; None for the default kernel."""
    if impl is not None:
        check_implementation_names([spec], [impl])
        named = impl.partition("/")[2] or None
        if variant is not None and named not in (None, variant):
            raise typer.BadParameter(f"--impl {impl} and --variant {variant} exclude each other")
        variant = variant or named
    known = triton_kernels.variants(spec.name)
    if variant is not None and variant not in known:
        raise typer.BadParameter(
            f"--variant {variant}: {spec.name} has {', '.join(known) or 'no variants'} on the "
            "Triton side"
        )
    return variant
