"""linear_act: out = act(x @ weight.T + bias), in the GEMM kernels. linear_gelu: act is GELU.

Shapes: x […, I], weight [O, I], bias [O], out […, O], as torch.nn.functional.linear. Dtypes:
float16, bfloat16, float32, float64. Accumulation and activation in float32 (float64 for float64),
one rounding. Reference: torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)).

linear_gelu has registered ops of its own, because programs saved by torch.export call them. These
are "ieee". In any other precision linear_gelu calls linear_act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from triton_kernels import _arguments, _fusion, _precision
from triton_kernels._fusion import Entry, Fusion, Match, Probe
from triton_kernels._gemm_op import Product, ProductOperator, wants_pre
from triton_kernels._operator import TensorMeta
from triton_kernels._placements import R, Rule, Shard, Sharding, twice
from triton_kernels.activations import GELU_APPROXIMATIONS
from triton_kernels.gemm.configurations import HALVES
from triton_kernels.ops import gemm_bias_act

__all__ = ["linear_act", "linear_gelu"]


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    act: str,
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """act(x @ weight.T + bias) in one kernel.

    Args:
        x: […, I], float16, bfloat16, float32 or float64. Leading dimensions that do not merge into
            one stride are copied once.
        weight: [O, I], x's dtype, any strides.
        bias: [O], x's dtype.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).
        precision: of float32 products, as in :func:`triton_kernels.gemm_bias_act`: "ieee", "tf32",
            "tf32x3", "f16x3", or None for torch's setting.
        out: written and returned if given; […, O] of x's dtype, with leading dimensions that merge
            into one stride; overlaps no input.

    Returns:
        […, O] in x's dtype.

    Raises:
        TypeError: an argument is no tensor, or has a wrong dtype.
        ValueError: an unknown act or precision, or a precision that the dtype does not have.
        RuntimeError: shapes do not fit, a dimension is too large (as for gemm_bias_act), devices
            differ, out does not fit or overlaps, out is given and an input requires grad.
    """
    return _linear_act(x, weight, bias, act, _precision.resolved(precision, x), out=out)


def linear_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """gelu(x @ weight.T + bias) in one kernel: :func:`linear_act` with a form of GELU.

    Args:
        x, weight, bias, precision, out: as in linear_act.
        approximate: "none" for the erf form of GELU, "tanh" for the tanh form.

    Returns:
        […, O] in x's dtype.

    Raises:
        TypeError, RuntimeError: as linear_act.
        ValueError: as linear_act, or an unknown ``approximate``.
    """
    precision = _precision.resolved(precision, x)
    if precision != "ieee":
        act = _act(approximate)
        return _linear_act(x, weight, bias, act, precision, out=out)
    return _linear_gelu(x, weight, bias, approximate, out=out)


def _run(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str,
    precision: str,
    *,
    out: Tensor | None = None,
    with_pre: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The result and, with ``with_pre``, the pre-activation. Error texts call the op ``op``."""
    x = _arguments.tensor(op, "x", x, gemm_bias_act.DTYPES)
    weight = _arguments.tensor(op, "weight", weight, (x.dtype,))
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}(): 'x' and 'weight' must have shapes […, I] and [O, I], but have "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    shape = (*x.shape[:-1], weight.shape[0])
    rows, columns = _in_rows(x), weight.t()
    result, pre = gemm_bias_act.run(
        op,
        rows,
        columns,
        bias,
        act,
        1.0,
        None,
        None,
        None if out is None else gemm_bias_act.out_by_rows(op, out, shape),
        None,
        precision,
        ("x", "weight"),
        with_pre,
    )
    unrolled = gemm_bias_act.unrolled
    return unrolled(result, shape) if out is None else out, unrolled(pre, shape)


def _in_rows(x: Tensor) -> Tensor:
    """x […, I] as [M, I]."""
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _product(x: Any, weight: Any, bias: Any, act: str, precision: str) -> Product:
    """The call as a matrix product."""
    if isinstance(x, Tensor):
        rows: Tensor | TensorMeta = _in_rows(x)
    else:
        shape = x.shape[:-1].numel(), x.shape[-1]
        rows = TensorMeta(torch.Size(shape), x.dtype)
    if isinstance(weight, Tensor):
        columns: Tensor | TensorMeta = weight.t()
    else:
        columns = TensorMeta(torch.Size(reversed(weight.shape)), weight.dtype)
    return Product(rows, columns, bias, act, precision=precision, transposed=True)


