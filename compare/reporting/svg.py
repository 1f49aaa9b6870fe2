"""matplotlib's figures as SVG for a page: text as text, colours by CSS, the same every time."""

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
    "text.parse_math": False,  # a $ in somebody's name is a $
    "font.family": "DejaVu Sans",  # comes with matplotlib, is wider than the reader's: all fits
    "font.size": 11,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.6,
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """An empty matplotlib figure of so many pixels. No setting of matplotlib is changed for others,
    and no backend with windows is touched."""
    matplotlib = importlib.import_module("matplotlib")
    figure = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own matplotlibrc says
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
        label: what it shows, for those who do not see it.
        prefix: of its ids, unlike any other figure's on the page.
        alone: whether it is a file of its own, which brings its colours and fonts.
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
    # What is in an image cannot be reached by keyboard; what is in a group can.
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
    """Plain names, own ids, colours as variables, no metadata, no groups without a purpose."""
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
            # A link leads to a place of the page, everything else to a part of this figure.
            yield "href", value if element.tag == "a" else f"#{prefix}{value[1:]}"
        elif name == "target":
            continue  # matplotlib's links open windows
        elif name == "style":
            yield "style", _style(value)
        elif name == "clip-path":
            yield name, value.replace("url(#", f"url(#{prefix}")
        elif name in ("d", "points", "transform", "x", "y", "width", "height"):
            yield name, _shorter(value)
        else:
            yield name, value


def _style(value: str) -> str:
    """CSS with the placeholders' variables, and the page's font instead of matplotlib's."""
    # Older versions of matplotlib write all of a font in one.
    value = re.sub(r"font: (\d+ )?([\d.]+px) [^;]*", r"font-weight: \1; font-size: \2", value)
    value = re.sub(r"font-weight: ;|font-family: [^;]*;?", "", value)
    for colour, name in colours.PLACEHOLDERS.items():
        value = value.replace(colour, f"var(--{name})")
    return re.sub(r"\s*([:;])\s*", r"\1", value).strip("; ")


def _shorter(value: str) -> str:
    """Numbers to a hundredth of a pixel."""
    value = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(value.split())
