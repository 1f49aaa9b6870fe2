"""The operators that TORCH_LIBRARY defines, as torch.ops.library.name for CPU tensors.

Where torch has built the sources for the GPU, the operators are there, and get a kernel for the CPU
unless the sources have one; elsewhere they are defined here, with the schemas of the sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

# The operators that are registered from here: they last as long as their Library does, and what
# is loaded again, as in a notebook, takes the place of what was there.
_held: dict[str, torch.library.Library] = {}


def name_of(schema: str) -> str:
    """The name in a schema, with library and overload."""
    return schema.partition("(")[0].strip()


def schema_of(name: str, types: Iterable[str], returns: str) -> str:
    """The schema of an operator that is defined without one, by the types of its function."""
    parameters = ", ".join(f"{_in_schema(each)} _{i}" for i, each in enumerate(types))
    return f"{name}({parameters}) -> {_in_schema(returns)}"


def _in_schema(text: str) -> str:
    """A type as torch's schemas write it."""
    while (plain := re.sub(r"List\[([^][]*)\]", r"\1 [ ]", text)) != text or (
        plain := re.sub(r"Optional\[([^][]*)\]", r"\1?", text)
    ) != text:
        text = plain
    return text.replace(" [ ]", "[]").replace("dtype", "ScalarType")


def register(
    operators: Iterable[tuple[str, str | None]], functions: Mapping[str, Callable[..., Any]]
) -> None:
    """Define the operators that are not there, and give them kernels for CPU tensors."""
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
    """The schema under which an operator is registered; None if it is not."""
    packet, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(packet)
    return next((schema for schema in schemas if schema.overload_name == overload), None)


def _kernel(function: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    """A function of the sources with its arguments in order: torch leaves those out that are as by
    default, and names those that can only be named."""

    def kernel(*arguments: Any, **named: Any) -> Any:
        rest = schema.arguments[len(arguments) :]
        return function(*arguments, *(named.get(each.name, each.default_value) for each in rest))

    return kernel
