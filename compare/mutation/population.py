"""All mutants of the kernels, and the ops whose check can see each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from compare.mutation import cuda_faults, triton_faults
from compare.mutation.mutant import ROOT, Mutant
from compare.ops import sources, spec_of
from triton_kernels.gemm.gluon import availability

CSRC = "cuda_reference/csrc"
GLUON = "triton_kernels/gemm/gluon/"  # runs on some GPUs, and nowhere else
# Whole models and the interpreter are no kernels; what they do, tests check.
_NO_KERNELS = ("triton_kernels/interpreter/", "triton_kernels/graph/", "triton_kernels/nn/")


def population(sides: list[str], ops: list[str], root: Path = ROOT) -> list[Mutant]:
    """Every mutant of the sources that the ops are made of, a side after the other, but of those
    that do not run here."""
    mutants: list[Mutant] = []
    left_out = (GLUON,) if gluon_missing(ops, root) else ()
    for file in files(root):
        if file.startswith(left_out):
            continue
        side, faults = "cuda", cuda_faults.faults
        if file.endswith(".py"):
            side, faults = "triton", triton_faults.faults
        if side in sides and _part_of(file, ops, root):
            mutants += faults(file, _text(root, file))
    for op in filter(is_target, ops):
        mutants += of_target(op, sides)
    return mutants


def is_target(op: str) -> bool:
    """Whether it is no op of this project's."""
    return ":" in op


def of_target(name: str, sides: list[str]) -> list[Mutant]:
    """Every mutant of the kernels that belong to a target."""
    mutants: list[Mutant] = []
    folder, own = sources(name)
    for file in own:
        if file.endswith(".py") and "triton" in sides:
            mutants += triton_faults.faults(file, _text(folder, file))
        elif file.endswith((".cu", ".cuh")) and "cuda" in sides:
            mutants += cuda_faults.faults(file, _text(folder, file))
    return mutants


def gluon_missing(ops: list[str], root: Path = ROOT) -> str:
    """Why Gluon's kernel, if the ops are made of it, does not run here; or ""."""
    return availability.here() if _part_of(f"{GLUON}kernels.py", ops, root) else ""


def files(root: Path = ROOT) -> list[str]:
    """The files that mutants are made of."""
    sides = [*_files(root, "triton_kernels", "*.py"), *_files(root, CSRC, "*.cu*")]
    return [file for file in sides if not file.startswith(_NO_KERNELS)]


def _part_of(file: str, ops: list[str], root: Path) -> bool:
    """Whether one of the ops is made of a file. Another op's file is not a part of it, even where
    its gradients are made with that; nor is a private file beside such a one."""
    own = Path(file)
    if own.suffix == ".cu" or own.parent.name == "ops":
        stems = {spec_of(op).stem for op in ops if not is_target(op)}
        private = own.stem.startswith("_")
        owners = _users(root).get(file, []) if private else [file]
        return any(Path(owner).stem in stems for owner in owners)
    return bool(seen_by(file, ops, root))


def seen_by(file: str, ops: list[str], root: Path = ROOT) -> list[str]:
    """Those of the ops that a file is a part of, nearest first: its own, then those whose files
    import or include it, then those that import these. A target is that of its own files."""
    if targets := [op for op in ops if is_target(op) and file in sources(op)[1]]:
        return targets
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
    """The files that a module imports, those of packages it names among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = node.module.replace(".", "/")
            yield f"{path}.py"
            yield from (f"{path}/{alias.name}.py" for alias in node.names)
