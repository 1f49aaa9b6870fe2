"""The faults that can be planted in a Python file with Triton kernels, made from its syntax tree.

Kernels are functions decorated with triton.jit or gluon.jit. Host functions take part if they
choose a grid, tiles, a kernel or an activation: those that launch, those called from these, and all
in files that only choose. Their numbers are not mutated, because they only affect speed.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator

from compare.mutation.mutant import Edit, Mutant

_OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_COMPARISONS: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_OPPOSITE: dict[type, str] = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<"}
_OTHER_FUNCTION = {
    "min": "max",
    "max": "min",
    "tl.minimum": "tl.maximum",
    "tl.maximum": "tl.minimum",
    "tl.exp": "tl.exp2",
    "tl.exp2": "tl.exp",
    "tl.erf": "tl.exp",
    "libdevice.tanh": "tl.exp",
    "tl.sum": "tl.max",
}
_NARROWER = {"tl.int64": "tl.int32", "tl.float32": "tl.float16", "tl.float64": "tl.float32"}
_PARTNERS = {"M": "N", "N": "M", "BLOCK_M": "BLOCK_N", "BLOCK_N": "BLOCK_M"}
_WITH_TYPE = ("tl.zeros", "tl.full", "tl.dot")
_ATOMICS = tuple(f"atomic_{name}" for name in ("add", "max", "min", "and", "or", "xor", "xchg"))
_WRITES = ("store", "store_tile", "debug_barrier", *_ATOMICS)
_GUARDS = ("mask", "other", "boundary_check", "padding_option")
# The position of the mask among the arguments.
_MASKED = {"tl.load": 1, "tl.store": 2, **{f"tl.{name}": 2 for name in _ATOMICS}}

_CHOOSING = ("choice.py", "_tiles.py", "activations.py")
LEAST = 5  # faults per kernel, even of a very short one

Function = ast.FunctionDef


def faults(file: str, text: str) -> Iterator[Mutant]:
    """Every fault of a file, function by function."""
    functions = list(_functions(ast.parse(text)))
    choosing = _choosing(functions)
    if file.endswith(_CHOOSING):
        choosing = {function.name for function in functions}
    source = _Source(text)
    for function in functions:
        kernel, gluon = is_kernel(function), "gluon.jit" in _decorators(function)
        if not kernel and function.name not in choosing:
            continue
        edits = list(dict.fromkeys(_Faults(source, function, kernel)))
        if kernel:
            edits += itertools.islice(_of_results(source, function), max(0, LEAST - len(edits)))
        for edit in edits:
            if gluon:
                edit = edit._replace(new=edit.new.replace("tl.", "gl."))
            yield Mutant("triton", file, function.name, edit, text, kernel)


def _functions(node: ast.AST) -> Iterator[Function]:
    """The functions of a module, of its classes, and under conditions, as in ``if has_triton():``;
    of those inside functions only the kernels."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
            yield from filter(is_kernel, _functions(child))
        elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield from _functions(child)


def is_kernel(function: Function) -> bool:
    """Whether triton.jit or gluon.jit decorates it."""
    return not {"triton.jit", "gluon.jit", "jit"}.isdisjoint(_decorators(function))


def _decorators(function: Function) -> list[str]:
    return [ast.unparse(each).partition("(")[0] for each in function.decorator_list]


def _name(node: ast.AST) -> str:
    """The node's name in Triton's language; Gluon and triton.language.core have the same names."""
    return re.sub(r"^(?:gl|core|triton\.language)\.", "tl.", ast.unparse(node))


