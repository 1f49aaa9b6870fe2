"""Rewrites kernels so that Python runs them: Triton's rewriter, corrected."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from triton_kernels.interpreter import source_lines
from triton_kernels.interpreter.handles import upstream
from triton_kernels.interpreter.imported_names import names

_FunctionRewriter: Any = getattr(upstream, "FunctionRewriter", object)


class _Logic(ast.NodeTransformer):
    """Redirects `and`, `or` and `not` to the builder, since Python's own take a tensor for true;
    and the ranges of loops, whose variables are tensors for the compiler."""

    def _call(self, node: ast.expr, method: str, operands: list[ast.expr]) -> ast.Call:
        builder = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), "builder", ast.Load())
        call = ast.Call(ast.Attribute(builder, method, ast.Load()), operands, [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node)):
            return node  # its name would be in the lambda's scope
        none = ast.arguments([], [], None, [], [], None, [])
        method = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return self._call(node, method, [ast.Lambda(none, value) for value in node.values])

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        call = node.iter
        if not isinstance(call, ast.Call):
            return node
        if getattr(call.func, "id", getattr(call.func, "attr", "")) == "range":
            if call.keywords:
                keywords = call.keywords
                call = self._call(call, "loop_range", [call.func, *call.args])
                call.keywords = keywords
            node.iter = self._call(call, "loop_indices", [call])
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return self._call(node, "logical_not", [node.operand])
        return node


class _Rewriter(_FunctionRewriter):  # type: ignore[misc]
    """Triton's rewriter, with logic on tensors and with closures, and without leaving `np`, `ast`,
    … in the module."""

    def _compile_and_exec(self, tree: Any) -> Any:
        module = self.fn.__globals__
        before = set(module)
        rewritten = super()._compile_and_exec(_Logic().visit(tree))
        closed_over = inspect.getclosurevars(self.fn).nonlocals
        if closed_over:
            # Closure variables are globals of the rewritten function, as for the compiler.
            namespace = {**module, **closed_over}
            inner = types.FunctionType(rewritten.__code__, namespace, rewritten.__name__)
            inner.__defaults__ = rewritten.__defaults__
            inner.__kwdefaults__ = rewritten.__kwdefaults__
            inner.__annotations__ = rewritten.__annotations__
            rewritten = inner
        needed = names(rewritten.__code__) - names(self.fn.__code__)
        for name in set(module) - before - needed:
            del module[name]
        return rewritten


@functools.cache
def rewrite(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel's function, or that of a jit function, in a form that Python can run."""
    rewritten: Callable[..., Any] = _Rewriter(fn).rewrite_ast()
    source_lines.kernels.add(rewritten.__code__)
    return rewritten
