"""Mutants that survive for a reason, as explained.toml has them.

An entry names a function of a file, its statement, the statement with the fault, and the reason:
``equivalent`` (every result is the same), ``speed`` (every result is right), ``accuracy`` (within
the bound, if less accurate) or ``gpu`` (a check on a GPU sees it), and a sentence. In place of the
two statements "*" explains every survivor of a function that only chooses what is fast; with a
``kind``, every one of that kind: "narrowed" where only more than 2³¹ of anything shows it.

A target has a file of its own: explained.toml beside its module.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from compare.mutation.mutant import Mutant
from compare.ops import module_file

FILE = Path(__file__).with_name("explained.toml")
REASONS = ("equivalent", "speed", "accuracy", "gpu")


@dataclass(frozen=True)
class Explanation:
    """Why a mutant survives."""

    file: str
    function: str
    reason: str
    because: str
    statement: str = "*"
    mutant: str = "*"
    kind: str = "*"

    def covers(self, mutant: Mutant) -> bool:
        """Whether it is this mutant that is explained."""
        if (mutant.file, mutant.function) != (self.file, self.function):
            return False
        if self.kind not in ("*", mutant.edit.kind):
            return False
        return self.statement == "*" or mutant.statement == (self.statement, self.mutant)

    def __str__(self) -> str:
        if self.kind != "*":
            return f"{self.file} {self.function}: {self.kind}"
        return f"{self.file} {self.function}: {self.statement} → {self.mutant}"


def beside(target: str) -> Path:
    """Where a target's survivors are explained, if they are."""
    return module_file(target).with_name(FILE.name)


def read(file: Path = FILE) -> list[Explanation]:
    """All entries. Raises ValueError for one that is not as described above, or a file that is no
    TOML."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file.name}: {error}") from None
    explanations = []
    for entry in entries:
        try:
            explanation = Explanation(**entry)
        except TypeError as error:
            raise ValueError(f"{file.name}: {entry}: {error}") from None
        if explanation.reason not in REASONS or not explanation.because:
            raise ValueError(f"{file.name}: {explanation}: a reason, one of {', '.join(REASONS)}")
        if (explanation.statement == "*") != (explanation.mutant == "*"):
            raise ValueError(f"{file.name}: {explanation}: both statements, or none")
        if explanation.kind != "*" and explanation.statement != "*":
            raise ValueError(f"{file.name}: {explanation}: a kind, or statements")
        explanations.append(explanation)
    return explanations


def explanation(mutant: Mutant, known: list[Explanation]) -> Explanation | None:
    """Why the mutant survives; None if nobody said."""
    return next((each for each in known if each.covers(mutant)), None)


def stale(
    known: list[Explanation], population: list[Mutant], survivors: list[Mutant] | None = None
) -> list[Explanation]:
    """The entries that cover none of the whole population, of code that has changed; and, where
    all of it was tried, those that cover no survivor. What a GPU kills may be killed."""
    without_mutant = []
    for each in known:
        mutants = population if survivors is None or each.reason == "gpu" else survivors
        if not any(map(each.covers, mutants)):
            without_mutant.append(each)
    return without_mutant
