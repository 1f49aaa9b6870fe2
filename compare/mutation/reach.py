"""What an op's kernels and host code can reach, by the names in the sources.

A file is cut into parts: its top-level code, a function, a class with all members, an assignment;
in CUDA also each named function of a struct. A part reaches the parts that it names, in its own
file or in those that it imports or includes. Names used only for gradients, sharding or graphs do
not belong to the op.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from compare.ops import SPECS, spec_of
from cuda_reference._tokens import Token, closing, tokens

CSRC = "cuda_reference/csrc"
_NOT_THE_OP = ("gradients", "sharding", "batched")  # arguments of an op's definition
Place = tuple[str, str]  # file and name; the name is "" for a whole module


class Part(NamedTuple):
    """A part of a file: its names, its first and last line, and the names in it."""

    names: frozenset[str]
    first: int
    last: int
    uses: frozenset[Place]


def reached(op: str, root: Path) -> dict[tuple[str, int], int]:
    """(file, number of the part) → its distance from the op, in names."""
    distance: dict[tuple[str, int], int] = {}
    left = [(place, 0) for place in _roots(op, root)]
    for (file, name), away in left:
        for number, part in enumerate(_parts(root, file)):
            if name in part.names and (file, number) not in distance:
                distance[file, number] = away + 1
                left += [(place, away + 1) for place in part.uses]
    return distance


def part_at(file: str, line: int, root: Path) -> int | None:
    """The number of the part that contains a line."""
    parts = enumerate(_parts(root, file))
    return next((number for number, part in parts if part.first <= line <= part.last), None)


def _roots(op: str, root: Path) -> list[Place]:
    """The start of an op: its function, and its entry points in CUDA; all entry points of its file
    if none has its name."""
    stem = spec_of(op).stem
    file = f"{CSRC}/{stem}.cu"
    entries: dict[str, list[str]] = {}
    for name in re.findall(r'^extern "C" int (\w+)', _text(root, file), re.M):
        owners = [each for each in SPECS if f"{name}_".startswith(f"{each}_")]
        entries.setdefault(max(owners, key=len, default=op), []).append(name)
    names = entries.get(op) or [name for own in entries.values() for name in own]
    return [(f"triton_kernels/ops/{stem}.py", op), *((file, name) for name in names)]


@cache
def _parts(root: Path, file: str) -> list[Part]:
    if not (root / file).is_file():
        return []
    return list((_of_python if file.endswith(".py") else _of_cuda)(root, file))


def _text(root: Path, file: str) -> str:
    path = root / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _of_python(root: Path, file: str) -> Iterator[Part]:
    tree = ast.parse(_text(root, file))
    imported = {name: place for name, place in _imported(tree, root) if not _is_other(file, place)}
    for node in tree.body:
        names = defined(node)
        if names:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            uses = frozenset(_used(node, file, imported))
            yield Part(names, first, node.end_lineno or first, uses)


def _is_other(file: str, place: Place) -> bool:
    """Whether a private file of the package names it for other ops or for gradients."""
    engine = re.fullmatch(r"triton_kernels/_\w+\.py", file)
    return bool(engine) and place[0].startswith(("triton_kernels/ops/", "triton_kernels/activ"))


def defined(node: ast.stmt) -> frozenset[str]:
    """The names of a function, a class or an assignment."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return frozenset([node.name])
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inner = [each for target in targets for each in ast.walk(target)]
        return frozenset(each.id for each in inner if isinstance(each, ast.Name))
    return frozenset()


def _imported(tree: ast.Module, root: Path) -> Iterator[tuple[str, Place]]:
    """Names that stand for another file, or for something in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = node.module.replace(".", "/")
            for alias in node.names:
                module = f"{folder}/{alias.name}.py"
                place = (module, "") if (root / module).is_file() else (f"{folder}.py", alias.name)
                yield alias.asname or alias.name, place


def _used(node: ast.AST, file: str, imported: dict[str, Place]) -> Iterator[Place]:
    """The names in a part: ``name``, or ``module.name``."""
    if isinstance(node, ast.keyword) and node.arg in _NOT_THE_OP:
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module, inside = imported.get(node.value.id, ("", ""))
        if module and not inside:
            yield module, node.attr
    if isinstance(node, ast.Name):
        yield imported.get(node.id, (file, node.id))
    for child in ast.iter_child_nodes(node):
        yield from _used(child, file, imported)


def _of_cuda(root: Path, file: str) -> Iterator[Part]:
    """The parts of a CUDA file. A name may be defined in any included file."""
    text = _text(root, file)
    files = _included(root, file)
    for names, begin, end, words in declared(text):
        uses = frozenset((each, word) for each in files for word in words)
        yield Part(names, text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 1, uses)


def declared(text: str) -> Iterator[tuple[frozenset[str], int, int, frozenset[str]]]:
    """Macros, and top-level declarations up to their brace or semicolon: the declared names, the
    position, and the names inside. A struct's functions come before it."""
    stream = tokens(text)
    at = since = 0
    while at < len(stream):
        token = stream[at]
        if token.kind == "directive":
            words = re.findall(r"[A-Za-z_]\w*", token.text)
            if words[0] == "define":
                yield frozenset(words[1:2]), token.start, token.end, frozenset(words[2:])
            since = at + 1
        elif token.text in "{;":
            try:
                end = closing(stream, at) if token.text == "{" else at
            except ValueError:  # the brace is closed in another branch of an #if
                end = len(stream) - 1
            own = stream[since : end + 1]
            for name, method in _methods(stream, since, at, end):
                begin, last = method[0].start, method[-1].end
                yield frozenset([name]), begin, last, _names(method)
                own = [t for t in own if not begin <= t.start < last]
            head = _head([t.text for t in stream[since:at]])
            yield frozenset(head), stream[since].start, stream[end].end, _names(own)
            at, since = end, end + 1
        at += 1


def _names(stream: list[Token]) -> frozenset[str]:
    return frozenset(token.text for token in stream if token.kind == "name")


def _methods(
    stream: list[Token], since: int, brace: int, end: int
) -> Iterator[tuple[str, list[Token]]]:
    """The named functions of a struct, with their tokens; no constructors and operators."""
    before = [token.text for token in stream[since:brace]]
    if "struct" not in before or "(" in before:
        return
    owner = next(_head(before))
    at = since = brace + 1
    while at < end:
        token = stream[at]
        if token.kind == "directive":
            since = at + 1
        elif token.text in "{;":
            last = closing(stream, at) if token.text == "{" else at
            head = [each.text for each in stream[since:at]]
            name = next(_head(head), "")
            if token.text == "{" and "(" in head and name != owner and "operator" not in head:
                yield name, stream[since : last + 1]
            at, since = last, last + 1
        at += 1


def _head(words: list[str]) -> Iterator[str]:
    """The declared name: after ``struct``, or before the first parenthesis, = or the end."""
    if words[:1] == ["template"]:
        depth = 0
        for at, word in enumerate(words):
            depth += word.count("<") - word.count(">")
            if at and not depth:
                words = words[at + 1 :]
                break
    if words[:1] in (["struct"], ["enum"], ["union"]):
        yield next((word for word in words[1:] if word != "class"), "")
    else:
        last = next((at for at, word in enumerate(words) if word in "(=["), len(words))
        yield words[last - 1] if last else ""


@cache
def _included(root: Path, file: str) -> list[str]:
    """A file and all files that it includes, directly or not."""
    files = [file]
    for each in files:
        for name in re.findall(r'^#include "(.+)"', _text(root, each), re.M):
            path = f"{CSRC}/{name}"
            if path not in files:
                files.append(path)
    return files
