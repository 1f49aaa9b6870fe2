"""The page, the picture for a README, and writing both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.pages import rendering
from compare.reporting import (
    changes,
    checks,
    environment,
    host,
    machine_code,
    mutants,
    profiles,
    speeds,
)
from compare.reporting.sources import COMMANDS, ReportError, Source

HERE = Path(__file__).parent
SWEEP = "python -m compare bench --sweep --json sweep.json"
SAMPLE = "python -m compare bench linear_gelu --sample 200 --json sample.json"


def check_packages() -> None:
    """Raise :class:`ReportError` unless matplotlib and Jinja2 are installed."""
    try:
        rendering.check_packages("matplotlib", "jinja2")
    except rendering.PackageMissing as error:
        raise ReportError(str(error)) from None


def html(sources: Sequence[Source]) -> str:
    """The page of these files: one document that loads nothing else.

    Raises:
        ReportError: a file lacks entries that its command writes.
    """
    contexts: dict[str, list[dict[str, Any]]] = {kind: [] for kind in COMMANDS}
    cards = []
    for i, source in enumerate(sources):
        if source.kind in ("long", "models"):  # their content goes into documents
            continue
        try:
            cards.append(environment.card(source))
            contexts[source.kind].append(_context(source, f"f{i}"))
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise ReportError(
                f"{source.name}: not as `{COMMANDS[source.kind]}` writes it "
                f"({type(error).__name__}: {error}); make it again"
            ) from error
    left_out = [
        {"what": what, "command": COMMANDS[kind]}
        for kind, what in (
            ("check", "verdicts and errors"),
            ("bench", "speed-ups and rooflines"),
            ("host", "what calls cost the host"),
            ("profile", "kernels and gaps of calls"),
            ("mutate", "how many planted faults the check catches"),
            ("compile", "the compilers' figures"),
        )
        if not contexts[kind]
    ]
    if not any(each["sweeps"] for each in contexts["bench"]):
        left_out.append({"what": "size sweeps", "command": SWEEP})
    if not any(each["samples"] for each in contexts["bench"]):
        left_out.append({"what": "samples of drawn problems", "command": SAMPLE})
    names = {
        each: list(dict.fromkeys(thing[each] for thing in _timed_or_checked(sources)))
        for each in ("op", "dtype")
    }
    return rendering.render(
        HERE / "page.html.j2",
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        names=names,
        cards=cards,
        changes=changes.context(sources),
        left_out=left_out,
        **contexts,
    )


def _timed_or_checked(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Everything with an op and a dtype, by which a reader may filter."""
    profiled = [source.data for source in sources if source.kind == "profile"]
    things = {"check": "rows", "compile": "rows", "bench": "cases", "host": "host"}
    return [
        each
        for source in sources
        if source.kind in things
        for each in source.data[things[source.kind]]
    ] + profiled


def _context(source: Source, key: str) -> dict[str, Any]:
    if source.kind == "check":
        return checks.context(source, key)
    if source.kind == "mutate":
        return mutants.context(source)
    if source.kind == "bench":
        return speeds.context(source, key)
    if source.kind == "host":
        return host.context(source)
    if source.kind == "profile":
        return profiles.context(source)
    return machine_code.context(source)


def picture(sources: Sequence[Source]) -> str:
    """One figure of all timed cases, as an SVG file that follows the reader's light or dark mode:
    Triton against the fastest peer or, if no peer was timed, the CUDA side's variants against its
    plain kernel.

    Raises:
        ReportError: no file of bench is among the sources, or it has neither.
    """
    for source in sources:
        if source.kind == "bench":
            cases = speeds.fixed(source.data["cases"])
            gpu = source.data["environment"].get("gpu", "")
            if speeds.means(cases):
                title = f"Triton against the fastest peer, {gpu}"
                return speeds.overview(cases, "", title, alone=True) + "\n"
            if drawn := speeds.ladder(cases, f"Against the plain CUDA kernel, {gpu}"):
                return drawn + "\n"
    raise ReportError(
        f"--picture needs a file with times of peers, or of CUDA's rungs: {COMMANDS['bench']}"
    )


def write(file: Path, text: str) -> None:
    """Write a file in one step, so that no reader sees half of it."""
    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
