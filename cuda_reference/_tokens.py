"""Splits CUDA C++ into tokens, and finds matching brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<directive>^[ \t]*\#(?:[^\n\\/]|\\.|/\*.*?\*/|/)*)
      | (?P<skip>(?:[^\S\n]|\\\n|\n(?![ \t]*\#))+|\n|//(?:[^\n\\]|\\.)*|/\*.*?\*/)
      | (?P<text>(?:u8|[uUL])?R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"
               |(?:u8|[uUL])?"(?:[^"\\]|\\.)*"|[uUL]?'(?:[^'\\]|\\.)*')
      | (?P<number>0x(?:[pP][+-]|'?\w|\.)*|\.?\d(?:[eE][+-]|'?\w|\.)*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<symbol>\#\#|<<=|>>=|->|\+\+|--|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|::|.)""",
    re.X | re.S | re.M,
)
_OPENS, _CLOSES = "([{", ")]}"


class Token(NamedTuple):
    """A token: its kind (directive, text, number, name or symbol), text, start and end."""

    kind: str
    text: str
    start: int
    end: int


def tokens(text: str, start: int = 0, end: int | None = None) -> list[Token]:
    """The tokens without blanks and comments. A preprocessor directive is one token."""
    read = []
    for match in _TOKEN.finditer(text, start, len(text) if end is None else end):
        kind = match.lastgroup
        assert kind
        if kind != "skip":
            read.append(Token(kind, match[0], match.start(), match.end()))
    return read


def closing(stream: Sequence[Token], opening: int) -> int:
    """The index of the bracket that closes the one at ``opening``."""
    depth = 0
    for at in range(opening, len(stream)):
        depth += (stream[at].text in _OPENS) - (stream[at].text in _CLOSES)
        if depth == 0:
            return at
    raise ValueError(f"a {stream[opening].text} that nothing closes")


def opening(stream: Sequence[Token], close: int) -> int:
    """The index of the bracket that opens the one at ``close``."""
    depth = 0
    for at in range(close, -1, -1):
        depth += (stream[at].text in _CLOSES) - (stream[at].text in _OPENS)
        if depth == 0:
            return at
    raise ValueError(f"a {stream[close].text} that nothing opens")
