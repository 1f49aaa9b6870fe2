"""Declares what a source uses of CUDA's host libraries, cuBLAS and its kin, which the CPU lacks.

Headers that are shared by many kernels often include cuBLAS for one function. So its types and
constants exist on the CPU, handles are made and set, and every other function raises when it is
called: see csrc/cuda_on_cpu_absent.h.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cuda_reference._tokens import Token, closing, tokens

# First part of an #include → the library.
LIBRARIES = {
    "cublas": "cuBLAS",
    "cublasXt": "cuBLAS",
    "cudnn": "cuDNN",
    "cusparse": "cuSPARSE",
    "cusolverDn": "cuSOLVER",
    "cusolver_common": "cuSOLVER",
    "cufft": "cuFFT",
}
_NAME = re.compile(
    r"(cublas|cudnn|cusparse|cusolver|cufft)(Lt|Xt|Dn)?[A-Z]\w*"
    r"|(CUBLAS|CUBLASLT|CUDNN|CUSPARSE|CUSOLVER|CUFFT)_\w+"
)
_RESULT = re.compile(r"\w+(Result|Perf|Algo)_t")
_HANDLE = re.compile(
    r"\w+(Handle|Desc|Descriptor|Layout|Preference|Struct|Mat|Vec|Info)_t|cufftHandle"
)
_NO_WORK = re.compile(r"\w+?(Create|Destroy|Set(Stream|MathMode|Workspace|PointerMode))\w*")
_OWN = ("struct", "class", "enum", "namespace", "void", "auto", "define")


def declarations(text: str) -> str:
    """Lines that declare what ``text`` uses, each name once however many files declare it; ""
    if it uses nothing."""
    lines = []
    for name, called in _used(text).items():
        function = called or not _no_function(name)
        kind = "FUNCTION" if function else "TYPE"
        if _NO_WORK.fullmatch(name) and function:
            kind = "SETTING"
        elif name.endswith("String") and function:
            kind = "TEXT"
        elif name.isupper():
            kind = "SUCCESS" if name.endswith("_SUCCESS") else "CONSTANT"
        elif _RESULT.fullmatch(name):
            kind = "RESULT"
        elif _HANDLE.fullmatch(name):
            kind = "HANDLE"
        guard = f"CUDA_ON_CPU_ABSENT_{name}"
        lines += [f"#ifndef {guard}", f"#define {guard}", f"ABSENT_{kind}({name})", "#endif"]
    head = '#include "cuda_on_cpu_absent.h"'
    return "".join(f"{line}\n" for line in [head, *lines]) if lines else ""


def first_call(text: str) -> tuple[str, int] | None:
    """The first function that does the work of such a library, and its place in ``text``."""
    called = {
        name for name, called in _used(text).items() if called and not _NO_WORK.fullmatch(name)
    }
    return next(((t.text, t.start) for t in _tokens(text) if t.text in called), None)


def _no_function(name: str) -> bool:
    """Whether it is a type by its ending, or a constant by its capitals."""
    return name.endswith("_t") or name.isupper() or name == "cufftHandle"


def _used(text: str) -> dict[str, bool]:
    """Name → whether it is called. A name that is neither called, nor another name for a macro, nor
    a type or constant is the source's own, as is one that the source defines."""
    used: dict[str, bool] = {}
    own = set()
    stream = _tokens(text)
    for at, token in enumerate(stream):
        name, after = token.text, stream[at + 1].text if at + 1 < len(stream) else ""
        if not _NAME.fullmatch(name):
            continue
        if (at and stream[at - 1].text in _OWN) or (after == "(" and _defined(stream, at + 1)):
            own.add(name)
        elif after == "(" or _no_function(name) or (at > 1 and stream[at - 2].text == "define"):
            used[name] = used.get(name, False) or after == "("
    return {name: called for name, called in used.items() if name not in own}


def _defined(stream: Sequence[Token], parenthesis: int) -> bool:
    """Whether these are the parameters of a function that is defined here."""
    try:
        end = closing(stream, parenthesis) + 1
    except ValueError:
        return False
    return end < len(stream) and stream[end].text == "{"


def _tokens(text: str) -> list[Token]:
    """The tokens, and those of directives."""
    stream: list[Token] = []
    for token in tokens(text):
        if token.kind == "directive":
            stream += tokens(text, text.index("#", token.start) + 1, token.end)
        else:
            stream.append(token)
    return stream
