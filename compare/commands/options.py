"""Options that several commands share."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from compare import cases
from compare.cases import Case
from compare.checking.implementations import MODES, implementations, unavailable
from compare.checking.running import memory_asked
from compare.numerics import json_safe
from compare.ops import SPECS, TargetError, spec_of
from compare.specs import Spec
from compare.timing.gpu import NoMemoryError

NO_GPU = 3  # exit status
MOST_SEED = 2**63 - 1


def check_writable(file: Path | None, option: str = "--json") -> None:
    """Refuse a file that could not be written at the end."""
    if file and (file.is_dir() or not os.access(file.absolute().parent, os.W_OK)):
        raise typer.BadParameter(f"{option} {file}: cannot write there")


def write_json(file: Path, report: dict[str, Any]) -> None:
    """Write a command's report. One row per line keeps the file small and diffs readable."""
    parts = []
    for key, value in json_safe(report).items():
        text = json.dumps(value, ensure_ascii=False)
        if key in ("rows", "host", "profiles", "counters"):
            rows = (json.dumps(row, ensure_ascii=False) for row in value)
            text = "[\n  " + ",\n  ".join(rows) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def check_dtype(spec: Spec, dtype: str) -> None:
    """Refuse an unknown dtype, or one that the op does not have."""
    if dtype not in cases.DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: one of {', '.join(cases.DTYPES)}")
    if dtype not in spec.dtypes:
        raise typer.BadParameter(
            f"{spec.name} has no dtype {dtype}; it has {', '.join(spec.dtypes)}"
        )


def listed(values: list[str] | None) -> list[str]:
    """Repeated and comma-separated options as one list."""
    return [word for value in values or [] for word in value.split(",") if word]


_TARGET = typer.Option(
    "--target", metavar="MODULE:SPEC", help="Kernels of your own, by their spec: OWN_KERNELS.md."
)
Target = Annotated[str | None, _TARGET]
Targets = Annotated[list[str] | None, _TARGET]


def dtypes_listed(values: list[str] | None) -> list[str]:
    """The dtypes of a comma-separated list, by their names in cases."""
    return list(dict.fromkeys(map(cases.dtype_name, listed(values))))


def spec_named(name: str) -> Spec:
    """The spec of an op, or of a target."""
    try:
        return spec_of(name)
    except TargetError as error:
        raise typer.BadParameter(f"--target {error}") from None
    except KeyError:
        ops = ", ".join(SPECS)
        raise typer.BadParameter(f"no op {name!r}; the ops are {ops}") from None


def named(ops: list[str] | None, targets: list[str] | None) -> list[str]:
    """The ops and targets of the command line; all ops if there are none."""
    for name in targets or []:
        if ":" not in name:
            raise typer.BadParameter(f"--target {name}: MODULE:SPEC, as in my_module:SPEC")
    return [*(ops or []), *(targets or [])] or list(SPECS)


def one_named(op: str | None, target: str | None) -> str:
    """The op or the target, for a command that takes exactly one."""
    if (op is None) == (target is None):
        raise typer.BadParameter("Missing argument: name one op, or one --target")
    return named([op] if op else None, [target] if target else None)[0]


def check_implementation_names(specs: list[Spec], wanted: list[str]) -> None:
    """Refuse --impl names that match no implementation."""
    known = {
        name: implementation
        for spec in specs
        for implementation in implementations(spec, list(MODES))
        for name in (
            implementation.side,
            implementation.mode,
            implementation.name,
            f"{implementation.side}/{implementation.variant}",
        )
    }
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(
                f"--impl {name}: use triton, cuda, {', '.join(MODES)}, or one of these with a "
                "variant, as in cuda-host/f16x8"
            )


def one_case(spec: Spec, dtype: str, seed: int, one: dict[str, Any]) -> Case:
    """The case that --shape, --layout, --values and --arg describe, with defaults for the rest."""
    case = _described(spec, dtype, seed, one)
    try:
        needs = spec.memory(case)
    except (RuntimeError, TypeError):  # the number of bytes exceeds 64 bits
        raise typer.BadParameter(f"--shape {one['shape']}: no memory has so many bytes") from None
    if needs > (there := _memory()):
        raise typer.BadParameter(
            f"--shape {one['shape']}: it needs {needs / 1e9:,.0f} GB, but there are "
            f"{there / 1e9:.0f} GB of memory"
        )
    return case


