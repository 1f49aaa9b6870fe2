"""The faults that can be planted in CUDA C++, made from its tokens.

The sources are formatted: blanks surround binary operators, except in template arguments. Macros
and everything outside of functions are left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from compare.mutation.mutant import Edit, Mutant
from cuda_reference._tokens import Token, closing, tokens

_OTHER = {
    "<": ("comparison", "<="),
    "<=": ("comparison", "<"),
    ">": ("comparison", ">="),
    ">=": ("comparison", ">"),
    "==": ("comparison", "!="),
    "!=": ("comparison", "=="),
    "&&": ("logic", "||"),
    "||": ("logic", "&&"),
    "+": ("operator", "-"),
    "-": ("operator", "+"),
    "*": ("operator", "+"),
    "/": ("operator", "*"),
    "%": ("operator", "/"),
    "+=": ("operator", "-="),
    "/=": ("operator", "*="),
}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
# cond ? one : other, where no part contains an unmatched parenthesis
_CHOICE = re.compile(r"([\w.]+) (<=|>=|<|>) ([^?:;]+?) \? ([^?:;]+) : ([^?:;]+)(?=;)")
_OPENS, _CLOSES = "([{", ")]}"
_INDEX = {"x": "y", "y": "x"}
_BUILTIN = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_DECLARES = ("const", "constexpr", "using", "auto", "int", "unsigned", "float", "double", "dim3")


class Body(NamedTuple):
    """A function: its name, whether it runs on the device, and its tokens between the braces."""

    name: str
    device: bool
    is_kernel: bool
    tokens: list[Token]


def bodies(text: str) -> list[Body]:
    """The functions of a file in order, including members of structs."""
    stream = [token for token in tokens(text) if token.kind != "directive"]
    functions = []
    at = since = 0  # the start of the declaration before a brace
    while at < len(stream):
        token = stream[at]
        if token.text in (";", "}"):
            since = at + 1
        elif token.text == "{":
            head = stream[since:at]
            name = _function(head)
            if name is None:  # a struct, an enum or an initial value: its members come next
                since = at + 1
            else:
                end = closing(stream, at)
                words = {t.text for t in head}
                device = bool(words & {"__global__", "__device__"})
                inner = stream[at + 1 : end]
                functions.append(Body(name, device, "__global__" in words, inner))
                at, since = end, end + 1
        at += 1
    return functions


def _function(head: list[Token]) -> str | None:
    """The name of the function that a declaration starts; None if it starts something else."""
    depth = 0
    for at, token in enumerate(head):
        name = head[at - 1] if at else token
        bounds = name.text == "__launch_bounds__"  # of a kernel, whose name follows
        if token.text == "(" and depth == 0 and name.kind == "name" and not bounds:
            return name.text
        depth += token.text.count("<") - token.text.count(">")
    return None


def _arguments(text: str, stream: list[Token], opening: int) -> list[str]:
    """The arguments of the call with the opening parenthesis at this token."""
    arguments, begin, depth = [], stream[opening].end, 0
    for token in stream[opening : closing(stream, opening) + 1]:
        depth += token.text in _OPENS
        if depth == 1 and token.text in (",", ")"):
            arguments.append(text[begin : token.start].strip())
            begin = token.end
        depth -= token.text in _CLOSES
    return arguments


def _operand_end(stream: list[Token], begin: int) -> int:
    """The end of the operand of && or || that starts here."""
    depth = 0
    for at in range(begin, len(stream)):
        text = stream[at].text
        if depth == 0 and (text in _CLOSES or text in ("&&", "||", ";", ",", "?", ":")):
            return stream[at - 1].end
        depth += (text in _OPENS) - (text in _CLOSES)
    return stream[-1].end


def faults(file: str, text: str) -> Iterator[Mutant]:
    """Every fault of a file, function by function."""
    for body in bodies(text):
        for edit in _edits(text, body):
            yield Mutant("cuda", file, body.name, edit, text, body.device)


def _edits(text: str, body: Body) -> Iterator[Edit]:
    yield from _statements(body)
    stream = body.tokens
    for at, token in enumerate(stream):
        before = stream[at - 1].text if at else ""
        after = stream[at + 1].text if at + 1 < len(stream) else ""
        where = token.start, token.end
        binary = text[token.start - 1] == " " and text[token.end : token.end + 1] in " \n"
        if token.kind == "symbol" and token.text in _OTHER and binary:
            kind, new = _OTHER[token.text]
            yield Edit(kind, *where, new)
            if token.text in ("&&", "||"):
                yield Edit("guard dropped", token.start, _operand_end(stream, at + 1), "")
        elif token.text in ("fmaf", "fma", "fused") and after == "(":
            a, b, c = _arguments(text, stream, at + 1)
            end = stream[closing(stream, at + 1)].end
            yield Edit("not fused", token.start, end, f"(({a}) * ({b}) + ({c}))")
        elif token.text == "?":
            yield Edit("condition", *where, "== 0 ?")
        elif token.kind == "number" and before != "[" and not _shared_bytes(stream, at):
            yield from _number(token)
        elif token.text in ("x", "y") and before == "." and stream[at - 2].text in _BUILTIN:
            yield Edit("thread id", *where, _INDEX[token.text])
        elif token.text in ("stride", "size") and after == "[":
            index = stream[at + 2]
            if index.text in ("0", "1"):
                new = "1" if index.text == "0" else "0"
                yield Edit("stride", index.start, index.end, new)
        elif token.text == "long" and after == "long":
            yield Edit("narrowed", token.start, stream[at + 1].end, "int")
        elif token.text == "double" or (token.text == "C" and _declares(stream, at)):
            yield Edit("narrowed", *where, "float")
    if stream:
        whole = text[stream[0].start : stream[-1].end]
        for match in _CHOICE.finditer(whole):
            value, sign, limit, one, other = match.groups()
            mirrored = f"{value} {_OPPOSITE[sign]} {limit} ? {other} : {one}"
            begin = stream[0].start + match.start()
            yield Edit("NaN", begin, begin + len(match[0]), mirrored)


def _declares(stream: list[Token], at: int) -> bool:
    """Whether a name starts a declaration, that is, another name follows."""
    return at + 1 < len(stream) and stream[at + 1].kind == "name"


def _shared_bytes(stream: list[Token], at: int) -> bool:
    """Whether it is LAUNCH's argument before the stream: no kernel uses that memory."""
    return [token.text for token in stream[at + 1 : at + 3]] == [",", "stream"]


