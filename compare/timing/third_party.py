"""Peers from other packages, if they are installed.

FlagGems replaces torch's operators one by one, so a fused op of ours is two or three of its own.
QuACK fuses a product with its activation; it takes 16-bit floats and rows of whole 16 bytes.
Liger-Kernel has none of these functions: its GELU and SiLU are gated, its products end in a loss.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from compare.cases import Case

Make = Callable[[], Callable[..., Tensor]]  # imports its package when called


def _gems() -> Any:
    return importlib.import_module(f"{FLAG_GEMS}.ops")


def _gems_relu_scale() -> Callable[..., Tensor]:
    ops = _gems()
    return lambda x, *, scale: ops.mul(ops.relu(x), scale)


def _gems_relu_scale_add() -> Callable[..., Tensor]:
    ops = _gems()
    return lambda x, y, *, scale: ops.add(ops.mul(ops.relu(x), scale), y)


def _gems_linear_gelu() -> Callable[..., Tensor]:
    ops = _gems()

    def call(x: Tensor, weight: Tensor, bias: Tensor, *, approximate: str) -> Tensor:
        pre = ops.addmm(bias, x.flatten(0, -2), weight.t())
        result: Tensor = ops.gelu(pre, approximate=approximate).view(*x.shape[:-1], -1)
        return result

    return call


def _gems_gemm_bias_relu() -> Callable[..., Tensor]:
    ops = _gems()
    return lambda a, b, bias, *, act: ops.relu(ops.addmm(bias, a, b))


def _quack_linear_gelu() -> Callable[..., Tensor]:
    gemm_act = importlib.import_module(f"{QUACK}.gemm_interface").gemm_act

    def call(x: Tensor, weight: Tensor, bias: Tensor, *, approximate: str) -> Tensor:
        rows, act = x.flatten(0, -2), "gelu_tanh_approx"
        result: Tensor = gemm_act(rows, weight.t(), bias=bias, activation=act, store_preact=False)[
            1
        ]
        return result.view(*x.shape[:-1], -1)

    return call


def _quack_gemm_bias_relu() -> Callable[..., Tensor]:
    gemm_act = importlib.import_module(f"{QUACK}.gemm_interface").gemm_act

    def call(a: Tensor, b: Tensor, bias: Tensor, *, act: str) -> Tensor:
        result: Tensor = gemm_act(a, b, bias=bias, activation="relu", store_preact=False)[1]
        return result

    return call


FLAG_GEMS, QUACK = "flag_gems", "quack"
# Package → op → a function that makes the callable, which takes the timed cases' arguments.
PEERS: dict[str, dict[str, Make]] = {
    FLAG_GEMS: {
        "add": lambda: _gems().add,
        "square": lambda: _gems().square,
        "relu_scale": _gems_relu_scale,
        "relu_scale_add": _gems_relu_scale_add,
        "linear_gelu": _gems_linear_gelu,
        "gemm_bias_act": _gems_gemm_bias_relu,
    },
    QUACK: {"linear_gelu": _quack_linear_gelu, "gemm_bias_act": _quack_gemm_bias_relu},
}


def missing() -> list[str]:
    """The packages that are not installed."""
    return [package for package in PEERS if find_spec(package) is None]


def offers(package: str, op: str, case: Case | None) -> bool:
    """Whether an installed package computes the op, and the case if one is given."""
    if op not in PEERS[package] or find_spec(package) is None:
        return False
    if package == QUACK and case is not None:
        return case.dtype in ("float16", "bfloat16") and all(n % 8 == 0 for n in case.shape[1:])
    return True


def function(package: str, op: str) -> Callable[..., Tensor]:
    """The package's function for the op; the package is imported at the first call."""
    made: list[Callable[..., Tensor]] = []

    def call(*args: Any, **kwargs: Any) -> Tensor:
        if not made:
            made.append(PEERS[package][op]())
        return made[0](*args, **kwargs)

    return call