def drawn_case(spec: Spec, dtype: str, one: dict[str, Any]) -> Case:
    """The same for a benchmark, which needs less memory than a check."""
    case = _described(spec, dtype, 0, {"values": None, **one})
    if not case.numel:
        raise typer.BadParameter(f"--shapes {one['shape']}: sizes are positive")
    return case


def _described(spec: Spec, dtype: str, seed: int, one: dict[str, Any]) -> Case:
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
        if spec.sizes and len(shape) != spec.sizes.count(",") + 1:
            raise typer.BadParameter(f"--shape {one['shape']}: {spec.name} has {spec.sizes}")
    layout, values = one["layout"] or "contiguous", one["values"] or "normal"
    if layout not in spec.layouts:
        raise typer.BadParameter(f"--layout {layout}: one of {', '.join(spec.layouts)}")
    if values not in spec.values and not re.fullmatch(r"0x[0-9a-f]+(:0x[0-9a-f]+)?", values):
        raise typer.BadParameter(f"--values {values}: one of {', '.join(spec.values)}")
    if values == "every" and cases.DTYPES[dtype].itemsize > 2:
        raise typer.BadParameter(f"--values every: of 8 and 16 bits, not {dtype}")
    options = {**spec.default_options, **read_options(spec, one["arg"])}
    case = Case(spec.name, dtype, shape, layout, values, seed, options)
    if reason := spec.refuses(case):
        raise typer.BadParameter(f"no case {case}: {reason}")
    return case


def read_options(spec: Spec, words: list[str] | None) -> dict[str, Any]:
    """The options that --arg gives to an op's cases."""
    options: dict[str, Any] = {}
    for word in words or []:
        key, equals, text = word.partition("=")
        if not equals or key not in spec.options:
            raise typer.BadParameter(
                f"--arg {word}: NAME=VALUE with one of {', '.join(spec.options) or 'no names'}"
            )
        try:
            options[key] = spec.options[key].read(text)
        except ValueError:
            raise typer.BadParameter(
                f"--arg {word}: {key} is {spec.options[key].allowed}"
            ) from None
    return options


def _memory() -> int:
    """Bytes of the machine's memory, or of a GPU's if that is larger."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = range(torch.cuda.device_count())
    return max([own, *(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)])


def timed_case(spec: Spec, dtype: str | None, shape: str | None) -> Case:
    """The timed case of this dtype, by default float16 if the op has it, and of this shape, by
    default the first past 2²⁰ elements or 2³² multiplications."""
    if dtype is None:
        dtype = "float16" if "float16" in spec.dtypes else spec.dtypes[0]
    dtype = cases.dtype_name(dtype)
    check_dtype(spec, dtype)
    timed = list(spec.timed(dtype, spec.default_options))
    if shape is None:
        enough = 1 << (32 if spec.bounded else 20)
        return next((c for c in timed if math.prod(c.shape) > enough), timed[-1])
    try:
        sizes = tuple(int(word) for word in shape.replace("x", ",").split(","))
    except ValueError:
        raise typer.BadParameter(f"--shape {shape}: sizes with commas, as 2048,2048") from None
    if any(size < 1 for size in sizes):
        raise typer.BadParameter(f"--shape {shape}: sizes are positive")
    if len(sizes) != len(timed[0].shape):
        example = ",".join(map(str, timed[0].shape))
        raise typer.BadParameter(
            f"--shape {shape}: {spec.name} has {len(timed[0].shape)} sizes, as {example}"
        )
    return Case(spec.name, dtype, sizes, options=timed[0].options)


@contextlib.contextmanager
def need_gpu_memory(nothing_to: str) -> Iterator[None]:
    """Exit as without a GPU if other processes leave too little of its memory."""
    try:
        yield
    except RuntimeError as error:
        if (asked := memory_asked(error)) is None:
            raise
        typer.echo(f"nothing to {nothing_to}: {NoMemoryError(asked)}", err=True)
        raise typer.Exit(NO_GPU) from None


def need_gpu(nothing_to: str, dry_run: bool = True) -> None:
    """Exit with status 3 and the reason if compiled kernels cannot run. ``dry_run`` says whether
    the command has such an option."""
    if reason := unavailable().get("triton-compiled"):
        hint = " (--dry-run shows what there would be)" if dry_run else ""
        typer.echo(f"nothing to {nothing_to}: {reason}{hint}", err=True)
        raise typer.Exit(NO_GPU)
