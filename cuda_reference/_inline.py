"""load_inline: launchers from a string of CUDA C++, called with tensors and numbers."""

from __future__ import annotations

import ctypes
import hashlib
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _build, _compilers, _launch, _storage

_EVERY_DTYPE = tuple({v for v in vars(torch).values() if isinstance(v, torch.dtype)})
# The C type of a number; the dtypes that a pointer to it takes. Linux: long has 64 bits.
_TYPES: dict[str, tuple[Any, tuple[torch.dtype, ...]]] = {
    "float": (ctypes.c_float, (torch.float32,)),
    "double": (ctypes.c_double, (torch.float64,)),
    "__half": (None, (torch.float16,)),
    "half": (None, (torch.float16,)),
    "__nv_bfloat16": (None, (torch.bfloat16,)),
    "nv_bfloat16": (None, (torch.bfloat16,)),
    "bool": (ctypes.c_bool, (torch.bool,)),
    "signed char": (ctypes.c_int8, (torch.int8,)),
    "int8_t": (ctypes.c_int8, (torch.int8,)),
    "unsigned char": (ctypes.c_uint8, (torch.uint8, torch.bool)),
    "uint8_t": (ctypes.c_uint8, (torch.uint8, torch.bool)),
    "short": (ctypes.c_int16, (torch.int16,)),
    "int16_t": (ctypes.c_int16, (torch.int16,)),
    "unsigned short": (ctypes.c_uint16, (torch.uint16,)),
    "uint16_t": (ctypes.c_uint16, (torch.uint16,)),
    "int": (ctypes.c_int32, (torch.int32,)),
    "int32_t": (ctypes.c_int32, (torch.int32,)),
    "unsigned": (ctypes.c_uint32, (torch.uint32,)),
    "uint32_t": (ctypes.c_uint32, (torch.uint32,)),
    "long": (ctypes.c_int64, (torch.int64,)),
    "long long": (ctypes.c_int64, (torch.int64,)),
    "int64_t": (ctypes.c_int64, (torch.int64,)),
    "unsigned long": (ctypes.c_uint64, (torch.uint64,)),
    "unsigned long long": (ctypes.c_uint64, (torch.uint64,)),
    "uint64_t": (ctypes.c_uint64, (torch.uint64,)),
    "size_t": (ctypes.c_uint64, (torch.uint64,)),
    "void": (None, _EVERY_DTYPE),
}
_STREAM = "cudaStream_t"
_TYPE_WORDS = {word for base in (*_TYPES, _STREAM, "const") for word in base.split()}
_FLOAT_LIMIT = float.fromhex("0x1.ffffffp127")  # from here on float32 rounds to infinity


@dataclass(frozen=True)
class _Parameter:
    """One parameter of a launcher."""

    name: str
    base: str
    pointer: bool
    const: bool

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def type(self) -> str:
        return f"{'const ' if self.const else ''}{self.base}{'*' if self.pointer else ''}"

    @property
    def is_stream(self) -> bool:
        return self.base == _STREAM

    @property
    def ctype(self) -> Any:
        return ctypes.c_void_p if self.pointer or self.is_stream else _TYPES[self.base][0]


class InlineModule:
    """What :func:`load_inline` returns: one function an entry of its ``functions``."""

    def __init__(self, name: str, functions: Mapping[str, Callable[..., None]]) -> None:
        self.__dict__.update(functions)
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., None]:
        raise AttributeError(f"{self!r} has no function {name!r}")

    def __repr__(self) -> str:
        calls = [(f.__doc__ or "").split("\n")[0] for f in vars(self).values() if callable(f)]
        return f"<CUDA source {vars(self).get('_name')!r}: {', '.join(calls)}>"


def load_inline(
    source: str, functions: Mapping[str, str], *, name: str | None = None
) -> InlineModule:
    """Launchers written in CUDA C++ in a string, as functions of tensors and numbers.

    The source is compiled on the first call: by nvcc for CUDA tensors, and for CPU tensors by g++,
    so that a machine without nvcc can load and try it. LAUNCH(kernel, grid, block, smem, stream,
    arguments...) and SHARED(T, name, dims) of csrc/crosscheck.cuh, which is included by itself,
    work on both. The library is kept in the cache like any other, and sanitized like any other
    under CROSSCHECK_SANITIZE.

    A function of the result takes its parameters by position, less the stream, which is torch's
    current one. A pointer takes a contiguous tensor of its dtype (``const float*`` float32,
    ``void*`` any, and so on) or None for a null pointer, a number a number in range. Tensors behind
    pointers that are not const are taken to be written: every call counts up their versions, so
    that autograd notices if it has saved one of them. What is only read is best declared const.
    Nothing is returned.

    Args:
        source: kernels and their launchers, functions that return cudaError_t, int (0 is success)
            or nothing (then cudaGetLastError is asked).
        functions: launcher → its parameters as in the source, for instance
            ``{"square": "const float* x, float* out, int n, cudaStream_t stream"}``. The compiler
            verifies them: a declaration that does not match is a compile error.
        name: what the source is called in errors and in the cache; else the first launcher's name.

    Raises:
        TypeError, ValueError: the arguments are not as above, or a parameter cannot be understood.

    The functions raise TypeError, ValueError or RuntimeError for arguments that do not suit,
    BuildError if the source does not compile, RuntimeError with CUDA's words if a launch fails.

    Example:
        >>> module = load_inline(source, {"square": "const float* x, float* out, int n, "
        ...                                         "cudaStream_t stream"})
        >>> module.square(x, out, x.numel())
    """
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
    launchers = {function: _parse(function, text) for function, text in functions.items()}
    chosen = name or next(iter(functions))
    unit = _Unit(chosen, source, launchers)
    return InlineModule(
        chosen,
        {function: _function(unit, function, launchers[function]) for function in launchers},
    )


