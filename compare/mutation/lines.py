"""Which cases reach a mutant's statement in the interpreter.

A mutant behaves like the original until its statement is executed. So a case that does not execute
the statement in the original need not be tried.
"""

from __future__ import annotations

import ast
import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare.mutation import nurseries, population
from compare.mutation.mutant import ROOT, Mutant
from compare.mutation.nurseries import Nursery

# Recording takes about as long as two survivors, on which all cases are tried.
PAYS = 40  # mutants
SECONDS = 600
SIDE = "triton_kernels/"

Masks = dict[int, int]  # line → the numbers of the cases that execute it, as bits


class Lines:
    """The lines that every case executes.

    Attributes:
        imported: file → the lines executed by importing the packages.
        masks: op → file → masks.
    """

    def __init__(self) -> None:
        self.imported: dict[str, set[int]] = {}
        self.masks: dict[str, dict[str, Masks]] = {}

    def add(self, recorded: dict[str, Any]) -> None:
        """Add the output of compare.mutation.recorder."""
        for file, lines in recorded["imported"].items():
            self.imported.setdefault(file, set()).update(lines)
        for op, files in recorded["masks"].items():
            for file, masks in files.items():
                known = self.masks.setdefault(op, {}).setdefault(file, {})
                for line, mask in masks.items():
                    known[int(line)] = known.get(int(line), 0) | int(mask, 16)

    def reaching(self, mutant: Mutant, ops: list[str]) -> dict[str, list[int]] | None:
        """Op → the numbers of its cases that reach the mutant's statement. None if any case may,
        because importing the packages executes it, or because nothing is known. Of a target either
        none does or any may: what it keeps between cases is not known."""
        if mutant.file not in self.imported:  # in CUDA
            return None
        statement = lines_of(mutant)
        if not statement or not self.imported[mutant.file].isdisjoint(statement):
            return None
        numbers = {}
        for op in ops:
            masks = self.masks[op][mutant.file]
            whole = 0
            for line in statement:
                whole |= masks.get(line, 0)
            numbers[op] = [n for n in range(whole.bit_length()) if whole >> n & 1]
            if numbers[op] and population.is_target(op):
                return None
        return numbers

    def run(self, mutant: Mutant) -> bool:
        """Whether a case or the import executes a line of the mutant's function; true if that is
        not known."""
        if mutant.file not in self.imported or not mutant.function:
            return True
        around = [each for each in _functions(mutant.text) if mutant.line in each[0]]
        if not around:
            return True
        whole, body = min(around, key=lambda each: len(each[0]))
        executed = {line for files in self.masks.values() for line in files.get(mutant.file, ())}
        if whole[0] != body[0]:  # the import executes the lines of the definition
            executed |= self.imported[mutant.file]
        return not executed.isdisjoint(body)


@functools.cache
def _functions(text: str) -> list[tuple[range, range]]:
    """The lines of every function, and those of its body."""
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    ends = ((f, (f.end_lineno or f.lineno) + 1) for f in functions)
    return [(range(f.lineno, end), range(f.body[0].lineno, end)) for f, end in ends]


def lines_of(mutant: Mutant) -> range | None:
    """The lines of the innermost statement that contains the edit; of a compound statement only
    those before its body; None for a def's own lines."""
    last = mutant.line + mutant.text.count("\n", mutant.edit.start, mutant.edit.end)
    around: ast.stmt | None = None
    for node in ast.walk(ast.parse(mutant.text)):  # outer statements first
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line:
            around = node if last <= (node.end_lineno or 0) else around
    if around is None or isinstance(around, (ast.FunctionDef, ast.ClassDef)):
        return None
    end = around.end_lineno or around.lineno
    body = getattr(around, "body", None)
    return range(around.lineno, max(around.lineno, body[0].lineno - 1 if body else end) + 1)


def record(
    mutants: list[Mutant], level: str, jobs: int, known: Lines | None = None
) -> Lines | None:
    """The lines of all cases of the ops that judge these mutants, for mutants in this project's
    Triton kernels and their host code, added to the known ones. Only the known ones if recording
    takes longer than trying all cases."""
    mutants = [each for each in mutants if each.file.startswith(SIDE) and each.function]
    mutants = [each for each in mutants if not each.file.startswith(population.GLUON)]
    if len(mutants) < PAYS:
        return known
    files = sorted({mutant.file for mutant in mutants})
    ops = sorted({op for mutant in mutants for op in population.judges(mutant, [])})
    print(f"the lines that the cases of {len(ops)} ops execute", file=sys.stderr, flush=True)
    lines = known or Lines()
    shares = [{"ops": ops, "files": files, "level": level, "share": (n, jobs)} for n in range(jobs)]
    for recorded in nurseries.each(_share, shares, jobs):
        lines.add(recorded)
    return lines


def record_target(name: str, files: list[str], level: str, folder: str) -> Lines:
    """The lines of these files that the cases of a target execute, in a folder with the packages
    and the target.

    Raises:
        RuntimeError: the cases could not be run.
    """
    lines, nursery = Lines(), Nursery()
    share = {"ops": [name], "files": files, "level": level, "share": (0, 1)}
    try:
        lines.add(_share(share, nursery, folder))
    finally:
        nursery.end()
    return lines


def _share(share: dict[str, Any], nursery: Nursery, root: str = str(ROOT)) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lines-") as folder:
        said = Path(folder) / "output"
        words = ["compare.mutation.recorder", json.dumps(share)]
        request = {"folder": root, "output": str(said), "environment": {}, "words": words}
        status = nursery.run(SECONDS, **request)
        output = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    try:
        recorded: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"the recorder ended with {status}: {output[-2000:]}") from None
    return recorded
