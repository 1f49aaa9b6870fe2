"""A page from a template: one document that loads nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from compare.pages import colours

HERE = Path(__file__).parent


class PackageMissing(RuntimeError):
    """A page cannot be made without a package of the extra `report`."""


def check_packages(*names: str) -> None:
    """Raise :class:`PackageMissing` unless these can be imported."""
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


def render(template: Path, **context: Any) -> str:
    """The template with what it is about; others beside it can be included. ``style`` is ours."""
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
    style = colours.style_sheet() + (HERE / "page.css").read_text(encoding="utf-8")
    text: str = templates.get_template(template.name).render(style=style, **context)
    return text
