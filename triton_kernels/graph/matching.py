"""Finds nodes of a graph that one kernel can compute. fuse, the backend of torch.compile and
replace_modules all use this matcher.

A fused match must not be observable: inner values have no other users, operands agree in dtype and
device, shapes are the kernel's, and no node in between overwrites an operand. Nodes that have a
pattern's structure but violate one of these conditions raise :class:`Misfit`.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from triton_kernels import _precision, ops
from triton_kernels._fusion import (
    Activation,
    Attribute,
    Divided,
    Form,
    Match,
    Matrix,
    Operand,
    Problem,
    Product,
    Refused,
    Reshaped,
    Scaled,
    Sizes,
    Sum,
    Times,
    Transposed,
)
from triton_kernels.graph import canonical, composing, effects, following, forms
from triton_kernels.graph.callees import called
from triton_kernels.graph.chains import Chains, Misfit
from triton_kernels.graph.operands import (
    as_residual,
    as_row,
    dtype_text,
    fits_as_row,
    in_rows,
    is_of_rows,
    is_one,
    is_plain,
    operand_name,
    same_order,
    shape_text,
    size_of,
    turned,
)
from triton_kernels.graph.registered import registered_modules
from triton_kernels.graph.spelling import Spellings
from triton_kernels.nn.rows import (
    gemm_bias_act_of_columns,
    gemm_bias_act_of_rows,
    pointwise_convolution,
)

PASSES = ("elementwise", "epilogue")
# What makes new tensors in rows, however its arguments lie in memory; cat of images does not.
_BLIND = {F.layer_norm, torch.layer_norm, "layer_norm", torch.cat}
# What computes the same however its argument lies, but makes a result that may lie like it; and
# views that fail for some arguments.
_PASSING = {
    operator.getitem,
    "reshape",
    torch.reshape,
    "flatten",
    torch.flatten,
    "mean",
    torch.mean,
}
_SPLITS = {"view", "unflatten"}


class Matcher:
    """Matches in one graph.

    Args:
        module: the graph; its nodes have example values in their meta.
        modular: whether the graph only lists modules, without values. Then unknown values are
            assumed to fit.
        casts: the state of autocast around the graph, if it is inside another graph.
        precision: of float32 products, also of those with nothing to fuse; None for torch's own.
    """

    def __init__(
        self,
        module: GraphModule,
        modular: bool = False,
        casts: effects.Casts | None = None,
        precision: str | None = None,
    ) -> None:
        self.module, self.modular, self._precision = module, modular, precision
        self.forms = {node: forms.read(node, module) for node in module.graph.nodes}
        if modular:
            self.forms.update(registered_modules(module))
        for node in module.graph.nodes:
            view = canonical.view_of(node)
            if view is not None:
                self.forms[node] = view
        self._position = {node: i for i, node in enumerate(module.graph.nodes)}
        self._chains = Chains(self.forms)
        self._inner = self._read_spellings()
        self._composed = self._read_composed()
        self._order = list(module.graph.nodes)
        self._autocast = effects.autocast(module.graph, casts)

    def find(self, name: str, root: Node) -> Match | None:
        """The match of pass ``name`` with the result ``root``, or None.

        Raises:
            Misfit: the nodes have the structure of a match, but must not be fused.
        """
        if name == "elementwise":
            match = self._elementwise(root)
        else:
            match = self.composed(root) or self._epilogue(root, self.forms[root])
        if match is not None:
            self._check(match)
        return match

    def problem(self, match: Match, other: str) -> Problem:
        """The problem of a match's kernel; ``other`` would compute it instead."""
        known = [v for v in map(forms.value, match.operands()) if v is not None]
        lead = known[0]
        result = forms.value(match.nodes[-1])  # under autocast its dtype is not the operands'
        lead = lead if result is None else result
        product = match.sizes != (None, None, None)
        asked = match.keywords.get("precision")
        precision = _precision.resolved(asked, lead) if product else "ieee"
        scaled = match.function is gemm_bias_act_of_columns
        extra = following.extra(match) if other == "inductor" else None
        of = (match.kernel, lead.dtype, lead.device, other)
        return Problem(*of, *match.sizes, match.act, precision, scaled, extra)

    def _read_spellings(self) -> set[Node]:
        """Find activations written as several operations that follow a product or are gates, and
        return their inner nodes. Others are matched as elementwise operations."""
        spellings = Spellings(list(self.module.graph.nodes))
        taken: set[Node] = set()
        self._spelled = spellings.found
        for root, form in spellings.found.items():
            users = list(root.users)
            gate = len(users) == 1 and isinstance(self.forms[users[0]], Times)
            if gate or self._chains.ends_in_product(form.x):
                self.forms[root] = form
                self._chains.forget()
                taken.add(root)
        return {node for node, root in spellings.inner.items() if root in taken}

    def _read_composed(self) -> dict[Node, Activation]:
        """Last node → activation without a name, of a product or a gate. Activations that are part
        of a longer one are left out."""
        composed: dict[Node, Activation] = {}
        inside: set[Node] = set()
        for root in reversed(self.module.graph.nodes):
            if root in inside or root in self._inner or self._named(root):
                continue
            activation = composing.composed(
                root, self._chains.ends_in_product, self._spelled, self._position
            )
            if activation is None:
                continue
            composed[root] = activation
            inside.update(activation.inner)
            users = list(root.users)
            if len(users) == 1 and isinstance(self.forms[users[0]], Times):
                self.forms[root] = activation
                self._chains.forget()
                self._inner.update(activation.inner)
        return composed

    def _named(self, root: Node) -> bool:
        """Whether the node is a named activation of a product."""
        form = self.forms[root]
        return isinstance(form, Activation) and self._chains.ends_in_product(form.x)

    # ---- elementwise ----

    def _elementwise(self, root: Node) -> Match | None:
        """The longest match of the ops' patterns; of equally long ones that of the last op."""
        if root in self._inner:
            return None
        patterns = [pattern for fusion in ops.FUSIONS for pattern in fusion.elementwise]
        matches = [match for p in reversed(patterns) if (match := p(root, self.forms)) is not None]
        return max(matches, key=lambda match: len(match.nodes), default=None)

    # ---- products ----

    def composed(self, root: Node) -> Match | None:
        """The match of a product with the composed activation that ends with a node, or None."""
        activation = self._composed.get(root)
        if activation is None:
            return None
        try:
            match = self._epilogue(root, activation)
            if match is not None:
                self._check(match)
        except Misfit:
            return None
        return match

    def _epilogue(self, root: Node, form: Form | None) -> Match | None:
        act, top = "none", root
        inner: tuple[Node, ...] = ()
        if isinstance(form, Refused):
            self._say_why(root, form)
            return None
        if isinstance(form, Activation):
            act, top, inner = form.name, form.x, form.inner
            refused = self.forms[top]
            if isinstance(refused, Refused):
                raise Misfit(refused.reason)
        chain = self._chains.chain(top)
        if chain is None:
            return None
        product, nodes = chain
        if top is root and isinstance(form, (Reshaped, Scaled, Divided)):
            return None  # a factor or a view is only fused together with what follows it
        nodes = nodes if top is root else (*nodes, *inner, root)
        if len(nodes) == 1 and not self._of_own_precision(nodes[0]):
            return None  # a product alone is already one library call
        nodes = tuple(sorted(nodes, key=self._position.__getitem__))
        return replace(self._product(product, nodes, act), wider=inner)

    def _say_why(self, root: Node, form: Refused) -> None:
        """Raise Misfit with the reason if the refused node follows a product."""
        first = root.args[0] if root.args else None
        if isinstance(first, Node) and isinstance(self.forms[first], Product):
            raise Misfit(form.reason)

    def _product(self, product: Product, nodes: tuple[Node, ...], act: str) -> Match:
        sizes = self._sizes(product, nodes[0])
        views = tuple(node for node in nodes if isinstance(self.forms[node], Reshaped))
        match = self._call(product, nodes, act, sizes)
        if self._of_own_precision(nodes[0]):
            match = replace(match, keywords={**match.keywords, "precision": self._precision})
        return replace(match, views=views, added=product.c is not None)

    def _of_own_precision(self, node: Node) -> bool:
        """Whether the node computes a float32 product, and the option gives its precision. Under
        autocast its value has another dtype."""
        value = forms.value(node)
        return self._precision is not None and value is not None and value.dtype == torch.float32

    def _call(self, product: Product, nodes: tuple[Node, ...], act: str, sizes: Sizes) -> Match:
        if product.convolution:
            operands = (product.x, product.weight, product.bias, act)
            return Match("gemm_bias_act", nodes, pointwise_convolution, operands, {}, sizes, act)
        weight = forms.value(product.weight)
        batch = weight is not None and weight.dim() == 3
        if product.columns and batch:
            raise Misfit("columns of a batch of matrices are scaled")
        others = [] if product.columns else ops.FUSIONS
        for pattern in (pattern for fusion in others for pattern in fusion.products):
            match = pattern(product, nodes, act, sizes)
            if match is not None and not in_rows(product.bias):
                return match
        b: Any = Transposed(product.weight) if product.by_rows else product.weight
        b = Matrix(product.weight) if batch else b
        bias, c = as_row(product.bias), as_residual(product.c, forms.value(nodes[0]))
        arguments: Any = (product.x, b, bias, act, product.alpha, c, product.beta)
        function: Any = gemm_bias_act_of_rows
        if product.columns:
            function = gemm_bias_act_of_columns
            arguments = (*arguments, tuple(map(tuple, product.columns)))
        return Match("gemm_bias_act", nodes, function, arguments, {}, sizes, act)

    def _sizes(self, product: Product, node: Node) -> Sizes:
        """M, N and K, None for symbols and unknown sizes. Raises Misfit if the shapes are not those
        of a product with one matrix."""
        weight, x = forms.value(product.weight), forms.value(product.x)
        if weight is None or (x is None and not self.modular):
            raise Misfit("the shapes of its operands are unknown")
        if product.convolution:
            weight = weight.flatten(1)
            x = None if x is None else x.permute(0, 2, 3, 1)
        elif weight.dim() == 3 and x is not None and x.dim() == 3 and is_one(weight) and is_one(x):
            weight = weight[0]
        elif weight.dim() != 2 or (x is not None and x.dim() < (1 if product.by_rows else 2)):
            raise Misfit("not a product with one matrix: a batch of matrices, or a vector")
        N, K = weight.shape if product.by_rows else weight.shape[::-1]
        self._check_addends(product, node, N)
        M = None if x is None else math.prod(x.shape[:-1])
        return size_of(M), size_of(N), size_of(K)

    def _check_addends(self, product: Product, node: Node, N: int) -> None:
        bias, c = forms.value(product.bias), forms.value(product.c)
        result = forms.value(node)
        if product.bias is not None and (bias is None or not fits_as_row(bias, N)):
            raise Misfit(f"a bias of shape {shape_text(bias)}")
        for step in product.columns:
            for operand in step:
                row = forms.value(operand) if isinstance(operand, (Node, Attribute)) else None
                if row is not None and not (fits_as_row(row, N) or row.numel() == 1):
                    raise Misfit(f"columns scaled or shifted by shape {shape_text(row)}")
        if product.c is None:
            return
        fits = (
            c is not None
            and result is not None
            and (
                fits_as_row(c, N)
                or tuple(c.shape) == tuple(result.shape)
                or is_of_rows(c, result)  # whose shape Chains has checked
            )
        )
        if not fits:
            raise Misfit(f"what is added, of shape {shape_text(c)}, broadcasts")

    # ---- conditions of all matches ----

    def _check(self, match: Match) -> None:
        *inner, root = match.nodes
        self._check_plain(match)
        for node in inner:
            if not match.nodes_hold(node.users):
                raise Misfit(f"{node.name} has {len(node.users)} users")
            if node in match.operands():
                raise Misfit(f"{node.name} is used twice")
        self._check_in_place(match)
        for node in match.nodes:
            # A sum of transposed tensors is stored transposed, and later views may rely on that.
            sums = isinstance(self.forms[node], Sum) and match.sizes[1] is not None
            if sums and turned(node) and not self._layout_unseen(root, self._in_rows(match)):
                raise Misfit(f"{node.name} does not lie in rows")
        if match.sizes[1] is None and not self._lies_as_made(match):
            raise Misfit(f"{root.name} would lie otherwise in memory")
        if any(self._autocast[node] is not self._autocast[root] for node in inner):
            raise Misfit("an autocast region begins or ends between its nodes")
        for node in self._order[self._position[inner[0]] : self._position[root]] if inner else ():
            if node not in match.nodes and effects.may_interfere(node, self.module):
                raise Misfit(
                    f"{node.name} between its nodes may overwrite an operand or switch a mode"
                )
        self._check_tensors(match)

    def _lies_as_made(self, match: Match) -> bool:
        """Whether an elementwise kernel's result lies in memory as the graph's, or nobody sees how.
        It lies as the first operand if that has its shape, else in rows. In a graph all operands
        count, in the order in which they are written."""
        root, first = match.nodes[-1], match.arguments[0]
        result, like = forms.value(root), forms.value(first)
        if result is None or like is None:
            return True
        if forms.same_shape(result, like):
            as_made = same_order(result, like)
        else:
            as_made = not turned(root)
        return as_made or self._layout_unseen(root, whole=False)

    def _in_rows(self, match: Match) -> bool:
        """Whether the result will lie in rows: no view of the product turns it."""
        views = [self.forms[view] for view in match.views]
        return all(isinstance(form, Reshaped) and form.rows for form in views)

    def _layout_unseen(self, node: Node, whole: bool) -> bool:
        """Whether nothing depends on how a value lies in memory: it, the sums with it, its parts
        and their means are only normalised, multiplied by a matrix, or concatenated.

        ``whole``: whether the value is known to lie in rows without gaps once it is fused, so that
        every view of it works.
        """
        blind = _BLIND if forms.rank(node) == 3 else _BLIND - {torch.cat}
        return all(
            called(user) in blind
            or user.target in (gemm_bias_act_of_rows, gemm_bias_act_of_columns)
            or (
                isinstance(form := self.forms.get(user), Product)
                and form.x is node
                and not form.convolution
            )
            or (isinstance(form, Sum) and self._layout_unseen(user, whole=False))
            or (called(user) in _SPLITS and whole and self._layout_unseen(user, whole))
            or (called(user) in _PASSING and self._layout_unseen(user, whole=False))
            for user in node.users
        )

    def _check_in_place(self, match: Match) -> None:
        """An in-place operation may be fused if only the match uses the overwritten value, and if
        later readers of it read the result."""
        for node in match.nodes:
            if not effects.may_interfere(node, self.module):
                continue
            written = node.args[0] if node.args else None
            operands = [] if self.modular else match.operands()
            inside = written in match.nodes and not any(
                forms.may_share(written, operand) for operand in operands
            )
            at = self._position[node]
            earlier = [n for n in match.nodes if self._position[n] < at]
            seen = {user for n in earlier if forms.may_share(n, written) for user in n.users}
            if not inside or any(self._position[user] > at for user in seen):
                raise Misfit(f"in place: {node.target if node.op != 'call_function' else node}")

    def _check_plain(self, match: Match) -> None:
        """Before all conditions on sizes and strides: nested tensors have some without order."""
        for label, v in self._values(match):
            if v is not None and not is_plain(v):
                raise Misfit(f"{label} is a {type(v).__name__}, layout {v.layout}")

    def _values(self, match: Match) -> list[tuple[str, torch.Tensor | None]]:
        """The match's operands and results, without those that may be wider: name and value."""
        wider = {*self._inner, *match.wider}
        nodes = [node for node in match.nodes if node not in wider]
        operands: list[Operand] = [*match.operands(), *nodes]
        return [(operand_name(operand), forms.value(operand)) for operand in operands]

    def _check_tensors(self, match: Match) -> None:
        values = self._values(match)
        known = [(label, v) for label, v in values if v is not None]
        if len(known) < len(values) and not self.modular:
            missing = next(label for label, v in values if v is None)
            raise Misfit(f"nothing is known of {missing}")
        first, lead = known[0]
        for label, v in known:
            if not v.is_floating_point():
                raise Misfit(f"{label} is {dtype_text(v)}")
            if v.device != lead.device:
                raise Misfit(f"{label} is on {v.device}, {first} on {lead.device}")
        lower = self._autocast[match.nodes[-1]].get(lead.device.type)
        if lower is not None and match.sizes[1] is not None:
            self._check_lowered(match, lower)
            return
        if lower is not None and match.autocast not in (None, lead.dtype):
            name = str(match.autocast).removeprefix("torch.")
            raise Misfit(f"under autocast {match.kernel} computes in {name}, and this does not")
        for label, v in known:
            if v.dtype != lead.dtype:
                raise Misfit(f"{label} is {dtype_text(v)}, {first} {dtype_text(lead)}")

    def _check_lowered(self, match: Match, lower: torch.dtype) -> None:
        """Conditions of a product under autocast. Its operands are cast as the kernel's are, so all
        values must have autocast's dtype; adding a wider tensor gives another one."""
        for operand in match.operands():
            v = forms.value(operand)
            if v is not None and v.dtype == torch.float64:
                raise Misfit(f"{operand_name(operand)} is float64, which autocast leaves")
        for node in match.nodes:
            v = forms.value(node)
            if v is not None and v.dtype != lower and node not in match.wider:
                name = str(lower).removeprefix("torch.")
                raise Misfit(f"{node.name} is {dtype_text(v)}, and autocast's products {name}")
