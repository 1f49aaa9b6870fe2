"""The page of ``python -m compare doctor``: what this machine has, what is wrong, what to do.

It also works if torch, triton or numpy are missing or broken. A check that raises an exception
becomes a problem on the page.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from compare.doctor import installation, machine
from compare.doctor.installation import Finding

CHECKS: dict[str, tuple[Callable[[], Iterator[Finding]], ...]] = {
    "Versions": (installation.versions, installation.interpreter),
    "GPU": (machine.gpu,),
    "Building the CUDA sources": (machine.tools,),
    "Caches": (machine.caches,),
    "Settings": (installation.settings,),
    "The import name": (installation.import_name,),
}
COLOURS = {"ok": "", "warning": "yellow", "problem": "red"}


def diagnose() -> dict[str, list[Finding]]:
    """Heading → its findings, in the page's order."""
    return {
        heading: [finding for check in checks for finding in _safely(check)]
        for heading, checks in CHECKS.items()
    }


def _safely(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - the doctor must not fail if something is broken
        says = f"could not be checked: {type(error).__name__}: {error}"
        remedy = "fix the other problems first; if this remains, report it as a fault of the doctor"
        yield Finding(check.__name__.replace("_", " "), "problem", says, remedy)


def examine(json_file: Path | None = None) -> int:
    """Print the page and return the exit status: 0, 1 if there is a problem, 2 for wrong usage.

    Args:
        json_file: a file to which the findings are also written, as JSON.
    """
    if json_file and (json_file.is_dir() or not os.access(json_file.absolute().parent, os.W_OK)):
        print(f"--json {json_file}: cannot write there", file=sys.stderr)
        return 2
    diagnosis = diagnose()
    grades = [finding.grade for findings in diagnosis.values() for finding in findings]
    problems, warned = grades.count("problem"), grades.count("warning")
    _print(diagnosis, f"{_count(problems, 'problem')}, {_count(warned, 'warning')}", problems)
    if json_file:
        listed = {h: [vars(finding) for finding in findings] for h, findings in diagnosis.items()}
        json_file.write_text(json.dumps({"passed": not problems, "findings": listed}, indent=1))
    return 1 if problems else 0


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}" + ("" if number == 1 else "s")


def _print(diagnosis: dict[str, list[Finding]], counted: str, problems: int) -> None:
    runs = "cannot compare both sides here" if problems else "can run here"
    last = f"{counted}: python -m compare check {runs}"
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        for line, _ in [*_lines(diagnosis, 100), (last, "")]:
            print(line)
        return
    console = Console()
    # rich assumes 80 columns in a log file, which are too few.
    width = max(60, console.width) if console.is_terminal else 100
    for line, style in [
        *_lines(diagnosis, width),
        (last, "bold red" if problems else "bold green"),
    ]:
        console.print(Text(line, style), soft_wrap=True)


def _lines(diagnosis: dict[str, list[Finding]], width: int) -> Iterator[tuple[str, str]]:
    """The page's lines with their styles: headings, findings, and each remedy under its finding."""
    names = max(len(finding.name) for findings in diagnosis.values() for finding in findings)
    margin = " " * (2 + 9 + names + 2)
    page = textwrap.TextWrapper(
        width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )
    for heading, findings in diagnosis.items():
        if findings:
            yield heading, "bold"
        for f in findings:
            start = f"  {f.grade:<9}{f.name:<{names}}  "
            yield page.fill(start + f.says), COLOURS[f.grade]
            if f.remedy:
                yield f"{margin}→ {f.remedy}", "bold"  # on one line, so that it can be copied
    yield "", ""
