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
    """The stored element that an element of a result most likely came from: the same of a tensor as
    large, as of one that was converted; or one of those that a sum over leading dimensions adds;
    or any of what was stored last. Not one of the ``others``, which are results themselves. None if
    kernels were given the result's memory."""
    if any(a.low <= result.data_ptr() < a.high for each in stores.launches for a in each.arguments):
        return None
    results = {t.untyped_storage().data_ptr() for t in others}
    stored = [
        argument
        for argument in reversed(stores.stored())
        if argument.tensor.numel() and argument.tensor.untyped_storage().data_ptr() not in results
    ]
    for argument in stored:
        if argument.tensor.numel() == result.numel():
            at = np.ravel_multi_index(index, tuple(result.shape)) if index else 0
            shape = tuple(argument.tensor.shape)
            return argument, tuple(int(i) for i in np.unravel_index(int(at), shape))
    for argument in stored:
        leading = argument.tensor.dim() - result.dim()
        if result.dim() and leading > 0 and argument.tensor.shape[leading:] == result.shape:
            return argument, (*_largest(argument.tensor[(..., *index)]), *index)
    return (stored[0], _largest(stored[0].tensor)) if stored else None


def _largest(tensor: Tensor) -> tuple[int, ...]:
    """The index of the first NaN, or else of the largest number."""
    size = tensor.detach().cpu().double().abs().nan_to_num(torch.inf)
    at = torch.unravel_index(size.flatten().argmax(), tensor.shape)
    return tuple(int(i) for i in at)
