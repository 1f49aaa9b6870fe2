"""Names of the language that a module took before the language was patched.

``from triton.language import load``, ``from triton.language.extra.libdevice import rsqrt`` or
``cast = tl.cast`` leave the function itself in the module, where no patch on the language reaches
it. So each function that is interpreted gets, among the names that it uses, the patched ones; what
was there comes back when the context ends.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from triton_kernels.interpreter.handles import MISSING

_patched: dict[int, tuple[Any, Any]] = {}  # id of a function of the language → it, and its patch
_by_source: dict[tuple[str, int], Any] = {}  # where such a function stands → its patch
_bound: set[Any] = set()
_changes: list[tuple[dict[str, Any], str, Any]] = []


def know(patches: Iterable[tuple[Any, str, Any]]) -> None:
    """What the patches, of which none is applied yet, will put in the place of what."""
    for target, name, value in patches:
        old = vars(target).get(name, MISSING)
        if isinstance(target, types.ModuleType) and callable(old):
            _patched[id(old)] = (old, value)
            if (source := _source(old)) is not None:
                _by_source[source] = value


def _source(function: Any) -> tuple[str, int] | None:
    """File and line. Who looks for a name in one module after the other loads them anew, and takes
    a function that is another object than the language's."""
    if not inspect.isfunction(function):
        return None
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_firstlineno


def bind(function: Callable[..., Any]) -> None:
    """Let a function that Python is to run find the patched ones by its own names."""
    if function in _bound:
        return
    _bound.add(function)
    namespace = function.__globals__
    for name in names(function.__code__):
        held = namespace.get(name, MISSING)
        old, new = _patched.get(id(held), (held, _by_source.get(_source(held) or ("", 0))))
        if new is not None and new is not old:
            _changes.append((namespace, name, old))
            namespace[name] = new


def restore() -> None:
    """Undo what bind() did."""
    _bound.clear()
    while _changes:
        namespace, name, old = _changes.pop()
        namespace[name] = old


def names(code: types.CodeType) -> set[str]:
    """The names that code looks up, that of functions in it, too."""
    inner = (names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)
