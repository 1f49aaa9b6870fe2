"""Rewrites CUDA C++ for the host's compiler, with the macros of csrc/cuda_on_cpu.h.

    kernel<T, 4><<<grid, block>>>(x, n)   CUDA_ON_CPU_LAUNCH((kernel<T, 4>), (grid, block))(x, n)
    __shared__ float a[8][9], sum;        SHARED(float, a, [8][9]); SHARED(float, sum, );
    extern __shared__ float a[];          DYNAMIC_SHARED(float, a);
    asm volatile("cp.async…" : : "r"(p))  cuda_on_cpu::ptx("cp.async…", p)

in the source and in the macros that it defines. Line numbers do not change.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from cuda_reference import _absent
from cuda_reference._tokens import Token, closing, opening, tokens

# First part of an #include → a library without a form for the CPU.
_FOREIGN = {
    "cub": "CUB",
    "thrust": "Thrust",
    "cutlass": "CUTLASS",
    "cute": "CuTe",
    "cuda": "libcu++",
    "curand": "cuRAND",
}
# Of libcu++, the headers that csrc/cuda_on_cpu_std.h has.
_STD = (
    r"algorithm|array|cmath|complex|cstddef|cstdint|functional|initializer_list|iterator|limits"
    r"|numeric|optional|tuple|type_traits|utility|variant"
)
# Patterns of headers → csrc's substitute.
_STAND_INS = (
    (re.compile(r"(torch|ATen|c10|THC|pybind11|Python\.h)\b.*"), "torch_on_cpu.h"),
    (re.compile(r"cooperative_groups(\.h|/(reduce|scan)\.h)"), "cuda_on_cpu_groups.h"),
    (re.compile(r"cub/(cub|(block|warp|device|util|thread)\w*(/\w+)?)\.cuh"), "cuda_on_cpu_cub.h"),
    (re.compile(r"thrust/(tuple|pair|swap)\.h"), "cuda_on_cpu_thrust.h"),
    (re.compile(rf"cuda/(std/({_STD})|functional|cmath)"), "cuda_on_cpu_std.h"),
    (re.compile(r"cuda(_runtime|_runtime_api|_pipeline\w*|)\.h|mma\.h"), "crosscheck.cuh"),
    (re.compile(r"device_(launch_parameters|functions)\.h"), "crosscheck.cuh"),
)
# The names of CUB that csrc/cuda_on_cpu_cub.h and cuda_on_cpu_cub_device.h have.
_CUB = re.compile(
    r"Sum|Max|Min|Arg(Max|Min)|KeyValuePair|(Block|Warp)(Reduce|Scan)|Block(Load|Store)|BLOCK_\w+"
    r"|Block(Reduce|Scan|Load|Store)Algorithm|DoubleBuffer|Device(Scan|Reduce|RadixSort|Select)"
)
# The name of a library of operators in TORCH_LIBRARY, and in torch::RegisterOperators.
_LIBRARY = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\s*\(\s*(\w+)")
_REGISTERED = re.compile(r"\bRegisterOperators\b[^;]*")
_OP = re.compile(r"\(\s*\"(\w+)::")
_INCLUDE = re.compile(r"\s*#\s*include\s*(?:<([^>]+)>|\"([^\"]+)\")")
_DEFINE = re.compile(r"\s*#\s*define\s+\w+(\([^)]*\))?")
_QUALIFIERS = ("__shared__", "static", "extern", "volatile", "const", "__restrict__", "inline")
_NO_WEAK = {"=", "using", "typedef", "template", "friend", "static", "inline", "constexpr"}
_NO_WEAK |= {"__device__", "__global__", "__forceinline__", "__inline__", "operator"}
_DECLARES = {"float", "double", "int", "void", "bool", "char", "half", "__half"}
_ALIGNED = ("alignas", "__align__", "__attribute__", "__builtin_align__")


class Unsupported(ValueError):
    """A source that the host target cannot compile. The message has the line."""


class Foreign(Unsupported):
    """A source that includes a library of device code without a form for the CPU."""


class _Edit(NamedTuple):
    start: int
    end: int
    new: str


def libraries(text: str) -> list[str]:
    """The names of the libraries of operators that a source defines."""
    older = (name for chain in _REGISTERED.findall(text) for name in _OP.findall(chain))
    return list(dict.fromkeys([*_LIBRARY.findall(text), *older]))


def rewritten(
    text: str,
    file: str,
    header: Callable[[str], str | None] = lambda _: None,
    dispensable: bool = False,
) -> str:
    """``text`` rewritten for the host target.

    Args:
        file: the file's name in errors.
        header: the header that replaces that of an #include; None to leave it.
        dispensable: whether the source is better left out than built without cuBLAS and its kin,
            if it calls them and launches no kernel. Else such a call raises.

    Raises:
        Unsupported: the host target cannot compile the source.
    """
    edits: list[_Edit] = []
    stream = tokens(text)
    launches = any(token.text == "<" and _three(stream, at) for at, token in enumerate(stream))
    if dispensable and not launches and (call := _absent.first_call(text)):
        raise Foreign(_without_form(text, file, call[1], *2 * call[:1]))
    for token in stream:
        if token.kind == "directive":
            if match := _INCLUDE.match(token.text):
                edits += _included(text, file, token, match, header)
            elif match := _DEFINE.match(token.text):
                body = tokens(text, token.start + match.end(), token.end)
                edits += _edits(text, file, body, in_macro=True)
    edits += _edits(text, file, [token for token in stream if token.kind != "directive"], False)
    declared = _absent.declarations(text)
    return f"{declared}#line 1\n{_applied(text, edits)}" if declared else _applied(text, edits)


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    """The text with the edits applied, and with the same number of lines."""
    parts, at = [], 0
    for edit in sorted(edits):
        if edit.start < at:
            continue  # inside another edit
        lost = text.count("\n", edit.start, edit.end) - edit.new.count("\n")
        ends = "\\\n" if "\\\n" in text[edit.start : edit.end] else "\n"
        parts += [text[at : edit.start], edit.new, ends * lost]
        at = edit.end
    return "".join([*parts, text[at:]])


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _included(
    text: str,
    file: str,
    token: Token,
    match: re.Match[str],
    header: Callable[[str], str | None],
) -> Iterator[_Edit]:
    name = match[1] or match[2]
    instead = next((own for known, own in _STAND_INS if known.fullmatch(name)), header(name))
    if instead == "cuda_on_cpu_cub.h":
        for used in re.finditer(r"\bcub::(\w+)", text):
            if not _CUB.fullmatch(used[1]):
                raise Foreign(_without_form(text, file, used.start(), used[0], used[0]))
    if instead is not None:
        yield _Edit(token.start, token.start + match.end(), f'#include "{instead}"')
        return
    first = re.match(r"\w+", name)
    library = re.sub(r"_v2$|Lt$|_kernel$", "", first[0]) if first else ""
    if library in _absent.LIBRARIES:
        yield _Edit(token.start, token.start + match.end(), "")
    elif library in _FOREIGN:
        raise Foreign(_without_form(text, file, token.start, name, _FOREIGN[library]))


def _without_form(text: str, file: str, at: int, name: str, what: str) -> str:
    said = f"{name}: {what}" if what != name else what
    return (
        f"{file}:{_line(text, at)}: {said} has no form for the CPU; run this source on a GPU, or "
        "guard what needs it with #ifdef __CUDACC__"
    )


def _edits(text: str, file: str, stream: list[Token], in_macro: bool) -> Iterator[_Edit]:
    bound = _bound(stream)
    scopes: list[bool] = []  # for each open brace, whether it is that of a namespace
    for at, token in enumerate(stream):
        if token.text == "{":
            scopes.append(_namespace(stream, at))
        elif token.text == "}" and scopes:
            scopes.pop()
        elif token.text == "<" and _three(stream, at) and stream[at - 1].text != "<":
            yield from _launch(text, file, stream, at)
        elif token.text == "__shared__":
            outside = not in_macro and all(scopes)
            yield from _shared(text, file, stream, at, not outside)
            if outside:
                yield from _casts(stream, at)
        elif token.text in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel"):
            yield from _kernel_as_address(stream, at)
        elif token.text == "__noinline__" and stream[at - 1].text != "(":  # in __attribute__((…))
            yield _Edit(token.start, token.end, "__attribute__((noinline))")
        elif token.text in ("asm", "__asm__", "__asm"):
            yield from _assembly(text, stream, at)
        elif token.text == ";" and all(scopes) and not in_macro:
            yield from _prototype(stream, at, bound)


def _namespace(stream: list[Token], brace: int) -> bool:
    """Whether a brace is that of namespace a::b { or extern "C" {."""
    while brace and (stream[brace - 1].kind == "name" or stream[brace - 1].text == "::"):
        brace -= 1
        if stream[brace].text == "namespace":
            return True
    return stream[brace - 1].text.startswith('"') and stream[brace - 2].text == "extern"


def _three(stream: list[Token], at: int) -> bool:
    """Whether three equal symbols begin at this index."""
    return [t.text for t in stream[at : at + 3]] == [stream[at].text] * 3


def _two_together(stream: list[Token], at: int) -> bool:
    """Whether there is no blank between the first two of the three symbols at this index. nvcc
    reads << < and >> > as <<< and >>>, but not < <<."""
    return stream[at + 1].start == stream[at].end


# ---- kernel<<<…>>>(…) ---------------------------------------------------------


def _launch(text: str, file: str, stream: list[Token], at: int) -> Iterator[_Edit]:
    begin = stream[_callee(stream, at - 1)].start
    apart = not _two_together(stream, at)  # formatters without CUDA support insert blanks
    depth, end = 0, at + 3
    while end < len(stream):
        symbol = stream[end].text
        depth += (symbol in ("(", "[", "{")) - (symbol in (")", "]", "}"))
        three = depth == 0 and symbol == ">" and _three(stream, end)
        if three and (apart or _two_together(stream, end)):
            break
        end += 1
    else:
        raise Unsupported(f"{file}:{_line(text, begin)}: a <<< that no >>> closes")
    if apart:
        warnings.warn(
            f"{file}:{_line(text, stream[at].start)}: nvcc refuses < << with a blank there; on the "
            "CPU it counts as <<<",
            stacklevel=2,
        )
    kernel = text[begin : stream[at - 1].end]
    between = text[stream[at - 1].end : stream[at].start]
    yield _Edit(begin, stream[at + 2].end, f"CUDA_ON_CPU_LAUNCH(({kernel}){between}, (")
    yield _Edit(stream[end].start, stream[end + 2].end, "))")
    if end + 3 < len(stream) and stream[end + 3].text == "(":  # as an argument, NULL is a number
        for token in stream[end + 3 : closing(stream, end + 3)]:
            if token.text == "NULL":
                yield _Edit(token.start, token.end, "nullptr")


def _kernel_as_address(stream: list[Token], at: int) -> Iterator[_Edit]:
    """Remove the cast in cudaLaunchKernel((void*)kernel, …): the kernel's type gives the types of
    its arguments."""
    cast = ["(", "void", "*", ")"]
    words = [t for t in stream[at + 1 : at + 7] if t.text != "const"]
    if [t.text for t in words[:5]] == ["(", *cast]:
        yield _Edit(words[1].start, words[4].end, "")


def _callee(stream: list[Token], at: int) -> int:
    """The index of the first token of the kernel's name that ends at this index."""
    while True:
        if stream[at].text == ">":
            at = _template(stream, at) - 1
        elif stream[at].text == ")":
            at = opening(stream, at)
            if at == 0 or stream[at - 1].kind != "name" or stream[at - 1].text == "return":
                return at
            at -= 1
        if at >= 2 and stream[at - 1].text in ("##", "::", ".", "->"):
            before = stream[at - 2]
            if before.kind in ("name", "number") or before.text in (">", ")"):
                at -= 2
                continue
            return at - 1  # ::kernel
        if at >= 1 and stream[at - 1].text == "template":
            at -= 1
            continue
        return at


def _template(stream: list[Token], close: int) -> int:
    """The index of the < for the > at this index."""
    depth, at = 0, close
    while at >= 0:
        symbol = stream[at].text
        if symbol in (")", "]", "}"):
            at = opening(stream, at)
        depth += (symbol == ">") - (symbol == "<")
        if depth == 0:
            return at
        at -= 1
    raise ValueError("a > that nothing opens")


def _closing_angle(stream: list[Token], open_: int) -> int:
    """The index of the > for the < at this index."""
    depth = 0
    for at in range(open_, len(stream)):
        depth += (stream[at].text == "<") - (stream[at].text == ">")
        if depth == 0:
            return at
    raise ValueError("a < that nothing closes")


# ---- __shared__ ---------------------------------------------------------------


def _shared(text: str, file: str, stream: list[Token], at: int, inside: bool) -> Iterator[_Edit]:
    begin = at
    while begin and stream[begin - 1].text not in (";", "{", "}", ":", ")", "#", "\\"):
        begin -= 1
    end = at
    brace = None
    while end < len(stream) and stream[end].text != ";":
        if stream[end].text in ("{", "(", "["):
            brace = end if stream[end].text == "{" and brace is None else brace
            end = closing(stream, end)
        end += 1
    defined, words = "", list(_declared(stream[begin:end]))
    if brace is not None:  # __shared__ union { … } storage;
        which = next((t for t in stream[at:brace] if t.text in ("union", "struct", "class")), None)
        if which is None:
            raise Unsupported(
                f"{file}:{_line(text, stream[brace].start)}: a __shared__ variable with an "
                "initial value, which CUDA does not have"
            )
        close, own_type = closing(stream, brace), stream[brace - 1]
        if own_type is which:
            own_type = which._replace(text=f"Shared{stream[at].start}")
        body = text[stream[brace].start : stream[close].end]
        defined = f"{which.text} {own_type.text} {body}; "
        words = [own_type, *stream[close + 1 : end]]
    whole = stream[begin].start, stream[end - 1].end
    extern = any(token.text == "extern" for token in stream[begin:end])
    declarators = list(_split(words))
    base: str | None = None
    parts = []
    for chunk in declarators:
        dims = next((i for i, t in enumerate(chunk) if t.text == "["), len(chunk))
        name = next((i for i in range(dims - 1, 0, -1) if chunk[i].kind == "name"), 0)
        if not chunk or (base is None and not name):
            line = _line(text, stream[at].start)
            raise Unsupported(f"{file}:{line}: a __shared__ declaration without a type and a name")
        # a macro's parameter may be pasted: name##_tile
        while name >= 2 and chunk[name - 1].text == "##":
            name -= 2
        own = _joined(chunk[:name])
        base = re.sub(r"[\s*]+$", "", own) if base is None else base
        kind = own if chunk is declarators[0] else base + own
        if "," in kind:  # in parentheses a macro's argument may have commas
            kind = f"cuda_on_cpu::Named<void({kind})>"
        label = "".join(token.text for token in chunk[name:dims])
        if extern and inside:
            parts.append(f"DYNAMIC_SHARED({kind}, {label})")
        elif extern:
            parts.append(f"static cuda_on_cpu::DynamicShared<{kind}> {label}")
        elif inside:
            extents = text[chunk[dims].start : chunk[-1].end] if dims < len(chunk) else ""
            parts.append(f"SHARED({kind}, {label}, {extents})")
        else:
            raise Unsupported(
                f"{file}:{_line(text, stream[at].start)}: __shared__ outside of a function; "
                "declare it in the kernel"
            )
    yield _Edit(*whole, defined + "; ".join(parts))


def _casts(stream: list[Token], at: int) -> Iterator[_Edit]:
    """A dynamic shared array outside of functions is an object. Where it is cast, a + makes it a
    pointer, and if to a reference, a * its first element."""
    end = next(i for i in range(at, len(stream)) if stream[i].text in (";", "["))
    name = stream[end - 1].text
    for i in range(end + 1, len(stream)):
        before = stream[i - 1].text
        cast = before == ")" or (before == "(" and stream[i - 2].text == ">")
        if stream[i].text == name and cast:
            to = stream[i - 2 if before == ")" else i - 3].text
            pointer = "*+" if to == "&" else "+"
            yield _Edit(stream[i].start, stream[i].end, f"({pointer}{name})")


def _declared(stream: list[Token]) -> Iterator[Token]:
    """The tokens of a declaration without qualifiers and alignment."""
    at = 0
    while at < len(stream):
        if stream[at].text in _ALIGNED and at + 1 < len(stream) and stream[at + 1].text == "(":
            at = closing(stream, at + 1)
        elif stream[at].text not in _QUALIFIERS:
            yield stream[at]
        at += 1


def _split(stream: list[Token]) -> Iterator[list[Token]]:
    """The tokens split at commas outside of all brackets. Inside ( and [, < and > are operators."""
    depth = angles = 0
    chunk: list[Token] = []
    for token in stream:
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if depth == 0:
            angles += (token.text == "<") - (token.text == ">")
        if token.text == "," and depth == angles == 0:
            yield chunk
            chunk = []
        else:
            chunk.append(token)
    yield chunk


def _joined(stream: list[Token]) -> str:
    return " ".join(token.text for token in stream)


# ---- asm ----------------------------------------------------------------------


def _assembly(text: str, stream: list[Token], at: int) -> Iterator[_Edit]:
    open_ = at + 1
    while stream[open_].text in ("volatile", "__volatile__", "inline", "goto"):
        open_ += 1
    if stream[open_].text != "(":
        return
    close = closing(stream, open_)
    inner = stream[open_ + 1 : close]
    template = []
    for token in inner:
        if token.kind != "text" and token.text != "\\":
            break
        template.append(token.text)
    operands = []
    i = len(template)
    while i < len(inner):
        if inner[i].kind == "text" and i + 1 < len(inner) and inner[i + 1].text == "(":
            end = closing(inner, i + 1)
            operands.append(text[inner[i + 1].end : inner[end].start])
            i = end
        i += 1
    words = "".join([" ".join(template), *(f", ({operand})" for operand in operands)])
    yield _Edit(stream[at].start, stream[close].end, f"cuda_on_cpu::ptx(__LINE__, {words})")


# ---- Functions of other sources -------------------------------------------------


def _bound(stream: list[Token]) -> set[str]:
    """The functions given to Python by m.def("name", &function)."""
    four = zip(stream, stream[1:], stream[2:], stream[3:])
    return {d.text for a, b, c, d in four if a.kind == "text" and b.text == "," and c.text == "&"}


def _prototype(stream: list[Token], end: int, bound: set[str]) -> Iterator[_Edit]:
    """Make a declared function of the host weak: its definition may be missing, which is an error
    only when it is called."""
    if not end or stream[end - 1].text != ")":
        return
    begin = open_ = opening(stream, end - 1)
    while begin and stream[begin - 1].text not in (";", "}", "{", ")"):
        begin -= 1
    if stream[begin].text == "template" and stream[begin + 1].text == "<":
        begin = _closing_angle(stream, begin + 1) + 1
    if stream[begin].text == "extern" and stream[begin + 1].kind == "text":
        begin += 2
    head, parameters = stream[begin:open_], stream[open_ + 1 : end - 1]
    if len(head) < 2 or head[-1].kind != "name" or _NO_WEAK & {token.text for token in head}:
        return
    # Two names side by side are a parameter, as in "int n". Else it may be a variable's value.
    function = any(a.kind == b.kind == "name" for a, b in pairwise(parameters))
    function |= any(token.text in _DECLARES for token in parameters[:1])
    tensors = {"Tensor", "cudaStream_t"} & {token.text for token in (*head, *parameters)}
    if function or tensors or head[-1].text in bound:
        yield _Edit(stream[begin].start, stream[begin].start, "__attribute__((weak)) ")
