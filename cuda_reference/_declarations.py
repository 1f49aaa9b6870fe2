"""Parses the parameters of load_inline's launchers, which are C declarations in a string."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

import torch

_EVERY_DTYPE = tuple({v for v in vars(torch).values() if isinstance(v, torch.dtype)})
# C type → (ctypes' type of a value, the dtypes for a pointer). On Linux long has 64 bits.
TYPES: dict[str, tuple[Any, tuple[torch.dtype, ...]]] = {
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
_TYPE_WORDS = {word for base in (*TYPES, _STREAM, "const") for word in base.split()}


@dataclass(frozen=True)
class Parameter:
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
        return ctypes.c_void_p if self.pointer or self.is_stream else TYPES[self.base][0]


def parse(function: str, declaration: Any) -> list[Parameter]:
    """The parameters of a launcher.

    Raises:
        TypeError: the declaration is no string.
        ValueError: it cannot be parsed, has several streams, or has no pointer.
    """
    where = f"load_inline(): functions[{function!r}]"
    if not isinstance(declaration, str):
        raise TypeError(f"{where} must be a string of parameters, got {declaration!r}")
    texts = [text.strip() for text in declaration.split(",")]
    parameters = [_parse_parameter(where, text) for text in texts]
    names = [parameter.name for parameter in parameters]
    for twice in (name for name in names if names.count(name) > 1):
        raise ValueError(f"{where}: two parameters are called {twice!r}")
    if sum(parameter.is_stream for parameter in parameters) > 1:
        raise ValueError(
            f"{where} has several cudaStream_t: there is one current stream to launch on"
        )
    if not any(parameter.pointer for parameter in parameters):
        raise ValueError(f"{where} has no pointer: tensors say on which device it is to run")
    return parameters


def _parse_parameter(where: str, text: str) -> Parameter:
    plain = re.sub(r"\bstd::|\b__restrict(?:__)?\b", " ", text)
    match = re.fullmatch(r"([\w\s]+?)\s*(?:(\*)\s*(?:const\b)?)?\s*\b([A-Za-z_]\w*)\s*", plain)
    words = match[1].split() if match else []
    base = " ".join(word for word in words if word != "const")
    base = re.sub(r"(?<=\w) int$", "", base)  # "long long int", "unsigned int"
    pointer = bool(match and match[2])
    problem = None
    if not match or match[3] in _TYPE_WORDS:  # without a name the pattern matches the type as name
        problem = "write a type and a name, like 'const float* x' or 'int n'"
    elif base not in (*TYPES, _STREAM) or (base == _STREAM and pointer):
        problem = f"unknown type; known are {_STREAM}, and pointers to {', '.join(TYPES)}"
    elif not pointer and base != _STREAM and TYPES[base][0] is None:
        problem = f"a {base} cannot be passed by value: pass a pointer to it, or a float"
    if problem or not match:
        raise ValueError(f"{where}: parameter {text!r}: {problem}")
    return Parameter(match[3], base, pointer, pointer and "const" in words)
