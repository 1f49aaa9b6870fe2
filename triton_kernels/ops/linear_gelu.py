"""linear_gelu: out = gelu(x @ weight.T + bias), in the GEMM kernel.

Shapes: x […, I], weight [O, I], bias [O], out […, O], as torch.nn.functional.linear. Dtypes:
float16, bfloat16, float32, float64. Accumulation and GELU in float32 (float64 for float64), one
rounding. Reference: torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from triton_kernels import _arguments, _fusion
from triton_kernels._fusion import Entry, Fusion, Match
from triton_kernels._gemm_op import Product, ProductOperator, wants_pre
from triton_kernels._operator import TensorMeta
from triton_kernels._placements import R, Rule, Shard, Sharding, twice
from triton_kernels.activations import GELU_APPROXIMATIONS
from triton_kernels.gemm.choice import HALVES
from triton_kernels.ops import gemm_bias_act

__all__ = ["linear_gelu"]


def linear_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    out: Tensor | None = None,
) -> Tensor:
    """gelu(x @ weight.T + bias) in one kernel.

    Args:
        x: […, I], float16, bfloat16, float32 or float64. Leading dimensions that do not merge into
            one stride are copied once.
        weight: [O, I], x's dtype, any strides.
        bias: [O], x's dtype.
        approximate: "none" for the erf form of GELU, "tanh" for the tanh form.
        out: written and returned if given; […, O] of x's dtype, with leading dimensions that merge
            into one stride; overlaps no input.

    Returns:
        […, O] in x's dtype.

    Raises:
        TypeError: an argument is no tensor, or has a wrong dtype.
        ValueError: an unknown ``approximate``.
        RuntimeError: shapes do not fit, devices differ, out does not fit or overlaps, out is given
            and an input requires grad.
    """
    args = (x, weight, bias, approximate)
    act = GELU_APPROXIMATIONS.get(approximate, "none") if isinstance(approximate, str) else "none"
    if out is None and wants_pre(act, x, weight, bias):
        return _with_pre(*args)[0]  # type: ignore[no-any-return]
    return _linear_gelu(*args, out=out)  # type: ignore[no-any-return]


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    approximate: str,
    *,
    out: Tensor | None = None,
    with_pre: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The result and, if it is wanted, the pre-activation."""
    op = "linear_gelu"
    x = _arguments.tensor(op, "x", x, gemm_bias_act.DTYPES)
    weight = _arguments.tensor(op, "weight", weight, (x.dtype,))
    _arguments.one_of(op, "approximate", approximate, tuple(GELU_APPROXIMATIONS))
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}(): 'x' and 'weight' must have shapes […, I] and [O, I], but have "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    shape = (*x.shape[:-1], weight.shape[0])
    rows, columns = x.reshape(x.shape[:-1].numel(), x.shape[-1]), weight.t()
    result, pre = gemm_bias_act.run(
        op,
        rows,
        columns,
        bias,
        GELU_APPROXIMATIONS[approximate],
        1.0,
        None,
        None,
        None if out is None else _by_rows(out, shape),
        None,
        "ieee",
        ("x", "weight"),
        with_pre,
    )
    return _unrolled(result, shape) if out is None else out, _unrolled(pre, shape)


def _unrolled(rows: Any, shape: tuple[int, ...]) -> Any:
    """[M, O] as […, O]. Autograd sees no view in it, as it sees none in torch's own products: FSDP
    warns of views. Nothing else refers to the tensor, so no write through another one is lost."""
    if rows is None or len(shape) == 2:
        return rows
    return torch.ops.aten._unsafe_view.default(rows, shape)


