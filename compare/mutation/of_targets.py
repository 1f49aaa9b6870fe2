"""Which functions of a target's package its spec can run, by the names in the sources.

A package may hold the kernels of many specs, and a fault in another spec's kernel proves nothing
about this one. Names are not resolved: a name means every function of that name in the package's
files. So a function too many may be taken, rarely one too few. If no name leads to a kernel of a
side, all functions of the side are taken. CUDA in Python strings is not mutated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from compare.mutation import cuda_faults, triton_faults
from compare.mutation.mutant import Mutant
from compare.mutation.reach import declared, defined
from compare.ops import sources, spec_of

_NOT_THE_KERNEL = ("oracle", "eager", "peers", "bound")  # arguments of a spec's constructor
_EXPORTED = re.compile(r'\.(?:def|impl)\(\s*"(\w+)[^"]*"\s*,\s*(?:TORCH_FN\()?&?(?:\w+::)*(\w+)')
_EXPORTING = ("PYBIND11_MODULE", "TORCH_LIBRARY", "TORCH_LIBRARY_IMPL")  # look like functions
_SIDES = {".py": "triton", ".cu": "cuda", ".cuh": "cuda"}


class Span(NamedTuple):
    """A range of lines of a file."""

    file: str
    first: int
    last: int


def mutants(name: str, sides: Iterable[str]) -> list[Mutant]:
    """Every mutant of the functions that a target can run."""
    return [each for side in sides for each in _of_side(name, side) if reaches(name, each)]


def unreached(name: str, sides: Iterable[str]) -> list[tuple[str, str]]:
    """The functions of its package that it cannot run, with their files."""
    everything = [each for side in sides for each in _of_side(name, side)]
    others = (each for each in everything if not reaches(name, each))
    return list(dict.fromkeys((each.file, each.function) for each in others))


def reaches(name: str, mutant: Mutant) -> bool:
    """Whether the target can run the mutant's function; always true without a function."""
    spans = _spans(name)
    here = (s for s in spans if s.file == mutant.file and s.first <= mutant.line <= s.last)
    return not mutant.function or any(here)


@cache
def _of_side(name: str, side: str) -> tuple[Mutant, ...]:
    """Every mutant of a side of the package; none if the spec lacks the side."""
    folder, own = sources(name)
    every: list[Mutant] = []
    if getattr(spec_of(name), side) is None:
        return ()
    for file in own:
        if _SIDES.get(Path(file).suffix) != side:
            continue
        try:
            faults = triton_faults.faults if side == "triton" else cuda_faults.faults
            every += faults(file, (folder / file).read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):  # it cannot be imported, or its braces do not match
            continue
    return tuple(each for each in every if each.function not in _EXPORTING)


@cache
def _spans(name: str) -> frozenset[Span]:
    folder, own = sources(name)
    named: dict[str, list[tuple[Span, frozenset[str]]]] = {}
    for file in own:
        for span, names, words in _parts(folder, file):
            for each in names:
                named.setdefault(each, []).append((span, words))
    aliases = _aliases(folder, own)
    wanted, taken = [name.partition(":")[2]], set[str]()
    reached = set[Span]()
    while wanted:
        word = wanted.pop()
        if word in taken:
            continue
        taken.add(word)
        wanted += aliases.get(word, ())
        for span, words in named.get(word, ()):
            if span not in reached:
                reached.add(span)
                wanted += words
    for side in ("triton",) if "load_inline" in taken else ("triton", "cuda"):
        every = _of_side(name, side)
        lines = {(each.file, each.line) for each in every if each.kernel}
        if not any(s.file == file and s.first <= n <= s.last for file, n in lines for s in reached):
            reached |= {Span(each.file, 0, 1 << 60) for each in every}
    return frozenset(reached)


Part = tuple[Span, frozenset[str], frozenset[str]]  # lines, own names, names in it


def _parts(folder: Path, file: str) -> Iterator[Part]:
    suffix = Path(file).suffix
    if suffix not in (".py", ".cu", ".cuh", ".cpp", ".h", ".hpp"):
        return
    try:
        text = (folder / file).read_text(encoding="utf-8")
        tree = ast.parse(text if suffix == ".py" else "")
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in _statements(tree):
        if names := defined(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            yield Span(file, first, node.end_lineno or first), names, frozenset(_words(node))
    if suffix != ".py":
        for names, begin, end, words in declared(text):
            lines = (text.count("\n", 0, at) + 1 for at in (begin, end))
            yield Span(file, *lines), names, words


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module, also those under conditions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _statements(child)
        elif isinstance(child, ast.stmt):
            yield child


def _words(node: ast.AST) -> Iterator[str]:
    """The names in a part, and strings, since functions are looked up by them; no spec's name."""
    if isinstance(node, ast.keyword) and node.arg in _NOT_THE_KERNEL:
        return
    if isinstance(node, ast.Call) and any(each.arg == "oracle" for each in node.keywords):
        for child in (*node.args[1:], *node.keywords):
            yield from _words(child)
        return
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _words(child)


def _aliases(folder: Path, files: Iterable[str]) -> dict[str, list[str]]:
    """The names under which functions are imported in Python, or exported from C++."""
    known: dict[str, list[str]] = {}
    for file in files:
        if Path(file).suffix not in (".py", ".cu", ".cpp"):
            continue
        text = (folder / file).read_text(encoding="utf-8", errors="replace")
        pairs = re.findall(r"(\w+) as (\w+)", text) if file.endswith(".py") else []
        for new, old in [(new, old) for old, new in pairs] + _EXPORTED.findall(text):
            known.setdefault(new, []).append(old)
    return known
