"""register_activation: adds a user's activation to every ``act=``."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any

import triton

from triton_kernels import _modes
from triton_kernels.activations import ACTIVATIONS, Activation


def register_activation(
    name: str,
    forward: Any,
    derivative: Any,
    *,
    drops: Any = None,
    torch_function: Callable[..., Any] | None = None,
) -> None:
    """Register an activation of your own for every ``act=``.

    The kernels call both functions on blocks of float32, or float64 for float64 tensors. A function
    must be elementwise: no load, no store, no reduction. Programs saved by torch.export hold the
    name, so register it before you run them. Registering the same functions again is allowed,
    because modules may be reloaded. ``cuda_reference.register_activation`` takes the CUDA C++ twin.

    Args:
        name: an identifier that no activation has.
        forward: ``@triton.jit`` function of x, the pre-activation: act(x).
        derivative: ``@triton.jit`` function of x: act'(x).
        drops: ``@triton.jit`` function of x: where it is true the gradient is 0 for any gradient of
            the result, even an infinite one or NaN, as torch's for relu where x <= 0. Without it
            that is multiplied by act'(x) everywhere.
        torch_function: the same function in torch, of one tensor of any floating dtype. ``fuse``,
            the torch.compile backend and replace_modules recognise the activation by it. It is
            compare's oracle, and second derivatives are those of it. It may be a function of torch,
            such as ``torch.nn.functional.mish``, or be composed of sums, products, constants and
            torch functions of one tensor.

    Raises:
        TypeError: forward, derivative or drops is no jit function of one argument;
            ``torch_function`` cannot be called.
        ValueError: name is no identifier, or is taken.

    Example:
        >>> @triton.jit
        ... def softsign(x):
        ...     return x / (1.0 + tl.abs(x))
        >>> @triton.jit
        ... def softsign_derivative(x):
        ...     return 1.0 / ((1.0 + tl.abs(x)) * (1.0 + tl.abs(x)))
        >>> triton_kernels.register_activation("softsign", softsign, softsign_derivative)
        >>> y = triton_kernels.linear_act(x, weight, bias, act="softsign")
    """
    op = "register_activation"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{op}(): argument 'name' must be an identifier, but got {name!r}")
    _check_jit(op, "forward", forward)
    _check_jit(op, "derivative", derivative)
    if drops is not None:
        _check_jit(op, "drops", drops)
    if torch_function is not None and not callable(torch_function):
        raise TypeError(
            f"{op}(): argument 'torch_function' must be a function of one tensor, but got "
            f"{type(torch_function).__name__}"
        )
    record = Activation(
        forward,
        derivative,
        of_pre=True,
        drops=drops,
        torch_function=torch_function,
        in_torch=torch_function,
    )
    known = ACTIVATIONS.get(name)
    if known is not None and not _same(known, record):
        names = ", ".join(each for each, record in ACTIVATIONS.items() if not record.written)
        raise ValueError(f"{op}(): the name {name!r} is taken; the activations are {names}")
    ACTIVATIONS.setdefault(name, record)


def _check_jit(op: str, argument: str, function: Any) -> None:
    if not (isinstance(function, triton.JITFunction) or _modes.made_interpreted(function)):
        raise TypeError(
            f"{op}(): argument '{argument}' must be a @triton.jit function of one argument, but "
            f"got {type(function).__name__}"
        )
    count = len(inspect.signature(function.fn).parameters)
    if count != 1:
        raise TypeError(
            f"{op}(): argument '{argument}' must be a @triton.jit function of one argument, but "
            f"{function.fn.__name__} takes {count}"
        )


def _same(known: Activation, new: Activation) -> bool:
    """Whether two records have the same functions, or functions with the same code."""
    pairs = zip(known, new)
    return all(a is b or a == b or _code(a) == _code(b) is not None for a, b in pairs)


def _code(function: Any) -> Any:
    """A function's code and captured values, for comparison; None if it has no Python code."""
    function = getattr(function, "fn", function)  # a jit function has it
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__qualname__, code.co_code, code.co_consts, code.co_names, captured
