"""add, square, relu_scale, relu_scale_add and the gradients: argument checks and launches.

The formulas stand in csrc/add.cu, csrc/square.cu and csrc/relu_scale.cu. The default kernel of
each takes every dtype and layout; a variant takes dense contiguous tensors of its own dtype only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _launch, _memory
from cuda_reference._arguments import FLOATING, INTEGRAL

VARIANTS: dict[str, dict[str, tuple[torch.dtype, ...]]] = {
    "add": {
        "f32": (torch.float32,),
        "f32x4": (torch.float32,),
        "f16": (torch.float16,),
        "f16x2": (torch.float16,),
        "f16x8": (torch.float16,),
        "f16x8_pack": (torch.float16,),
        "bf16": (torch.bfloat16,),
        "bf16x2": (torch.bfloat16,),
        "bf16x8": (torch.bfloat16,),
        "bf16x8_pack": (torch.bfloat16,),
    },
    "square": {"1d": FLOATING + INTEGRAL, "2d": FLOATING + INTEGRAL},
    "relu_scale": {},
    "relu_scale_add": {},
    "relu_scale_backward": {},
    "square_backward": {},
}


def add(
    x: Tensor | int | float,
    y: Tensor | int | float,
    *,
    alpha: int | float = 1,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """x + alpha·y as fma(alpha, y, x): the CUDA twin of :func:`triton_kernels.add`.

    Args:
        x, y, alpha, out: as there.
        variant: f32, f32x4, f16, f16x2, f16x8, f16x8_pack, bf16, bf16x2, bf16x8 or bf16x8_pack:
            a kernel for contiguous tensors of one shape and that dtype. None: any layout.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for inputs that the variant
            does not take.
    """
    operands = _promotable("add", x, y, FLOATING + INTEGRAL)
    tensors = {name: t for name, t in operands.items() if isinstance(t, Tensor)}
    # Of a number only the kind promotes.
    dtype = torch.result_type(
        *(t if name in tensors else type(t)() for name, t in operands.items())
    )
    alpha = _arguments.check_number("add", "alpha", alpha, dtype)
    given: int | float = 0
    for name in operands.keys() - tensors.keys():
        given = _arguments.check_number("add", name, operands[name], dtype)
    out = _output("add", tensors, dtype, out)
    if variant is not None:
        _check_variant("add", variant, {**tensors, "out": out})
        for name in operands.keys() - tensors.keys():
            raise ValueError(
                f"add(): variant '{variant}' takes two tensors, but {name} is a number"
            )
        arguments = [_launch.pointer(t) for t in (out, *tensors.values())]
        factor, n = ctypes.c_float(alpha), ctypes.c_longlong(out.numel())
        return _run("add", f"add_{variant}", out, tensors, *arguments, factor, n)
    views = _views(out, tensors)
    return _run(
        "add",
        "add",
        out,
        tensors,
        views.get("x"),
        views.get("y"),
        _launch.scalar(given),
        views["out"],
        _launch.scalar(alpha),
    )


def square(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """x·x: the CUDA twin of :func:`triton_kernels.square`.

    Args:
        x, out: as there.
        variant: "1d" for contiguous tensors, "2d" for contiguous matrices on a two-dimensional
            grid. None: any layout.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for inputs that the variant
            does not take.
    """
    if variant is None:
        return _unary("square", FLOATING + INTEGRAL, x, out)
    x = _arguments.check_tensor("square", "x", x, FLOATING + INTEGRAL)
    out = _output("square", {"x": x}, x.dtype, out)
    _check_variant("square", variant, {"x": x, "out": out})
    if variant == "2d" and x.dim() != 2:
        raise ValueError(f"square(): variant '2d' takes a matrix, but x has shape {list(x.shape)}")
    arguments = _launch.tensor(x), _launch.tensor(out)
    return _run("square", f"square_{variant}", out, {"x": x}, *arguments)


def relu_scale(
    x: Tensor, scale: int | float, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """relu(x)·scale: the CUDA twin of :func:`triton_kernels.relu_scale`; it has no variants."""
    x = _arguments.check_tensor("relu_scale", "x", x, FLOATING)
    scale = _arguments.check_number("relu_scale", "scale", scale, x.dtype)
    out = _output("relu_scale", {"x": x}, x.dtype, out)
    _check_variant("relu_scale", variant, {})
    views = _views(out, {"x": x})
    scalar = _launch.scalar(scale)
    return _run("relu_scale", "relu_scale", out, {"x": x}, views["x"], views["out"], scalar)


def relu_scale_add(
    x: Tensor,
    y: Tensor,
    scale: int | float,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """fma(relu(x), scale, y): the CUDA twin of :func:`triton_kernels.relu_scale_add`."""
    return _binary("relu_scale_add", "relu_scale", {"x": x, "y": y}, {"scale": scale}, out, variant)


def relu_scale_backward(
    grad: Tensor,
    x: Tensor,
    scale: int | float,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
) -> Tensor:
    """0 where x <= 0, else grad·scale: the twin of :func:`triton_kernels.relu_scale_backward`."""
    tensors = {"grad": grad, "x": x}
    return _binary("relu_scale_backward", "relu_scale", tensors, {"scale": scale}, out, variant)


def square_backward(
    grad: Tensor, x: Tensor, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """grad·(2·x): the CUDA twin of :func:`triton_kernels.square_backward`."""
    return _binary("square_backward", "square", {"grad": grad, "x": x}, {}, out, variant)


def _binary(
    op: str,
    stem: str,
    operands: dict[str, Any],
    factors: dict[str, Any],
    out: Tensor | None,
    variant: str | None,
) -> Tensor:
    """An op of two floating tensors and perhaps a number; it has no variants."""
    (first, a), (second, b) = operands.items()
    a = _arguments.check_tensor(op, first, a, FLOATING)
    b = _arguments.check_tensor(op, second, b, FLOATING)
    a, b = _on_one_device(a, b)
    dtype = torch.result_type(a, b)
    numbers = [
        _launch.scalar(_arguments.check_number(op, name, number, dtype))
        for name, number in factors.items()
    ]
    tensors = {first: a, second: b}
    out = _output(op, tensors, dtype, out)
    _check_variant(op, variant, {})
    views = _views(out, tensors)
    return _run(stem, op, out, tensors, views[first], views[second], views["out"], *numbers)


def unary(op: str, dtypes: tuple[torch.dtype, ...]) -> Callable[..., Tensor]:
    """The function of an op of one tensor, of these dtypes and any layout: csrc/<op>.cu exports
    ``int op(const Tensor* x, const Tensor* out, cudaStream_t stream)``."""

    def function(x: Tensor, *, out: Tensor | None = None) -> Tensor:
        return _unary(op, dtypes, x, out)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"The CUDA twin of :func:`triton_kernels.{op}`; it has no variants."
    return function


def _unary(op: str, dtypes: tuple[torch.dtype, ...], x: Tensor, out: Tensor | None) -> Tensor:
    x = _arguments.check_tensor(op, "x", x, dtypes)
    out = _output(op, {"x": x}, x.dtype, out)
    views = _views(out, {"x": x})
    return _run(op, op, out, {"x": x}, views["x"], views["out"])


def _promotable(op: str, x: Any, y: Any, dtypes: tuple[torch.dtype, ...]) -> dict[str, Any]:
    """The checked operands by name; one of them may still be a number."""
    operands: dict[str, Any] = {"x": x, "y": y}
    numbers = [name for name, t in operands.items() if isinstance(t, (bool, int, float))]
    if len(numbers) == 2:
        numbers, operands["y"] = ["x"], _as_tensor(op, x, y)
    for name, t in operands.items():
        if name not in numbers:
            _arguments.check_tensor(op, name, t, dtypes)
        elif isinstance(t, bool):
            operands[name] = int(t)
    if not numbers:
        operands["x"], operands["y"] = _on_one_device(x, y)
    return operands


def _as_tensor(op: str, x: int | float, y: int | float) -> Tensor:
    """y as a 0-d CPU tensor of the dtype that two numbers promote to."""
    dtype = torch.result_type(type(x)(), type(y)())
    if dtype is torch.bool:
        raise TypeError(f"{op}(): 'x' and 'y' are bools, and there is no sum of dtype bool")
    value = _arguments.check_number(op, "y", int(y) if isinstance(y, bool) else y, dtype)
    if isinstance(value, int) and value >= 2**63:
        value -= 2**64
    return torch.full((), value, dtype=dtype, device="cpu")


def _on_one_device(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A 0-d CPU tensor follows the other one to its GPU."""
    if x.is_cuda and y.is_cpu and y.dim() == 0:
        y = y.to(x.device)
    elif y.is_cuda and x.is_cpu and x.dim() == 0:
        x = x.to(y.device)
    return x, y


