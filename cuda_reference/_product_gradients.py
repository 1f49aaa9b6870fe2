"""The gradients of matrix products.

With z = alpha·(a@b) + beta·c + bias and out = act(z):

    dz = grad·act'(z), and the bias gradient, its column sums    act_backward
    da = alpha·dz@bᵀ, db = alpha·aᵀ@dz                           the product itself
    dc = beta·dz, summed to c's shape                            sum_to

For gelu, gelu_tanh, silu and registered activations act' reads z. The forward pass writes z only in
variant "cublaslt". In other variants the backward pass computes it again.
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
    """A call as a product of matrices. Tensors that are not read are replaced by a TensorMeta.

    Attributes:
        multiply: gemm_bias_act.
        result: the call's result; it is read if act' follows from it.
        needs: the inputs whose gradients are needed, of "a", "b", "bias" and "c".
        pre: whether ``result`` is z.
        transposed: whether the caller's argument is bᵀ, so that the gradient "b" is of bᵀ.
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
    """Input → the tensors that its gradient reads, for
    :class:`cuda_reference._registered.Gradients`."""
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
    """The gradients of a training step with the results z and act(z), made of functions that take
    ``training``. z is not returned to users, so it has no gradient of its own."""

    def both(call: Any, dz: Tensor | None, grad: Tensor | None) -> dict[str, Tensor | None]:
        if dz is not None or grad is None:
            raise NotImplementedError("the pre-activation has no gradient of its own")
        return backward(call, grad, training=True)

    return Gradients(both, functools.partial(reads, training=True))


def gradients(call: Product, grad: Tensor) -> dict[str, Tensor | None]:
    """The needed gradients, with the keys "a", "b", "bias" and "c"."""
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
    """dz in the operands' dtype, and its column sums if the bias's gradient is needed."""
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
    assert isinstance(operand, Tensor), "the forward pass saves what the backward pass reads"
    return operand
