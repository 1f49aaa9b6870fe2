"""The tensors that a pointer may mean which the kernel did not get as an argument.

A grouped product reads its operands' addresses from a table. Such an address counts as memory where
it lies in a tensor that is alive in this process, on the host.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from triton_kernels import _memory
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.memory import Argument


def holding(addresses: Array, alive: Sequence[Argument]) -> list[Argument]:
    """The tensors in whose span one of the addresses lies."""
    return [
        tensor
        for tensor in alive
        if bool(np.any((addresses >= tensor.low) & (addresses < tensor.high)))
    ]


def alive() -> Iterator[Argument]:
    """Every tensor of this process; to look at all of its objects takes a tenth of a second."""
    for each in gc.get_objects():
        kind = type(each)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            continue
        if each.device.type == "cpu" and each.layout is torch.strided and _memory.there(each):
            yield Argument("a tensor that is no argument", each)
