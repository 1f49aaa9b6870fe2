"""The gradients of relu_scale, relu_scale_add and relu_scale_backward, also for a tensor scale. The
functions are made from the launchers in csrc/relu_scale.cu.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _rungs, ops
from cuda_reference._registered import Gradients
from cuda_reference.ops.sum_to import reduced


def _through_relu(call: Any, grad: Tensor, like: Any) -> Tensor:
    """grad·scale where relu passes x, else 0, summed to the shape of ``like``."""
    backward = ops.FUNCTIONS["relu_scale_backward"]
    return reduced(backward(grad, call.x, call.scale, variant=_rungs.again(call.variant)), like)


def _relu_scale(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    grads: dict[str, Tensor | None] = {}
    if "x" in call.needs:
        grads["x"] = _through_relu(call, grad, call.x)
    if "scale" in call.needs:
        grads["scale"] = reduced(ops.FUNCTIONS["relu_scale"](call.x, grad), call.scale)
    return grads


def _relu_scale_add(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    grads = _relu_scale(call, grad)
    if "y" in call.needs:
        grads["y"] = reduced(grad, call.y)
    return grads


def _relu_scale_backward(call: Any, g: Tensor) -> dict[str, Tensor | None]:
    """Linear in grad and in scale. In x it is a step function, with gradient 0."""
    grads: dict[str, Tensor | None] = {}
    if "x" in call.needs:
        grads["x"] = torch.zeros(call.x.shape, dtype=call.x.dtype, device=g.device)
    if "grad" in call.needs:
        grads["grad"] = _through_relu(call, g, call.grad)
    if "scale" in call.needs:
        backward = ops.FUNCTIONS["relu_scale_backward"]
        grads["scale"] = reduced(backward(g, call.x, call.grad), call.scale)
    return grads


_X, _SCALE = ("x", "scale"), ("x",)
GRADIENTS = {
    "relu_scale": Gradients(_relu_scale, {"x": _X, "scale": _SCALE}),
    "relu_scale_add": Gradients(_relu_scale_add, {"x": _X, "y": (), "scale": _SCALE}),
    "relu_scale_backward": Gradients(
        _relu_scale_backward, {"grad": _X, "x": (), "scale": ("x", "grad")}
    ),
}
