"""The elementwise ops of the CUDA side with rungs, and the devices to run them on, for tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import cuda_reference
from compare.checking.implementations import unavailable

# Op → its tensors, the other arguments, and how many results it has.
CALLS: dict[str, tuple[int, tuple[Any, ...], int]] = {
    "add": (2, (), 1),
    "square": (1, (), 1),
    "square_backward": (2, (), 1),
    "relu_scale": (1, (0.3,), 1),
    "relu_scale_add": (2, (0.3,), 1),
    "relu_scale_backward": (2, (0.3,), 1),
    "act_mul": (2, ("gelu",), 1),
    "act_mul_backward": (3, ("gelu_tanh",), 2),
}

needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)
devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=needs_host),
        pytest.param("cuda", marks=pytest.mark.gpu_only),
    ],
)


def with_right_bits(op: str, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The op's results with the bits that every rung has: those of the plain kernel, but in 16 bits
    those of activations' short forms, as scalar computes them."""
    _, others, count = CALLS[op]
    short = op.startswith("act_mul") and inputs[0].dtype.itemsize == 2
    shape = torch.broadcast_shapes(*(t.shape for t in inputs))
    dense = [t.expand(shape).contiguous() for t in inputs]
    result = getattr(cuda_reference, op)(*dense, *others, variant="scalar" if short else None)
    return result if count > 1 else (result,)
