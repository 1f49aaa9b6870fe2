"""The errors that check counts for the page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from compare import Function, check
from compare.cases import Case
from compare.checking import histograms, running
from compare.checking.implementations import Implementation
from compare.checking.running import Outcome
from compare.checking.verdicts import Row
from compare.commands.options import write_json
from compare.ops import SPECS


def test_values_are_counted_by_powers_of_two() -> None:
    values = [0.0, 1e-9, 0.5, 0.51, 1.0, 2.0, 3.0, 4.0, 65536.0, 65537.0, math.inf, math.nan]
    assert histograms.counted(torch.tensor(values, dtype=torch.float64)) == {
        "0": 1,
        "0.00390625": 1,
        "0.5": 1,
        "1": 2,
        "2": 1,
        "4": 2,
        "65536": 1,
        "inf": 3,
    }
    assert histograms.counted(torch.empty(0)) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    values = torch.tensor([1.0, -1.5, 2.0, 3e-3, info.smallest_normal, smallest], dtype=dtype)
    following = torch.nextafter(values.abs(), torch.full_like(values, math.inf))
    expected = following.double() - values.abs().double()
    assert torch.equal(histograms.spacing(values.double(), dtype), expected)
    assert histograms.spacing(torch.zeros(1), dtype).item() == smallest


def shifted(by: float) -> Outcome:
    """linear_gelu in float32, off by a fraction of the bound everywhere."""
    spec = SPECS["linear_gelu"]
    case = Case("linear_gelu", "float32", (4, 8, 16), options=spec.default_options)
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    implementation = Implementation("triton-interpreted", None, spec.triton)
    bound = spec.bound(implementation.name, arguments, reference, torch.float32)  # type: ignore[misc]
    result = (reference + by * bound).float()
    return running.judge(spec, case, implementation, arguments, result, reference)


def test_a_check_counts_every_element_of_every_run() -> None:
    right, wrong = shifted(0.7), shifted(3.0)
    assert right.mismatch is None
    assert wrong.mismatch is not None
    assert right.errors["fraction"] == {"1": 32}
    assert wrong.errors["fraction"] == {"4": 32}
    row = Row("linear_gelu", "float32", exact=False)
    for outcome in (right, right, wrong):
        row.add_outcome(outcome)
    found = row.to_dict()["errors"]["triton-interpreted"]
    assert found["fraction"] == {"1": 64, "4": 32}
    assert sum(found["ulp"].values()) == sum(found["bound_ulp"].values()) == 96
    assert right.errors["fraction"] == {"1": 32}  # the row's sum is the row's own


def test_exact_errors_are_counted_in_ulps() -> None:
    spec = SPECS["square"]
    case = Case("square", "float32", (4,))
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0])
    implementation = Implementation("cuda-host", None, spec.cuda)
    same = running.judge(spec, case, implementation, arguments, reference.clone(), reference)
    assert same.errors == {"exact_ulp": {"0": 4}}
    off = reference.clone().view(torch.int32)
    off[1] += 1
    off[2] += 3
    found = running.judge(spec, case, implementation, arguments, off.view(torch.float32), reference)
    assert found.errors == {"exact_ulp": {"0": 2, "1": 1, "4": 1}}


def test_errors_within_ulps_that_are_allowed_are_counted_as_they_are() -> None:
    """Right ones, too: they are not all 0."""
    off = torch.tensor([0, 1, 3, 16], dtype=torch.int32)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) + off).view(torch.float32)

    given = {"cuda": function, "oracle": lambda x: x, "shapes": [(4,)]}
    spec = Function("off", max_ulps=16, layouts=["contiguous"], values=["normal"], **given)
    report = check(spec, level="quick")
    assert report
    row = report.rows[0].to_dict()
    assert row["errors"]["cuda-host"] == {"exact_ulp": {"0": 1, "1": 1, "4": 1, "16": 1}}
    assert row["max_ulps"] == 16
    assert row["worst"]["cuda-host"] == 16


def test_a_row_is_a_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    found = {"passed": True, "rows": [{"worst": math.inf}, {"worst": 0.5}], "archs": {"sm_90": 1}}
    write_json(file, found)
    assert json.loads(file.read_text()) == {**found, "rows": [{"worst": "inf"}, {"worst": 0.5}]}
    assert len(file.read_text().splitlines()) == 8
    write_json(file, {"rows": []})
    assert json.loads(file.read_text()) == {"rows": []}
