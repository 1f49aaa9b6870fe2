"""Renders a page from a template: one document that loads no other files."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from compare.pages import colours

HERE = Path(__file__).parent
LINE = 15  # characters that fit into a table's first column on a phone


class PackageMissing(RuntimeError):
    """A page cannot be made, because a package of the extra `report` is missing."""


def check_packages(*names: str) -> None:
    """Raise :class:`PackageMissing` unless these packages can be imported."""
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise PackageMissing(
            f"needs {' and '.join(missing)}: pip install 'triton-kernels-crosscheck[report]'"
        )


def _breaking(name: str) -> Any:
    """A name with permitted line breaks after underscores, dots, colons and slashes, if it is too
    long for a line on a phone."""
    lines = [""]
    for piece in re.split(r"(?<=[^_.:/][_.:/])", name):
        if lines[-1] and len(lines[-1]) + len(piece) > LINE:
            lines.append("")
        lines[-1] += piece
    markup = importlib.import_module("jinja2").utils.markupsafe.Markup
    return markup("<wbr>").join(lines)


def render(template: Path, **context: Any) -> str:
    """The rendered template. It can include templates of its folder. ``style`` is set here.

    Raises:
        PackageMissing: Jinja2 is not installed.
    """
    check_packages("jinja2")
    jinja = importlib.import_module("jinja2")
    templates = jinja.Environment(
        loader=jinja.FileSystemLoader(template.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja.StrictUndefined,
    )
    templates.filters["count"] = lambda n: f"{n:,}".replace(",", "\u202f")  # a narrow space
    templates.filters["breaking"] = _breaking
    style = colours.style_sheet() + (HERE / "page.css").read_text(encoding="utf-8")
    text: str = templates.get_template(template.name).render(style=style, **context)
    return text