def _by_rows(out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """out […, O] as [M, O], without a copy."""
    op = "linear_gelu"
    out = _arguments.tensor(op, "out", out, gemm_bias_act.DTYPES)
    if tuple(out.shape) != shape:
        raise RuntimeError(
            f"{op}(): argument 'out' has shape {tuple(out.shape)}, but the result has {shape}; "
            "out is never resized"
        )
    try:
        return out.view(math.prod(shape[:-1]), shape[-1])
    except RuntimeError:
        raise RuntimeError(
            f"{op}(): the leading dimensions of 'out', of shape {shape} and strides "
            f"{out.stride()}, do not merge into one"
        ) from None


def _launch_linear_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    approximate: str,
    *,
    out: Tensor | None = None,
) -> Tensor:
    return _run(x, weight, bias, approximate, out=out)[0]


def _launch_with_pre(
    x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str
) -> tuple[Tensor, Tensor | None]:
    return _run(x, weight, bias, approximate, with_pre=True)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _product(call: Any) -> Product:
    """As a product of matrices, if need be of what is known of them."""
    x, weight = call.x, call.weight
    shape = (x.shape[:-1].numel(), x.shape[-1])
    rows = x.reshape(shape) if isinstance(x, Tensor) else TensorMeta(torch.Size(shape), x.dtype)
    if isinstance(weight, Tensor):
        columns: Tensor | TensorMeta = weight.t()
    else:
        columns = TensorMeta(torch.Size(reversed(weight.shape)), weight.dtype)
    return Product(rows, columns, call.bias, GELU_APPROXIMATIONS[call.approximate], transposed=True)


def _act(args: tuple[Any, ...]) -> str:
    return GELU_APPROXIMATIONS[args[3]]


def _rules(x: Any, weight: Any, bias: Any, approximate: Any) -> Iterator[Rule]:
    """Along a batch dimension, or column-parallel; gelu of a part of the sum would be wrong."""
    last = len(x.shape) - 1
    yield (R,), (R, R, R)
    yield (Shard(last),), (R, Shard(0), Shard(0))
    for dim in range(last):
        yield (Shard(dim),), (Shard(dim), R, R)


_PARAMETERS = "Tensor x, Tensor weight, Tensor? bias, str approximate"
_linear_gelu = ProductOperator(
    "linear_gelu",
    _PARAMETERS,
    _launch_linear_gelu,
    _fake,
    with_pre=False,
    act=_act,
    product=_product,
    multiply=gemm_bias_act.gemm_bias_act,
    label="linear_gelu",
    sharding=Sharding(_rules),
)
_with_pre = ProductOperator(
    "linear_gelu_with_pre",
    _PARAMETERS,
    _launch_with_pre,
    lambda *args: (_fake(*args), _fake(*args)),
    with_pre=True,
    act=_act,
    product=_product,
    multiply=gemm_bias_act.gemm_bias_act,
    label="linear_gelu",
    sharding=Sharding(twice(_rules)),
)


_APPROXIMATE = {act: approximate for approximate, act in GELU_APPROXIMATIONS.items()}


def _match(
    product: _fusion.Product, nodes: tuple[Node, ...], act: str, sizes: _fusion.Sizes
) -> Match | None:
    """A linear layer followed by gelu, with nothing scaled and nothing else added."""
    plain = product.by_rows and product.c is None and product.alpha == 1
    if act not in _APPROXIMATE or not plain:
        return None
    operands = (product.x, product.weight, product.bias)
    keywords = {"approximate": _APPROXIMATE[act]}
    return Match("linear_gelu", nodes, linear_gelu, operands, keywords, sizes, act)


GRAPH = Fusion(
    products=(_match,),
    speeds={
        "linear_gelu": (
            Entry(HALVES, eager=0.8, inductor=0.8, capabilities=(90,), filled=False),
            Entry(HALVES, eager=1.7, inductor=1.9, capabilities=(90,), aligned=False),
            Entry(HALVES, eager=1.07, inductor=1.06, capabilities=(90,), outputs=2048**2),
            Entry(HALVES, eager=1.02, inductor=1.02, capabilities=(90,)),
            # "ieee" products, by multiply-add.
            Entry((torch.float32,), eager=0.7, inductor=0.7, capabilities=(90,), rows=1024),
            Entry((torch.float32,), eager=0.1, inductor=0.1, capabilities=(90,)),
        )
    },
)
