"""Results that torch made from tensors that kernels stored."""

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
    """The stored element from which an element of a result most likely came. The first that fits:
    the same element of a tensor with the same values (a copy or conversion, stored or not); of a
    stored tensor of the same size; the largest addend if the result is a sum over leading
    dimensions; the largest element of the last stored tensor. Never an element of ``others``, which
    are results. None if kernels stored to the result's own memory."""
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
    """Whether the result is a copy of the tensor, perhaps with another dtype or shape."""
    if tensor.numel() != result.numel():
        return False
    converted = tensor.detach().reshape(result.shape).to(result.device, result.dtype)
    return bool(torch.isclose(converted, result.detach(), 0, 0, equal_nan=True).all())


def _largest(tensor: Tensor) -> tuple[int, ...]:
    """The index of the first NaN, or else of the largest number."""
    size = tensor.detach().cpu().double().abs().nan_to_num(torch.inf)
    at = torch.unravel_index(size.flatten().argmax(), tensor.shape)
    return tuple(int(i) for i in at)