def _output(op: str, tensors: dict[str, Tensor], dtype: torch.dtype, out: Any) -> Tensor:
    """The checked ``out``, or a new contiguous tensor of the broadcast shape."""
    device = _arguments.check_device(op, tensors)
    try:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    except RuntimeError:
        shapes = " and ".join(f"'{name}' {list(t.shape)}" for name, t in tensors.items())
        raise RuntimeError(f"{op}(): the shapes of {shapes} do not broadcast") from None
    if out is not None:
        return _arguments.check_out(op, out, shape, dtype, tensors, in_place=True)
    return _memory.new_result(op, shape, dtype, device)


def _check_variant(op: str, variant: str | None, tensors: dict[str, Tensor]) -> None:
    """Refuse an unknown variant, and tensors that it is not made for."""
    if variant is None:
        return
    _arguments.check_choice(op, "variant", variant, tuple(VARIANTS[op]))
    first = next(iter(tensors.values()))
    for name, t in tensors.items():
        if t.dtype not in VARIANTS[op][variant]:
            raise ValueError(f"{op}(): variant '{variant}' does not take {t.dtype} ('{name}')")
        if not t.is_contiguous() or t.shape != first.shape:
            raise ValueError(
                f"{op}(): variant '{variant}' takes contiguous tensors of one shape, but '{name}' "
                f"has shape {list(t.shape)} and strides {list(t.stride())}"
            )


def _views(out: Tensor, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The operands as launcher arguments in out's shape; one dimension where all are contiguous."""
    every = {**{name: t.expand(out.shape) for name, t in tensors.items()}, "out": out}
    if all(t.is_contiguous() for t in every.values()):
        every = {name: t.view(-1) for name, t in every.items()}
    return {name: _launch.tensor(t) for name, t in every.items()}


def _run(
    stem: str, symbol: str, out: Tensor, tensors: dict[str, Tensor], *arguments: Any
) -> Tensor:
    if out.numel():
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in tensors.items())
        _launch.launch(stem, symbol, shapes, (out,), *arguments)
    return out
