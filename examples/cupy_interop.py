"""Arrays of another library, without a copy: its memory in, its memory out, by DLPack.

    python examples/cupy_interop.py

On a GPU with cupy the arrays are cupy's, otherwise numpy's, on the CPU. Any library that speaks
DLPack will do: torch.from_dlpack makes a tensor of its array, from_dlpack of the library an array
of ours.
"""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType
from typing import Any

import numpy
import torch

import triton_kernels as tk


def main() -> None:
    """relu(x)·0.5 + y of foreign arrays, into a part of a third."""
    library = cupy_or_numpy()
    x = library.linspace(-2, 2, 12, dtype=library.float32).reshape(3, 4)
    y = library.full((3, 4), 10, dtype=library.float32)
    table = library.zeros((3, 8), dtype=library.float32)
    right_half = table[:, 4:]

    with tk.interpret() if library is numpy else contextlib.nullcontext():
        # No synchronisation: from_dlpack lets torch's stream wait for the array's, and both
        # libraries use the device's default stream here.
        result = tk.relu_scale_add(
            *map(torch.from_dlpack, (x, y)), 0.5, out=torch.from_dlpack(right_half)
        )
    print(f"{library.__name__}'s own array, its right half written by Triton:\n{table}")
    assert result.data_ptr() == address(right_half), "the result was copied"
    assert (right_half == library.maximum(x, 0) * library.float32(0.5) + y).all()
    assert (table[:, :4] == 0).all(), "written outside of out"

    back = library.from_dlpack(result)
    back[0, 0] = -1
    assert isinstance(back, library.ndarray)
    assert table[0, 4] == -1
    print(f"back as a {library.__name__} array at the same address: {hex(address(back))}")


def cupy_or_numpy() -> ModuleType:
    if not torch.cuda.is_available():
        print("no GPU: numpy's arrays, and Triton's interpreter")
        return numpy
    try:
        return importlib.import_module("cupy")
    except ImportError as missing:
        print(f"{missing}: numpy's arrays, on the CPU")
        return numpy


def address(array: Any) -> int:
    """Where the array's first element lies."""
    on_cpu = isinstance(array, numpy.ndarray)
    interface = array.__array_interface__ if on_cpu else array.__cuda_array_interface__
    return interface["data"][0]


if __name__ == "__main__":
    main()