def _rules(x: Any, weight: Any, *_: Any) -> Iterator[Rule]:
    """Sharding along a batch dimension, or by columns. Not along I: the activation of a partial sum
    would be wrong."""
    last = len(x.shape) - 1
    yield (R,), (R, R, R)
    yield (Shard(last),), (R, Shard(0), Shard(0))
    for dim in range(last):
        yield (Shard(dim),), (Shard(dim), R, R)


def _define(
    op: str, parameters: str, arguments: Callable[..., tuple[Any, ...]]
) -> Callable[..., Tensor]:
    """Register ``op``, and ``<op>_with_pre`` for training. Returns a function that calls the right
    one.

    Args:
        op: the name, also in error texts.
        parameters: the schema's parameters.
        arguments: makes (x, weight, bias, act, precision) from the op's arguments.
    """

    def launch(*args: Any, out: Tensor | None = None) -> Tensor:
        return _run(op, *arguments(*args), out=out)[0]

    def launch_with_pre(*args: Any) -> tuple[Tensor, Tensor | None]:
        return _run(op, *arguments(*args), with_pre=True)

    shared: dict[str, Any] = {
        "act": lambda args: arguments(*args)[3],
        "product": lambda *args: _product(*arguments(*args)),
        "multiply": gemm_bias_act.gemm_bias_act,
        "label": op,
    }
    plain = ProductOperator(
        op, parameters, launch, _fake, with_pre=False, sharding=Sharding(_rules), **shared
    )
    training = ProductOperator(
        f"{op}_with_pre",
        parameters,
        launch_with_pre,
        lambda *args: (_fake(*args), _fake(*args)),
        with_pre=True,
        sharding=Sharding(twice(_rules)),
        **shared,
    )

    def call(*args: Any, out: Tensor | None = None) -> Tensor:
        if out is None and wants_pre(arguments(*args)[3], *args[:3]):
            return training(*args)[0]  # type: ignore[no-any-return]
        return plain(*args, out=out)  # type: ignore[no-any-return]

    return call


def _with_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[Any, ...]:
    return x, weight, bias, _act(approximate), "ieee"


def _act(approximate: str) -> str:
    _arguments.one_of("linear_gelu", "approximate", approximate, tuple(GELU_APPROXIMATIONS))
    return GELU_APPROXIMATIONS[approximate]


_OPERANDS = "Tensor x, Tensor weight, Tensor? bias"
_linear_act = _define("linear_act", f"{_OPERANDS}, str act, str precision", lambda *args: args)
_linear_gelu = _define("linear_gelu", f"{_OPERANDS}, str approximate", _with_gelu)


_APPROXIMATE = {act: approximate for approximate, act in GELU_APPROXIMATIONS.items()}


def _match(
    product: _fusion.Product, nodes: tuple[Node, ...], act: str, sizes: _fusion.Sizes
) -> Match | None:
    """A linear layer and its activation, without a scale or another addend."""
    if not product.by_rows or product.c is not None or product.alpha != 1:
        return None
    operands = (product.x, product.weight, product.bias)
    if act in _APPROXIMATE:
        keywords = {"approximate": _APPROXIMATE[act]}
        return Match("linear_gelu", nodes, linear_gelu, operands, keywords, sizes, act)
    return Match("linear_act", nodes, linear_act, operands, {"act": act}, sizes, act)


_SPEEDS = (
    Entry(HALVES, eager=0.8, inductor=0.8, aligned=False, estimated=True, timed=True),
    Entry(HALVES, eager=0.8, inductor=0.8, estimated=True, timed=True),
    # "ieee" products, by multiply-add. In Gluon: nearly the least, so that plans time them.
    Entry((torch.float32,), eager=0.8, inductor=0.8, capabilities=(90,), elsewhere=0.1),
)
GRAPH = Fusion(
    products=(_match,),
    speeds=dict.fromkeys(("linear_act", "linear_gelu"), _SPEEDS),
    probes={
        "linear_act": Probe(
            ("MK", "NK", "N"),
            lambda x, weight, bias, act: linear_act(x, weight, bias, act=act),
            torch.nn.functional.linear,
        )
    },
)
