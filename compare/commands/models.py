"""``python -m compare models``: which of a model's products the fused kernels compute, and why not
the others."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from compare import cases
from compare.commands.options import check_writable, listed, write_json
from compare.models.architectures import ARCHITECTURES, KEPT
from compare.models.coverage import Coverage, cover, total

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
    min_score: Annotated[float, typer.Option(help="As triton_kernels.fuse takes it.")] = 0.0,
    rest: Annotated[str, typer.Option(help="Who compiles the rest: eager or inductor.")] = "eager",
    training: Annotated[bool, typer.Option("--training", help="With gradients.")] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Name the models that there are.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures there.")
    ] = None,
) -> None:
    """Count the FLOPs of a model's matrix products, those in fused kernels, and why others are not.

    Needs no GPU. The models named here need the package transformers, but no weights. They are on
    the meta device, where plans are made as for an NVIDIA H200.
    Exit status: 0 counted; 1 a model could not be made or traced; 2 usage.
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
    options = {"min_score": min_score, "rest": rest, "training": training}
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
    args: tuple[Any, ...] = ()
    if name in ARCHITECTURES:
        chosen = ARCHITECTURES[name]
        model: Any = chosen.make(dtype)
        keywords = {
            key: value.to(dtype) if _floating(value) else value
            for key, value in chosen.inputs().items()
        }
        repeated = chosen.layers / KEPT
    else:
        model, given = _made(name)
        args, keywords = ((), given) if isinstance(given, dict) else (_tuple(given), {})
        repeated = 1.0
    if options["training"]:
        model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cover(name, model, args, keywords, repeated=repeated, **options)


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _tuple(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _made(name: str) -> Any:
    """The model and its arguments, made by ``module:factory``."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise typer.BadParameter(f"--target {name}: MODULE:FACTORY, as in my_module:make")
    if (here := os.getcwd()) not in sys.path:  # an installed command does not have it there
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"--target {name}: {error}") from None
    made = factory()
    if not isinstance(made, tuple) or len(made) != 2:
        raise typer.BadParameter(
            f"--target {name}: it must return the model and its arguments, a tensor, a tuple or "
            f"a dict, but returned {type(made).__name__}"
        )
    return made


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
