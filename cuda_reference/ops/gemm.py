"""gemm_bias_act, linear_gelu and the gradient of their activations: argument checks and launches.

The products' kernels stand in csrc/gemm.cuh and csrc/gemm_wmma.cuh, their launchers in
csrc/gemm_bias_act.cu and csrc/linear_gelu.cu. All take any strides; naive and tiled every floating
dtype in precision "ieee", wmma what tensor cores multiply: float16, bfloat16, and float32 as "tf32"
or "tf32x3".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _launch, _memory
from cuda_reference._arguments import FLOATING

ACTS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu")
VARIANTS = ("naive", "tiled", "wmma")
PRECISIONS = ("ieee", "tf32", "tf32x3")  # in the order of enum Precision in csrc/gemm_wmma.cuh


def gemm_bias_act(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    act: str = "none",
    alpha: float = 1.0,
    beta: float | None = None,
    c: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    variant: str | None = None,
) -> Tensor:
    """act(alpha·(a@b) + beta·c + bias): the CUDA twin of :func:`triton_kernels.gemm_bias_act`.

    Args:
        a, b, bias, act, alpha, beta, c, out, out_dtype, precision: as there.
        variant: "naive", one thread an output element; "tiled", through shared memory; "wmma", on
            tensor cores (compute capability 8.0 or newer). None is naive, or wmma for the
            precisions that only tensor cores have.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for an unknown variant and
            for a dtype and precision that it does not have.
    """
    op = "gemm_bias_act"
    a = _arguments.check_tensor(op, "a", a, FLOATING)
    b = _arguments.check_tensor(op, "b", b, (a.dtype,))
    _arguments.check_choice(op, "act", act, ACTS)
    _arguments.check_choice(op, "precision", precision, PRECISIONS)
    variant = _variant(op, variant, a.dtype, precision)
    alpha = _arguments.check_number(op, "alpha", alpha, a.dtype)
    if beta is not None:
        beta = _arguments.check_number(op, "beta", beta, a.dtype)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"{op}(): 'a' and 'b' must have shapes [M, K] and [K, N], but have {list(a.shape)} and "
            f"{list(b.shape)}"
        )
    M, N = a.shape[0], b.shape[1]
    inputs = {"a": a, "b": b}
    if bias is not None:
        inputs["bias"] = _bias(op, bias, a.dtype, N)
    if c is not None:
        inputs["c"] = _arguments.check_tensor(op, "c", c, (a.dtype,))
        if c.dim() > 2 or any(n not in (1, m) for n, m in zip(c.shape[::-1], (N, M))):
            raise RuntimeError(f"{op}(): 'c' must broadcast to [{M}, {N}], but is {list(c.shape)}")
        beta = 1.0 if beta is None else beta
    elif beta:
        raise ValueError(f"{op}(): argument 'beta' is {beta}, but there is no 'c'")
    dtype = _arguments.check_result_dtype(op, "out_dtype", out_dtype, a.dtype)
    device = _arguments.check_device(op, inputs)
    if out is None:
        out = _memory.new_result(op, (M, N), dtype, device)
    else:
        out = _arguments.check_out(op, out, (M, N), dtype, inputs, in_place=False)
    _launch_gemm(
        op,
        f"{op}_{variant}",
        inputs,
        out,
        _launch.tensor(a),
        _launch.tensor(b),
        None if bias is None else _launch.tensor(bias),
        None if c is None or not beta else _launch.tensor(c.expand(M, N)),
        _launch.tensor(out),
        _launch.scalar(alpha),
        _launch.scalar(beta or 0.0),
        ACTS.index(act),
        *((PRECISIONS.index(precision),) if variant == "wmma" else ()),
    )
    return out


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
    variant = _variant(op, variant, x.dtype, "ieee")
    weight = _arguments.check_tensor(op, "weight", weight, (x.dtype,))
    _arguments.check_choice(op, "approximate", approximate, ("none", "tanh"))
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}(): 'x' and 'weight' must have shapes […, I] and [O, I], but have "
            f"{list(x.shape)} and {list(weight.shape)}"
        )
    inputs = {"x": x, "weight": weight}
    if bias is not None:
        inputs["bias"] = _bias(op, bias, x.dtype, weight.shape[0])
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
    _launch_gemm(
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


def act_backward(
    grad: Tensor,
    saved: Tensor,
    act: str,
    *,
    bias: bool = True,
    dtype: torch.dtype | None = None,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """grad·act'(saved), and its column sums: the twin of :func:`triton_kernels.act_backward`; it
    has no variants.

    Args:
        grad, saved, act, bias, dtype, out: as there.
        variant: None.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError for any variant.
    """
    op = "act_backward"
    grad = _arguments.check_tensor(op, "grad", grad, FLOATING)
    saved = _arguments.check_tensor(op, "saved", saved, FLOATING)
    _arguments.check_choice(op, "act", act, ACTS)
    if variant is not None:
        _arguments.check_choice(op, "variant", variant, ())
    _arguments.check_flag(op, "bias", bias)
    promoted = torch.promote_types(grad.dtype, saved.dtype)
    dtype = _arguments.check_result_dtype(op, "dtype", dtype, promoted)
    if grad.dim() != 2 or grad.shape != saved.shape:
        raise RuntimeError(
            f"{op}(): 'grad' and 'saved' must have one shape [M, N], but have {list(grad.shape)} "
            f"and {list(saved.shape)}"
        )
    inputs = {"grad": grad, "saved": saved}
    device = _arguments.check_device(op, inputs)
    sums_shape = (grad.shape[1],) if bias else (0,)
    if out is None:
        dx = _memory.new_result(op, tuple(grad.shape), dtype, device)
        sums = _memory.new_result(op, sums_shape, dtype, device)
    else:
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"{op}(): argument 'out' must be two tensors, not {out!r:.60}")
        shape = tuple(grad.shape)
        dx = _arguments.check_out(op, out[0], shape, dtype, inputs, in_place=True)
        others = {**inputs, "the other result": dx}
        sums = _arguments.check_out(op, out[1], sums_shape, dtype, others, in_place=False)
    if grad.shape[1]:
        described = [_launch.tensor(t) for t in (grad, saved, dx)]
        shapes = f"grad {list(grad.shape)}, act {act}"
        total = _launch.tensor(sums) if bias else None
        _launch.launch(op, op, shapes, (dx, sums), *described, total, ACTS.index(act))
    return dx, sums


def _variant(op: str, variant: str | None, dtype: torch.dtype, precision: str) -> str:
    """The variant's name, checked against what it is asked to multiply."""
    if precision != "ieee" and dtype != torch.float32:
        raise ValueError(
            f"{op}(): precision '{precision}' is for float32, but the inputs are {dtype}"
        )
    if variant is None:
        return "naive" if precision == "ieee" else "wmma"
    _arguments.check_choice(op, "variant", variant, VARIANTS)
    if not takes(variant, dtype, precision):
        raise ValueError(
            f"{op}(): variant '{variant}' does not multiply {dtype} in precision '{precision}'"
        )
    return variant


def takes(variant: str, dtype: torch.dtype, precision: str) -> bool:
    """Whether a variant is made for a dtype and precision."""
    if variant == "wmma":
        return dtype in (torch.float16, torch.bfloat16) or precision != "ieee"
    return precision == "ieee"


def _bias(op: str, bias: Any, dtype: torch.dtype, N: int) -> Tensor:
    bias = _arguments.check_tensor(op, "bias", bias, (dtype,))
    if list(bias.shape) != [N]:
        raise RuntimeError(f"{op}(): 'bias' must have shape [{N}], but has {list(bias.shape)}")
    return bias


def _launch_gemm(
    stem: str, symbol: str, inputs: dict[str, Tensor], out: Tensor, *arguments: Any
) -> None:
    if out.numel():
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in inputs.items())
        _launch.launch(stem, symbol, shapes, (out,), *arguments)
