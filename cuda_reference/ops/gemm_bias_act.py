"""gemm_bias_act: argument checks, launches and gradients. The launchers are in
csrc/gemm_bias_act.cu.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from cuda_reference import (
    _activations,
    _arguments,
    _cublaslt,
    _gemm,
    _launch,
    _memory,
    _product_gradients,
)
from cuda_reference._arguments import FLOATING
from cuda_reference._gemm import takes as takes
from cuda_reference._registered import Gradients, Registered, empty

__all__ = ["gemm_bias_act"]

VARIANTS = {"gemm_bias_act": _gemm.VARIANTS}


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
    precision: str | None = None,
    variant: str | None = None,
) -> Tensor:
    """act(alpha·(a@b) + beta·c + bias): the CUDA twin of :func:`triton_kernels.gemm_bias_act`.

    Args:
        a, b, bias, act, alpha, beta, c, out, out_dtype, precision: as in
            triton_kernels.gemm_bias_act.
        variant: "naive": one thread per output element. "tiled": through shared memory. "wmma":
            tensor cores (compute capability 8.0 or newer). "cublaslt": the cuBLASLt that torch has
            loaded, on GPUs only. None: "wmma" for precisions that need tensor cores, else "naive".

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.gemm_bias_act. ValueError also for an
            unknown variant, and for a dtype, precision or device that it does not support.
            RuntimeError also if torch has loaded no cublasLt.
    """
    precision = _gemm.precision_of(precision, a)
    if _in_rows(a, b):
        shape = (*a.shape[:-1], b.shape[1])
        rows = None
        if out is not None:
            if not torch.compiler.is_compiling():
                a = _arguments.check_tensor("gemm_bias_act", "a", a, FLOATING)
            rows = _out_by_rows(out, shape)
        result = gemm_bias_act(
            a.reshape(math.prod(shape[:-1]), a.shape[-1]),
            b,
            bias,
            act=act,
            alpha=alpha,
            beta=beta,
            c=_addend_by_rows(c, shape),
            out=rows,
            out_dtype=out_dtype,
            precision=precision,
            variant=variant,
        )
        return result.reshape(shape) if out is None else out
    arguments = (a, b, bias, act, alpha, beta, c, out_dtype, precision, variant)
    if out is None and _gemm.writes_pre(variant, act, (a, b, bias, c)):
        return _gemm_bias_act_training(*arguments)[1]  # type: ignore[no-any-return]
    return _gemm_bias_act(*arguments, out=out)  # type: ignore[no-any-return]


def _in_rows(a: Any, b: Any) -> bool:
    """Whether a has leading dimensions other than one M, in a call that is otherwise valid."""
    tensors = isinstance(a, Tensor) and isinstance(b, Tensor)
    return tensors and not a.is_nested and a.dim() not in (0, 2) and b.dim() == 2


def _addend_by_rows(c: Any, shape: tuple[int, ...]) -> Any:
    """c, which broadcasts to shape […, N], in a shape that broadcasts to [M, N]."""
    if not isinstance(c, Tensor) or c.dim() < 2:
        return c
    try:
        return c.expand(shape).reshape(math.prod(shape[:-1]), shape[-1])
    except RuntimeError:
        raise RuntimeError(
            f"gemm_bias_act(): 'c' must broadcast to {list(shape)}, but is {list(c.shape)}"
        ) from None


def _out_by_rows(out: Any, shape: tuple[int, ...]) -> Tensor:
    """out […, N] as [M, N], without a copy."""
    if not torch.compiler.is_compiling():  # a traced tensor has no memory to check
        out = _arguments.check_tensor("gemm_bias_act", "out", out, FLOATING)
    if tuple(out.shape) != shape:
        raise RuntimeError(
            f"gemm_bias_act(): 'out' must have shape {list(shape)}, but has {list(out.shape)}"
        )
    try:
        return out.view(math.prod(shape[:-1]), shape[-1])
    except RuntimeError:
        raise RuntimeError(
            f"gemm_bias_act(): the leading dimensions of 'out', of shape {list(shape)} and strides "
            f"{out.stride()}, do not merge into one"
        ) from None


def _launch_gemm_bias_act(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    act: str,
    alpha: float,
    beta: float | None,
    c: Tensor | None,
    out_dtype: torch.dtype | None,
    precision: str,
    variant: str | None,
    *,
    out: Any = None,
    training: bool = False,
) -> Any:
    """In training the results are the pre-activation and the activation of it."""
    op = "gemm_bias_act"
    if training and out is not None:
        raise NotImplementedError(f"{op}(): a training step makes its own results")
    a = _arguments.check_tensor(op, "a", a, FLOATING)
    b = _arguments.check_tensor(op, "b", b, (a.dtype,))
    _activations.check(op, act)
    variant = _gemm.variant_for(op, variant, a.dtype, precision)
    alpha = _arguments.check_number(op, "alpha", alpha, a.dtype)
    if beta is not None:
        beta = _arguments.check_number(op, "beta", beta, a.dtype)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"{op}(): 'a' and 'b' must have shapes [M, K] and [K, N], but have {list(a.shape)} and "
            f"{list(b.shape)}"
        )
    M, N = a.shape[0], b.shape[1]
    _gemm.check_sizes(op, precision, M, N, a.shape[1])
    inputs = {"a": a, "b": b}
    if bias is not None:
        inputs["bias"] = _gemm.check_bias(op, bias, a.dtype, N)
    if c is not None:
        inputs["c"] = _arguments.check_tensor(op, "c", c, (a.dtype,))
        if c.dim() > 2 or any(n not in (1, m) for n, m in zip(c.shape[::-1], (N, M))):
            raise RuntimeError(f"{op}(): 'c' must broadcast to [{M}, {N}], but is {list(c.shape)}")
        beta = 1.0 if beta is None else beta
    elif beta:
        raise ValueError(f"{op}(): argument 'beta' is {beta}, but there is no 'c'")
    dtype = _arguments.check_result_dtype(op, "out_dtype", out_dtype, a.dtype)
    device = _arguments.check_device(op, inputs)
    if variant == _cublaslt.NAME:
        _cublaslt.check_device(op, device)
    if out is None:
        out = _memory.new_result(op, (M, N), dtype, device)
    else:
        out = _arguments.check_out(op, out, (M, N), dtype, inputs, in_place=False)
    c = None if c is None or not beta else c.expand(M, N)
    if variant == _cublaslt.NAME:
        pre = torch.empty_like(out) if training else None
        call = _cublaslt.Call(a, b, bias, c, out, alpha, beta or 0.0, act, precision, pre)
        _cublaslt.launch(inputs, out, call, _activations.number(act))
        return out if pre is None else (pre, out)
    _gemm.launch(
        op,
        f"{op}_{variant}",
        inputs,
        out,
        _launch.tensor(a),
        _launch.tensor(b),
        None if bias is None else _launch.tensor(bias),
        None if c is None else _launch.tensor(c),
        _launch.tensor(out),
        _launch.scalar(alpha),
        _launch.scalar(beta or 0.0),
        _activations.number(act),
        *((_gemm.PRECISIONS.index(precision),) if variant == "wmma" else ()),
        act=act,
    )
    return out


def _reads(call: Any, training: bool = False) -> dict[str, set[str]]:
    others = [name for name in ("bias", "c") if getattr(call, name) is not None]
    return _product_gradients.reads(call.act, ("a", "b"), tuple(others), training)


def _backward(call: Any, grad: Tensor, training: bool = False) -> dict[str, Tensor | None]:
    product = _product_gradients.Product(
        gemm_bias_act,
        call.a,
        call.b,
        call.bias,
        call.act,
        call.precision,
        call.variant,
        call.result,
        call.needs,
        call.alpha,
        call.beta,
        call.c,
        pre=training,
    )
    return _product_gradients.gradients(product, grad)


_PARAMETERS = (
    "Tensor a, Tensor b, Tensor? bias, str act, float alpha, float? beta, Tensor? c, "
    "ScalarType? out_dtype, str precision, str? variant"
)


def _fake(a: Tensor, b: Tensor, *options: Any) -> Tensor:
    out_dtype = options[5]
    return empty((a.shape[0], b.shape[1]), out_dtype or a.dtype, a)


_gemm_bias_act = Registered(
    "gemm_bias_act",
    _PARAMETERS,
    _launch_gemm_bias_act,
    _fake,
    gradients=Gradients(_backward, _reads),
    autocast="lower",
)
# The training op of variant "cublaslt": its backward pass reads the pre-activation.
_gemm_bias_act_training = Registered(
    "gemm_bias_act_training",
    _PARAMETERS,
    functools.partial(_launch_gemm_bias_act, training=True),
    lambda *args: (_fake(*args), _fake(*args)),
    gradients=_product_gradients.of_training(_backward, _reads),
    autocast="lower",
    label="gemm_bias_act",
    results=2,
)
