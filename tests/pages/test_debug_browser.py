"""The page of debug --html in a browser: as wide as a phone and as a desk, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from gallery import GALLERY
from headless_browser import browse, in_its_scheme, needs_browser

pytestmark = needs_browser
PROBE = """<script>
addEventListener("load", () => {
  const page = document.documentElement, style = getComputedStyle(document.body);
  const pictures = [...document.querySelectorAll("figure svg")];
  const cut = pictures.filter(drawn => {
    const box = drawn.getBoundingClientRect();
    return [...drawn.querySelectorAll("text, rect, path")].some(part => {
      const own = part.getBoundingClientRect();
      return own.left < box.left - 1 || own.right > box.right + 1
        || own.top < box.top - 1 || own.bottom > box.bottom + 1;
    });
  });
  const fill = look => getComputedStyle(document.querySelector(`figure .${look}`)).fill;
  const letters = Math.min(...pictures.flatMap(drawn =>
    [...drawn.querySelectorAll("text")].map(text => text.getBoundingClientRect().height)));
  parent.postMessage(JSON.stringify({
    width: page.clientWidth, needed: page.scrollWidth, pictures: pictures.length,
    cut: cut.map(drawn => drawn.getAttribute("aria-label")), letters,
    ink: style.color, paper: style.backgroundColor, on: fill("on"), wrong: fill("wrong4"),
    scripts: document.scripts.length, loaded: performance.getEntriesByType("resource").length,
  }), "*");
});
</script></head>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product with its bias indexed by row, with the probe in it."""
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    exhibit = next(each for each in GALLERY.values() if each.name == "matmul with bias")
    found = exhibit.broken(exhibit.faults["bias by row"], exhibit.dtypes[0]).debug()
    text = found.to_html()
    assert text.count("</head>") == 1
    file = tmp_path_factory.mktemp("debug") / "debug.html"
    file.write_text(text.replace("</head>", PROBE), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_a_browser(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    seen = browse(page, tmp_path, width, dark)
    found = seen.found
    assert not seen.logged
    assert found["width"] == width
    assert found["needed"] == width, "wider than the screen"
    assert found["pictures"] == 12
    assert found["cut"] == [], "cells or words beside their picture"
    assert found["letters"] > 9, "too small to read"
    assert (found["scripts"], found["loaded"]) == (1, 0)  # the probe alone
    assert len({found["on"], found["wrong"], found["paper"]}) == 3
    in_its_scheme(seen, width, dark)
