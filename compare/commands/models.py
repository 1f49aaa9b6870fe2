"""``python -m compare models``: which of a model's products the fused kernels compute, why not the
others, and what that gains."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from compare import cases
from compare.commands import models_time
from compare.commands.options import check_writable, listed, need_gpu, write_json
from compare.models.architectures import ARCHITECTURES, KEPT
from compare.models.coverage import Coverage, cover, total
from compare.models.making import named, targeted
from compare.models.timing import Request
from triton_kernels.graph.capabilities import MIN_SCORE

DTYPES = ("bfloat16", "float16", "float32")


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Some of those that --list names.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="A model of yours: a function that returns the model and its arguments.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the models named here.")] = "bfloat16",
    min_score: Annotated[
        float | None,
        typer.Option(
            help="As triton_kernels.fuse takes it: 0 by default, with --time 1.01.",
            show_default=False,
        ),
    ] = None,
    rest: Annotated[str, typer.Option(help="Who compiles the rest: eager or inductor.")] = "eager",
    training: Annotated[
        bool, typer.Option("--training", help="With gradients; with --time a step of AdamW.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Time the models on the GPU, beside torch.compile.")
    ] = False,
    layers: Annotated[
        int, typer.Option(min=1, help="With --time: layers of the models named here.")
    ] = 4,
    processes: Annotated[
        int, typer.Option(min=1, help="With --time: fresh processes for each model.")
    ] = 3,
    jobs: Annotated[
        int, typer.Option(min=1, help="With --time: so many of them compile at a time.")
    ] = 1,
    listing: Annotated[
        bool, typer.Option("--list", help="Name the models that there are.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures there.")
    ] = None,
) -> None:
    """Count the FLOPs of a model's matrix products, those in fused kernels, and why others are not.

    Needs no GPU. The models named here need the package transformers, but no weights. They are on
    the meta device, where plans are made as for an NVIDIA H200. With --time models are timed on a
    GPU, as this package's backend and as torch.compile compile them.
    Exit status: 0 counted or timed; 1 a model could not be made, traced or timed, or is wrong;
    2 usage; 3 no GPU to time on.
    """
    if listing:
        typer.echo("\n".join(ARCHITECTURES))
        return
    check_writable(json_file)
    dtype = cases.dtype_name(dtype)
    if dtype not in DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: one of {', '.join(DTYPES)}")
    wanted = listed(names)
    for name in wanted:
        if name not in ARCHITECTURES:
            raise typer.BadParameter(f"no model {name!r}; see --list, or name yours by --target")
    if not wanted and not target:
        wanted = list(ARCHITECTURES)
    if wanted and importlib.util.find_spec("transformers") is None:
        raise typer.BadParameter(
            "the models named here need transformers: install this package with its extra "
            "'models', or name a model of yours by --target"
        )
    if time:
        need_gpu("time", dry_run=False)
        score = MIN_SCORE if min_score is None else min_score
        requests = [
            Request(name, dtype, layers, training, score) for name in [*wanted, *(target or [])]
        ]
        raise typer.Exit(0 if models_time.run(requests, processes, jobs, json_file) else 1)
    options = {"min_score": min_score or 0.0, "rest": rest, "training": training}
    coverages: list[Coverage] = []
    failed = 0
    for name in [*wanted, *(target or [])]:
        try:
            coverages.append(_covered(name, cases.DTYPES[dtype], options))
        except typer.BadParameter:
            raise
        except Exception as error:  # noqa: BLE001 - the other models are still counted
            words = str(error).strip().splitlines() or [""]
            typer.echo(f"{name}: {type(error).__name__}: {words[0]}", err=True)
            failed += 1
    _print(coverages)
    if json_file:
        write_json(
            json_file, {"dtype": dtype, **options, "rows": [_row(each) for each in coverages]}
        )
    raise typer.Exit(1 if failed else 0)


def _covered(name: str, dtype: torch.dtype, options: dict[str, Any]) -> Coverage:
    torch._dynamo.reset()
    if name in ARCHITECTURES:
        made, repeated = named(name, dtype, "meta", KEPT), ARCHITECTURES[name].layers / KEPT
    else:
        try:
            made, repeated = targeted(name), 1.0
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if options["training"]:
        made.model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cover(name, *made, repeated=repeated, **options)


def _row(coverage: Coverage) -> dict[str, Any]:
    return {
        "model": coverage.model,
        "graphs": coverage.graphs,
        "products": len(coverage.products),
        "flops": sum(product.flops for product in coverage.products),
        "flops_counted": sum(product.flops for product in coverage.counted),
        "flops_fused": sum(product.flops for product in coverage.counted if product.fused),
        "reasons": coverage.reasons(),
    }


def _print(found: list[Coverage]) -> None:
    table = Table(title="Products followed by an activation, a gate or a scale")
    for heading in ("model", "products", "TFLOP", "of these counted", "fused", "left because"):
        justify = "left" if heading in ("model", "left because") else "right"
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for each in found:
        flops = sum(product.flops for product in each.products)
        counted = sum(product.flops for product in each.counted)
        reasons = [f"{part:.0%} {reason}" for reason, part in each.reasons().items()]
        table.add_row(
            each.model,
            str(len(each.products)),
            f"{flops / 1e12:.3g}",
            f"{counted / flops:.0%}" if flops else "",
            "none to fuse" if each.part is None else f"{each.part:.0%}",
            "\n".join(reasons[:3]),
        )
    mean = total(found)
    Console().print(table)
    if mean is not None and len(found) > 1:
        print(f"{mean:.1%} of a model's FLOPs that count, on average, are in fused kernels")