def _choosing(functions: list[Function]) -> set[str]:
    """The functions that launch, and the functions of the file that these call."""
    named = {function.name: function for function in functions if not is_kernel(function)}
    called = {
        name: {
            node.func.id
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for name, function in named.items()
    }
    chosen: set[str] = set()
    left = [name for name, names in called.items() if "Launch" in names]
    left += [name for name, names in called.items() if names & set(left)]
    while left:
        name = left.pop()
        if name not in chosen:
            chosen.add(name)
            left += called[name] & set(named)
    return chosen


def _of_results(source: _Source, function: Function) -> Iterator[Edit]:
    """Changes of a function's result."""
    for form in ("-{}", "{} + {}", "{} * 0", "{} + 1", "tl.abs({})"):
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value:
                value = source.of(node.value)
                new = form.replace("{}", value)
                yield Edit("result", *source.span(node.value), new)


class _Source:
    """A text addressed by syntax tree positions, which count UTF-8 bytes within a line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]

    def _at(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The start and end of a node, without surrounding parentheses."""
        begin = self._at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        end = self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return begin, end

    def of(self, node: ast.AST) -> str:
        """A node's text, with parentheses if it may need them."""
        begin, end = self.span(node)
        simple = isinstance(node, (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript))
        return self.text[begin:end] if simple else f"({self.text[begin:end]})"

    def between(self, left: ast.AST, right: ast.AST, symbol: str) -> tuple[int, int]:
        """The position of an operator between its operands."""
        begin, end = self.span(left)[1], self.span(right)[0]
        pattern = re.escape(symbol).replace(r"\ ", r"\s+")
        match = re.search(pattern, re.sub(r"#.*", _blank, self.text[begin:end]))
        assert match, f"no {symbol} in {self.text[begin:end]!r}"
        return begin + match.start(), begin + match.end()


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _refuses(statement: ast.stmt) -> bool:
    """Whether it raises, or checks arguments."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).startswith("_arguments.")
    return isinstance(statement, ast.Raise)


class _Faults:
    """The faults of one function, made by the type of each node."""

    def __init__(self, source: _Source, function: Function, kernel: bool) -> None:
        self.source, self.function = source, function
        self.kernel = kernel
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        # Parameters passed as a tuple are unpacked in the body.
        unpacked = (n for n in ast.walk(function) if isinstance(n, ast.Name))
        names += [n.id for n in unpacked if isinstance(n.ctx, ast.Store)]
        self.strides = [n for n in dict.fromkeys(names) if n.startswith("stride_")]

    def __iter__(self) -> Iterator[Edit]:
        body = self.function.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]  # the docstring
        for statement in body:
            for node in self._inside(statement):
                yield from self._of(node)

    def _inside(self, node: ast.AST) -> Iterator[ast.AST]:
        """The node and its children. Without the argument checks of host functions, since no case
        has wrong arguments."""
        if isinstance(node, ast.If) and not self.kernel and all(map(_refuses, node.body)):
            return
        yield node
        for child in ast.iter_child_nodes(node):
            yield from self._inside(child)

    def _of(self, node: ast.AST) -> Iterator[Edit]:
        both: dict[type, Callable[..., Iterator[Edit]]] = {
            ast.BinOp: self._arithmetic,
            ast.Compare: self._comparison,
            ast.BoolOp: self._logic,
            ast.If: self._condition,
            ast.IfExp: self._alternative,
        }
        kernels: dict[type, Callable[..., Iterator[Edit]]] = {
            ast.Call: self._call,
            ast.UnaryOp: self._sign,
            ast.Constant: self._constant,
            ast.Attribute: self._type,
            ast.Name: self._name,
            ast.Subscript: self._subscript,
            ast.AugAssign: self._update,
            ast.Expr: self._statement,
            ast.Return: self._results,
        }
        made = both | kernels if self.kernel else both
        if type(node) in made:
            yield from made[type(node)](node)

    def _instead(self, kind: str, node: ast.AST, new: str) -> Edit:
        return Edit(kind, *self.source.span(node), new)

    # ---- anywhere ----

    def _arithmetic(self, node: ast.BinOp) -> Iterator[Edit]:
        left, right = self.source.of(node.left), self.source.of(node.right)
        if isinstance(node.op, ast.BitAnd) and self.kernel:
            yield self._instead("mask weakened", node, left)
            yield self._instead("mask weakened", node, right)
        elif type(node.op) in _OPERATORS:
            old, new = _OPERATORS[type(node.op)]
            if not self.kernel and isinstance(node.op, (ast.Mult, ast.BitOr, ast.BitAnd)):
                return  # sizes and bytes, which only affect speed
            yield Edit("operator", *self.source.between(node.left, node.right, old), new)
        if self.kernel and isinstance(node.op, (ast.Add, ast.Mult)):
            kind = "term dropped" if isinstance(node.op, ast.Add) else "factor dropped"
            yield self._instead(kind, node, left)
            yield self._instead(kind, node, right)

    def _comparison(self, node: ast.Compare) -> Iterator[Edit]:
        last = node.comparators[-1]
        if isinstance(node.ops[-1], ast.In) and isinstance(last, ast.Tuple):
            for dropped in last.elts:
                kept = ", ".join(self.source.of(each) for each in last.elts if each is not dropped)
                yield self._instead("alternative", last, f"({kept},)")
        operands = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, operands, operands[1:]):
            if type(op) in _COMPARISONS:
                old, new = _COMPARISONS[type(op)]
                yield Edit("comparison", *self.source.between(left, right, old), new)

    def _logic(self, node: ast.BoolOp) -> Iterator[Edit]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            yield Edit("logic", *self.source.between(left, right, old), new)
        for dropped in node.values:
            kept = f" {old} ".join(
                self.source.of(each) for each in node.values if each is not dropped
            )
            yield self._instead("guard dropped", node, f"({kept})")

    def _condition(self, node: ast.If) -> Iterator[Edit]:
        yield self._instead("condition", node.test, f"not {self.source.of(node.test)}")

    def _alternative(self, node: ast.IfExp) -> Iterator[Edit]:
        yield self._instead("alternative", node, self.source.of(node.body))
        yield self._instead("alternative", node, self.source.of(node.orelse))

    # ---- in kernels ----

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        name = _name(node.func)
        arguments = [self.source.of(argument) for argument in node.args]
        if name in _MASKED:
            yield from self._masks(node, _MASKED[name])
        if name in _OTHER_FUNCTION:
            yield self._instead("function", node.func, _OTHER_FUNCTION[name])
        if name == "tl.where" and len(arguments) == 3:
            condition, yes, no = node.args
            yield self._instead("alternative", node, arguments[1])
            yield self._instead("alternative", node, arguments[2])
            if isinstance(condition, ast.Compare) and type(condition.ops[0]) in _OPPOSITE:
                left, right = map(self.source.of, (condition.left, condition.comparators[0]))
                opposite = f"{left} {_OPPOSITE[type(condition.ops[0])]} {right}"
                new = f"tl.where({opposite}, {self.source.of(no)}, {self.source.of(yes)})"
                yield self._instead("NaN", node, new)
        elif name == "tl.fma" and len(arguments) == 3:
            a, b, c = arguments
            yield self._instead("not fused", node, f"({a} * {b} + {c})")
        elif name == "tl.cast" and arguments:
            yield self._instead("cast dropped", node, arguments[0])
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            yield self._instead("cast dropped", node, self.source.of(node.func.value))
        elif name == "tl.abs" and arguments:
            yield self._instead("function", node, arguments[0])
        elif name in ("tl.program_id", "tl.num_programs"):
            given = arguments + [self.source.of(keyword.value) for keyword in node.keywords]
            axis = "1" if given == ["0"] else "0"
            yield self._instead("program id", node, f"{name}({axis})")
        elif name in ("range", "tl.range", "tl.static_range") and node.args:
            end = node.args[min(1, len(node.args) - 1)]
            yield self._instead("bound", end, f"{self.source.of(end)} - 1")
        if name in _WITH_TYPE:
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(value, ast.Name) and value.id == "C":
                    yield self._instead("accumulator narrowed", value, "tl.float16")

    def _masks(self, node: ast.Call, at: int) -> Iterator[Edit]:
        """The access without its mask, which has position ``at`` or a keyword, or without the
        boundary check of a block pointer."""
        keywords = [each for each in node.keywords if each.arg not in _GUARDS]
        if len(node.args) > at or len(keywords) < len(node.keywords):
            kept = [*node.args[:at], *keywords]
            parts = ", ".join(self.source.text[slice(*self.source.span(each))] for each in kept)
            yield self._instead("mask dropped", node, f"{ast.unparse(node.func)}({parts})")

    def _sign(self, node: ast.UnaryOp) -> Iterator[Edit]:
        if isinstance(node.op, (ast.USub, ast.Not)):
            yield self._instead("sign", node, self.source.of(node.operand))

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        if isinstance(node.value, float):
            yield self._instead("constant", node, repr(node.value * 1.001 if node.value else 1.0))
        elif isinstance(node.value, int) and not isinstance(node.value, bool):
            yield self._instead("constant", node, repr(node.value + 1))
        elif node.value == "ieee":
            yield self._instead("precision", node, '"tf32"')

    def _type(self, node: ast.Attribute) -> Iterator[Edit]:
        name = _name(node)
        if name in _NARROWER:
            yield self._instead("narrowed", node, _NARROWER[name])

    def _name(self, node: ast.Name) -> Iterator[Edit]:
        if not isinstance(node.ctx, ast.Load):
            return
        if node.id in self.strides and len(self.strides) > 1:
            after = self.strides[self.strides.index(node.id) - 1]
            yield self._instead("stride", node, after)
        elif node.id in _PARTNERS:
            yield self._instead("size", node, _PARTNERS[node.id])

    def _subscript(self, node: ast.Subscript) -> Iterator[Edit]:
        if isinstance(node.slice, ast.Constant) and node.slice.value == 1:
            yield self._instead("index", node.slice, "0")

    def _update(self, node: ast.AugAssign) -> Iterator[Edit]:
        yield self._instead("statement removed", node, "pass")
        if isinstance(node.op, ast.Add):
            yield Edit("operator", *self.source.between(node.target, node.value, "+="), "-=")
            yield Edit("operator", *self.source.between(node.target, node.value, "+="), "=")

    def _statement(self, node: ast.Expr) -> Iterator[Edit]:
        if isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2]
            if called in _WRITES:
                yield self._instead("statement removed", node, "pass")

    def _results(self, node: ast.Return) -> Iterator[Edit]:
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            first, second = map(self.source.of, node.value.elts)
            yield self._instead("results swapped", node.value, f"{second}, {first}")
