"""load_inline with launchers: functions of tensors and numbers from a string of CUDA C++."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuda_reference import _build, _compilers, _rewriting, _storage
from cuda_reference._declarations import Parameter, parse
from cuda_reference._launcher import Launcher
from cuda_reference._replay import KINDS


class InlineModule:
    """The result of :func:`load_inline`: one function per entry of its ``functions``."""

    def __init__(self, name: str, functions: Mapping[str, Launcher]) -> None:
        self.__dict__.update(functions)
        self._name = name

    def __getattr__(self, name: str) -> Launcher:
        raise AttributeError(f"{self!r} has no function {name!r}")

    def __repr__(self) -> str:
        calls = [(f.__doc__ or "").split("\n")[0] for f in vars(self).values() if callable(f)]
        return f"<CUDA source {vars(self).get('_name')!r}: {', '.join(calls)}>"


def load_launchers(
    source: str,
    functions: Mapping[str, str],
    *,
    name: str | None = None,
    sanitize: str | None = None,
) -> InlineModule:
    """See :func:`cuda_reference.load_inline`."""
    if not isinstance(source, str):
        raise TypeError(f"load_inline(): 'source' must be a string, got {type(source).__name__}")
    if not isinstance(functions, Mapping) or not functions:
        raise TypeError(
            "load_inline(): 'functions' must be a dict of launcher → parameters, like "
            '{"square": "const float* x, float* out, int n, cudaStream_t stream"}'
        )
    for what in (*functions, *([] if name is None else [name])):
        if not isinstance(what, str) or not re.fullmatch(r"[A-Za-z]\w*", what, re.ASCII):
            raise ValueError(f"load_inline(): {what!r} is no name for a function or a source")
    if sanitize is not None and sanitize not in KINDS:
        raise ValueError(
            f"load_inline(): 'sanitize' must be one of {', '.join(KINDS)}, got {sanitize!r}"
        )
    unit = Unit(name or next(iter(functions)), source, functions, sanitize)
    return InlineModule(
        unit.name,
        {symbol: Launcher(unit, symbol, declared) for symbol, declared in unit.launchers.items()},
    )


# ---- The source -------------------------------------------------------------


class Unit:
    """The source with its entry points. It is written to disk when its library is first needed."""

    def __init__(
        self, name: str, source: str, functions: Mapping[str, str], sanitize: str | None
    ) -> None:
        self.name, self.source, self.sanitize = name, source, sanitize
        self.functions = dict(functions)
        self.launchers = {symbol: parse(symbol, text) for symbol, text in functions.items()}
        self._text = _unit_text(name, source, self.launchers)
        self._libraries: dict[_compilers.Target, ctypes.CDLL] = {}

    def _on_host_text(self, source: Path) -> str:
        """The source rewritten for the host target, with ``source`` as its file in messages."""
        try:
            own = _rewriting.rewritten(self.source, f"{self.name}.cu")
        except ValueError as error:
            own = f"#error {error}\n"  # only the host target reads this file
        return f'#line 1 "{source}"\n{own}'

    def library(self, target: _compilers.Target) -> ctypes.CDLL:
        """The library for ``target``, built or taken from the cache at the first call of this."""
        loaded = self._libraries.get(target)
        if loaded is None:
            loaded = _build.library(self.name, target, csrc=self._folder())
            self._libraries[target] = loaded
        return loaded

    def cubin(self, arch: str) -> tuple[bytes, str]:
        """The source's cubin; see :func:`cuda_reference._build.cubin`."""
        return _build.cubin(self.name, arch, csrc=self._folder())

    def _folder(self) -> Path:
        """A folder in the cache with the source, to which the compiler's messages can refer."""
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:12]
        below = ("inline", f"{self.name}-{digest}", "source")
        source = _compilers.cache_directory(*below) / f"{self.name}.cu"
        unit = source.parent.parent / source.name
        on_host = source.parent / "on_host.cuh"
        files = {
            source: self.source.encode(),
            on_host: self._on_host_text(source).encode(),
            unit: self._text.encode(),
        }
        if not all(file.is_file() and file.read_bytes() == text for file, text in files.items()):
            with _build.workspace(_compilers.cache_directory()) as work:
                _storage.write(files, work)
        return unit.parent


def _unit_text(name: str, source: str, launchers: Mapping[str, Sequence[Parameter]]) -> str:
    """The text of a unit that includes the source, checks each launcher's declaration, and wraps
    each launcher with the stream as last parameter."""
    lines = [
        f"// sha256 {hashlib.sha256(source.encode()).hexdigest()}",
        '#include "inline.cuh"',
        "#ifdef __CUDACC__",
        f'#include "source/{name}.cu"',
        "#else",
        '#include "source/on_host.cuh"',
        "#endif",
    ]
    for function, parameters in launchers.items():
        types = ", ".join(p.type for p in parameters)
        declared = ", ".join(map(str, parameters))
        ordered = [str(p) for p in parameters if not p.is_stream]
        ordered += [str(p) for p in parameters if p.is_stream] or ["cudaStream_t"]
        differs = f"the source's {function}() does not take ({declared})"
        returns = f"{function}() must return cudaError_t, int or void"
        entry = (
            f"static_assert(std::is_same<decltype(crosscheck_inline::parameters(&::{function})), "
            f'crosscheck_inline::Types<{types}>>::value, "{differs}"); '
            f"static_assert(crosscheck_inline::returns_status<decltype(::{function})>(), "
            f'"{returns}"); '
            f'extern "C" int crosscheck_call_{function}({", ".join(ordered)}) '
            "{ return crosscheck_inline::status([=] "
            f"{{ return ::{function}({', '.join(p.name for p in parameters)}); }}); }}"
        )
        lines += [f"#line 1 \"functions['{function}']\"", entry]
    return "\n".join(lines) + "\n"