def _number(token: Token) -> Iterator[Edit]:
    """Another number: an integer plus 1, a float times 1.001."""
    if re.fullmatch(r"\d+", token.text):
        yield Edit("constant", token.start, token.end, str(int(token.text) + 1))
    elif match := re.fullmatch(r"(\d+\.\d*(?:[eE][+-]?\d+)?)(f?)", token.text):
        value = float(match[1])
        new = repr(value * 1.001 if value else 1.0) + match[2]
        yield Edit("constant", token.start, token.end, new)


def _statements(body: Body) -> Iterator[Edit]:
    """Each statement removed, except declarations, jumps and returns."""
    begin = depth = 0
    for at, token in enumerate(body.tokens):
        depth += (token.text in "([") - (token.text in ")]")
        if depth or token.text not in (";", "{", "}", ":"):
            continue
        if token.text == ";":
            statement = body.tokens[begin : at + 1]
            if _removable(statement):
                yield Edit("statement removed", statement[0].start, token.end, ";")
        begin = at + 1


def _removable(statement: list[Token]) -> bool:
    first = statement[0].text
    if first == "if":
        return True
    if first in (*_DECLARES, "return", "break", "do", "while", "else", "for", "SHARED", ";"):
        return False
    # "long long i", "C sum", "Tensor t", "wmma::fragment<…> sum": two names in a row, or a type.
    kinds = [token.kind for token in statement[:2]]
    return kinds != ["name", "name"] and not any(token.text == "fragment" for token in statement)
