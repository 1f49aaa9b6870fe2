"""Breakpoints: from FILE:LINE as typed to a line of a kernel at which a debugger can stop."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

Line = tuple[str, int]  # a file's path, and a line where a statement begins


def resolved(text: str) -> Line:
    """The line for FILE:LINE; within a statement, its first line.

    FILE is the path of a loaded module, or the end of its path, such as the file's name.

    Raises:
        ValueError: it is no FILE:LINE, there is no such file or more than one, or the line has no
            kernel code; the message names the nearest lines.
    """
    name, colon, number = text.rpartition(":")
    if not colon or not name or not number.isdecimal():
        raise ValueError(f"{text}: FILE:LINE, as gemm_bias_act.py:104")
    file, line = _file(name), int(number)
    statements = _statements(file)
    if not statements:
        raise ValueError(f"{text}: {file} has no @triton.jit function")
    if first := statement(file, line):
        return file, first
    firsts = sorted({first for first, _ in statements})
    before = [n for n in firsts if n < line][-1:]
    after = [n for n in firsts if n > line][:1]
    words = " and ".join(map(str, before + after))
    nearest = f"the nearest {'are' if before and after else 'is'} {words}"
    raise ValueError(f"{text}: no kernel's code begins or goes on in that line; {nearest}")


@cache
def statement(file: str, line: int) -> int | None:
    """The first line of the statement that contains a line of a jit function."""
    return max((first for first, last in _statements(file) if first <= line <= last), default=None)


def _file(name: str) -> str:
    if os.path.isfile(name):
        return os.path.abspath(name)
    ending = tuple(Path(name).parts)
    files = {
        os.path.abspath(file)
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
        and Path(file).parts[-len(ending) :] == ending
    }
    files = {file for file in files if _statements(file)} or files
    if not files:
        raise ValueError(f"{name}: no such file, nor a loaded module of that name; give its path")
    if len(files) > 1:
        raise ValueError(f"{name} may mean {', '.join(sorted(files))}: give more of its path")
    return files.pop()


@cache
def _statements(file: str) -> list[tuple[int, int]]:
    """First and last line of every statement in the file's jit functions; for a compound statement
    those of its head."""
    text = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(text if "jit" in text else "")
    except SyntaxError:
        return []
    spans = []
    for function in _jit_functions(tree):
        body = function.body
        if ast.get_docstring(function, clean=False) is not None:
            body = body[1:]
        for node in (node for statement in body for node in ast.walk(statement)):
            if isinstance(node, ast.stmt):
                inner = getattr(node, "body", None)
                end = node.end_lineno or node.lineno
                spans.append((node.lineno, max(node.lineno, inner[0].lineno - 1) if inner else end))
    return spans


def _jit_functions(tree: ast.Module) -> Iterable[ast.FunctionDef]:
    """Functions with a decorator named jit, or passed to a call of that name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_jit(node.func)]
    given = {a.id for call in calls for a in call.args if isinstance(a, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            if node.name in given or any(map(_is_jit, decorators)):
                yield node


def _is_jit(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2] == "jit"
