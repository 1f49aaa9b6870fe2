"""Tensors that want gradients, and a sample call of each elementwise op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import triton_kernels as tk

DOUBLE = torch.float64


@dataclass(frozen=True)
class Sample:
    """A function of tensors, the same in torch, and the tensors' shapes."""

    ours: Callable[..., Tensor]
    eager: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


def relu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= 0, 0 * x, grad * 0.7)


def leaky_slope(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.ones_like(x), 0.01)


leaky_relu = torch.nn.functional.leaky_relu
SAMPLES = {
    "add": Sample(
        lambda x, y: tk.add(x, y, alpha=-1.7), lambda x, y: x + -1.7 * y, ((4, 5), (4, 5))
    ),
    "add scalar": Sample(lambda x: tk.add(x, 3.5), lambda x: x + 3.5, ((4, 5),)),
    "add to scalar": Sample(
        lambda y: tk.add(3.5, y, alpha=-1.7), lambda y: 3.5 + -1.7 * y, ((4, 5),)
    ),
    "square": Sample(tk.square, torch.square, ((4, 5),)),
    "relu_scale": Sample(lambda x: tk.relu_scale(x, 0.7), lambda x: torch.relu(x) * 0.7, ((4, 5),)),
    "relu_scale_add": Sample(
        lambda x, y: tk.relu_scale_add(x, y, 0.7),
        lambda x, y: torch.relu(x) * 0.7 + y,
        ((4, 5), (4, 5)),
    ),
    "relu_scale of a tensor": Sample(
        tk.relu_scale, lambda x, s: torch.relu(x) * s, ((4, 5), (4, 5))
    ),
    "relu_scale of channels": Sample(
        tk.relu_scale, lambda x, s: torch.relu(x) * s, ((4, 5), (4, 1))
    ),
    "relu_scale_add of one scale": Sample(
        tk.relu_scale_add, lambda x, y, s: torch.relu(x) * s + y, ((4, 5), (5,), (1,))
    ),
    "relu_scale_backward of channels": Sample(
        tk.relu_scale_backward,
        lambda g, x, s: torch.where(x <= 0, 0 * x, g * s),
        ((4, 5), (4, 5), (4, 1)),
    ),
    "square_backward": Sample(tk.square_backward, lambda g, x: g * (2 * x), ((4, 5), (4, 5))),
    "relu_scale_backward": Sample(
        lambda g, x: tk.relu_scale_backward(g, x, 0.7), relu_gradient, ((4, 5), (4, 5))
    ),
    "sum_to": Sample(
        lambda x: tk.sum_to(x, (4, 1), factor=0.3),
        lambda x: x.sum_to_size(4, 1) * 0.3,
        ((2, 4, 5),),
    ),
    "act_mul": Sample(
        lambda g, u: tk.act_mul(g, u, "leaky_relu"),
        lambda g, u: leaky_relu(g) * u,
        ((4, 5), (4, 5)),
    ),
    "act_mul of a fixed gate": Sample(
        lambda u: tk.act_mul(torch.full_like(u, -2), u, "leaky_relu"),
        lambda u: -0.02 * u,
        ((4, 5),),
    ),
    "act_mul_backward of gate": Sample(
        lambda d, g, u: tk.act_mul_backward(d, g, u, "leaky_relu")[0],
        lambda d, g, u: d * leaky_slope(g) * u + 0 * g,
        ((4, 5), (4, 5), (4, 5)),
    ),
    "act_mul_backward of up": Sample(
        lambda d, g: tk.act_mul_backward(d, g, g.detach(), "leaky_relu")[1],
        lambda d, g: d * leaky_relu(g),
        ((4, 5), (4, 5)),
    ),
    "act_backward": Sample(
        lambda d: tk.act_backward(d, d.detach(), "leaky_relu")[0],
        lambda d: d * leaky_slope(d.detach()),
        ((4, 5),),
    ),
}
BINARY = [name for name, sample in SAMPLES.items() if len(sample.shapes) == 2]


def leaf(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = DOUBLE) -> Tensor:
    """Numbers away from 0, where relu has no derivative."""
    generator = torch.Generator().manual_seed(1 + sum(shape))
    t = torch.randn(shape, generator=generator, dtype=DOUBLE)
    return (t + 0.1 * t.sign()).to(device, dtype).requires_grad_()


REGISTERED: dict[str, Callable[[Tensor, Tensor], tuple]] = {
    "add": lambda x, out: (x, x, 1, out),
    "add_scalar": lambda x, out: (x, 2, 1, out),
    "add_to_scalar": lambda y, out: (y, 2, 1, out),
    "square": lambda x, out: (x, out),
    "relu_scale": lambda x, out: (x, 2, out),
    "relu_scale_tensor": lambda x, out: (x, x, out),
    "relu_scale_add": lambda x, out: (x, x, 2, out),
    "relu_scale_add_tensor": lambda x, out: (x, x, x, out),
    "square_backward": lambda x, out: (x, x, out),
    "relu_scale_backward": lambda x, out: (x, x, 2, out),
    "relu_scale_backward_tensor": lambda x, out: (x, x, x, out),
    "sum_to": lambda x, out: (x, list(x.shape), 2, None, out),
}
