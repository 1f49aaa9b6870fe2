"""All mutants of the kernels, and the ops whose check can find each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from compare.mutation import cuda_faults, of_targets, reach, triton_faults
from compare.mutation.mutant import ROOT, Mutant
from compare.mutation.reach import CSRC
from compare.ops import SPECS, sources, spec_of
from triton_kernels.gemm.gluon import availability

GLUON = "triton_kernels/gemm/gluon/"  # runs on some GPUs only
# Not mutated: whole models and the interpreter are no kernels, and have tests of their own.
_NO_KERNELS = ("triton_kernels/interpreter/", "triton_kernels/graph/", "triton_kernels/nn/")


def population(sides: list[str], ops: list[str], root: Path = ROOT) -> list[Mutant]:
    """Every mutant of the functions that the ops can reach, side by side, without those that cannot
    run here."""
    mutants: list[Mutant] = []
    left_out = (GLUON,) if gluon_missing(ops, root) else ()
    for file in files(root):
        if file.startswith(left_out):
            continue
        side, faults = "cuda", cuda_faults.faults
        if file.endswith(".py"):
            side, faults = "triton", triton_faults.faults
        if side in sides:
            mutants += (m for m in faults(file, _text(root, file)) if seen_by(m, ops, root))
    for op in filter(is_target, ops):
        mutants += of_targets.mutants(op, sides)
    return mutants


def is_target(op: str) -> bool:
    """Whether it is a target, not an op of this project."""
    return ":" in op


def gluon_missing(ops: list[str], root: Path = ROOT) -> str:
    """Why Gluon's kernel cannot run here, if the ops use it; else ""."""
    return availability.here() if _part_of(f"{GLUON}kernels.py", ops, root) else ""


def files(root: Path = ROOT) -> list[str]:
    """The files that are mutated."""
    sides = [*_files(root, "triton_kernels", "*.py"), *_files(root, CSRC, "*.cu*")]
    return [file for file in sides if not file.startswith(_NO_KERNELS)]


def _part_of(file: str, ops: list[str], root: Path) -> bool:
    """Whether one of the ops uses a file, or files that import it."""
    return bool(_by_files(file, ops, root))


def seen_by(mutant: Mutant, ops: list[str], root: Path = ROOT) -> list[str]:
    """Those of the ops that can run a mutant's function, nearest first. A target has its own files.
    Where names lead to no op, imports between files decide."""
    file = mutant.file
    if targets := [op for op in ops if is_target(op) and file in sources(op)[1]]:
        return [op for op in targets if of_targets.reaches(op, mutant)]
    away = _reaching(root).get((file, reach.part_at(file, mutant.line, root)))
    if away is None:
        return _by_files(file, ops, root)
    return sorted((op for op in ops if op in away), key=lambda op: away[op])


def judges(mutant: Mutant, ops: list[str], root: Path = ROOT) -> list[str]:
    """The ops whose cases are tried with a mutant. Ops of this project share functions, and only
    all of them together take every branch: so every op that reaches it, not only the named ones."""
    seen = seen_by(mutant, ops, root)
    if not mutant.function or any(map(is_target, seen)):  # nothing is planted, or in a target
        return seen
    return seen_by(mutant, list(SPECS), root)


@cache
def _reaching(root: Path) -> dict[tuple[str, int | None], dict[str, int]]:
    """File and part → the ops that reach it, and the distance from each."""
    reaching: dict[tuple[str, int | None], dict[str, int]] = {}
    for op in SPECS:
        for place, away in reach.reached(op, root).items():
            reaching.setdefault(place, {})[op] = away
    return reaching


def _by_files(file: str, ops: list[str], root: Path) -> list[str]:
    """The ops that use a file, nearest first: its own op, then ops whose files import or include
    it, then ops that import these."""
    users = _users(root)
    distance = {file: 0}
    left = [file]
    for at in left:
        for user in users.get(at, ()):
            if user not in distance:
                distance[user] = distance[at] + 1
                left.append(user)

    def away(op: str) -> float:
        stem = spec_of(op).stem
        own = (f"triton_kernels/ops/{stem}.py", f"{CSRC}/{stem}.cu")
        return min((distance[name] for name in own if name in distance), default=float("inf"))

    known = (op for op in ops if not is_target(op))
    return sorted((op for op in known if away(op) < float("inf")), key=away)


def _files(root: Path, folder: str, pattern: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in (root / folder).rglob(pattern))


def _text(root: Path, file: str) -> str:
    return (root / file).read_text(encoding="utf-8")


@cache
def _users(root: Path) -> dict[str, list[str]]:
    """File → the files that import or include it."""
    users: dict[str, list[str]] = {}
    for file in _files(root, "triton_kernels", "*.py"):
        for name in _imports(ast.parse(_text(root, file))):
            users.setdefault(name, []).append(file)
    for file in _files(root, CSRC, "*.cu*"):
        for name in re.findall(r'^#include "(.+)"', _text(root, file), re.M):
            users.setdefault(f"{CSRC}/{name}", []).append(file)
    return users


def _imports(tree: ast.Module) -> Iterator[str]:
    """The files that a module imports, including modules of packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = node.module.replace(".", "/")
            yield f"{path}.py"
            yield from (f"{path}/{alias.name}.py" for alias in node.names)
