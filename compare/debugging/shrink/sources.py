"""The source of kernels, of the jit functions they call, and of the names in both, as one text."""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from compare.debugging.shrink.literals import Unwritable, scalar

LIBRARIES = sys.stdlib_module_names | {"triton", "torch", "numpy"}


class Sources:
    """Collects definitions in executable order.

    Attributes:
        imports: name → the line that imports it.
        definitions: the texts of functions and constants.
        known: the value of every name in the file.
        postponed: whether annotations must stay unevaluated.
    """

    def __init__(self) -> None:
        self.imports = {"triton": "import triton", "tl": "import triton.language as tl"}
        self.definitions: list[str] = []
        self.known: dict[str, Any] = {}
        self.postponed = False

    def expression(self, value: Any) -> str:
        """A launch argument or constant as source; its definitions are collected.

        Raises:
            Unwritable: it cannot be written, or a source cannot be read.
        """
        text = scalar(value)
        if text is not None:
            return text
        if type(value) in (tuple, list):
            parts = ", ".join(map(self.expression, value))
            comma = "," if len(value) == 1 else ""
            return f"({parts}{comma})" if isinstance(value, tuple) else f"[{parts}]"
        if type(value) is dict:
            each = (f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items())
            return "{" + ", ".join(each) + "}"
        function = _function(value)
        if function is not None:
            self.name(function.__name__, value)
            return str(function.__name__)
        raise Unwritable(f"a {type(value).__name__} cannot be written into a file: {value!r:.80}")

    def name(self, name: str, value: Any) -> None:
        """Define ``name`` as ``value`` in the file."""
        if name in self.known:
            known = self.known[name]
            if known is value or (type(known) is type(value) and scalar(value) and known == value):
                return
            raise Unwritable(f"two different things are called {name!r}: rename one")
        self.known[name] = value
        if isinstance(value, types.ModuleType):
            self._module(name, value)
            return
        function = _function(value)
        if function is None:
            home, own = getattr(value, "__module__", ""), getattr(value, "__name__", "")
            if inspect.isclass(value) and _library(home):
                self.imports[name] = _from(home, own, name)
            else:
                self.definitions.append(f"{name} = {self.expression(value)}")
        elif _library(function.__module__):
            self.imports[name] = _from(function.__module__, function.__name__, name)
        elif function.__name__ != name:
            self.name(function.__name__, value)
            self.definitions.append(f"{name} = {function.__name__}")
        else:
            self._define(value, function)

    def _module(self, name: str, module: types.ModuleType) -> None:
        if _library(module.__name__):
            self.imports[name] = f"import {module.__name__} as {name}"
            if name == module.__name__:
                self.imports[name] = f"import {name}"
            return
        self.imports["types"] = "import types"
        self.definitions.append(f"{name} = types.ModuleType({name!r})")

    def _define(self, value: Any, function: Any) -> None:
        """Add a function's text, after the definitions that it needs."""
        node, text = _parsed(function)
        flags = function.__code__.co_flags
        self.postponed |= bool(flags & __future__.annotations.compiler_flag)
        closure = inspect.getclosurevars(function)
        scope = {**function.__globals__, **closure.nonlocals}
        local = set(function.__code__.co_varnames)
        used = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        annotations = {id(n) for n in _annotations(node)} if self.postponed else set()
        for each in used:
            if each.id in scope and each.id not in local and id(each) not in annotations:
                self.name(each.id, scope[each.id])
        for part in (n for n in ast.walk(node) if isinstance(n, ast.Attribute)):
            if isinstance(part.value, ast.Name) and part.value.id in scope:
                self._member(part.value.id, scope[part.value.id], part.attr)
        self.definitions.append(_decorator(value, function) + text)

    def _member(self, name: str, module: Any, attribute: str) -> None:
        """Add a used attribute of a module that the file does not import."""
        if not isinstance(module, types.ModuleType) or _library(module.__name__):
            return
        text = self.expression(getattr(module, attribute))
        line = f"{name}.{attribute} = {text}"
        if line not in self.definitions:
            self.definitions.append(line)


def _function(value: Any) -> Any:
    """The Python function under a jit function, a constexpr function, heuristics…; None for other
    values."""
    while hasattr(value, "fn") and not inspect.isfunction(value):
        value = value.fn
    return value if inspect.isroutine(value) and hasattr(value, "__name__") else None


def stored_parameters(kernel: Any) -> set[str]:
    """The parameters to which a kernel's own stores and atomics go, according to its source."""
    node, _ = _parsed(_function(kernel))
    made_of: dict[str, set[str]] = {a.arg: {a.arg} for a in node.args.args}

    def names(expression: ast.expr) -> set[str]:
        """The parameters in it, except inside calls: a loaded value is no pointer."""
        if isinstance(expression, ast.Call):
            makes = ast.unparse(expression.func).endswith(("make_block_ptr", "advance"))
            return names(expression.args[0]) if makes and expression.args else set()
        if isinstance(expression, ast.Name):
            return made_of.get(expression.id, set())
        inner = (e for e in ast.iter_child_nodes(expression) if isinstance(e, ast.expr))
        return set().union(*map(names, inner))

    parameters: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.Assign, ast.AugAssign)):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            for target in (t for t in targets if isinstance(t, ast.Name)):
                made_of.setdefault(target.id, set()).update(names(part.value))
    for part in ast.walk(node):
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
            continue
        if part.args and part.func.attr.startswith(("store", "atomic_")):
            parameters |= names(part.args[0]) | names(part.func.value)
    return parameters


def _library(module: str | None) -> bool:
    return (module or "").split(".")[0] in LIBRARIES


def _from(module: str, own: str, name: str) -> str:
    return f"from {module} import {own}" + ("" if own == name else f" as {name}")


def _parsed(function: Any) -> tuple[ast.FunctionDef, str]:
    """A function's definition without decorators, and its text."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        raise Unwritable(f"the source of {function.__name__} cannot be read") from None
    if not isinstance(tree, ast.FunctionDef):
        raise Unwritable(f"{function.__name__} is not defined by a def statement")
    lines = text.rstrip().splitlines()[tree.lineno - 1 :]
    tree.decorator_list = []
    return tree, "\n".join(lines)


def _annotations(node: ast.FunctionDef) -> Iterator[ast.AST]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    for each in [a.annotation for a in arguments] + [node.returns]:
        if each is not None:
            yield from ast.walk(each)


def _decorator(value: Any, function: Any) -> str:
    """A jit function's decorator with literal arguments; heuristics and tuning are resolved."""
    if value is function:
        return ""
    if type(value).__name__ == "ConstexprFunction":
        return "@triton.constexpr_function\n"
    source = textwrap.dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    for decorator in getattr(definition, "decorator_list", []):
        if isinstance(decorator, ast.Call) and "jit" in ast.unparse(decorator.func):
            given = [k for k in decorator.keywords if _is_literal(k.value)]
            words = ", ".join(f"{k.arg}={ast.unparse(k.value)}" for k in given)
            return f"@triton.jit({words})\n" if words else "@triton.jit\n"
    return "@triton.jit\n"


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
