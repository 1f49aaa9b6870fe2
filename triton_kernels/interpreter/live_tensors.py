"""Tensors that a kernel reaches by address without having them as arguments.

A grouped product reads its operands' addresses from a table. Such an address is valid memory if it
lies in a live host tensor of this process.
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
    """The tensors that contain one of the addresses."""
    return [
        tensor
        for tensor in alive
        if bool(np.any((addresses >= tensor.low) & (addresses < tensor.high)))
    ]


def alive() -> Iterator[Argument]:
    """Every tensor of this process. Enumerating all objects takes a tenth of a second."""
    for each in gc.get_objects():
        kind = type(each)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            continue
        if each.device.type == "cpu" and each.layout is torch.strided and _memory.there(each):
            yield Argument("a tensor that is no argument", each)
