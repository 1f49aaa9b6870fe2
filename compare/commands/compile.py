"""``python -m compare compile``: the machine code of every kernel, without a GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from compare.commands.options import (
    Targets,
    check_writable,
    listed,
    named,
    spec_named,
    write_json,
)
from compare.compiling import tables
from compare.compiling.cross_compile import ASM, Row
from compare.compiling.machine_code import SHARED_LIMIT


def compile_kernels(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to compile; all by default.")
    ] = None,
    target: Targets = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(help="GPU architectures; all by default."),
    ] = None,
    side: Annotated[list[str] | None, typer.Option(help="Only this side: triton or cuda.")] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Of 10000 drawn products everything that differs: thousands of kernels.",
        ),
    ] = False,
    asm: Annotated[
        str | None,
        typer.Option(help=f"Write this text of every kernel to --out: {', '.join(ASM)}."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for --asm.")] = Path("asm"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures there.")
    ] = None,
) -> None:
    """Compile every kernel for GPUs that need not be present, and show figures of the code.

    Exit status: 0 all right; 1 a kernel does not compile, spills registers, or needs more shared
    memory than there is, or there was none to compile; 2 usage. Of an autotuner's configurations
    one must be all right.
    """
    check_writable(json_file)
    chosen = list(dict.fromkeys(spec_named(name).name for name in named(ops, target)))
    archs = list(dict.fromkeys(listed(arch))) or list(SHARED_LIMIT)
    for name in archs:
        if name not in SHARED_LIMIT:
            raise typer.BadParameter(f"--arch {name}: one of {', '.join(SHARED_LIMIT)}")
    wanted = listed(side)
    for name in wanted:
        if name not in ("triton", "cuda"):
            raise typer.BadParameter(f"--side {name}: triton or cuda")
    sides = [name for name in ("triton", "cuda") if name in wanted or not wanted]
    if "triton" in sides and os.environ.get("TRITON_INTERPRET") == "1":
        raise typer.BadParameter(
            "TRITON_INTERPRET=1 is set, and interpreted kernels cannot be compiled: unset it"
        )
    if asm is not None and asm not in ASM:
        raise typer.BadParameter(f"--asm {asm}: one of {', '.join(ASM)}")
    report = tables.run(chosen, archs, sides, full, asm or "")
    if asm:
        typer.echo(f"{out}: {_write(report.rows, asm, out)} files")
    if json_file:
        write_json(json_file, report.to_dict())
    raise typer.Exit(0 if report.passed else 1)


def _write(rows: list[Row], kind: str, folder: Path) -> int:
    """Write the texts of all kernels, one file each; returns their number. A CUDA kernel may be in
    several rows, and has sass only."""
    texts = {}
    for row in rows:
        for side, kernel in (("triton", row.triton), ("cuda", row.cuda)):
            if kernel and kernel.asm:
                label = row.label if side == "triton" else kernel.name
                dtype = row.dtype if side == "triton" else "cuda"
                name = re.sub(r"[^\w.=×-]+", "_", f"{row.op}-{dtype}-{label}-{row.arch}")
                texts[f"{name}.{kind}"] = kernel.asm
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return len(texts)
