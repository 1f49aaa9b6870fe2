"""The page of python -m compare report: whole, safe, its tables those of the files."""

from __future__ import annotations

import copy
import re
from collections import Counter

import pytest
from made_up_files import (
    HOSTILE,
    Page,
    bench_file,
    check_file,
    everything,
    failing_row,
    needs_packages,
    profile_file,
    text_of_everything,
    whole,
)

from compare.pages import colours
from compare.reporting import checks, page
from compare.reporting.sources import Source


def read(found: list[Source]) -> Page:
    return Page(page.html(found))


def cases(found: Page) -> set[str]:
    """Ids of the timed cases."""
    return {a["id"] for tag, a in found.elements if tag == "tbody" and "id" in a}


# ---- the page ----

BENCHED = {"speed", "roofline", "sweeps", "samples"}
SECTIONS = {"worst", "verdicts", "mutants", "errors", *BENCHED, "host", "profiles", "compiled"}
SECTIONS |= {"environment"}


@needs_packages
def test_every_section_is_there_and_listed() -> None:
    found = whole()
    ids = {attributes["id"] for tag, attributes in found.elements if tag == "h2"}
    assert ids == SECTIONS
    links = {a["href"] for tag, a in found.elements if tag == "a"}
    assert {link for link in links if link[1:] not in cases(found)} == {f"#{s}" for s in SECTIONS}
    assert "Not on this page" not in found.text


@needs_packages
@pytest.mark.parametrize(
    ("kind", "gone", "command"),
    [
        ("check", {"verdicts", "errors"}, "compare check --json"),
        ("mutate", {"mutants"}, "compare mutate --json"),
        ("bench", BENCHED, "compare bench --json"),
        ("host", {"host"}, "compare bench --host --json"),
        ("profile", {"profiles"}, "compare profile linear_gelu --json"),
        ("compile", {"compiled"}, "compare compile --json"),
    ],
)
def test_a_section_without_a_file_is_left_out_with_its_command(
    kind: str, gone: set[str], command: str
) -> None:
    found = read([source for source in everything() if source.kind != kind])
    ids = {attributes["id"] for tag, attributes in found.elements if tag == "h2"}
    assert ids == SECTIONS - gone
    assert command in found.text.split("Not on this page")[1]


@needs_packages
def test_a_file_of_mutate_tells_its_score_and_its_survivors() -> None:
    found = whole()
    assert "50.0 %: 1 of 4 killed; survivors: 1 explained, 1 not." in " ".join(found.text.split())
    assert ["x.py", "1", "1", "✗ 1", "–", "1"] in found.rows
    assert f"− a = b + c+ a = {HOSTILE}" in found.text
    (row,) = [row for row in found.rows if row[0].startswith("x.py:1")]
    assert row[1:] == ["− a = b + c+ a = b * c", "equivalent: c is 0."]
    assert "an explanation without a survivor: y.py" in found.text


@needs_packages
def test_a_file_of_profile_tells_kernels_times_gaps_and_counters() -> None:
    found = whole()
    # The fastest on the GPU first, who has no kernels last; as the terminal shows them.
    heads = ["a call", "GPU µs", "kernels", "host µs", "first kernel after µs", "GPU waits between"]
    at = found.rows.index(heads)
    assert found.rows[at + 1 : at + 4] == [
        ["eager", "2.00", "1.50", "15.00", "30.00", "60 %"],
        ["triton", "4.00", "1", "9.00", "21.00", "2 %"],
        ["compile", "none seen", "0", "12.00", "–", "–"],
    ]
    assert ["mul<float, 4>", "1", "1.50", "75 %"] in found.rows
    (counted,) = [row for row in found.rows if row[0] == "add_flat ×2"]
    assert counted[1:4] == ["n/a", "12.5", "12.50"]
    assert "no counters of eager: ncu saw no kernel" in found.text
    assert "✗ cuda: wrong: off by 3" in found.text
    assert "add float16 2048×2048 alpha=2 5 steps of 10 calls, profile.json" in found.text
    again = "--dtype float16 --shape 2048,2048 --providers eager,triton,compile"
    assert f"python -m compare profile add {again}" in found.text


@needs_packages
def test_a_target_is_profiled_by_its_name_and_files_without_counters_have_no_table() -> None:
    data = profile_file("rowwise.specs:SOFTMAX", counters=[])
    found = read([Source("p.json", "profile", data)])
    assert "python -m compare profile --target rowwise.specs:SOFTMAX" in found.text
    assert "Nsight" not in found.text
    data["profiles"][0]["kernels"][0]["cycles"] = 4
    with pytest.raises(page.ReportError, match=r"p\.json: not as `python -m compare profile"):
        page.html([Source("p.json", "profile", data)])


