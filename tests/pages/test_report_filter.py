"""The page's script in headless Chromium: filters, links from bars; and the page without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headless_browser import browse, needs_browser
from made_up_files import (
    bench_case,
    bench_file,
    check_file,
    check_row,
    everything,
    needs_packages,
    text_of_everything,
)
from typer.testing import CliRunner

from compare.cli import app
from compare.reporting import page
from compare.reporting.sources import Source

pytestmark = [needs_browser, needs_packages]
# What a reader sees of the page, after each thing that a test does to it.
PROBE = """<script>
addEventListener("load", async () => {
  const all = (what) => [...document.querySelectorAll(what)];
  const seen = (what) => all(what).filter((each) => !each.closest("[hidden]"));
  const look = () => ({
    ops: seen(".op h3").map((each) => each.textContent),
    captions: seen(".op figcaption").map((each) => each.textContent.split(",")[0]),
    shapes: seen(".op tbody").map((each) => each.dataset.shape),
    slowest: seen("[aria-label='Slowest cases'] tbody tr")
      .map((each) => each.querySelector("a").textContent),
    verdicts: seen("[aria-label='Verdicts by op and dtype'] thead th")
      .map((each) => each.textContent),
    pale: all("svg a.pale").map((each) => each.getAttribute("aria-label").split(":")[0]),
    said: document.querySelector("#filter output").value,
    form: !document.querySelector("#filter").hidden,
    others: all(".others").map((each) => each.open),
    hidden: all("main [hidden]").length,
    sections: seen("main > section h2").map((each) => each.id),
    links: seen("nav a").map((each) => each.hash.slice(1)),
    figures: seen("#speed ~ * figcaption b, #roofline ~ * figcaption b")
      .map((each) => each.textContent),
    quiet: seen("main section p.quiet").map((each) => each.textContent.split(",")[0]),
    names: all("#filter [name=op] option, #filter [name=dtype] option")
      .map((each) => each.textContent),
    open: all("details[open] tbody:target").map((each) => each.dataset.shape),
  });
  const choose = (name, value) => {
    const field = document.querySelector(`#filter [name=${name}]`);
    field.value = value;
    field.dispatchEvent(new Event("input", {bubbles: true}));
  };
  const found = [look()];
  const DO = {
    choose: (name, value) => choose(name, value),
    click: (what) => document.querySelector(what).dispatchEvent(
      new MouseEvent("click", {bubbles: true, cancelable: true})),
  };
  for (const [what, ...words] of STEPS) {
    DO[what](...words);
    await new Promise((done) => setTimeout(done, 50));
    found.push(look());
  }
  parent.postMessage(JSON.stringify({found}), "*");
});
</script></head>"""


def looks(text: str, folder: Path, *steps: list[str]) -> list[dict[str, Any]]:
    """What is seen at first, and after each step."""
    file = folder / "report.html"
    probe = PROBE.replace("STEPS", repr([list(step) for step in steps]))
    file.write_text(text.replace("</head>", probe), encoding="utf-8")
    found, logged, _ = browse(file, folder, 390, dark=False)
    assert not logged
    return list(found["found"])


def test_op_dtype_and_shape_choose_what_is_seen(tmp_path: Path) -> None:
    more = [bench_case("add", "float32", (1024, 4096)), bench_case("square", "float16", (4096, 2))]
    text = page.html([everything()[0], Source("bench.json", "bench", bench_file(*more))])
    first, add, narrow, shape, none, back = looks(
        text,
        tmp_path,
        ["choose", "op", "add"],
        ["choose", "dtype", "float16"],
        ["choose", "shape", "1024x10"],
        ["choose", "op", "square"],
        ["choose", "shape", "4096, 2"],
    )
    assert first["form"]
    assert first["ops"] == ["add", "gemm_bias_act", "square"]
    assert first["said"] == "5 of 5 timed cases"
    assert first["hidden"] == 0
    assert add["ops"] == ["add"]
    fastest = "; on the right the fastest peer"
    assert add["captions"] == [f"float16{fastest}", f"float32{fastest}"]
    assert add["said"] == "3 of 5 timed cases"
    assert narrow["captions"] == [f"float16{fastest}"]
    assert narrow["verdicts"] == ["op", "float16"]
    assert narrow["slowest"] == narrow["shapes"] == ["1024×1024", "2048×2048"]
    assert shape["shapes"] == shape["slowest"] == ["1024×1024"]
    assert "2048×2048" in shape["pale"]
    assert "1024×1024" not in shape["pale"]
    assert none["ops"] == none["slowest"] == []  # no shape of square begins so
    assert none["said"] == "0 of 5 timed cases"
    assert back["ops"] == ["square"]
    assert back["shapes"] == ["4096×2"]


def test_a_section_that_the_filter_empties_goes_with_its_link(tmp_path: Path) -> None:
    first, add, product, nothing = looks(
        text_of_everything(),
        tmp_path,
        ["choose", "op", "add"],
        ["choose", "op", "gemm_bias_act"],
        ["choose", "dtype", "int64"],
    )
    assert first["sections"] == first["links"]
    assert add["links"] == add["sections"]
    assert {"host", "profiles", "mutants"} <= set(add["sections"])
    assert product["links"] == product["sections"]
    assert {"host", "profiles"} <= set(first["sections"]) - set(product["sections"])
    assert "speed" in product["sections"]
    # What is of every op is of none that is chosen.
    assert "All ops" in first["figures"]
    assert "All ops" not in add["figures"] + product["figures"]
    assert "environment" in nothing["sections"]
    assert nothing["figures"] == []


def test_what_is_said_of_a_file_goes_with_its_heading(tmp_path: Path) -> None:
    """Of two checks one has the op that is chosen: the other's legend and reasons go, too."""
    rows = {
        "one.json": check_row("add", "float16", "ulp"),
        "two.json": check_row("it", "int8", "ulp"),
    }
    files = [
        Source(name, "check", {**check_file(), "rows": [row], "not_run": {"cuda-gpu": name}})
        for name, row in rows.items()
    ]
    first, chosen, back = looks(
        page.html(files), tmp_path, ["choose", "op", "it"], ["choose", "op", ""]
    )
    legend, reason = "✓ right", "n/a"
    assert first["quiet"].count(legend) == first["quiet"].count(reason) == 2
    assert chosen["quiet"].count(legend) == chosen["quiet"].count(reason) == 1
    assert back["quiet"] == first["quiet"]


