"""linear_act and linear_gelu: argument checks, launches and gradients. The launchers are in
csrc/linear_act.cu.
"""

from __future__ import annotations

import functools
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
from cuda_reference._registered import Gradients, Registered, TensorMeta, empty
from cuda_reference.ops.gemm_bias_act import gemm_bias_act

__all__ = ["linear_act", "linear_gelu"]

VARIANTS = dict.fromkeys(("linear_act", "linear_gelu"), _gemm.VARIANTS)


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    act: str,
    precision: str | None = None,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """act(x @ weight.T + bias): the CUDA twin of :func:`triton_kernels.linear_act`.

    Args:
        x, weight, bias, act, precision, out: as in triton_kernels.linear_act.
        variant: as in :func:`cuda_reference.gemm_bias_act`.

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.linear_act. ValueError also for an
            unknown variant, and for a dtype, precision or device that it does not support.
            RuntimeError also if torch has loaded no cublasLt.
    """
    precision = _gemm.precision_of(precision, x)
    if out is None and _gemm.writes_pre(variant, act, (x, weight, bias)):
        return _linear_act_training(x, weight, bias, act, precision, variant)[1]  # type: ignore[no-any-return]
    result: Tensor = _linear_act(x, weight, bias, act, precision, variant, out=out)
    return result


def linear_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    precision: str | None = None,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """gelu(x @ weight.T + bias): the CUDA twin of :func:`triton_kernels.linear_gelu`.

    Args:
        x, weight, bias, approximate, precision, out: as in triton_kernels.linear_gelu.
        variant: as in :func:`cuda_reference.gemm_bias_act`.

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.linear_gelu. ValueError also for an
            unknown variant, and for a dtype, precision or device that it does not support.
            RuntimeError also if torch has loaded no cublasLt.
    """
    _arguments.check_choice("linear_gelu", "approximate", approximate, ("none", "tanh"))
    act = "gelu_tanh" if approximate == "tanh" else "gelu"
    precision = _gemm.precision_of(precision, x)
    if out is None and _gemm.writes_pre(variant, act, (x, weight, bias)):
        return _linear_gelu_training(x, weight, bias, act, precision, variant)[1]  # type: ignore[no-any-return]
    result: Tensor = _linear_gelu(x, weight, bias, act, precision, variant, out=out)
    return result


def _run(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    act: str,
    precision: str,
    variant: str | None,
    *,
    out: Any = None,
    training: bool = False,
) -> Any:
    """Check the arguments and launch. Error texts call the op ``op``. In training the results are
    the pre-activation and the activation of it."""
    if training and out is not None:
        raise NotImplementedError(f"{op}(): a training step makes its own results")
    _activations.check(op, act)
    x = _arguments.check_tensor(op, "x", x, FLOATING)
    variant = _gemm.variant_for(op, variant, x.dtype, precision)
    weight = _arguments.check_tensor(op, "weight", weight, (x.dtype,))
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}(): 'x' and 'weight' must have shapes […, I] and [O, I], but have "
            f"{list(x.shape)} and {list(weight.shape)}"
        )
    _gemm.check_sizes(op, precision, x.shape[:-1].numel(), *weight.shape)
    inputs = {"x": x, "weight": weight}
    if bias is not None:
        inputs["bias"] = _gemm.check_bias(op, bias, x.dtype, weight.shape[0])
    device = _arguments.check_device(op, inputs)
    if variant == _cublaslt.NAME:
        _cublaslt.check_device(op, device)
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
    if variant == _cublaslt.NAME:
        pre = torch.empty_like(result) if training else None
        call = _cublaslt.Call(rows, weight.t(), bias, None, result, 1.0, 0.0, act, precision, pre)
        _cublaslt.launch(inputs, out, call, _activations.number(act))
        return out if pre is None else (pre.view(shape), out)
    _gemm.launch(
        "linear_act",
        f"linear_act_{variant}",
        inputs,
        out,
        _launch.tensor(rows),
        _launch.tensor(weight),
        None if bias is None else _launch.tensor(bias),
        _launch.tensor(result),
        _activations.number(act),
        *((_gemm.PRECISIONS.index(precision),) if variant == "wmma" else ()),
        act=act,
    )
    return out


def _reads(call: Any, training: bool = False) -> dict[str, set[str]]:
    others = () if call.bias is None else ("bias",)
    return _product_gradients.reads(call.act, ("x", "weight"), others, training)


def _backward(call: Any, grad: Tensor, training: bool = False) -> dict[str, Tensor | None]:
    """The gradients of x and weight, from those of the matrices that were multiplied."""
    x, weight, result, bias = call.x, call.weight, call.result, call.bias
    columns, count = weight.shape[0], x.shape[:-1].numel()
    matrix, rows = torch.Size((count, x.shape[-1])), (count, columns)
    names = {"x": "a", "weight": "b", "bias": "bias"}
    product = _product_gradients.Product(
        gemm_bias_act,
        x.reshape(matrix) if isinstance(x, Tensor) else TensorMeta(matrix, x.dtype),
        weight.t() if isinstance(weight, Tensor) else weight,
        bias,
        call.act,
        call.precision,
        call.variant,
        result.reshape(rows) if isinstance(result, Tensor) else result,
        [names[name] for name in call.needs],
        pre=training,
        transposed=True,
    )
    grads = _product_gradients.gradients(product, grad.reshape(rows))
    dx = grads.get("a")
    return {
        "x": None if dx is None else dx.view(x.shape),
        "weight": grads.get("b"),
        "bias": grads["bias"],
    }


def _register(op: str) -> Registered:
    return Registered(
        op,
        "Tensor x, Tensor weight, Tensor? bias, str act, str precision, str? variant",
        functools.partial(_run, op),
        lambda x, weight, *_: empty((*x.shape[:-1], weight.shape[0]), x.dtype, x),
        gradients=Gradients(_backward, _reads),
        autocast="lower",
    )


def _register_training(op: str) -> Registered:
    """The training op of variant "cublaslt": its backward pass reads the pre-activation."""

    def fake(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:-1], weight.shape[0])
        return empty(shape, x.dtype, x), empty(shape, x.dtype, x)

    return Registered(
        f"{op}_training",
        "Tensor x, Tensor weight, Tensor? bias, str act, str precision, str? variant",
        functools.partial(_run, op, training=True),
        fake,
        gradients=_product_gradients.of_training(_backward, _reads),
        autocast="lower",
        label=op,
        results=2,
    )


_linear_act, _linear_gelu = _register("linear_act"), _register("linear_gelu")
_linear_act_training = _register_training("linear_act")
_linear_gelu_training = _register_training("linear_gelu")
