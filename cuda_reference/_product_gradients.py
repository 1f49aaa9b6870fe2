"""The gradients of matrix products.

With z = alpha·(a@b) + beta·c + bias and out = act(z):

    dz = grad·act'(z), and the bias gradient, its column sums    act_backward
    da = alpha·dz@bᵀ, db = alpha·aᵀ@dz                           the product itself
    dc = beta·dz, summed to c's shape                            sum_to

What act' reads of gelu, gelu_tanh, silu and registered ones is z, which the forward pass does not
write but in variant "cublaslt": the backward pass computes it once more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from torch import Tensor

from cuda_reference._activations import BY_RESULT
from cuda_reference._registered import Gradients, TensorMeta
from cuda_reference.ops.act_backward import act_backward
from cuda_reference.ops.sum_to import reduced


class Product(NamedTuple):
    """A call as a product of matrices; what is not read is a TensorMeta.

    Attributes:
        multiply: gemm_bias_act.
        result: of the call; read where it tells act'.
        needs: of "a", "b", "bias" and "c", whose gradients are wanted.
        pre: whether ``result`` is z.
        transposed: whether "b" stands for bᵀ there, which is what the caller has.
    """

    multiply: Callable[..., Tensor]
    a: Tensor | TensorMeta
    b: Tensor | TensorMeta
    bias: Tensor | TensorMeta | None
    act: str
    precision: str
    variant: str | None
    result: Tensor | TensorMeta
    needs: Collection[str]
    alpha: float = 1.0
    beta: float | None = None
    c: Tensor | TensorMeta | None = None
    pre: bool = False
    transposed: bool = False


def reads(
    act: str, operands: tuple[str, str], others: tuple[str, ...], pre: bool = False
) -> dict[str, set[str]]:
    """Input → what its gradient reads, for :class:`cuda_reference._registered.Gradients`."""
    first, second = operands
    if act in BY_RESULT or pre:
        saved = {"result"}
    else:
        saved = set() if act == "none" else {first, second, *others}
    own = {first: {second}, second: {first}}
    return {name: saved | own.get(name, set()) for name in (first, second, *others)}


def of_training(
    backward: Callable[..., dict[str, Tensor | None]], reads: Callable[..., dict[str, set[str]]]
) -> Gradients:
    """Those of a step whose results are z and act(z), by functions that take ``training``. Nobody
    has z but the step itself."""

    def both(call: Any, dz: Tensor | None, grad: Tensor | None) -> dict[str, Tensor | None]:
        if dz is not None or grad is None:
            raise NotImplementedError("what an activation is taken of has no gradient of its own")
        return backward(call, grad, training=True)

    return Gradients(both, functools.partial(reads, training=True))


def gradients(call: Product, grad: Tensor) -> dict[str, Tensor | None]:
    """The gradients that are needed, by "a", "b", "bias" and "c"."""
    dz, dbias = _through_activation(call, grad)
    options = {"alpha": call.alpha, "precision": call.precision, "variant": call.variant}
    grads: dict[str, Tensor | None] = {"bias": dbias}
    if "a" in call.needs:
        grads["a"] = call.multiply(dz, _there(call.b).t(), **options)
    if "b" in call.needs:
        a = _there(call.a)
        factors = (dz.t(), a) if call.transposed else (a.t(), dz)
        grads["b"] = call.multiply(*factors, **options)
    if "c" in call.needs and call.c is not None:
        grads["c"] = reduced(dz, call.c, 1.0 if call.beta is None else call.beta)
    return grads


def _through_activation(call: Product, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """dz of the operands' dtype, and its column sums if the bias needs them."""
    bias, dtype = "bias" in call.needs, call.a.dtype
    if call.act == "none":
        dz = reduced(grad, TensorMeta(grad.shape, dtype))
        return dz, reduced(dz, TensorMeta(grad.shape[1:], dtype)) if bias else None
    saved = call.result
    if call.act not in BY_RESULT and not call.pre:
        saved = call.multiply(
            call.a,
            call.b,
            call.bias,
            alpha=call.alpha,
            beta=call.beta,
            c=call.c,
            precision=call.precision,
            variant=call.variant,
        )
    dz, sums = act_backward(grad, _there(saved), call.act, bias=bias, dtype=dtype)
    return dz, sums if bias else None


def _there(operand: Tensor | TensorMeta) -> Tensor:
    assert isinstance(operand, Tensor), "kept, because it is read"
    return operand
