"""relu_scale, relu_scale_add, and what both hand on to x."""

from __future__ import annotations

import torch

from compare import numerics
from compare.specs.elementwise import Elementwise, relu

SCALES = {"scale": (0.1, -2)}

SPECS = [
    Elementwise(
        "relu_scale",
        "relu(x)·scale",
        lambda x, *, scale: relu(x) * scale,
        numbers=SCALES,
        flops=2,
        eager=lambda x, *, scale: torch.relu(x) * scale,
    ),
    Elementwise(
        "relu_scale_add",
        "relu(x)·scale + y",
        lambda x, y, *, scale: numerics.fma(relu(x), scale, y),
        numbers=SCALES,
        flops=3,
        cancelling=True,
        eager=lambda x, y, *, scale: torch.relu(x) * scale + y,
    ),
    Elementwise(
        "relu_scale_backward",
        "0 where x <= 0, else grad·scale",
        lambda grad, x, *, scale: torch.where(x <= 0, torch.zeros_like(x), grad * scale),
        numbers=SCALES,
        flops=2,
        every="every x",
        sizes_timed=(1024, 4096),
    ),
]
