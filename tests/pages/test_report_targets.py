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
    assert own[0][1:] == ["float32", "5", "14", "bitwise", "sampled", "✓ pass"]
    assert own[1][1:5] == ["float32", "1", "1.20", "1.20"]  # times the best peer's speed
    assert "theirs" in made.text
    assert made.text.count(TARGET) >= 4
    assert any(row[0].strip() == "add" for row in made.rows)
