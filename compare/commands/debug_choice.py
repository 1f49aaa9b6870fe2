"""The side, the variant and the case that the options of ``debug`` select."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

from compare.cases import Case, dtype_name
from compare.commands.options import check_dtype, check_implementation_names, one_case
from compare.specs import Spec


class Contradiction(NamedTuple):
    """Two options that exclude each other; each may include a value."""

    one: str
    other: str
    why: str = ""


OTHER_VARIANT = "--impl MODE/VARIANT"  # with another variant than --variant names
TRITON_ONLY = ("--program", "--tiles", "--pdb", "--break", "--bisect", "--shrink", "--output")
CONTRADICTIONS = (
    Contradiction("--side triton", "--impl cuda"),
    Contradiction("--side cuda", "--impl triton"),
    Contradiction(OTHER_VARIANT, "--variant"),
    *(
        Contradiction("--tool", triton, "--tool is for the CUDA side")
        for triton in ("--side triton", "--impl triton")
    ),
    *(
        Contradiction(option, cuda, f"{option} is for the Triton side")
        for option in TRITON_ONLY
        for cuda in ("--side cuda", "--impl cuda", "--tool")
    ),
    *(
        Contradiction(option, "--shrink", "--shrink runs many cases, and no one program")
        for option in ("--program", "--pdb", "--break", "--bisect")
    ),
)


def side_to_debug(
    spec: Spec, side: str | None, impl: str | None, variant: str | None, others: dict[str, Any]
) -> str:
    """The side that the options select; Triton by default.

    Args:
        others: ``--tool`` and :data:`TRITON_ONLY`: option → value, false if not given.
    """
    if side not in (None, "triton", "cuda"):
        raise typer.BadParameter(f"--side {side}: triton or cuda")
    if impl is not None:
        check_implementation_names([spec], [impl])
    given = dict(_given(side, impl, variant, others))
    for one, other, why in CONTRADICTIONS:
        if one in given and other in given:
            says = f"{given[one]} and {given[other]} exclude each other"
            raise typer.BadParameter(f"{says}: {why}" if why else says)
    if "--output" in given and "--shrink" not in given:
        raise typer.BadParameter("--output is for --shrink")
    return "cuda" if {"--side cuda", "--impl cuda", "--tool"} & set(given) else "triton"


def _given(
    side: str | None, impl: str | None, variant: str | None, others: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """The given options, by their names in :data:`CONTRADICTIONS` and as written."""
    yield from ((option, option) for option, value in others.items() if value)
    if side is not None:
        yield f"--side {side}", f"--side {side}"
    if variant is not None:
        yield "--variant", f"--variant {variant}"
    if impl is not None:
        mode, _, named = impl.partition("/")
        yield f"--impl {mode.partition('-')[0]}", f"--impl {impl}"
        if named and named != variant:
            yield OTHER_VARIANT, f"--impl {impl}"


def case_to_debug(
    spec: Spec,
    side: str,
    impl: str | None,
    variant: str | None,
    dtype: str | None,
    seed: int,
    one: dict[str, Any],
) -> tuple[str | None, Case]:
    """The side's variant, None for the default kernel, and a case that it takes. The dtype is the
    given one, or float32 if the variant takes it.

    Args:
        one: the arguments of :func:`one_case`.
    """
    variant = variant or (impl or "").partition("/")[2] or None
    if side == "triton" and variant in spec.pinned():  # the interpreter has one kernel for all
        variant = None
    if getattr(spec, side) is None:
        raise typer.BadParameter(f"{spec.name} has no {side} side")
    known = spec.variants(side)
    if variant is not None and variant not in known:
        names, named = ", ".join(known) or "no variants", {"triton": "Triton", "cuda": "CUDA"}
        raise typer.BadParameter(
            f"--variant {variant}: {spec.name} has {names} on the {named[side]} side"
        )
    if dtype is not None:
        dtype = dtype_name(dtype)
        check_dtype(spec, dtype)
    possible = [one_case(spec, name, seed, one) for name in ([dtype] if dtype else spec.dtypes)]
    taken = [case for case in possible if spec.takes(side, variant, case)]
    if not taken:
        raise typer.BadParameter(f"variant {variant or 'default'} is not made for this case")
    return variant, next((case for case in taken if case.dtype == "float32"), taken[0])
