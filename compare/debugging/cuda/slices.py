"""The statements of a CUDA kernel on which given ones depend, read from its text: definitions of
their variables in the function or at file scope, surrounding conditions and loops, and the code
that launches the kernel."""

from __future__ import annotations

import bisect
import itertools
import linecache
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from cuda_reference._tokens import Token, closing, opening, tokens

_HEADERS = {"if", "for", "while", "switch"}
_ASSIGNING = {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>="}  # &=, |= and ^= are two tokens
_AFTER_NAME = {"=", "[", "(", ",", ":"}
_LEAVING = {"return", "continue", "break"}
_SCOPES = {"namespace", "struct", "class", "extern"}
_NO_TYPE = {"return", "goto", "new", "throw", "case", "co_return"}
_ONLY_LOOKS = re.compile(r"assert|printf|static_assert|\w*CHECK\w*")
_BRANCH = re.compile(r"[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b")
_ABSENT = re.compile(r"USE_ROCM|USE_HIP|__HIP\w*")
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+")


@dataclass(eq=False)
class Statement:
    """A statement, or the header of a loop or an ``if``.

    Attributes:
        tokens: its tokens.
        lines: its first and last line, from 1.
        inside: the header that contains it, or None.
        guards: earlier headers that can leave its block.
        defines, uses: names.
        declares: those of ``defines`` that are new in its block.
        elements: arrays to which it only stores.
    """

    tokens: list[Token]
    lines: tuple[int, int]
    inside: Statement | None
    guards: list[Statement]
    defines: set[str] = field(init=False)
    uses: set[str] = field(init=False)
    declares: set[str] = field(init=False)
    elements: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.uses = {t.text for t in self.tokens if t.kind == "name"}
        self.defines = set(_defined(self.tokens))
        self.declares = set(_new(self.tokens))
        self.elements = set(_stored(self.tokens))

    def around(self) -> Iterator[Statement]:
        """The statement and the headers that contain it."""
        each: Statement | None = self
        while each is not None:
            yield each
            each = each.inside

    @property
    def decides(self) -> bool:
        """Whether others may depend on it. A barrier or a declaration without a value: no."""
        return bool(self.defines) or self.tokens[0].text in _HEADERS | _LEAVING


def _defined(stream: list[Token]) -> Iterator[str]:
    """The names to which a statement assigns."""
    yield from _declared(stream)
    yield from _given(stream)
    for at, token in enumerate(stream):
        before = stream[at - 1].text if at else ""
        if token.text in _ASSIGNING:
            yield from _assigned(stream, at - 1 - (before in {"&", "|", "^"}))
        elif token.text in {"++", "--"}:
            near = [*stream[at + 1 : at + 2], *stream[max(0, at - 1) : at]]
            yield from (t.text for t in near if t.kind == "name")
        elif token.text == "&" and before in {"(", ","} and at + 1 < len(stream):
            yield stream[at + 1].text  # passed by address


def _declared(stream: list[Token]) -> Iterator[str]:
    """The variables of a declaration without ``=``: a and b of ``dim3 a(n), b(32)``."""
    depth, before, declares = 0, Token("", "", 0, 0), False
    for token, after in itertools.pairwise(stream):
        if depth == 0 and token.kind == "name" and after.text in {"(", "{"}:
            declares |= before.kind == "name" and before.text not in _NO_TYPE
            if declares:
                yield token.text
        depth += (token.text in {"(", "[", "{"}) - (token.text in {")", "]", "}"})
        before = token


def _new(stream: list[Token]) -> Iterator[str]:
    """The variables that a declaration introduces: a and b of ``const T *a = x, b[4]``."""
    stream = stream[2:] if stream[0].text == "for" else stream
    outside = [stream[i] for i in _outside(stream)]
    while outside and outside[-1].text in {")", ";"}:
        outside.pop()
    at = next((i for i, t in enumerate(outside) if i and t.text in _AFTER_NAME), len(outside)) - 1
    kind = [t.text for t in outside[: max(at, 0)]]
    typed = kind and kind[0].isidentifier() and kind[0] not in _NO_TYPE | _HEADERS
    if typed and (kind[-1] in "*&>" or kind[-1].isidentifier()):
        yield outside[at].text
        yield from (b.text for a, b in itertools.pairwise(outside[at:]) if a.text == ",")


def _stored(stream: list[Token]) -> Iterator[str]:
    """a of ``a[i] = x``, unless a occurs a second time."""
    if len(stream) > 1 and stream[0].kind == "name" and stream[1].text == "[":
        close = closing(stream, 1)
        once = sum(t.text == stream[0].text for t in stream) == 1
        if once and close + 1 < len(stream) and stream[close + 1].text == "=":
            yield stream[0].text


def _given(stream: list[Token]) -> Iterator[str]:
    """The variables that a call with an unused result may change, including a kernel's launch: the
    first variable of each argument."""
    if stream[-1].text != ")" or stream[0].kind != "name" or stream[0].text in _HEADERS | _NO_TYPE:
        return
    start = opening(stream, len(stream) - 1)
    head, rest = stream[:start], stream[start + 1 : -1]
    if _ONLY_LOOKS.fullmatch(stream[0].text) or any(t.text in _ASSIGNING for t in head):
        return
    if any(a.kind == b.kind == "name" for a, b in itertools.pairwise(head)):
        return  # a declaration
    while rest:
        length = next((i for i in _outside(rest) if rest[i].text == ","), len(rest))
        argument, rest = rest[:length], rest[length + 1 :]
        if argument and argument[0].text == "(":  # a cast
            argument = argument[closing(argument, 0) :]
        names = [t.text for t in argument if t.kind == "name"]
        yield from names if names[:1] and names[0].endswith("_cast") else names[:1]


def _name(head: list[Token]) -> str:
    """The name of the function with this head: f of ``void f<float>(int n)``."""
    named = ""
    for at in _outside(head):
        if head[at].text == "(":
            while at and head[at - 1].text in {">", ">>"}:
                at = next((i for i in range(at - 1, 0, -1) if head[i].text == "<"), 1)
            if at and head[at - 1].kind == "name":
                named = head[at - 1].text
    return named


def _outside(stream: Sequence[Token]) -> Iterator[int]:
    """The positions outside of all brackets."""
    at = 0
    while at < len(stream):
        yield at
        at = (closing(stream, at) if stream[at].text in {"(", "[", "{"} else at) + 1


def _assigned(stream: list[Token], at: int) -> Iterator[str]:
    """The variable that an assignment changes: a of ``a[i].x``, a or i of ``FLOAT4(a[i])``."""
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


def _compiled(stream: Sequence[Token]) -> Iterator[Token]:
    """The tokens without the branches of ``#if`` that are surely left out: of 0, and of macros of
    compilers for AMD's GPUs."""
    on: list[bool] = []  # of each surrounding #if the branch
    taken: list[bool] = []  # and whether this or an earlier branch surely is compiled
    for token in stream:
        kind, rest = "", ""
        if token.kind == "directive" and (begins := _BRANCH.match(token.text)):
            kind, rest = begins[1], token.text[begins.end() :]
        if kind.startswith("if"):
            known = _known(kind, rest)
            on.append(known is not False)
            taken.append(known is True)
        elif kind in ("elif", "else") and on:
            known = _known("if", rest) if kind == "elif" else None
            on[-1] = known is not False and not taken[-1]
            taken[-1] |= known is True
        elif kind == "endif" and on:
            on.pop(), taken.pop()
        elif all(on):
            yield token


def _known(kind: str, condition: str) -> bool | None:
    """Whether the condition of a branch is true; None if that is not known."""
    words = re.sub(r"/[/*].*", "", condition).replace("defined", "").strip(" \t()")
    if kind == "if" and words in ("0", "1"):
        return words == "1"
    name = words.removeprefix("!").strip(" ()")
    return (kind == "ifndef" or words.startswith("!")) if _ABSENT.fullmatch(name) else None


class Source:
    """The functions of a source, as statements."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(at + 1 for at, c in enumerate(text) if c == "\n")]
        self._text = text
        every = list(_compiled(tokens(text)))
        self._stream = [t for t in every if t.kind != "directive"]
        self._functions: dict[str, list[list[Statement]]] = {}  # overloads share a name
        self._globals: list[Statement] = []
        self._read_macros(every)
        self._read_functions(0, len(self._stream))
        self._owners = {
            each: name
            for name, overloads in self._functions.items()
            for body in overloads
            for each in body
        }

    def _read_macros(self, every: list[Token]) -> None:
        for token in every:
            begins = _DEFINE.match(token.text) if token.kind == "directive" else None
            read = tokens(self._text, token.start + begins.end(), token.end) if begins else []
            if read:
                lines = self._line(read[0].start), self._line(read[-1].start)
                macro = Statement(read, lines, None, [])
                macro.defines = {read[0].text}
                self._globals.append(macro)

    def _read_functions(self, at: int, end: int) -> None:
        head = at
        while at < end:
            text = self._stream[at].text
            if text in "([":
                at = closing(self._stream, at)
            elif text in {";", "}"}:
                self._add_constant(head, at)
                head = at + 1
            elif text == "{":
                close, before = closing(self._stream, at), self._stream[head:at]
                if before and before[-1].text in {"=", "]"}:  # a constant's initialiser
                    at = close + 1
                    continue
                scopes = {t.text for t in before} & _SCOPES
                if scopes and before[-1].text != ")":
                    known = len(self._globals)
                    self._read_functions(at + 1, close)
                    if scopes & {"struct", "class"}:  # other structs may have equal member names
                        del self._globals[known:]
                else:
                    body: list[Statement] = []
                    self._functions.setdefault(_name(before), []).append(body)
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
        """Read a statement with its body. Returns the start of the next one."""
        stream, text = self._stream, self._stream[at].text
        if text == "{":
            close = closing(stream, at)
            self._block(out, at + 1, close, inside)
            return close + 1
        if text in {"do", ";"}:
            return at + 1
        if text in _HEADERS or self._loops(at, end):
            paren = next(i for i in range(at, end) if stream[i].text == "(")
            close = closing(stream, paren)
            header = self._add(out, at, close + 1, inside, guards)
            if text not in _HEADERS:  # a macro's loop over its first argument
                header.defines = header.declares = {stream[paren + 1].text}
            first = len(out)
            after = self._statement(out, close + 1, end, header, []) if close + 1 < end else end
            if after < end and stream[after].text == "else":
                otherwise = Statement([stream[after]], header.lines, header, [])
                after = self._statement(out, after + 1, end, otherwise, [])
            if any(s.tokens[0].text in _LEAVING for s in out[first:]):
                guards.append(header)
            return after
        last = at
        while last < end and stream[last].text != ";":
            last = (closing(stream, last) if stream[last].text in "([{" else last) + 1
        self._add(out, at, min(last, end), inside, guards)
        return last + 1

    def _loops(self, at: int, end: int) -> bool:
        """Whether a macro with a block follows: CUDA_KERNEL_LOOP(i, n) {"""
        if at + 1 >= end or self._stream[at].kind != "name" or self._stream[at + 1].text != "(":
            return False
        close = closing(self._stream, at + 1)
        return close + 1 < end and self._stream[close + 1].text == "{"

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

    def _add_constant(self, at: int, end: int) -> None:
        """Read a file-scope declaration up to its semicolon, unless it declares a function."""
        first = next((t.text for t in self._stream[at:end] if t.text in {"=", "("}), "")
        if first == "=":
            self._add(self._globals, at, end, None, [])

    def _line(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)

    def _code(self, statement: Statement) -> str:
        """The lines of a statement, joined."""
        first, last = statement.lines
        return " ".join(" ".join(self._text.splitlines()[first - 1 : last]).split())

    def behind(
        self, lines: Iterable[int], most: int, calls: Iterable[int] = ()
    ) -> list[tuple[int, str]]:
        """The statements on which those on these lines depend, as (line, code) in source order; of
        more than ``most`` the nearest. They include functions of the file that are called, the
        lines ``calls`` that led to them, and last other callers or launches of their functions."""
        wanted, calls = list(dict.fromkeys(lines)), set(calls)
        reached = [
            each
            for line in dict.fromkeys([*wanted, *calls])
            for each in self._owners
            if each.lines[0] <= line <= each.lines[1]
        ]
        reached = list(dict.fromkeys(reached))
        theirs = {self._owners[each] for each in reached}
        theirs -= {name for each in reached if each.lines[0] in calls for name in each.uses}
        self._follow(reached, 0, frozenset())
        inside = len(reached)
        reached += [s for s in self._owners if s.uses & theirs and s not in reached]
        self._follow(reached, inside, theirs)
        behind: dict[int, str] = {}
        for each in reached:
            if each.lines[0] not in wanted and len(behind) < most:
                behind.setdefault(each.lines[0], self._code(each))
        return sorted(behind.items())

    def _follow(self, reached: list[Statement], at: int, done: Set[str]) -> None:
        """Append the statements on which those from ``at`` on depend, except in functions that are
        done: first those in their own functions, then those of called functions."""
        known, called = set(reached), dict[str, None]()
        while at < len(reached):
            for statement in itertools.islice(reached, at, None):  # the list grows
                at += 1
                needed = [*statement.guards, *([statement.inside] if statement.inside else [])]
                own = self._functions.get(self._owners.get(statement, ""), [])
                body = next((body for body in own if statement in body), [])
                names = statement.uses | statement.defines
                for other in body:
                    shared = (other.defines & names) - (other.elements & statement.elements)
                    if not _either(other, statement) and any(
                        _one(body, name, other, statement) for name in shared
                    ):
                        needed.append(other)
                needed += [each for each in self._globals if each.defines & names]
                called |= dict.fromkeys(sorted(statement.uses & self._functions.keys() - done))
                new = [each for each in dict.fromkeys(needed) if each not in known]
                known.update(new)
                reached += new
            bodies = [body for name in called for body in self._functions[name]]
            called.clear()
            # The value of a function is made at its end.
            inner = [s for body in bodies for s in reversed(body) if s.decides and s not in known]
            known.update(inner)
            reached += inner


def _one(body: list[Statement], name: str, one: Statement, other: Statement) -> bool:
    """Whether a name means the same variable, from one declaration, in two statements."""

    def declared(at: Statement) -> Statement | None:
        around = list(at.around())
        before = itertools.takewhile(lambda s: s is not at, body)
        near = [s for s in (*before, at) if name in s.declares]
        seen = (s for s in reversed(near) if s in around or s.inside in (None, *around[1:]))
        return next(seen, None)

    return declared(one) is declared(other)


def _either(one: Statement, other: Statement) -> bool:
    """Whether a thread runs only one of the two: in an if and its else, outside of loops."""
    for first, second in ((one, other), (other, one)):
        beside = list(second.around())
        for each in first.around():
            branch = each.inside if each.tokens[0].text == "else" else None
            if branch is not None and branch in beside and each not in beside:
                return all(above.tokens[0].text in {"if", "else"} for above in branch.around())
    return False


def behind(
    file: str, lines: Iterable[int], most: int, calls: Iterable[int] = ()
) -> list[tuple[int, str]]:
    """:meth:`Source.behind` for a file; empty if its text cannot be parsed."""
    try:
        return Source("".join(linecache.getlines(file))).behind(lines, most, calls)
    except (ValueError, StopIteration, IndexError):  # brackets that macros open or close
        return []
