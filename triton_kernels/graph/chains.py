"""Chains: a product with its addends, factors and views, which one kernel computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch.fx import Node

from triton_kernels._fusion import (
    Columns,
    Divided,
    Form,
    Normalized,
    Product,
    Reshaped,
    Scaled,
    Sum,
    Times,
)
from triton_kernels.graph import forms
from triton_kernels.graph.operands import is_row, shape_text


class Misfit(Exception):
    """The nodes have a pattern's structure, but cannot be fused; the message says why."""


Chain = tuple[Product, tuple[Node, ...]] | None


class Chains:
    """The chains of a graph: products followed by sums, factors and views.

    Args:
        forms: node → its form. Code that changes a form must call :meth:`forget`.
    """

    def __init__(self, forms: Mapping[Node, Form | None]) -> None:
        self._forms = forms
        self._known: dict[Node, Chain | Misfit] = {}

    def forget(self) -> None:
        """Forget all chains, because a form has changed."""
        self._known.clear()

    def ends_in_product(self, node: Node) -> bool:
        """Whether a node ends a chain, even one that cannot be fused."""
        try:
            return self.chain(node) is not None
        except Misfit:
            return True

    def chain(self, node: Node) -> Chain:
        """The product of the chain that ends with a node, and the chain's nodes; None if the node
        ends no chain.

        Raises:
            Misfit: the chain cannot be fused.
        """
        # Cached, because the sums of a residual stream are one chain through the whole model.
        if node not in self._known:
            try:
                self._known[node] = self._followed(node)
            except Misfit as misfit:
                self._known[node] = misfit
        chain = self._known[node]
        if isinstance(chain, Misfit):
            raise Misfit(str(chain))
        return chain

    def _followed(self, node: Node) -> Chain:
        form = self._forms[node]
        if isinstance(form, Product):
            return form, (node,)
        if isinstance(form, (Reshaped, Scaled, Divided)):
            chain = self.chain(form.x)
            if chain is None:
                return None
            product = _no_convolution(chain[0])
            if not isinstance(form, Reshaped):
                factor = form.factor if isinstance(form, Scaled) else 1 / form.divisor
                product = _scaled(product, factor)
            return product, (*chain[1], node)
        if isinstance(form, (Times, Normalized)):
            return self._by_columns(node, form)
        if not isinstance(form, Sum):
            return None
        misfit = None
        # x + f(x): where both end in products, that of x has another user.
        pairs = ((form.x, form.y), (form.y, form.x))
        for inner, other in sorted(pairs, key=lambda pair: len(pair[0].users) > 1):
            if self._turned(inner):
                continue
            try:
                chain = self.chain(inner)
                if chain is not None:
                    product = _no_convolution(chain[0])
                    self._check_shape(inner, other, chain[1])
                    product = self._added(product, form, other, other is form.x)
                    return product, (*chain[1], node)
            except Misfit as reason:
                misfit = misfit or reason
        if misfit:
            raise misfit
        return None

    def _by_columns(
        self, node: Node, form: Times | Normalized
    ) -> tuple[Product, tuple[Node, ...]] | None:
        """The chain of a product whose columns are scaled and shifted, or None."""
        steps = (
            [(form.x, form.columns)]
            if isinstance(form, Normalized)
            else [
                (x, Columns(y))
                for x, y in ((form.x, form.y), (form.y, form.x))
                if is_row(y) or forms.rank(y) == 0
            ]
        )
        for x, columns in steps:
            if self._turned(x):
                continue
            chain = self.chain(x)
            if chain is not None:
                product = _no_convolution(chain[0])
                if isinstance(columns.scale, Node):
                    self._check_shape(x, columns.scale, chain[1])
                return _with_columns(product, columns), (*chain[1], node)
        return None

    def _turned(self, node: Node) -> bool:
        """Whether a view after the product has moved the product's columns."""
        while isinstance(form := self._forms[node], (Reshaped, Scaled, Divided)):
            if isinstance(form, Reshaped) and not form.rows:
                return True
            node = form.x
        return False

    def _check_shape(self, inner: Node, other: Node, nodes: tuple[Node, ...]) -> None:
        """Raise Misfit if an addend changes the shape, which is the product's, or if its rows are
        not those of the product, behind a view of that."""
        addend, value = forms.value(other), forms.value(inner)
        if addend is None or value is None:
            return
        if addend.dim() > value.dim():
            raise Misfit(f"what is added, of shape {shape_text(addend)}, broadcasts")
        alike = is_row(other) or addend.dim() == 0
        if not alike and any(isinstance(self._forms[n], Reshaped) for n in nodes):
            product = forms.value(nodes[0])
            rows = product is not None and (product.dim() == 2 or forms.same_shape(product, addend))
            if not rows or not forms.same_shape(addend, value):
                raise Misfit("what is added stands behind a view of the product")

    def _added(self, product: Product, form: Sum, other: Node, product_last: bool) -> Product:
        """product + alpha·other, or other + alpha·product if ``product_last``."""
        beta = form.alpha
        if product_last:
            product, beta = _scaled(product, form.alpha), 1.0
        if is_row(other) and product.columns:
            return replace(product, columns=(*product.columns, Columns(None, other, beta)))
        if is_row(other) and product.bias is None and beta == 1:
            return replace(product, bias=other)
        if product.c is not None:
            raise Misfit("more than one tensor is added to the product")
        return replace(product, c=other, beta=beta)


def _scaled(product: Product, factor: float) -> Product:
    """The product with its addends, times a number. Raises Misfit if the kernel cannot do that."""
    if factor == 1:
        return product
    if not factor or not math.isfinite(factor):
        raise Misfit(f"scaled by {factor:g}")
    if product.bias is not None and product.c is not None:
        raise Misfit(f"what is added to the product is scaled by {factor:g}, too")
    if product.columns:
        columns = (*product.columns, Columns(factor))
        return replace(product, columns=columns, beta=product.beta * factor)
    product = replace(product, alpha=product.alpha * factor)
    if product.bias is not None:
        return replace(product, bias=None, c=product.bias, beta=factor)
    return replace(product, beta=product.beta * factor)


def _with_columns(product: Product, columns: Columns) -> Product:
    """The product with one more step on its columns."""
    if product.c is not None:
        raise Misfit("columns of a product with a residual are scaled")
    return replace(product, columns=(*product.columns, columns))


def _no_convolution(product: Product) -> Product:
    if product.convolution:
        raise Misfit("something between a convolution and its activation")
    return product
