"""linear_gelu: argument checks and launches. The launchers stand in csrc/linear_gelu.cu."""

from __future__ import annotations

from torch import Tensor

from cuda_reference import _arguments, _gemm, _launch, _memory
from cuda_reference._arguments import FLOATING

__all__ = ["linear_gelu"]

VARIANTS = {"linear_gelu": _gemm.VARIANTS}


def linear_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """gelu(x @ weight.T + bias): the CUDA twin of :func:`triton_kernels.linear_gelu`.

    Args:
        x, weight, bias, approximate, out: as there.
        variant: "naive", "tiled", or "wmma" for float16 and bfloat16. None is naive.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for an unknown variant and
            a dtype that it does not have.
    """
    op = "linear_gelu"
    x = _arguments.check_tensor(op, "x", x, FLOATING)
    variant = _gemm.variant_for(op, variant, x.dtype, "ieee")
    weight = _arguments.check_tensor(op, "weight", weight, (x.dtype,))
    _arguments.check_choice(op, "approximate", approximate, ("none", "tanh"))
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}(): 'x' and 'weight' must have shapes […, I] and [O, I], but have "
            f"{list(x.shape)} and {list(weight.shape)}"
        )
    inputs = {"x": x, "weight": weight}
    if bias is not None:
        inputs["bias"] = _gemm.check_bias(op, bias, x.dtype, weight.shape[0])
    device = _arguments.check_device(op, inputs)
    shape = (*x.shape[:-1], weight.shape[0])
    if out is None:
        out = _memory.new_result(op, shape, x.dtype, device)
    else:
        out = _arguments.check_out(op, out, shape, x.dtype, inputs, in_place=False)
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    try:
        result = out.view(rows.shape[0], weight.shape[0])
    except RuntimeError:
        raise RuntimeError(
            f"{op}(): 'out', of shape {list(shape)} and strides {list(out.stride())}, is no matrix "
            "when its leading dimensions are merged"
        ) from None
    _gemm.launch(
        op,
        f"{op}_{variant}",
        inputs,
        out,
        _launch.tensor(rows),
        _launch.tensor(weight),
        None if bias is None else _launch.tensor(bias),
        _launch.tensor(result),
        int(approximate == "tanh"),
    )
    return out
