"""The report page shows a target beside this project's ops."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_files import Page, bench_case, bench_file, check_file, check_row, compile_file, entry

from compare.reporting import page
from compare.reporting.sources import Source

TARGET = "rowwise.specs:SOFTMAX"


@pytest.mark.usefixtures("packages")
def test_a_target_stands_beside_the_ops() -> None:
    times = [entry("triton", 10.0, 12.0), entry("cuda", 15.0, 12.0), entry("theirs", 12.0, None)]
    more: dict[str, Any] = {"entries": times, "best_peer": "theirs", "flops": 0, "bytes": 512}
    timed = bench_case(TARGET, "float32", (8, 8), **more, options={})
    compiled = compile_file()
    compiled["rows"] += [{**row, "op": TARGET} for row in compiled["rows"]]
    files = [
        Source("check.json", "check", check_file(check_row(TARGET, "float32", "ulp"))),
        Source("bench.json", "bench", bench_file(timed)),
        Source("compile.json", "compile", compiled),
    ]
    made = Page(page.html(files))
    own = [[word.strip() for word in row] for row in made.rows if row[0].strip() == TARGET]
    assert own[0][1:] == ["1.20", "float32", "8×8", "theirs"]  # among the slowest
    assert ["float32", "5", "14", "bitwise", "sampled", "✓ pass"] in [row[1:] for row in own]
    assert ["float32", "1", "1.20", "1.20"] in [row[1:5] for row in own]  # × the best peer's speed
    assert f"python -m compare bench --target {TARGET} --dtype float32 --shapes 8,8" in made.text
    assert "theirs" in made.text
    assert made.text.count(TARGET) >= 4
    assert any(row[0].strip() == "add" for row in made.rows)


@pytest.mark.usefixtures("packages")
def test_a_target_that_may_be_some_ulps_off() -> None:
    """What is within is right, and its part of what is allowed has its place among the worst."""
    errors = {"triton-interpreted": {"exact_ulp": {"0": 90, "4": 6, "16": 4}}}
    worst = {"triton-interpreted": 12.0}
    within = check_row(TARGET, "float32", "ulp", max_ulps=16, worst=worst, errors=errors)
    beyond = {"triton-interpreted": {"exact_ulp": {"0": 90, "16": 4, "32": 5, "inf": 1}}}
    words = {"implementation": "triton-interpreted", "case": "", "problem": "wrong values"}
    wrong = {**words, "deviation": None, "program_id": None, "replay": "", "debug": ""}
    worse = {"worst": {"triton-interpreted": 30.0}, "errors": beyond, "mismatches": [wrong]}
    failing = check_row(f"{TARGET}2", "float32", "ulp", max_ulps=16, passed=False, **worse)
    for row, launches in ((within, 0), (failing, 5)):
        row["runs"], row["launches"] = {"triton-interpreted": 5}, launches
    made = Page(page.html([Source("check.json", "check", check_file(within, failing))]))
    rows = [[word.strip() for word in row] for row in made.rows]
    assert [TARGET, "✓ 12 ulp of 16", "float32", "Triton, interpreted"] in rows
    assert [f"{TARGET}2", "✗ 30 ulp of 16", "float32", "Triton, interpreted"] in rows
    # 0, 3–4, 9–16, 17–32, and inf or NaN
    line = ["float32", "16 ulp", "Triton, interpreted"]
    assert [*line, "90", "6", "4", "0", "0"] in rows
    assert [*line, "90", "0", "4", "✗ 5", "✗ 1"] in rows
    told = "the Triton side launched no kernel, so no Triton kernel was checked."
    assert made.text.count(told) == 1
    assert f"{TARGET} float32: {told}" in made.text
    assert "bits must agree, or nearly" in made.text
    assert "✗ 6 of " in made.text
    assert "elements are further off." in made.text
