"""Results that no kernel stores to: torch made them, of what kernels had stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from compare.checking.stores import Stores
from triton_kernels.interpreter import Argument

Element = tuple[Argument, tuple[int, ...]]


def source(
    result: Tensor, index: tuple[int, ...], stores: Stores, others: Sequence[Tensor]
) -> Element | None:
    """The element that an element of a result most likely came from: the same of a tensor that
    holds the same, as of one that was copied or converted, stored to or not; or of a stored one as
    large; or one of those that a sum over leading dimensions adds; or any of what was stored last.
    Not one of the ``others``, which are results themselves. None if kernels were given the
    result's memory."""
    if any(a.low <= result.data_ptr() < a.high for each in stores.launches for a in each.arguments):
        return None
    results = {t.untyped_storage().data_ptr() for t in others}

    def no_result(argument: Argument) -> bool:
        tensor = argument.tensor
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() not in results

    stored = list(filter(no_result, reversed(stores.stored())))
    given = (a for launch in reversed(stores.launches) for a in filter(no_result, launch.arguments))
    copied = next(
        (argument for argument in given if _holds_the_same(argument.tensor, result)), None
    )
    for argument in stored if copied is None else [copied]:
        if argument.tensor.numel() == result.numel():
            at = np.ravel_multi_index(index, tuple(result.shape)) if index else 0
            shape = tuple(argument.tensor.shape)
            return argument, tuple(int(i) for i in np.unravel_index(int(at), shape))
    for argument in stored:
        leading = argument.tensor.dim() - result.dim()
        if result.dim() and leading > 0 and argument.tensor.shape[leading:] == result.shape:
            return argument, (*_largest(argument.tensor[(..., *index)]), *index)
    return (stored[0], _largest(stored[0].tensor)) if stored else None


def _holds_the_same(tensor: Tensor, result: Tensor) -> bool:
    """Whether the result is a copy of the tensor, maybe of another dtype or shape."""
    if tensor.numel() != result.numel():
        return False
    converted = tensor.detach().reshape(result.shape).to(result.device, result.dtype)
    return bool(torch.isclose(converted, result.detach(), 0, 0, equal_nan=True).all())


def _largest(tensor: Tensor) -> tuple[int, ...]:
    """The index of the first NaN, or else of the largest number."""
    size = tensor.detach().cpu().double().abs().nan_to_num(torch.inf)
    at = torch.unravel_index(size.flatten().argmax(), tensor.shape)
    return tuple(int(i) for i in at)