# ---- The declaration --------------------------------------------------------


def _parse(function: str, declaration: Any) -> list[_Parameter]:
    where = f"load_inline(): functions[{function!r}]"
    if not isinstance(declaration, str):
        raise TypeError(f"{where} must be a string of parameters, got {declaration!r}")
    texts = [text.strip() for text in declaration.split(",")]
    parameters = [_parse_parameter(where, text) for text in texts]
    names = [parameter.name for parameter in parameters]
    for twice in (name for name in names if names.count(name) > 1):
        raise ValueError(f"{where}: two parameters are called {twice!r}")
    if sum(parameter.is_stream for parameter in parameters) != 1:
        raise ValueError(
            f"{where} must have one cudaStream_t: add 'cudaStream_t stream' to the launcher, and "
            "launch on it, or the kernel would not wait for its tensors"
        )
    if not any(parameter.pointer for parameter in parameters):
        raise ValueError(f"{where} has no pointer: tensors say on which device it is to run")
    return parameters


def _parse_parameter(where: str, text: str) -> _Parameter:
    plain = re.sub(r"\bstd::|\b__restrict(?:__)?\b", " ", text)
    match = re.fullmatch(r"([\w\s]+?)\s*(?:(\*)\s*(?:const\b)?)?\s*\b([A-Za-z_]\w*)\s*", plain)
    words = match[1].split() if match else []
    base = " ".join(word for word in words if word != "const")
    base = re.sub(r"(?<=\w) int$", "", base)  # "long long int", "unsigned int"
    pointer = bool(match and match[2])
    problem = None
    if not match or match[3] in _TYPE_WORDS:  # without a name, the type is taken for it
        problem = "write a type and a name, like 'const float* x' or 'int n'"
    elif base not in (*_TYPES, _STREAM) or (base == _STREAM and pointer):
        problem = f"unknown type; known are {_STREAM}, and pointers to {', '.join(_TYPES)}"
    elif not pointer and base != _STREAM and _TYPES[base][0] is None:
        problem = f"a {base} cannot be passed by value: pass a pointer to it, or a float"
    if problem or not match:
        raise ValueError(f"{where}: parameter {text!r}: {problem}")
    return _Parameter(match[3], base, pointer, pointer and "const" in words)


# ---- The source -------------------------------------------------------------


class _Unit:
    """The source with its entries, on disk as soon as a library of it is asked for."""

    def __init__(
        self, name: str, source: str, launchers: Mapping[str, Sequence[_Parameter]]
    ) -> None:
        self.name = name
        self._source = source
        self._text = _unit_text(name, source, launchers)
        self._libraries: dict[_compilers.Target, ctypes.CDLL] = {}

    def library(self, target: _compilers.Target) -> ctypes.CDLL:
        """The library for ``target``, built or taken from the cache at the first call."""
        loaded = self._libraries.get(target)
        if loaded is None:
            loaded = _build.library(self.name, target, csrc=self._folder())
            self._libraries[target] = loaded
        return loaded

    def _folder(self) -> Path:
        """A csrc of its own in the cache, where the compiler's messages can point."""
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:12]
        below = ("inline", f"{self.name}-{digest}", "source")
        source = _compilers.cache_directory(*below) / f"{self.name}.cu"
        unit = source.parent.parent / source.name
        files = {source: self._source.encode(), unit: self._text.encode()}
        if not all(file.is_file() and file.read_bytes() == text for file, text in files.items()):
            with _build.workspace(_compilers.cache_directory()) as work:
                _storage.write(files, work)
        return unit.parent


