"""Names of the language that a module took before the language was patched.

``from triton.language import load``, ``from triton.language.extra.libdevice import rsqrt`` or
``cast = tl.cast`` leave the function itself in the module, which no patch of the language reaches.
So in each interpreted function these names are bound to the patched functions. The old values are
restored when the context ends. A module that is imported while the language is patched takes the
patched functions; for the compiler it then gets the language's.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from triton_kernels.interpreter.handles import MISSING

_patched: dict[int, tuple[Any, Any]] = {}  # id of a function of the language → it, and its patch
_by_source: dict[tuple[str, int], Any] = {}  # file and line of such a function → its patch
_original: dict[int, tuple[Any, Any]] = {}  # id of a patch → it, and what it replaces
_bound: set[Any] = set()
_modules: set[str] = set()  # those that were imported before the language was patched
_changes: list[tuple[dict[str, Any], str, Any]] = []


def know(patches: Iterable[tuple[Any, str, Any]]) -> None:
    """Record which functions the patches replace, before any is applied."""
    for target, name, value in patches:
        old = vars(target).get(name, MISSING)
        if isinstance(target, types.ModuleType) and callable(old):
            _patched[id(old)] = (old, value)
            _original[id(value)] = (value, old)
            if (source := _source(old)) is not None:
                _by_source[source] = value


def begin() -> None:
    """The language is about to be patched."""
    _modules.clear()
    _modules.update(sys.modules)


def _source(function: Any) -> tuple[str, int] | None:
    """File and line of a function. They identify it even if its module was loaded again, so that
    it is another object than the language's."""
    if not inspect.isfunction(function):
        return None
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_firstlineno


def bind(function: Callable[..., Any]) -> None:
    """Bind the patched functions to a function's own names."""
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
    for new in sys.modules.keys() - _modules:
        module = sys.modules[new]
        held = list(vars(module).items()) if isinstance(module, types.ModuleType) else []
        for name, value in held:
            if id(value) in _original:
                vars(module)[name] = _original[id(value)][1]


def names(code: types.CodeType) -> set[str]:
    """The names that code looks up, including those in inner functions."""
    inner = (names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)
