"""act(x @ weight.T + bias) of DTensors, for modules, in two cases that the rules of one op cannot
describe.

If x and weight are sharded along the contraction (row-parallel), each rank has a part of every sum,
but an activation needs whole sums. So there is the product, then an all-reduce, then one kernel for
bias and activation. If x […, I] is sharded along a batch dimension other than the first, this
dimension is moved to the front before the batch dimensions are merged, so that nothing is gathered.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from triton_kernels.ops.gemm_bias_act import gemm_bias_act


def is_distributed(t: Tensor) -> bool:
    """Whether t is a DTensor; torch.distributed.tensor is not imported for the answer."""
    return isinstance(t, Tensor) and bool(_placements(t))  # torch.fx's proxies have every attribute


def sharded_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    act: str = "none",
    precision: str | None = None,
) -> Tensor:
    """act(x @ weight.T + bias), with little communication for every sharding of the operands.

    Args:
        x: DTensor […, I].
        weight: DTensor [O, I].
        bias: DTensor [O].
        act, precision: as in :func:`triton_kernels.gemm_bias_act`.

    Returns:
        DTensor […, O]. A row-parallel product without an activation is Partial: not yet summed.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`triton_kernels.gemm_bias_act`.
    """
    first = _first_dim(x)
    front = x.movedim(first, 0)
    rows = front.reshape(front.shape[:-1].numel(), front.shape[-1])
    if act != "none" and any(placement.is_shard(1) for placement in _placements(weight)):
        out = _act_of_sum(gemm_bias_act(rows, weight.t(), precision=precision), bias, act)
    else:
        out = gemm_bias_act(rows, weight.t(), bias, act=act, precision=precision)
    return out.reshape(*front.shape[:-1], weight.shape[0]).movedim(0, first)


def _placements(t: Any) -> tuple[Any, ...]:
    return getattr(t, "placements", ())


def _first_dim(x: Tensor) -> int:
    """The first batch dimension that is sharded, or else dimension 0."""
    sharded = [p.dim for p in _placements(x) if p.is_shard() and p.dim < x.dim() - 1]
    return min(sharded, default=0)


def _act_of_sum(product: Any, bias: Tensor | None, act: str) -> Tensor:
    """act(product + bias), after adding the ranks' parts of the product."""
    from torch.distributed.tensor import Replicate

    whole = [Replicate() if p.is_partial() else p for p in product.placements]
    c = product.redistribute(placements=whole)
    rows, columns = c.shape
    # A product with K = 0 runs only the kernel's epilogue.
    return gemm_bias_act(c.new_empty((rows, 0)), c.new_empty((0, columns)), bias, act=act, c=c)