def test_the_filter_offers_what_the_page_has(tmp_path: Path) -> None:
    (first,) = looks(text_of_everything(), tmp_path)
    assert "every" not in first["names"]
    assert {"add", "gemm_bias_act", "float16"} <= set(first["names"])
    assert len(set(first["names"])) == len(first["names"]) - 1  # "all" stands in both


def test_the_worst_of_what_is_chosen_shows_though_it_is_not_among_the_first(tmp_path: Path) -> None:
    slow = [bench_case("add", "float16", (n,)) for n in range(10, 20)]
    for case in slow:
        case["entries"][0]["speedup"] = {"value": 0.5, "low": 0.4, "high": 0.6}
    text = page.html([Source("bench.json", "bench", bench_file(*slow))])
    first, chosen = looks(text, tmp_path, ["choose", "op", "gemm_bias_act"])
    assert first["others"] == [False]
    assert chosen["slowest"] == []
    assert chosen["others"] == [True]


def test_a_bar_leads_to_its_samples_and_command(tmp_path: Path) -> None:
    first, after = looks(text_of_everything(), tmp_path, ["click", "svg a[href='#f1c1']"])
    assert first["open"] == []
    assert after["open"] == ["2048×2048"]


def test_without_the_script_everything_shows_and_bars_still_lead(tmp_path: Path) -> None:
    text = re.sub(r"<script>.*?</script>", "", text_of_everything(), flags=re.S)
    first, after = looks(text, tmp_path, ["click", "svg a[href='#f1c1']"])
    assert first["hidden"] == 0
    assert not first["form"]
    assert first["ops"] == ["add", "gemm_bias_act"]
    assert after["open"] == ["2048×2048"]  # the browser itself unfolds what is linked to


# ---- as wide as a phone ----

LAYOUT = """<script>
addEventListener("load", () => {
  const top = (id) => document.getElementById(id).getBoundingClientRect().top / 844;
  const tops = {worst: top("worst"), speed: top("speed"), errors: top("errors")};
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  let wide = 0;
  const stuck = [...document.querySelectorAll(".scroll")].filter((box) => {
    if (box.scrollWidth <= box.clientWidth) return false;
    wide += 1;
    box.scrollLeft = 9999;
    const name = box.querySelector("tbody th").getBoundingClientRect();
    return getComputedStyle(box).overflowX !== "auto"
      || box.scrollLeft < box.scrollWidth - box.clientWidth - 1
      || Math.abs(name.left - box.getBoundingClientRect().left) > 2;
  });
  parent.postMessage(JSON.stringify({tops, wide, stuck: stuck.length}), "*");
});
</script></head>"""


def test_on_a_phone_tables_scroll_and_speed_is_near(tmp_path: Path) -> None:
    """In screens of 844 pixels: the worst cases on the first, speed soon, and before the errors."""
    file = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", "--out", str(file)])
    assert done.exit_code == 0, done.output
    file.write_text(file.read_text(encoding="utf-8").replace("</head>", LAYOUT), encoding="utf-8")
    found, logged, _ = browse(file, tmp_path, 390, dark=False)
    assert not logged
    assert found["tops"]["worst"] < 1
    assert found["tops"]["speed"] < 3
    assert found["tops"]["speed"] < found["tops"]["errors"]
    assert found["wide"] > 50
    assert found["stuck"] == 0, "tables that do not scroll, or lose the names of their lines"
