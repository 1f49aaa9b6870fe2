"""Specs of registered activations: :func:`activation_specs`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from compare.cases import FLOATS
from compare.specs.functions import Function
from compare.specs.product_bounds import U_DOUBLE, U_FMA

SHAPES = ((1,), (33, 129), (1040,), (256, 512))


def activation_specs(
    name: str,
    *,
    roundings: float = 16.0,
    dtypes: Sequence[str | torch.dtype] = FLOATS,
    values: Sequence[str] = ("normal", "integers", "special"),
) -> tuple[Function, Function]:
    """Specs of an activation registered with :func:`triton_kernels.register_activation` and of its
    derivative, for :func:`compare.check`.

    The CUDA side is checked, too, if :func:`cuda_reference.register_activation` has the name. The
    oracle is the ``torch_function`` in float64, and for the derivative autograd through it. A
    result is right if it is within E + u_out·(|reference| + E) plus the smallest number of its
    dtype. E is ``roundings``·u·(1 + |x| + |reference|), for the derivative without |x|. u and u_out
    are half an ulp of 1 in the compute type and in the result's dtype.

    Args:
        name: the registered name.
        roundings: the roundings of the compute type that the formulas may have.
        dtypes: the dtypes that check covers.
        values: of the activation's argument, as in :class:`compare.Function`. The derivative has no
            "special" values: at infinities autograd often gives NaN.

    Raises:
        ValueError: no such activation is registered, or it has no ``torch_function``.

    Example:
        >>> for spec in compare.activation_specs("softsign"):
        ...     report = compare.check(spec)
        ...     assert report, report
    """
    import cuda_reference
    import triton_kernels
    from cuda_reference._activations import REGISTERED
    from triton_kernels.activations import ACTIVATIONS

    function = ACTIVATIONS[name].torch_function if name in ACTIVATIONS else None
    if function is None:
        raise ValueError(
            f"activation_specs(): no activation {name!r} was registered with torch_function=; "
            "triton_kernels.register_activation takes one"
        )

    def forward(side: Any, x: Tensor) -> Tensor:
        result: Tensor = side.act_mul(x, torch.ones_like(x), name)
        return result

    def derivative(side: Any, x: Tensor) -> Tensor:
        rows = x.reshape(1, -1)
        dx, _ = side.act_backward(torch.ones_like(rows), rows, name, bias=False)
        result: Tensor = dx.reshape(x.shape)
        return result

    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            wide = x.detach().double().requires_grad_()
            (gradient,) = torch.autograd.grad(function(wide).sum(), wide)
        return gradient

    sides = {"triton": triton_kernels} | ({"cuda": cuda_reference} if name in REGISTERED else {})

    def of_both(call: Callable[[Any, Tensor], Tensor]) -> dict[str, Any]:
        return {name: functools.partial(call, side) for name, side in sides.items()}

    shared: dict[str, Any] = {"dtypes": dtypes, "shapes": SHAPES}
    plain = [each for each in values if each != "special"] or ["normal"]
    return (
        Function(
            name,
            f"{name}, a registered activation",
            **of_both(forward),
            oracle=lambda x: function(x.double()),
            bound=_bound(roundings, of_argument=True),
            values=values,
            **shared,
        ),
        Function(
            f"{name}_derivative",
            f"the derivative of {name}",
            **of_both(derivative),
            oracle=slope,
            bound=_bound(roundings, of_argument=False),
            values=plain,
            **shared,
        ),
    )


def _bound(roundings: float, *, of_argument: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def bound(reference: Tensor, x: Tensor) -> Tensor:
        """The tolerance around the reference."""
        about, size = torch.finfo(x.dtype), reference.abs()
        unit = roundings * (U_DOUBLE if x.dtype == torch.float64 else U_FMA)
        # Scaled one by one: the sum of the two largest numbers would be infinite.
        error = unit + unit * size + (unit * x.abs().double() if of_argument else 0)
        half = about.eps / 2
        return error + half * size + half * error + about.tiny * about.eps

    return bound
