"""linear_gated and GatedMLP: gated units of linear layers, such as SwiGLU."""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional

from triton_kernels import _arguments, activations
from triton_kernels.ops.act_mul import act_mul

torch.fx.wrap("act_mul")  # torch.fx.symbolic_trace records the call


def linear_gated(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    bias_gate: Tensor | None = None,
    bias_up: Tensor | None = None,
    *,
    act: str,
) -> Tensor:
    """act(x @ w_gate.T + bias_gate)·(x @ w_up.T + bias_up).

    Two products of torch's, then one pass of :func:`triton_kernels.act_mul` over their results. It
    is one product if the weights are the halves of one tensor, as ``weight.chunk(2)`` makes them,
    there is no bias, and no gradient of the weights is recorded.

    Args:
        x: […, I], float16, bfloat16, float32 or float64.
        w_gate, w_up: [O, I], x's dtype.
        bias_gate, bias_up: [O], x's dtype.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).

    Returns:
        […, O] in x's dtype.

    Raises:
        ValueError: an unknown act.
        TypeError, RuntimeError: as torch.nn.functional.linear and act_mul.
    """
    activations.checked_act("linear_gated", act)
    whole = _whole(w_gate, w_up) if bias_gate is None and bias_up is None else None
    if whole is not None:
        gate, up = functional.linear(x, whole).chunk(2, -1)
    else:
        gate = functional.linear(x, w_gate, bias_gate)
        up = functional.linear(x, w_up, bias_up)
    return act_mul(gate, up, act)


def _whole(first: Tensor, second: Tensor) -> Tensor | None:
    """The tensor of which these are the first and the second half, or None."""
    wanted = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
    if wanted or torch.compiler.is_compiling() or type(first) is not Tensor:
        return None
    whole = first._base
    if whole is None or whole is not second._base or first.dim() != 2:
        return None
    halves = whole.chunk(2) if whole.shape == (2 * len(first), *first.shape[1:]) else ()
    alike = all(
        part.storage_offset() == half.storage_offset()
        and part.stride() == half.stride()
        and part.shape == half.shape
        and part.dtype == half.dtype
        for part, half in zip((first, second), halves)
    )
    return whole if halves and alike else None


class GatedMLP(torch.nn.Module):
    """down_proj(act(gate_proj(x))·up_proj(x)), as in language models: SwiGLU with act "silu".

    The layers are called as torch.nn.Linear, so adapters, quantisation and tensor parallelism may
    replace them. The activation and the product are one pass.

    Args:
        in_features, hidden_features, out_features: the layers' sizes.
        bias: whether all three have a bias.
        act: as in :func:`linear_gated`.
        device, dtype: as torch.nn.Linear.

    The state_dict has the keys gate_proj.weight, up_proj.weight and down_proj.weight, and those of
    the biases. Shapes: x […, in_features] → […, out_features].

    Raises:
        ValueError: an unknown ``act``.
        TypeError: ``bias`` is not True or False.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        bias: bool = False,
        act: str = "silu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _arguments.boolean("GatedMLP", "bias", bias)
        self.act = activations.checked_act("GatedMLP", act)
        linear = torch.nn.Linear
        self.gate_proj = linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj = linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj = linear(hidden_features, out_features, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        hidden = act_mul(self.gate_proj(x), self.up_proj(x), self.act)
        return self.down_proj(hidden)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"act={self.act!r}"
