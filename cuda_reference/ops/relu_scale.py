"""The gradients of relu_scale, relu_scale_add and relu_scale_backward. The functions come of their
launchers, in csrc/relu_scale.cu.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _rungs, ops
from cuda_reference._registered import Gradients
from cuda_reference.ops.sum_to import reduced


def _through_relu(call: Any, grad: Tensor, like: Any) -> Tensor:
    """grad·scale where relu let x through, as the gradient of ``like``."""
    backward = ops.FUNCTIONS["relu_scale_backward"]
    return reduced(backward(grad, call.x, call.scale, variant=_rungs.again(call.variant)), like)


def _relu_scale(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    return {"x": _through_relu(call, grad, call.x)}


def _relu_scale_add(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    grads: dict[str, Tensor | None] = {"y": reduced(grad, call.y)} if "y" in call.needs else {}
    if "x" in call.needs:
        grads["x"] = _through_relu(call, grad, call.x)
    return grads


def _relu_scale_backward(call: Any, g: Tensor) -> dict[str, Tensor | None]:
    """Linear in grad; in x it has steps, whose slope is 0."""
    grads: dict[str, Tensor | None] = {}
    if "x" in call.needs:
        grads["x"] = torch.zeros(call.x.shape, dtype=call.x.dtype, device=g.device)
    if "grad" in call.needs:
        grads["grad"] = _through_relu(call, g, call.grad)
    return grads


GRADIENTS = {
    "relu_scale": Gradients(_relu_scale, {"x": ("x",)}),
    "relu_scale_add": Gradients(_relu_scale_add, {"x": ("x",), "y": ()}),
    "relu_scale_backward": Gradients(_relu_scale_backward, {"grad": ("x",), "x": ()}),
}
