"""A tensor's position in memory without the tensor, for other processes and for later use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from triton_kernels.interpreter import Argument


def describe(name: str, t: Tensor) -> dict[str, Any]:
    """A tensor's place in memory, as :class:`Placed` takes it."""
    return {
        "name": name,
        "address": t.data_ptr(),
        "shape": list(t.shape),
        "strides": list(t.stride()),
        "dtype": str(t.dtype).removeprefix("torch."),
    }


class Placed:
    """A tensor of another process or run; it has what an ``Argument`` needs."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.name: str = described["name"]
        self.shape = torch.Size(described["shape"])
        self.dtype = getattr(torch, described["dtype"])
        self._strides: tuple[int, ...] = tuple(described["strides"])
        self._address: int = described["address"]

    def data_ptr(self) -> int:
        """The address of its first element."""
        return self._address

    def stride(self) -> tuple[int, ...]:
        """The strides, in elements."""
        return self._strides

    def numel(self) -> int:
        """The number of elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """The size of an element, in bytes."""
        return int(self.dtype.itemsize)


def placed(name: str, t: Any) -> Argument:
    """A tensor's addresses, without its memory."""
    return Argument(name, Placed(describe(name, t)))
