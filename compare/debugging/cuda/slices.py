"""The statements of a CUDA kernel that others depend on, read from its text: what defines the
variables in them, and the conditions and loops around them."""

from __future__ import annotations

import bisect
import itertools
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cuda_reference._tokens import Token, closing, opening, tokens

_HEADERS = {"if", "for", "while", "switch"}
_ASSIGNING = {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>="}  # &=, |= and ^= are two tokens
_LEAVING = {"return", "continue", "break"}
_SCOPES = {"namespace", "struct", "class", "extern"}


@dataclass
class Statement:
    """A statement, or what stands before the body of a loop or an ``if``.

    Attributes:
        tokens: of it.
        lines: its first and last line, from 1.
        inside: the header that it stands under; None for none.
        guards: the headers before it that can leave its block.
        defines, uses: names.
    """

    tokens: list[Token]
    lines: tuple[int, int]
    inside: Statement | None
    guards: list[Statement]
    defines: set[str] = field(init=False)
    uses: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.uses = {t.text for t in self.tokens if t.kind == "name"}
        self.defines = set(_defined(self.tokens))


def _defined(stream: list[Token]) -> Iterator[str]:
    """The names that a statement assigns to."""
    for at, token in enumerate(stream):
        before = stream[at - 1].text if at else ""
        if token.text in _ASSIGNING:
            yield from _assigned(stream, at - 1 - (before in {"&", "|", "^"}))
        elif token.text in {"++", "--"}:
            near = [*stream[at + 1 : at + 2], *stream[max(0, at - 1) : at]]
            yield from (t.text for t in near if t.kind == "name")
        elif token.text == "&" and before in {"(", ","} and at + 1 < len(stream):
            yield stream[at + 1].text  # given by its address


def _assigned(stream: list[Token], at: int) -> Iterator[str]:
    """Whose value an assignment changes: of ``a[i].x`` it is a, of ``FLOAT4(a[i])`` a or i."""
    while at > 0 and stream[at].text in {"]", ")"}:
        start = opening(stream, at)
        if stream[at].text == ")":
            yield from (t.text for t in stream[start:at] if t.kind == "name")
        at = start - 1
    while at > 1 and stream[at - 1].text in {".", "->"}:
        at -= 2
        while at > 0 and stream[at].text == "]":
            at = opening(stream, at) - 1
    if at >= 0 and stream[at].kind == "name":
        yield stream[at].text


class Source:
    """The functions of a source, by their statements."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(at + 1 for at, c in enumerate(text) if c == "\n")]
        self._text = text
        self._stream = [t for t in tokens(text) if t.kind != "directive"]
        self._functions: dict[str, list[list[Statement]]] = {}  # overloads have one name
        self._read_functions(0, len(self._stream))

    def _read_functions(self, at: int, end: int) -> None:
        head = at
        while at < end:
            text = self._stream[at].text
            if text in "([":
                at = closing(self._stream, at)
            elif text in {";", "}"}:
                head = at + 1
            elif text == "{":
                close, before = closing(self._stream, at), self._stream[head:at]
                if any(t.text in _SCOPES for t in before) and before[-1].text != ")":
                    self._read_functions(at + 1, close)
                else:
                    pairs = itertools.pairwise(before)
                    named = [t.text for t, after in pairs if t.kind == "name" and after.text == "("]
                    body: list[Statement] = []
                    self._functions.setdefault(named[-1] if named else "", []).append(body)
                    self._block(body, at + 1, close, None)
                at, head = close, close + 1
            at += 1

    def _block(self, out: list[Statement], at: int, end: int, inside: Statement | None) -> None:
        guards: list[Statement] = []
        while at < end:
            at = self._statement(out, at, end, inside, guards)

    def _statement(
        self,
        out: list[Statement],
        at: int,
        end: int,
        inside: Statement | None,
        guards: list[Statement],
    ) -> int:
        """Read one, with all that stands under it; where the next begins."""
        stream, text = self._stream, self._stream[at].text
        if text == "{":
            close = closing(stream, at)
            self._block(out, at + 1, close, inside)
            return close + 1
        if text in {"else", "do", ";"}:
            return at + 1
        if text in _HEADERS:
            paren = next(i for i in range(at, end) if stream[i].text == "(")
            close = closing(stream, paren)
            header = self._add(out, at, close + 1, inside, guards)
            first = len(out)
            after = self._statement(out, close + 1, end, header, []) if close + 1 < end else end
            if any(s.tokens[0].text in _LEAVING for s in out[first:]):
                guards.append(header)
            return after
        last = at
        while last < end and stream[last].text != ";":
            last = (closing(stream, last) if stream[last].text in "([{" else last) + 1
        self._add(out, at, min(last, end), inside, guards)
        return last + 1

    def _add(
        self,
        out: list[Statement],
        at: int,
        end: int,
        inside: Statement | None,
        guards: list[Statement],
    ) -> Statement:
        read = self._stream[at:end]
        lines = (self._line(read[0].start), self._line(read[-1].start))
        out.append(Statement(read, lines, inside, list(guards)))
        return out[-1]

    def _line(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)

    def _code(self, statement: Statement) -> str:
        """The lines of a statement in one."""
        first, last = statement.lines
        return " ".join(" ".join(self._text.splitlines()[first - 1 : last]).split())

    def behind(self, lines: Iterable[int], most: int) -> list[tuple[int, str]]:
        """What the statements on these lines depend on, as (line, code), in the source's order;
        those nearest to them, where there are more than ``most``. Functions of the file that they
        call, too."""
        wanted = list(dict.fromkeys(lines))
        bodies = [body for overloads in self._functions.values() for body in overloads]
        owners = {id(s): body for body in bodies for s in body}
        every = [s for body in bodies for s in body]
        seeds = [s for line in wanted for s in every if s.lines[0] <= line <= s.lines[1]]
        reached = list({id(s): s for s in seeds}.values())
        known = {id(s) for s in reached}
        for statement in reached:  # which grows
            needed = [*statement.guards, *([statement.inside] if statement.inside else [])]
            names = statement.uses | statement.defines
            needed += [each for each in owners[id(statement)] if each.defines & names]
            for name in sorted(statement.uses & self._functions.keys()):
                needed += [s for body in self._functions[name] for s in body]
            for each in needed:
                if id(each) not in known:
                    known.add(id(each))
                    reached.append(each)
        behind: dict[int, str] = {}
        for each in reached:
            if each.lines[0] not in wanted and len(behind) < most:
                behind.setdefault(each.lines[0], self._code(each))
        return sorted(behind.items())


def behind(file: str, lines: Iterable[int], most: int) -> list[tuple[int, str]]:
    """What :meth:`Source.behind` says of a file; nothing where its text cannot be read so."""
    try:
        return Source("".join(linecache.getlines(file))).behind(lines, most)
    except (ValueError, StopIteration, IndexError):  # brackets that macros open or close
        return []
