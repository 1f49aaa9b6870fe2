"""Which cases come to a mutant's statement: what is recorded, and what it leaves to be tried."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compare.mutation import lines, planting, population
from compare.mutation.lines import Lines
from compare.mutation.mutant import ROOT, Edit, Mutant
from compare.mutation.nurseries import Nursery
from compare.mutation.planting import Plan
from compare.mutation.trial import LINED, cases_of
from compare.ops import SPECS

SQUARE = "triton_kernels/ops/square.py"
HOST = "triton_kernels/_elementwise.py"
TEXT = """\
def chosen(
    x,
    few=3,
):
    total = (
        x
        + few
    )
    if x > few and (
        x < 9
    ):
        return total
    return x
"""


def mutant_at(old: str, new: str, file: str = HOST, text: str = TEXT) -> Mutant:
    assert text.count(old) == 1
    at = text.index(old)
    return Mutant("triton", file, "chosen", Edit("planted", at, at + len(old), new), text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("+ few", "- few", range(5, 9)),
        ("x > few", "x >= few", range(9, 12)),  # not what the if holds
        ("return total", "return x", range(12, 13)),
        ("few=3", "few=4", None),  # what a def has is executed once
    ],
)
def test_lines_of_the_innermost_statement(old: str, new: str, expected: range | None) -> None:
    assert lines.lines_of(mutant_at(old, new)) == expected


def recorded(imported: list[int], masks: dict[int, int], op: str = "square") -> dict[str, Any]:
    written = {str(line): hex(mask) for line, mask in masks.items()}
    return {"imported": {HOST: imported}, "masks": {op: {HOST: written}}}


def test_a_case_that_executes_one_line_of_it_comes_to_it() -> None:
    known = Lines()
    known.add(recorded([1], {5: 0b1, 7: 0b100, 13: 0b1000}))
    known.add(recorded([1], {7: 0b10000}))  # the other half of the cases
    known.add(recorded([1], {}, op="add"))
    total = mutant_at("+ few", "- few")
    assert known.reaching(total, ["square", "add"]) == {"square": [0, 2, 4], "add": []}
    assert known.reaching(mutant_at("x > few", "x >= few"), ["square"]) == {"square": []}
    # Of what is not known, or happens when the packages are imported, any case may tell.
    assert known.reaching(mutant_at("few=3", "few=4"), ["square"]) is None
    assert known.reaching(mutant_at("+ few", "- few", file="other.py"), ["square"]) is None
    cuda = mutant_at("x'y", "x", file="cuda_reference/csrc/square.cu", text="// x'y\n")
    assert known.reaching(cuda, ["square"]) is None
    known.add(recorded([6], {}))
    assert known.reaching(total, ["square"]) is None


def line_of(file: str, code: str) -> int:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(code) == 1
    return text.count("\n", 0, text.index(code)) + 1


def test_what_cases_execute() -> None:
    """The formula of the op, and of no other. And what a call keeps for the next one like it, each
    executes: of every 90th case the lines are the same where the cases between them run, too."""
    share = {"ops": ["square", "square_backward"], "files": [SQUARE, HOST], "level": "quick"}
    few, more = Lines(), Lines()
    nursery = Nursery()
    try:
        few.add(lines._share({**share, "share": (8, 90)}, nursery))
        more.add(lines._share({**share, "share": (8, 15)}, nursery))
    finally:
        nursery.end()
    count = len(cases_of(SPECS["square"], LINED, "quick"))
    ran = sum(1 << n for n in range(8, count, 90))
    assert ran.bit_count() >= 5
    formula = line_of(SQUARE, "return x * x")
    assert few.masks["square"][SQUARE][formula] == ran
    assert formula not in few.masks["square_backward"][SQUARE]
    launch = "return Launch(flat_kernel, (), BLOCK=how.block, **_named_units(ALL, ALL, ALL)"
    contiguous = few.masks["square"][HOST][line_of(HOST, launch)]
    assert 2 <= contiguous.bit_count() < ran.bit_count()
    again = {line: mask & ran for line, mask in more.masks["square"][HOST].items()}
    assert {line: mask for line, mask in again.items() if mask} == few.masks["square"][HOST]


def test_the_others_are_not_tried() -> None:
    """A mutant that any case kills survives where no case comes to it, and says so."""
    text = (ROOT / SQUARE).read_text(encoding="utf-8")
    known = Lines()
    known.imported[SQUARE] = set()
    known.masks = {op: {SQUARE: {}} for op in SPECS}
    plan = Plan(["square"], lines=known, modes=(LINED,))
    wrong = mutant_at("return x * x", "return x", SQUARE, text)
    assert json.loads(plan.request(wrong))["numbers"] == {"square": []}
    (trial,) = planting.run([wrong], plan, jobs=1)
    assert (trial.end, trial.cases, trial.says) == ("survived", 0, "no case comes to it")
    known.masks["square"][SQUARE][line_of(SQUARE, "return x * x")] = 1 << 5
    (trial,) = planting.run([wrong], plan, jobs=1)
    assert (trial.end, trial.cases) == ("killed", 1)


def test_recorded_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many mutants, of the interpreter's cases alone."""
    asked: list[dict[str, Any]] = []

    def share(each: dict[str, Any], nursery: Nursery) -> dict[str, Any]:
        asked.append(each)
        return {"imported": {}, "masks": {}}

    monkeypatch.setattr(lines, "_share", share)
    mutants = population.population(["triton"], ["sum_to"])
    plan = Plan(["sum_to"], modes=(LINED,))
    assert planting.recorded(plan, mutants[: lines.PAYS - 1], jobs=2).lines is None
    compiled = Plan(["sum_to"], modes=("triton-compiled",))
    assert planting.recorded(compiled, mutants, jobs=2).lines is None
    cuda = population.population(["cuda"], ["sum_to", "square"])
    assert planting.recorded(plan, cuda, jobs=2).lines is None
    assert not asked
    assert planting.recorded(plan, mutants, jobs=2).lines is not None
    assert sorted(each["share"] for each in asked) == [(0, 2), (1, 2)]
    assert "sum_to" in asked[0]["ops"]
    assert set(asked[0]["files"]) == {mutant.file for mutant in mutants}
