"""The report in a browser: headless Chromium, as wide as a phone and as a desk, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless_browser import browse, in_its_scheme, needs_browser
from made_up_files import check_file, check_row
from typer.testing import CliRunner

from compare.cli import app
from compare.reporting import page
from compare.reporting.sources import Source

pytestmark = needs_browser
# What the page is asked, with everything unfolded, and tells the frame.
PROBE = """<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const page = document.documentElement, style = getComputedStyle(document.body);
  const figures = [...document.querySelectorAll("figure svg")];
  const cut = figures.filter(drawn => {
    const box = drawn.getBoundingClientRect();
    return [...drawn.querySelectorAll("text")].some(text => {
      const words = text.getBoundingClientRect();
      return words.left < box.left - 1 || words.right > box.right + 1
        || words.top < box.top - 1 || words.bottom > box.bottom + 1;
    });
  });
  parent.postMessage(JSON.stringify({
    width: page.clientWidth, needed: page.scrollWidth, figures: figures.length,
    flat: figures.filter(drawn => drawn.clientHeight < 40).length,
    cut: cut.map(drawn => drawn.getAttribute("aria-label")),
    spilled: [...document.querySelectorAll("th")].filter(th => th.scrollWidth > th.clientWidth + 1)
      .map(th => th.textContent),
    ink: style.color, paper: style.backgroundColor,
  }), "*");
});
</script></head>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the committed files, with the probe in it."""
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    file = tmp_path_factory.mktemp("report") / "report.html"
    result = CliRunner().invoke(app, ["report", "--out", str(file)])
    assert result.exit_code == 0, result.output
    text = file.read_text(encoding="utf-8")
    assert text.count("</head>") == 1
    file.write_text(text.replace("</head>", PROBE), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_a_browser(report: Path, tmp_path: Path, width: int, dark: bool) -> None:
    seen = browse(report, tmp_path, width, dark)
    found = seen.found
    assert not seen.logged
    assert found["width"] == width
    assert found["needed"] == width, "wider than the screen"
    assert found["figures"] >= 20
    assert found["flat"] == 0
    assert found["cut"] == [], "words that do not fit into their figure"
    in_its_scheme(seen, width, dark)


def test_long_names_of_targets_stay_in_their_column(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    row = check_row("rowwise.kernels.specs:SOFTMAX_OF_ROWS", "float32", "ulp")
    made = page.html([Source("check.json", "check", check_file(row))])
    file = tmp_path / "report.html"
    file.write_text(made.replace("</head>", PROBE), encoding="utf-8")
    found = browse(file, tmp_path, 390, False).found
    assert found["spilled"] == []
    assert found["needed"] == 390


def test_the_browser_tells_of_errors_overflow_and_cut_words(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    page = tmp_path / "bad.html"
    body = (
        "<figure><svg viewBox='0 0 9 9' style='width:50px' aria-label='x'><text x='8'>words</text>"
        "</svg></figure><div style='width:2000px'>.</div><script>console.error('boom')</script>"
    )
    page.write_text(f"<!doctype html><html><head><title>x</title>{PROBE}<body>{body}</body></html>")
    found, logged, _ = browse(page, tmp_path, 390, dark=False)
    assert len(logged) == 1
    assert "boom" in logged[0]
    assert found["needed"] >= 2000
    assert found["cut"] == ["x"]
