"""``python -m compare doctor``: what this machine has, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.doctor.diagnosis import examine


def doctor(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the findings there.")
    ] = None,
) -> None:
    """Say what this machine has, what is wrong with it, and what to do.

    Exit status: 0 if check can run here, 1 if a problem prevents it, 2 usage.
    """
    raise typer.Exit(examine(json_file))
