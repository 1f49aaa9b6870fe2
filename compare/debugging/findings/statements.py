"""The statements of a kernel's source: their lines, names, and conditions."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import cache

from triton_kernels.interpreter import Place

_HEADS = (ast.For, ast.While, ast.If)
_LEAVES = (ast.Return, ast.Break, ast.Continue)


@dataclass(frozen=True)
class Statement:
    """A simple statement, or the head of a compound one.

    Attributes:
        first, last: its lines.
        reads, writes: the names that it reads and assigns.
        heads: the first lines of the loops and branches that decide whether it runs.
        kind: "for", "while", "if", or empty.
        function: the first line of its function; 0 outside of functions.
        stores: whether it calls a store or an atomic operation.
    """

    first: int
    last: int
    reads: frozenset[str]
    writes: frozenset[str]
    heads: tuple[int, ...] = ()
    kind: str = ""
    function: int = 0
    stores: bool = False


def statement(place: Place | None) -> Statement | None:
    """The statement at a place; None if the source cannot be read."""
    if place is None:
        return None
    inside = [s for s in _statements(place.file) if s.first <= place.line <= s.last]
    return min(inside, key=lambda s: s.last - s.first, default=None)


def deciding(file: str, of: Statement, name: str) -> set[int]:
    """The first lines of the loops and branches in a statement's function that decide whether a
    name is assigned."""
    return {
        head
        for s in _statements(file)
        if s.function == of.function and name in s.writes
        for head in s.heads
    }


def storing(file: str, head: int) -> list[Statement]:
    """The stores and atomic operations that a branch decides on."""
    return [s for s in _statements(file) if s.stores and head in s.heads]


@cache
def _statements(file: str) -> list[Statement]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    statements: list[Statement] = []
    _walk(tree.body, (), 0, statements)
    return statements


def _walk(
    body: list[ast.stmt], heads: tuple[int, ...], function: int, found: list[Statement]
) -> None:
    for node in body:
        blocks = [b for name in ("body", "orelse", "finalbody") if (b := getattr(node, name, None))]
        parts: list[ast.AST] = [node]
        last = node.end_lineno or node.lineno
        if blocks:
            last = max(node.lineno, blocks[0][0].lineno - 1)
            parts = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]
        names = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)]
        reads = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        writes = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        if isinstance(node, ast.AugAssign):
            reads |= writes
        kind = type(node).__name__.lower() if isinstance(node, _HEADS) else ""
        within, inside = heads, function
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            within, inside = (), node.lineno
        elif kind:
            within = (*heads, node.lineno)
        sets = frozenset(reads), frozenset(writes)
        stores = any(map(_stores, (n for part in parts for n in ast.walk(part))))
        found.append(Statement(node.lineno, last, *sets, heads, kind, function, stores))
        for block in blocks:
            _walk(block, within, inside, found)
        if kind == "if" and any(isinstance(n, _LEAVES) for n in ast.walk(node)):
            heads = (*heads, node.lineno)  # later statements run only if this one did not leave


def _stores(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr == "store" or node.func.attr.startswith("atomic_")
