"""The explanations of surviving mutants in explained.toml.

An entry names a function of a file, its statement, the statement with the fault, and a reason with
a sentence: ``equivalent`` (every result is the same), ``speed`` (every result is right),
``accuracy`` (less accurate, but within the bound), ``gpu`` (a check on a GPU finds it: some only
under compute-sanitizer, or on an older GPU), ``size`` (a result is wrong only at a size that no
case has) or ``timing`` (a result is wrong only if events come in an order that no run had). Instead
of the two statements, "*" covers every survivor of a function that only chooses what is fast. With
a ``kind`` it covers every survivor of that kind: "narrowed" shows only with more than 2³¹ elements.
The first entry that covers a mutant counts.

A target has its own file: explained.toml beside its module.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from compare.mutation.mutant import Mutant
from compare.ops import module_file

FILE = Path(__file__).with_name("explained.toml")
REASONS = ("equivalent", "speed", "accuracy", "gpu", "size", "timing")
AT_TIMES = ("gpu", "timing")  # what some machines and runs kill


@dataclass(frozen=True)
class Explanation:
    """The reason why a mutant survives."""

    file: str
    function: str
    reason: str
    because: str
    statement: str = "*"
    mutant: str = "*"
    kind: str = "*"

    def covers(self, mutant: Mutant) -> bool:
        """Whether this entry explains the mutant."""
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
    """The file that explains a target's survivors; it need not exist."""
    return module_file(target).with_name(FILE.name)


def read(file: Path = FILE) -> list[Explanation]:
    """All entries. Raises ValueError for a malformed entry or file."""
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
    """The entry that explains the mutant, or None."""
    return next((each for each in known if each.covers(mutant)), None)


def stale(
    known: list[Explanation], population: list[Mutant], survivors: list[Mutant] | None = None
) -> list[Explanation]:
    """The entries that cover no mutant, because the code has changed. If the whole population was
    tried, also those that cover no survivor, except what is killed AT_TIMES."""
    without_mutant = []
    for each in known:
        mutants = population if survivors is None or each.reason in AT_TIMES else survivors
        if not any(map(each.covers, mutants)):
            without_mutant.append(each)
    return without_mutant