@needs_packages
def test_the_page_loads_nothing_and_runs_one_script() -> None:
    text = text_of_everything()
    found = Page(text)
    assert [attributes for tag, attributes in found.elements if tag == "script"] == [{}]
    own = (page.HERE / "page.js").read_text(encoding="utf-8")
    assert f"<script>{own}</script>" in text
    assert not re.search(r"fetch|XMLHttp|import|innerHTML|eval|https?:", own)
    assert not {"img", "iframe", "object"} & {tag for tag, _ in found.elements}
    for tag, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "data", "srcset", "action", "poster"):
                assert value.startswith("#") or value == "data:,", (tag, value)
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.startswith("#"), (tag, value)
    style = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]


@needs_packages
def test_ids_are_unique_and_every_reference_has_its_target() -> None:
    found = whole()
    ids = Counter(a["id"] for _, a in found.elements if "id" in a)
    assert max(ids.values()) == 1, ids.most_common(3)
    used = {
        target
        for _, attributes in found.elements
        for value in attributes.values()
        for target in re.findall(r"^#(.+)$|url\(#(.+?)\)", value)
    }
    assert len(used) > 20
    assert {a or b for a, b in used} <= set(ids)


@needs_packages
def test_names_from_files_are_text() -> None:
    data = {source.kind: copy.deepcopy(source.data) for source in everything()}
    check, bench, host, compiled = (data[kind] for kind in ("check", "bench", "host", "compile"))
    check["rows"][0]["op"] = bench["cases"][0]["op"] = compiled["rows"][0]["op"] = HOSTILE
    check["environment"] = bench["environment"] = {"gpu": HOSTILE, HOSTILE: "1"}
    check["rows"][2]["op"] = bench["cases"][0]["entries"][0]["provider"] = HOSTILE
    check["not_run"] = {"cuda-gpu": HOSTILE}
    bench["cases"][1]["best_peer"] = bench["cases"][3]["sweep"] = HOSTILE
    compiled["rows"][1]["label"] = HOSTILE
    host["host"][0]["op"] = host["host"][0]["what"] = HOSTILE
    found = read([Source(HOSTILE, kind, each) for kind, each in data.items()])
    assert [tag for tag, _ in found.elements].count("script") == 1  # the page's own
    assert found.text.count(HOSTILE) >= 10
    drawn = [a["aria-label"] for tag, a in found.elements if tag == "svg"]
    assert any(HOSTILE in label for label in drawn)


@needs_packages
def test_the_same_files_make_the_same_page() -> None:
    once, again = text_of_everything(), page.html(everything())
    assert once == again
    assert not re.search(r"\b20\d\d-\d\d-\d\dT", once)


@needs_packages
def test_every_figure_says_what_it_shows() -> None:
    found = whole()
    # A strip of samples says nothing that the line it stands in does not.
    drawn = [a for tag, a in found.elements if tag == "svg" and "aria-hidden" not in a]
    # errors, all ratios, an op and dtype, roofline, sweep, sample
    assert len(drawn) == 1 + 1 + 2 + 1 + 1 + 1
    assert all(a["role"] in ("img", "group") and len(a["aria-label"]) > 20 for a in drawn)
    # What can be reached by keyboard is not within an image: the bars of two dtypes.
    assert [a["role"] for a in drawn].count("group") == 2
    links = [a for tag, a in found.elements if tag == "a" and "aria-label" in a]
    assert len(links) == 3
    assert all(a["href"][1:] in cases(found) and a["aria-label"] for a in links)
    titles = [tag for tag, _ in found.elements].count("title")
    assert titles == len(drawn) + 1


@needs_packages
def test_colours_are_variables_of_the_page() -> None:
    text = text_of_everything()
    body = text.split("</style>")[1]
    assert not re.search(r"(?:fill|stroke):\s*#", body)
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert {"triton", "compile", "ink", "grid"} <= used <= set(colours.VARIABLES)
    for scheme in (":root{color-scheme:light dark;", "(prefers-color-scheme:dark){:root{"):
        declared = set(re.findall(r"--([\w-]+):", text.split(scheme)[1].split("}")[0]))
        assert declared == set(colours.VARIABLES)


# ---- check ----