def _unit_text(name: str, source: str, launchers: Mapping[str, Sequence[_Parameter]]) -> str:
    """Includes the source, checks each launcher's declaration, and wraps it, the stream last."""
    lines = [
        f"// sha256 {hashlib.sha256(source.encode()).hexdigest()}",
        '#include "inline.cuh"',
        f'#include "source/{name}.cu"',
    ]
    for function, parameters in launchers.items():
        types = ", ".join(p.type for p in parameters)
        declared = ", ".join(map(str, parameters))
        ordered = sorted(parameters, key=lambda p: p.is_stream)
        differs = f"the source's {function}() does not take ({declared})"
        returns = f"{function}() must return cudaError_t, int or void"
        entry = (
            f"static_assert(std::is_same<decltype(crosscheck_inline::parameters(&::{function})), "
            f'crosscheck_inline::Types<{types}>>::value, "{differs}"); '
            f"static_assert(crosscheck_inline::returns_status<decltype(::{function})>(), "
            f'"{returns}"); '
            f'extern "C" int crosscheck_call_{function}({", ".join(map(str, ordered))}) '
            "{ return crosscheck_inline::status([=] "
            f"{{ return ::{function}({', '.join(p.name for p in parameters)}); }}); }}"
        )
        lines += [f"#line 1 \"functions['{function}']\"", entry]
    return "\n".join(lines) + "\n"


# ---- The call ---------------------------------------------------------------


def _function(unit: _Unit, symbol: str, declared: Sequence[_Parameter]) -> Callable[..., None]:
    parameters = [parameter for parameter in declared if not parameter.is_stream]
    names = ", ".join(parameter.name for parameter in parameters)
    written = {parameter.name for parameter in parameters if not parameter.const}
    ctypes_ = [*(parameter.ctype for parameter in parameters), ctypes.c_void_p]
    entries: dict[_compilers.Target, Any] = {}

    def entry(target: _compilers.Target) -> Any:
        function = getattr(unit.library(target), f"crosscheck_call_{symbol}")
        function.argtypes = ctypes_
        return entries.setdefault(target, function)

    def call(*arguments: Any) -> None:
        if len(arguments) != len(parameters):
            raise TypeError(
                f"{symbol}() takes {len(parameters)} arguments ({names}; the stream is filled in), "
                f"but got {len(arguments)}"
            )
        values: list[Any] = []
        tensors: dict[str, Tensor] = {}
        for parameter, value in zip(parameters, arguments):
            if not parameter.pointer:
                values.append(_number(symbol, parameter, value))
            elif value is None:
                values.append(None)
            else:
                tensors[parameter.name] = value = _tensor(symbol, parameter, value)
                values.append(_launch.address(value))
        if not tensors:
            raise TypeError(f"{symbol}(): every pointer is None; a tensor must say which device")
        device = next(iter(tensors.values())).device
        if device.type not in ("cpu", "cuda") or any(t.device != device for t in tensors.values()):
            _arguments.check_device(symbol, tensors)  # says what is wrong
        target: _compilers.Target = "cuda" if device.type == "cuda" else "host"
        launcher = entries.get(target) or entry(target)
        _launch.count_up([t for name, t in tensors.items() if name in written])
        if target == "cuda":
            with torch.cuda.device(device):
                status = launcher(*values, torch.cuda.current_stream(device).cuda_stream)
        else:
            status = launcher(*values, None)
            status = unit.library(target).crosscheck_crashed() or status
        if status:
            shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in tensors.items())
            raise _launch.failure(unit.library(target), status, symbol, shapes)

    call.__name__ = call.__qualname__ = symbol
    call.__doc__ = (
        f"{symbol}({names})\n\n"
        f"Launches {symbol}({', '.join(map(str, declared))})\n"
        f"of the inline CUDA source {unit.name!r} on torch's current stream."
    )
    return call


def _tensor(symbol: str, parameter: _Parameter, value: Any) -> Tensor:
    name = parameter.name
    t = _arguments.check_tensor(symbol, name, value, _TYPES[parameter.base][1])
    if not t.is_contiguous() or t.is_conj():
        remedy = f"pass {name}.contiguous()"
        if not parameter.const:
            remedy = "write into a contiguous tensor and copy_() from it"
        raise ValueError(
            f"{symbol}(): argument '{name}' is not contiguous (shape {list(t.shape)}, strides "
            f"{list(t.stride())}), and {parameter.type} carries an address only; {remedy}"
        )
    if t.requires_grad and not parameter.const:
        raise RuntimeError(
            f"{symbol}(): argument '{name}' is written ({parameter.type}), but requires grad; "
            f"pass {name}.detach(), or declare it const"
        )
    return t


def _number(symbol: str, parameter: _Parameter, value: Any) -> bool | int | float:
    name, ctype = parameter.name, parameter.ctype
    if ctype is ctypes.c_bool:
        if isinstance(value, bool):
            return value
    elif ctype in (ctypes.c_float, ctypes.c_double):
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            number = float(value)
            if ctype is ctypes.c_float and _FLOAT_LIMIT <= abs(number) < math.inf:
                raise ValueError(f"{symbol}(): argument '{name}' = {value} does not fit float")
            return number
    elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
        integer = int(value)
        if ctype(integer).value != integer:
            raise ValueError(
                f"{symbol}(): argument '{name}' = {integer} does not fit {parameter.base}"
            )
        return integer
    got = type(value).__name__
    if isinstance(value, Tensor):
        got += f"; {name}.item() is its number"
    raise TypeError(f"{symbol}(): argument '{name}' is declared {parameter.type}, but got {got}")
