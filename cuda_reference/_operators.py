"""Registers the operators of TORCH_LIBRARY for CPU tensors, as torch.ops.library.name.

If torch has built the sources for the GPU, the operators exist, and get a kernel for the CPU unless
the sources have one. Otherwise they are defined here, with the schemas of the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

# The operators that are registered here. They exist as long as their Library. If sources are loaded
# again, as in a notebook, the new Library replaces the old one.
_held: dict[str, torch.library.Library] = {}


def name_of(schema: str) -> str:
    """The operator's name in a schema, with library and overload."""
    return schema.partition("(")[0].strip()


def schema_of(name: str, types: Iterable[str], returns: str) -> str:
    """The schema of an operator that is defined without one, from the types of its function."""
    parameters = ", ".join(f"{_in_schema(each)} _{i}" for i, each in enumerate(types))
    return f"{name}({parameters}) -> {_in_schema(returns)}"


def _in_schema(text: str) -> str:
    """A type in the notation of torch's schemas."""
    while (plain := re.sub(r"List\[([^][]*)\]", r"\1 [ ]", text)) != text or (
        plain := re.sub(r"Optional\[([^][]*)\]", r"\1?", text)
    ) != text:
        text = plain
    return text.replace(" [ ]", "[]").replace("dtype", "ScalarType")


def register(
    operators: Iterable[tuple[str, str | None]], functions: Mapping[str, Callable[..., Any]]
) -> None:
    """Define operators that do not exist, and register kernels for CPU tensors."""
    for name, schema in operators:
        library, _, own = name.partition("::")
        if name in _held:
            _held.pop(name)._destroy()
        held = _held[name] = torch.library.Library(library, "FRAGMENT")
        if schema is not None and not _defined(name):
            held.define(schema.partition("::")[2])
        if own in functions and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            held.impl(own, _kernel(functions[own], _defined(name)), "CPU")


def _defined(name: str) -> Any:
    """The schema of a registered operator; None if it is not registered."""
    packet, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(packet)
    return next((schema for schema in schemas if schema.overload_name == overload), None)


def _kernel(function: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    """A kernel that calls a function of the sources with all arguments in order. torch omits
    arguments that have their default values, and passes keyword-only ones by name."""

    def kernel(*arguments: Any, **named: Any) -> Any:
        rest = schema.arguments[len(arguments) :]
        return function(*arguments, *(named.get(each.name, each.default_value) for each in rest))

    return kernel
