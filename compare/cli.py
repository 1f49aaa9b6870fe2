"""The command line: ``python -m compare``, installed as ``kernel-compare``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import triton_kernels
from compare import cases, compile_printing, debugging, printing
from compare.cases import Case, Level
from compare.diagnosis import examine
from compare.implementations import MODES, applies, implementations, selected, unavailable
from compare.machine_code import SHARED_LIMIT
from compare.numerics import json_safe
from compare.specs import SPECS, Spec
from compare.subjects import Op
from cuda_reference import BuildError
from cuda_reference._compilers import sanitizer_environment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Prove Triton kernels and their CUDA twins equal, and find the wrong one.",
)


@app.callback()
def main() -> None:
    """Prove Triton kernels and their CUDA twins equal, and find the wrong one."""


@app.command()
def check(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to check; all by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes only.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Every shape; on a GPU past 2³¹ elements.")
    ] = False,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="One case of this shape: 33,129; 'scalar' for 0-d.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="One case of this memory layout.")] = None,
    values: Annotated[str | None, typer.Option(help="One case with these input values.")] = None,
    arg: Annotated[
        list[str] | None, typer.Option(help="One case with this option, e.g. alpha=2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
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
    sanitize: Annotated[
        str | None,
        typer.Option(help="CUDA on the CPU only, under a sanitizer: address, thread, undefined."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the results there.")
    ] = None,
) -> None:
    """Run every implementation of the ops against the oracle and each other.

    Exit status: 0 all right, 1 a mismatch or a required side that did not run, 2 usage.
    """
    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other")
    _check_writable(json_file)
    if sanitize is not None and os.environ.get("CROSSCHECK_SANITIZE") != sanitize:
        raise typer.Exit(_rerun_sanitized(sanitize))
    if sanitize is not None and not impl:
        impl = ["cuda-host"]
    level: Level = "quick" if quick else "full" if full else "standard"
    specs = [_spec(name) for name in ops or SPECS]
    dtypes = _listed(dtype)
    for name in dtypes:
        if name not in cases.DTYPES:
            raise typer.BadParameter(f"--dtype {name}: one of {', '.join(cases.DTYPES)}")
    reasons = unavailable()
    if exhaustive and not {"triton-compiled", "cuda-gpu"} - set(reasons):
        raise typer.BadParameter("--exhaustive needs a GPU")
    wanted = _listed(impl)
    _check_implementation_names(specs, wanted)
    required = _listed(require)
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
                    _check_dtype(spec, name)
                continue
            if asked:
                chosen = [_one_case(spec, name, seed, one)]
            else:
                chosen = [_with_seed(c, seed) for c in spec.cases(name, level)]
            work.append((spec, name, chosen))
    modes = [mode for mode in MODES if mode not in reasons]
    ways = {
        spec.name: [w for w in implementations(spec, modes) if selected(w, wanted)]
        for spec in specs
    }
    if not any(ways.values()):
        raise typer.BadParameter(f"--impl {','.join(wanted)}: not available here")
    if wanted:  # an implementation that is asked for need not be made for every op and dtype
        work = [
            (spec, name, chosen)
            for spec, name, chosen in work
            if any(applies(way, spec, c) for way in ways[spec.name] for c in chosen)
        ]
        if not work:
            raise typer.BadParameter(f"--impl {','.join(wanted)}: not made for these cases")
    try:
        report = printing.run(work, ways, reasons, required, exhaustive, limit=not asked)
    except BuildError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if json_file:
        json_file.write_text(json.dumps(json_safe(report.to_dict()), indent=1) + "\n")
    raise typer.Exit(0 if report.passed else 1)


@app.command()
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
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    impl: Annotated[
        str | None,
        typer.Option(help="As check names implementations: triton, triton-interpreted/f16x2, …"),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="A pinned variant, e.g. f16x2.")] = None,
    program: Annotated[
        str | None, typer.Option(help="Run this program again: X,Y,Z. Else the one at fault.")
    ] = None,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Also print the values of every traced tile.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write findings and the whole trace there.")
    ] = None,
) -> None:
    """Find the program and line of a Triton kernel that make a result wrong.

    Runs one case in the interpreter, maps the worst wrong element to the program that stored it,
    and runs that program again, traced. Takes the options of a check's replay line. Exit status:
    0 nothing wrong found, 1 findings, 2 usage.
    """
    _check_writable(json_file)
    spec = _spec(op)
    variant = _debugged_variant(spec, impl, variant)
    function = triton_kernels.variants(spec.name)[variant] if variant else spec.triton
    one = {"shape": shape, "layout": layout, "values": values, "arg": arg}
    if dtype is not None:
        _check_dtype(spec, dtype)
    possible = [_one_case(spec, name, seed, one) for name in ([dtype] if dtype else spec.dtypes)]
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
    subject = Op(spec, (plain or taken)[0], variant, function)
    try:
        findings = debugging.investigate(subject, wanted)
    except ValueError as error:
        raise typer.BadParameter(f"--program: {error}") from None
    typer.echo(str(findings))
    if tiles and findings.trace is not None:
        typer.echo("\n" + findings.trace.tiles())
    if json_file:
        json_file.write_text(findings.to_json(tiles) + "\n")
    raise typer.Exit(0 if findings else 1)


@app.command(name="compile")
def compile_command(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to compile; all by default.")
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(help="GPU architectures; sm_80,sm_90,sm_100 by default."),
    ] = None,
    side: Annotated[list[str] | None, typer.Option(help="Only this side: triton or cuda.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures there.")
    ] = None,
) -> None:
    """Compile every kernel for GPUs that need not be there, and show what the compilers made.

    Exit status: 0 all right; 1 a kernel does not compile, spills registers, or needs more shared
    memory than there is; 2 usage.
    """
    _check_writable(json_file)
    chosen = list(dict.fromkeys(_spec(name).name for name in ops or SPECS))
    archs = list(dict.fromkeys(_listed(arch))) or ["sm_80", "sm_90", "sm_100"]
    for name in archs:
        if name not in SHARED_LIMIT:
            raise typer.BadParameter(f"--arch {name}: one of {', '.join(SHARED_LIMIT)}")
    wanted = _listed(side)
    for name in wanted:
        if name not in ("triton", "cuda"):
            raise typer.BadParameter(f"--side {name}: triton or cuda")
    sides = [name for name in ("triton", "cuda") if name in wanted or not wanted]
    if "triton" in sides and os.environ.get("TRITON_INTERPRET") == "1":
        raise typer.BadParameter(
            "TRITON_INTERPRET=1 is set, and interpreted kernels cannot be compiled: unset it"
        )
    report = compile_printing.run(chosen, archs, sides)
    if json_file:
        json_file.write_text(json.dumps(json_safe(report.to_dict()), indent=1) + "\n")
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def doctor(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the findings there.")
    ] = None,
) -> None:
    """Say what this machine has, what is wrong with it, and what to do.

    Exit status: 0 if check can run here, 1 if a problem prevents it, 2 usage.
    """
    raise typer.Exit(examine(json_file))


def _debugged_variant(spec: Spec, impl: str | None, variant: str | None) -> str | None:
    """The Triton variant that --impl and --variant ask for; None for the default kernel."""
    if impl is not None:
        _check_implementation_names([spec], [impl])
        if not impl.startswith("triton"):
            raise typer.BadParameter(
                f"--impl {impl}: debug looks into the Triton side only, so far; for the CUDA side "
                f"there is `python -m compare check {spec.name} --sanitize address`"
            )
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


def _check_writable(file: Path | None) -> None:
    if file and (file.is_dir() or not os.access(file.absolute().parent, os.W_OK)):
        raise typer.BadParameter(f"--json {file}: cannot write there")


def _check_dtype(spec: Spec, dtype: str) -> None:
    if dtype not in cases.DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: one of {', '.join(cases.DTYPES)}")
    if dtype not in spec.dtypes:
        raise typer.BadParameter(
            f"{spec.name} has no dtype {dtype}; it has {', '.join(spec.dtypes)}"
        )


def _rerun_sanitized(kind: str) -> int:
    """This very command in a process that has the sanitizer's runtime loaded."""
    try:
        variables = sanitizer_environment(kind)
    except (ValueError, BuildError) as error:
        raise typer.BadParameter(f"--sanitize: {error}") from None
    command = [sys.executable, "-m", "compare", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


def _listed(values: list[str] | None) -> list[str]:
    """Repeated and comma-separated options as one list."""
    return [word for value in values or [] for word in value.split(",") if word]


def _spec(name: str) -> Spec:
    if name not in SPECS:
        raise typer.BadParameter(f"no op {name!r}; the ops are {', '.join(SPECS)}")
    return SPECS[name]


def _check_implementation_names(specs: list[Spec], wanted: list[str]) -> None:
    known = {
        name: way
        for spec in specs
        for way in implementations(spec, list(MODES))
        for name in (way.side, way.mode, way.name, f"{way.side}/{way.variant}")
    }
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(
                f"--impl {name}: use triton, cuda, {', '.join(MODES)}, or one of these with a "
                "variant, as in cuda-host/f16x8"
            )


def _with_seed(case: Case, seed: int) -> Case:
    return Case(case.op, case.dtype, case.shape, case.layout, case.values, seed, case.options)


def _one_case(spec: Spec, dtype: str, seed: int, one: dict[str, Any]) -> Case:
    """The case that --shape, --layout, --values and --arg describe; defaults for the rest."""
    shape = spec.default_shape
    if one["shape"] is not None:
        try:
            words = one["shape"].replace("x", ",").split(",")
            shape = () if one["shape"] == "scalar" else tuple(int(w) for w in words)
        except ValueError:
            raise typer.BadParameter(
                f"--shape {one['shape']}: sizes with commas, as 33,129"
            ) from None
        if any(n < 0 for n in shape):
            raise typer.BadParameter(f"--shape {one['shape']}: sizes are not negative")
    layout, values = one["layout"] or "contiguous", one["values"] or "normal"
    if layout not in spec.layouts:
        raise typer.BadParameter(f"--layout {layout}: one of {', '.join(spec.layouts)}")
    if values not in spec.values and not re.fullmatch(r"0x[0-9a-f]+(:0x[0-9a-f]+)?", values):
        raise typer.BadParameter(f"--values {values}: one of {', '.join(spec.values)}")
    options = dict(spec.default_options)
    for word in one["arg"] or []:
        key, equals, text = word.partition("=")
        if not equals or key not in spec.options:
            raise typer.BadParameter(
                f"--arg {word}: NAME=VALUE with one of {', '.join(spec.options) or 'no names'}"
            )
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = text
    return Case(spec.name, dtype, shape, layout, values, seed, options)