@needs_packages
def test_the_matrix_marks_right_and_wrong_by_colour_and_by_sign() -> None:
    found = whole()
    heads = [row for row in found.rows if row[:2] == ["op", "float16"]]
    assert heads == 2 * [["op", "float16", "float32", "int8"]]  # an op a line, and a way to run it
    assert ["add", "✓ 0 ulp", "✗ wrong", "✓ 0 ulp"] in found.rows
    assert ["gemm_bias_act", "✓ 0.97 b", "–", "–"] in found.rows
    assert found.line("add Triton, interpreted")[1:] == ["✓ 0 ulp"] * 3
    assert found.line("add CUDA, on the CPU")[1:] == ["✓ 0 ulp", "✗ wrong", "✓ 0 ulp"]
    assert found.line("gemm_bias_act Triton, interpreted")[1:] == ["✓ 0.97 b", "–", "–"]
    assert "n/a, CUDA, on the GPU: no CUDA device here" in found.text
    signs = {"good": "✓", "bad": "✗"}
    cells = re.findall(r'<td class="(good|bad)">(.)', text_of_everything())
    assert {kind for kind, _ in cells} == set(signs)
    assert all(signs[kind] == sign for kind, sign in cells)


@needs_packages
def test_a_mismatch_is_told_with_its_commands() -> None:
    text = whole().text
    assert "✗ add float32: CUDA: the reference kernel" in text
    assert "element (6, 10): got nan (0x7e00), expected 2.0 (0x4000); 3 of 91" in text
    assert "python -m compare check add --shape 7,13" in text
    assert "python -m compare debug add --shape 7,13" in text
    row = failing_row()
    row["mismatches"] *= checks.SHOWN + 4
    made = page.html([Source("c", "check", check_file(row))])
    assert "and 4 more failing runs" in made
    at = made.index(f"<details><summary>The other {checks.SHOWN - 2}</summary>")
    assert made[:at].count("python -m compare debug add --shape 7,13") == 2
    assert made[at:].count("python -m compare debug add --shape 7,13") == checks.SHOWN - 2


@needs_packages
def test_of_several_files_the_wrong_one_is_first_and_every_tile_names_its_own() -> None:
    right = check_file()
    files = [Source("right.json", "check", right)]
    assert "right.json</span>" not in page.html(files)
    made = page.html([*files, Source("wrong.json", "check", check_file(failing_row()))])
    nearest = "Wrong, or nearest to the bound, "
    assert made.index(f"{nearest}wrong.json") < made.index(f"{nearest}right.json")
    assert "right.json</span>" in made
    assert "wrong.json</span>" in made


@needs_packages
def test_exact_errors_are_counted_in_bins_of_ulps() -> None:
    found = whole()
    # 0, 3–4, and inf or NaN; nothing lies elsewhere
    (head,) = {tuple(row) for row in found.rows if row[:2] == ["dtype", "implementation"]}
    assert head[2:] == ("0 ulp", "3–4 ulp", "> 65536, inf, NaN ulp")
    line = found.line("float32", "CUDA, on the CPU")
    assert line[2:] == ["1 197", "✗ 1", "✗ 2"]
    assert "✗ 3 of 7 200 elements are off." in found.text


@needs_packages
def test_a_file_from_before_errors_were_counted_still_makes_a_page() -> None:
    data = check_file()
    for row in data["rows"]:
        del row["errors"]
    found = read([Source("old.json", "check", data)])
    assert "errors" not in {a.get("id") for _, a in found.elements}
    assert "✓ 0 ulp" in found.text


# ---- compile, environment ----


@needs_packages
def test_both_compilers_figures_stand_side_by_side() -> None:
    found = whole()
    line = found.line("flat", "float16")
    assert line[2:8] == ["77", "8 / 16 (accepted)", "2048", "2×128, 1×32", "4×64", "12 HMMA"]
    assert line[8] == "✗ ptxas: <boom>"
    assert found.line("naive", "float16")[2] == "–"
    assert "✗ cuda sm_90 add float16 flat: does not compile" in found.text
    assert "1 accepted: once a tile" in found.text


@needs_packages
def test_the_environment_tells_versions_clocks_power_and_ceilings() -> None:
    text = whole().text
    for words in ("1980 → 1500 MHz", "120 → 650 W", "none → power cap", "0123abc", "Tesla X",
                  "4000 GB/s (datasheet: 5000)", "700 TFLOP/s (datasheet: 900)"):  # fmt: skip
        assert words in text, words


@needs_packages
def test_a_state_may_be_told_by_the_cases() -> None:
    data = {**bench_file(), "state_before": {}, "state_after": {}, "cold": False, "ended": "Ctrl-C"}
    for case, watts in zip(data["cases"], (100.0, 200.0, 300.0)):
        case["state_before"], case["state_after"] = {"power_w": watts}, {"power_w": watts + 9}
    text = read([Source("bench.json", "bench", data)]).text
    assert "100 → 309 W" in text
    assert "cache warm" in text
    assert "Ctrl-C" in text
