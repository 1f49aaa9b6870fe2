"""matplotlib's figures as SVG for a page: text as text, colours by CSS, reproducible output."""

from __future__ import annotations

import importlib
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from compare.pages import colours

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif"
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "compare report",
    "text.parse_math": False,  # a $ in a name stays a $
    "font.family": "DejaVu Sans",  # part of matplotlib; wider than the reader's font, so all fits
    "font.size": 11,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.6,
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """An empty matplotlib figure of this size in pixels. matplotlib's global settings stay
    unchanged, and no GUI backend is loaded."""
    matplotlib = importlib.import_module("matplotlib")
    figure = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        matplotlib.rcParams.update(_SETTINGS)
        yield figure.Figure(figsize=(width / 72, height / 72), frameon=False)


def text(
    figure: Any,
    label: str,
    prefix: str,
    alone: bool = False,
    links: Mapping[str, str] | None = None,
) -> str:
    """The figure as an ``<svg>`` element.

    Args:
        label: what it shows, for screen readers.
        prefix: of its ids, unique on the page.
        alone: whether it is a file of its own, with its own colours and fonts.
        links: target → name of the links in it.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ET.fromstring(buffer.getvalue())
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for name in re.findall(r"^#(.+)$|url\(#(.+?)\)", value)
    }
    ids = {name for pair in used for name in pair if name}
    _tidy(root, ids, prefix)
    box = root.get("viewBox", "")
    # Links in a role "img" cannot be reached by keyboard; in a role "group" they can.
    root.attrib = {"viewBox": box, "role": "group" if links else "img", "aria-label": label}
    for anchor in root.iter("a"):
        anchor.set("aria-label", (links or {})[anchor.get("href", "")])
    title = ET.Element("title")
    title.text = label
    root.insert(0, title)
    if alone:
        _, _, width, height = box.split()
        root.attrib |= {"xmlns": _SVG.strip("{}"), "width": width, "height": height}
        style = ET.Element("style")
        style.text = f"{colours.style_sheet()}text{{font-family:{_FONTS}}}"
        root.insert(1, style)
    return ET.tostring(root, encoding="unicode")


def _tidy(element: ET.Element, ids: set[str], prefix: str) -> None:
    """Plain names, unique ids, colours as variables; no metadata and no useless groups."""
    element.tag = element.tag.removeprefix(_SVG)
    element.attrib = dict(_attributes(element, ids, prefix))
    element.tail = None
    if element.tag != "text":
        element.text = None
    children: list[ET.Element] = []
    for child in list(element):
        if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
            continue
        _tidy(child, ids, prefix)
        if child.tag in ("g", "defs") and not child.attrib:
            children += list(child) if child.tag == "g" else [child] if len(child) else []
        else:
            children.append(child)
    element[:] = children


def _attributes(element: ET.Element, ids: set[str], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in element.attrib.items():
        if name == "id":
            if value in ids:
                yield "id", prefix + value
        elif name == _XLINK:
            # A link leads to a place of the page, any other href to a part of this figure.
            yield "href", value if element.tag == "a" else f"#{prefix}{value[1:]}"
        elif name == "target":
            continue  # matplotlib's links open new windows
        elif name == "style":
            yield "style", _style(value)
        elif name == "clip-path":
            yield name, value.replace("url(#", f"url(#{prefix}")
        elif name in ("d", "points", "transform", "x", "y", "width", "height"):
            yield name, _shorter(value)
        else:
            yield name, value


def _style(value: str) -> str:
    """CSS with variables instead of placeholders, and with the page's font."""
    # Older versions of matplotlib write one "font" property.
    value = re.sub(r"font: (\d+ )?([\d.]+px) [^;]*", r"font-weight: \1; font-size: \2", value)
    value = re.sub(r"font-weight: ;|font-family: [^;]*;?", "", value)
    for colour, name in colours.PLACEHOLDERS.items():
        value = value.replace(colour, f"var(--{name})")
    return re.sub(r"\s*([:;])\s*", r"\1", value).strip("; ")


def _shorter(value: str) -> str:
    """Numbers to a hundredth of a pixel."""
    value = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(value.split())
