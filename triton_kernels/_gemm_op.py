"""Common parts of the matrix products as ops: gradients, the rule for vmap, the choice of the op.

With z = alpha·(a@b) + beta·c + bias and out = act(z), a backward pass is

    dz = grad·act'(z)      and the bias gradient, its column sums, in one pass (act_backward)
    da = alpha·dz@bᵀ       dgrad
    db = alpha·aᵀ@dz       wgrad, in b's layout
    dc = beta·dz           summed to c's shape

each of them a call of an op that has gradients itself. The forward pass saves the argument of act':
the result if act' follows from it. gelu, gelu_tanh and silu need z. A training step calls
``<op>_with_pre``, which also returns z. ``<op>`` itself, called by its registered name or by a
program of torch.jit.trace, computes z again in its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from triton_kernels._operator import Operator, TensorMeta, one_by_one, saved_by
from triton_kernels._placements import Sharding
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.ops.act_backward import act_backward
from triton_kernels.ops.add import add
from triton_kernels.ops.sum_to import reduce_to


class Product(NamedTuple):
    """A call act(alpha·(a@b) + beta·c + bias). Tensors that its backward pass does not read are
    replaced by a TensorMeta."""

    a: Tensor | TensorMeta
    b: Tensor | TensorMeta
    bias: Tensor | TensorMeta | None
    act: str
    alpha: float = 1.0
    beta: float | None = None
    c: Tensor | TensorMeta | None = None
    precision: str = "ieee"
    transposed: bool = False  # whether the op's own argument is bᵀ


Multiply = Callable[..., Tensor]  # gemm_bias_act; its file imports this module


class ProductOperator(Operator):
    """A matrix product as an op.

    Args:
        name, parameters, launch, fake, label, sharding: as in :class:`Operator`.
        with_pre: whether the op also returns the pre-activation.
        act: makes the activation's name from the arguments.
        product: makes a :class:`Product` from the arguments.
        multiply: the public function that computes products.
    """

    def __init__(
        self,
        name: str,
        parameters: str,
        launch: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        with_pre: bool,
        act: Callable[[tuple[Any, ...]], str],
        product: Callable[..., Product],
        multiply: Multiply,
        label: str,
        sharding: Sharding,
    ) -> None:
        self._act, self._product, self._multiply = act, product, multiply
        self._with_pre = with_pre
        results = 2 if with_pre else 1
        super().__init__(
            name,
            parameters,
            launch,
            fake,
            batched=one_by_one,
            autocast="lower",
            label=label,
            results=results,
            sharding=sharding,
        )
        register_flop_formula(self.functional.overloadpacket, get_raw=True)(_flops)

    def _keep(self, ctx: Any, args: tuple[Any, ...], out: Any) -> None:
        ctx.set_materialize_grads(False)
        act = self._act(args)
        need_a, need_b = ctx.needs_input_grad[:2]
        reads = (1,) * need_a + (0,) * need_b
        saved = None
        if not ACTIVATIONS[act].of_pre:
            if act != "none":
                saved = out[0] if self._with_pre else out
        elif self._with_pre:
            saved = out[1]
        else:
            reads = self.tensors
        kept = [i for i in reads if args[i] is not None]
        rest = list(args)
        for i in self.tensors:
            if args[i] is not None:
                rest[i] = None if i in kept else TensorMeta(args[i].shape, args[i].dtype)
        ctx.save_for_backward(saved, *[args[i] for i in kept])
        ctx.kept, ctx.rest = kept, rest
        ctx.by_columns = args[1].stride(0) == 1 and args[1].stride(1) != 1

    def _backward(
        self, ctx: Any, grad: Tensor | None, grad_pre: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        args = list(ctx.rest)
        saved, *kept = saved_by(ctx)
        for i, t in zip(ctx.kept, kept):
            args[i] = t
        call = self._product(*args)
        need = dict(zip(self.names, ctx.needs_input_grad))
        first, second = self.names[:2]
        gradients: dict[str, Tensor | None] = {}
        dz, dbias = self._through_activation(call, grad, grad_pre, saved, need["bias"])
        if dz is not None:
            if need["bias"]:
                gradients["bias"] = dbias
            if need[first]:
                da = self._multiply(dz, _tensor(call.b).t(), **_scale(call))
                gradients[first] = _in_shape(da, args[0].shape)
            if need[second]:
                gradients[second] = self._wgrad(call, dz, ctx.by_columns)
            if need.get("c") and call.c is not None:
                gradients["c"] = reduce_to(dz, call.c, 1.0 if call.beta is None else call.beta)
        return tuple([gradients.get(name) for name in self.names])

    def _through_activation(
        self,
        call: Product,
        grad: Tensor | None,
        grad_pre: Tensor | None,
        saved: Tensor | None,
        bias: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """dz, and the bias gradient if ``bias``, both in a's dtype."""
        shape, dtype = torch.Size((call.a.shape[0], call.b.shape[1])), call.a.dtype
        like = TensorMeta(shape, dtype)
        dz = dbias = None
        if grad is not None and call.act == "none":
            dz = reduce_to(_in_shape(grad.resolve_neg(), shape), like)
        elif grad is not None:
            if saved is None:
                again = {name: getattr(call, name) for name in _BEFORE_ACTIVATION}
                saved = self._multiply(call.a, call.b, call.bias, **again)
            grad, saved = _in_shape(grad.resolve_neg(), shape), _in_shape(saved, shape)
            dz, dbias = act_backward(grad, saved, call.act, bias=bias, dtype=dtype)
        if grad_pre is not None:
            through = reduce_to(_in_shape(grad_pre.resolve_neg(), shape), like)
            dz, dbias = through if dz is None else add(dz, through), None
        if bias and dz is not None and dbias is None:
            dbias = reduce_to(dz, TensorMeta(shape[1:], dtype))
        return dz, dbias

    def _wgrad(self, call: Product, dz: Tensor, by_columns: bool) -> Tensor:
        """The gradient of b, in b's layout, so that torch need not copy it to .grad."""
        a, options = _tensor(call.a), _scale(call)
        if call.transposed:
            return self._multiply(dz.t(), a, **options)
        if by_columns:
            return self._multiply(dz.t(), a, **options).t()
        return self._multiply(a.t(), dz, **options)


def _flops(first: Tensor, *_: Any, out_val: Any) -> int:
    """The FLOPs for torch.utils.flop_counter: as for torch's products, a multiplication and an
    addition for each term of the sums. It does not count activations."""
    out = out_val if isinstance(out_val, Tensor) else out_val[0]
    return int(2 * out.numel() * first.shape[-1])


def _scale(call: Product) -> dict[str, Any]:
    return {"alpha": call.alpha, "precision": call.precision}


def _in_shape(t: Tensor, shape: torch.Size) -> Tensor:
    """t in a shape; itself if it has it, because even a view takes as long as a launch's checks."""
    return t if t.shape == shape else t.reshape(shape)


def _tensor(operand: Tensor | TensorMeta) -> Tensor:
    assert isinstance(operand, Tensor), "the forward pass saves what the backward pass reads"
    return operand


_BEFORE_ACTIVATION = ("alpha", "beta", "c", "precision")


def wants_pre(act: str, *inputs: Any) -> bool:
    """Whether a call is a training step that needs the pre-activation."""
    if not isinstance(act, str) or act not in ACTIVATIONS:
        return False  # the call itself raises the error
    if not ACTIVATIONS[act].of_pre or not torch.is_grad_enabled():
        return False
    if not any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
        return False
    # torch.jit.trace traces again without gradients, and refuses a program that differs then.
    return not torch.jit.is_tracing()  # type: ignore[attr-defined]
