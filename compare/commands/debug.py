"""``python -m compare debug``: from a wrong result to the program and line that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from compare.cases import Case
from compare.checking.oracles import OracleError
from compare.commands.debug_choice import case_to_debug, side_to_debug
from compare.commands.debug_cuda import check_drawable, debug_cuda
from compare.commands.options import MOST_SEED, Target, check_writable, one_named, spec_named
from compare.debugging import investigation
from compare.debugging.compiled import bisection
from compare.debugging.findings.findings import Findings
from compare.debugging.shrink import shrinking
from compare.debugging.shrink.reproduction import check_output
from compare.debugging.stepping import sessions
from compare.debugging.subjects import Op
from compare.specs import Spec


def debug(
    op: Annotated[str | None, typer.Argument(metavar="OP", help="The op to look into.")] = None,
    target: Target = None,
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
    html_file: Annotated[
        Path | None,
        typer.Option("--html", help="Also draw them there: tensors, tile, lines, one lane's way."),
    ] = None,
) -> None:
    """Find the program and line of a kernel that make a result wrong.

    Runs one case in the interpreter, maps the worst wrong element to the program that stored it,
    and runs that program again, traced. With --side cuda it runs the CUDA kernel under every tool
    that this machine has. Takes the options of a check's replay line. Exit status: 0 nothing wrong
    found, 1 findings, 2 usage.
    """
    check_writable(json_file)
    check_drawable(html_file)
    spec = spec_named(one_named(op, target))
    others: dict[str, Any] = {"--tool": tool, "--program": program, "--tiles": tiles}
    others |= {"--pdb": pdb, "--break": breaks, "--bisect": bisect}
    others |= {"--shrink": shrink, "--output": output}
    side = side_to_debug(spec, side, impl, variant, others)
    one = {"shape": shape, "layout": layout, "values": values, "arg": arg}
    variant, case = case_to_debug(spec, side, impl, variant, dtype, seed, one)
    if side == "cuda":
        raise typer.Exit(debug_cuda(case, impl, variant, tool, json_file, html_file))
    function = spec.function(side, variant)
    try:
        wanted = None if program is None else [int(word) for word in program.split(",")]
        if wanted is not None and not 1 <= len(wanted) <= 3:
            raise ValueError
    except ValueError:
        raise typer.BadParameter(f"--program {program}: up to three numbers, as 1,0,0") from None
    subject = Op(spec, case, variant, function)
    try:
        session = sessions.session(pdb, breaks or [])
    except ValueError as error:
        raise typer.BadParameter(f"--break {error}") from None
    if bisect and (reason := bisection.impossible(subject)):
        raise typer.BadParameter(f"--bisect: {reason}")
    if shrink:
        file = output or Path(f"reproduce_{spec.file_name}.py")
        findings = _shrunk(spec, case, variant, function, sanitize, file)
    else:
        try:
            findings = investigation.investigate(
                subject, wanted, sanitize=sanitize, session=session, bisect=bisect
            )
        except ValueError as error:
            raise typer.BadParameter(f"--program: {error}") from None
        except OracleError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None
    typer.echo(str(findings))
    if tiles and findings.trace is not None:
        typer.echo("\n" + findings.trace.tiles())
    if json_file:
        json_file.write_text(findings.to_json(tiles) + "\n")
    if html_file:
        html_file.write_text(findings.to_html(), encoding="utf-8")
    raise typer.Exit(0 if findings else 1)


def _shrunk(
    spec: Spec, case: Case, variant: str | None, function: Any, sanitize: bool, file: Path
) -> Findings:
    """The findings of the smallest failing case; of this case if it does not fail."""
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
