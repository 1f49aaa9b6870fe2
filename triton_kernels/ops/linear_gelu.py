"""linear_gelu: out = gelu(x @ weight.T + bias), in the GEMM kernel.

Shapes: x […, I], weight [O, I], bias [O], out […, O], as torch.nn.functional.linear. Dtypes:
float16, bfloat16, float32, float64. Accumulation and GELU in float32 (float64 for float64), one
rounding. Reference: torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from triton_kernels import _arguments
from triton_kernels.ops import gemm_bias_act

APPROXIMATIONS = {"none": "gelu", "tanh": "gelu_tanh"}


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, approximate: str = "none"
) -> Tensor:
    """gelu(x @ weight.T + bias) in one kernel.

    Args:
        x: […, I], float16, bfloat16, float32 or float64. Leading dimensions that do not merge into
            one stride are copied once.
        weight: [O, I], x's dtype, any strides.
        bias: [O], x's dtype.
        approximate: "none" for the erf form of GELU, "tanh" for the tanh form.

    Returns:
        […, O] in x's dtype.

    Raises:
        TypeError: an argument is no tensor, or has a wrong dtype.
        ValueError: an unknown ``approximate``.
        RuntimeError: shapes do not fit, devices differ, an input requires grad.
    """
    if torch.compiler.is_compiling():
        result: Tensor = torch.ops.triton_kernels.linear_gelu(x, weight, bias, approximate)
        return result
    op = "linear_gelu"
    x = _arguments.tensor(op, "x", x, gemm_bias_act.DTYPES)
    weight = _arguments.tensor(op, "weight", weight, (x.dtype,))
    _arguments.one_of(op, "approximate", approximate, tuple(APPROXIMATIONS))
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}(): 'x' and 'weight' must have shapes […, I] and [O, I], but have "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    out = gemm_bias_act.run(
        op,
        rows,
        weight.t(),
        bias,
        APPROXIMATIONS[approximate],
        1.0,
        None,
        None,
        None,
        None,
        "ieee",
        ("x", "weight"),
    )
    return out.view(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("triton_kernels::linear_gelu", mutates_args=())
def _linear_gelu_op(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    return linear_gelu(x, weight, bias, approximate=approximate)


@_linear_gelu_op.register_fake
def _linear_gelu_fake(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
