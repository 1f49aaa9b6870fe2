"""check --attack: a search for inputs whose error is large against the bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from compare import Function
from compare.cases import Case
from compare.checking import attack, scheduling, verdicts
from compare.checking.implementations import Implementation
from compare.cli import app
from compare.ops import SPECS
from compare.specs import Spec

STEPS = 40
ROWS = Case("rows", "float32", (9, 33))


def rows_summed(change: Any = None) -> Spec:
    """Sums of rows in the tensor's dtype, 16 terms of which are added before the others."""

    def summed(x: Tensor) -> Tensor:
        result = x[:, :16].sum(1) + x[:, 16:].sum(1)
        return result if change is None else change(x, result)

    return Function(
        "rows",
        triton=summed,
        oracle=lambda x: x.double().sum(1),
        bound=lambda reference, x: 33 * 2.0**-24 * x.double().abs().sum(1),
        shapes=[ROWS.shape],
    )


def attacked(spec: Spec, case: Case = ROWS, steps: int = STEPS) -> Any:
    (found,) = spec.variants("triton").values() or (None,)
    function = found or spec.triton
    implementation = Implementation("triton-interpreted", None, function)
    (outcome,) = verdicts.check_case(spec, case, [implementation], steps).outcomes
    return outcome


def check(*words: str) -> Result:
    return CliRunner().invoke(app, ["check", *words, "--jobs", "1"])


def test_the_error_climbs_and_the_search_repeats_itself() -> None:
    spec = rows_summed()
    heights = [attacked(spec, steps=steps).worst for steps in (0, 5, STEPS, 4 * STEPS)]
    assert 0 < heights[0] < heights[2] < heights[3] < 1
    assert heights == sorted(heights)
    outcome, again = attacked(spec), attacked(spec)
    assert (outcome.worst, outcome.replay) == (again.worst, again.replay)
    steps = int(outcome.replay.split()[-1])
    assert 0 < steps <= STEPS
    assert attacked(spec, steps=steps).worst == outcome.worst
    assert attacked(spec, steps=steps - 1).worst < outcome.worst
    other = Case("rows", "float32", ROWS.shape, seed=1)
    assert attacked(spec, other).worst != outcome.worst


def test_it_finds_what_drawn_numbers_do_not() -> None:
    """Wrong for numbers from 100 on: random ones are less than 5."""

    def change(x: Tensor, result: Tensor) -> Tensor:
        return torch.where(x.abs().amax(1) >= 100, 0.0, result)

    spec = rows_summed(change)
    assert attacked(spec, steps=0).mismatch is None
    mismatch = attacked(spec, steps=200).mismatch
    assert mismatch is not None
    assert mismatch.problem == "wrong values"
    assert mismatch.replay.endswith(f"--attack {mismatch.attack}")
    assert 0 < mismatch.attack <= 200
    assert mismatch.debug == ""
    assert attacked(spec, steps=mismatch.attack).mismatch == mismatch
    assert attacked(spec, steps=mismatch.attack - 1).mismatch is None


def test_what_stays_of_a_tensor() -> None:
    """Finite, at most so far from what was drawn, and not negative if no element was; indices stay
    as they are."""
    seen: list[tuple[Tensor, ...]] = []
    make = {"x": torch.rand(5, 7), "y": torch.randn(5, 7), "at": torch.arange(7)}

    def taken(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        seen.append((x.clone(), y.clone(), at.clone()))
        return (x + y)[:, at]

    spec = Function(
        "taken", triton=taken, oracle=lambda x, y, at: (x + y)[:, at], shapes=[(5, 7)], max_ulps=0
    )
    implementation = Implementation("triton-interpreted", None, taken)
    case = Case("taken", "float32", (5, 7))
    outcome = attack.attack(spec, case, implementation, (tuple(make.values()), {}), 300)
    assert outcome.mismatch is None
    x, y, at = (torch.stack(each) for each in zip(*seen))
    assert bool((at == torch.arange(7)).all())
    for values in (x, y):
        assert len(values.unique()) > 500
        assert bool(values.isfinite().all())
        assert 3 * values[0].abs().max() < values.abs().max() <= 256 * values[0].abs().max()
    assert bool((x >= 0).all())
    assert bool((y < 0).any())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, dtype=torch.complex64),
        torch.arange(3),
        torch.ones(1).expand(3),
        torch.ones(3).to(torch.float8_e5m2),
    ],
    ids=["empty", "bool", "complex", "indices", "expanded", "float8"],
)
def test_tensors_that_are_not_searched(tensor: Tensor) -> None:
    assert not attack._takes_numbers(tensor, ROWS)
    assert attack._takes_numbers(torch.ones(3), ROWS)


def test_integers_are_new_ones_and_not_negative_if_none_was() -> None:
    searched = attack._Searched(torch.arange(1000))
    g = torch.Generator().manual_seed(0)
    changed = torch.stack([searched.changed(g) for _ in range(50)])
    assert bool((changed >= 0).all())
    assert not torch.equal(changed[0], changed[1])
    small = attack._Searched(torch.arange(-128, 128).to(torch.int8))
    assert {len(small.changed(g).unique()) for _ in range(50)} != {256}


def test_an_exact_op_walks_over_integers_too() -> None:
    spec = SPECS["add"]
    for dtype in ("int8", "bfloat16"):
        outcome = attacked(spec.changed(variants=lambda side: {}), Case("add", dtype, (7, 13)), 20)
        assert (outcome.worst, outcome.mismatch) == (0.0, None)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    words = ["sum_to", "--dtype", "bfloat16", "--impl", "cuda-host", "--attack", "20"]
    done = check(*words, "--json", str(file))
    assert done.exit_code == 0, done.output
    assert "--most 4: 4 of " in done.output
    (row,) = json.loads(file.read_text())["rows"]
    score, replay = row["attacks"]["cuda-host"]
    assert 0 < score == row["worst"]["cuda-host"] <= 1
    told = f"worst found, sum_to bfloat16, cuda-host: {score:.2f} b: {replay}"
    assert told in done.output.splitlines()
    again = check(*replay.split()[4:], "--json", str(file))
    assert again.exit_code == 0, again.output
    (row,) = json.loads(file.read_text())["rows"]
    assert row["worst"]["cuda-host"] == score


def test_it_begins_with_plain_numbers() -> None:
    for words in (["--layout", "padded"], ["--values", "special"]):
        done = check("add", "--attack", "3", "--dtype", "float32", *words)
        assert done.exit_code == 2
        assert "--attack begins with --values normal" in done.output


def test_a_search_that_ends_its_process_is_repeated_whole() -> None:
    implementation = Implementation("cuda-host", None, torch.add)
    tried = scheduling._Tried(SPECS["add"], ROWS, [implementation], 7)
    tried._end(implementation, "crashed: SIGSEGV")
    mismatch = tried.outcomes["cuda-host"].mismatch
    assert mismatch is not None
    assert mismatch.replay.endswith(" --impl cuda-host --attack 7")
