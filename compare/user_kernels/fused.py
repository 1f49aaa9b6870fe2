"""check_fused: a module rewritten by triton_kernels.fuse, against the same module in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import triton_kernels
from compare import numerics
from compare.user_kernels.cross_checking import Report, judged
from compare.user_kernels.outputs import Expected, flat
from triton_kernels.graph.matching import PASSES


def check_fused(
    module: nn.Module,
    inputs: Sequence[tuple[Any, ...] | dict[str, Any]],
    *,
    min_score: float = 0.0,
    passes: Sequence[str] = PASSES,
) -> Report:
    """Check the module that :func:`triton_kernels.fuse` makes, without gradients.

    The reference is a copy of the module in float64. The bound is the rule for this package's
    products relative to eager: \\|fused − reference\\| ≤ 2·max\\|unfused − reference\\| plus one
    ulp of the largest reference. CPU tensors run interpreted.

    Args:
        module: takes tensors, and returns one, or several in tuples, lists and dicts, as models of
            Hugging Face do. It must be deterministic (``eval()``).
        inputs: a list of argument tuples, or of dicts of keyword arguments.
        min_score, passes: as in :func:`triton_kernels.fuse`; by default all that can be fused is.

    Returns:
        A :class:`compare.Report`, true if all is right.

    Raises:
        TypeError: ``inputs`` is not a list of tuples, or the module returns no tensor.
        ValueError: ``inputs`` is empty.
    """
    if isinstance(inputs, Tensor) or not all(isinstance(each, (tuple, dict)) for each in inputs):
        raise TypeError(
            "check_fused(): argument 'inputs' must be a list of argument tuples, or of dicts"
        )
    if not inputs:
        raise ValueError("check_fused(): argument 'inputs' is empty: nothing would be checked")
    fused = triton_kernels.fuse(module, min_score=min_score, passes=passes)
    exact = copy.deepcopy(module).double()
    report = Report(agree=False)
    with torch.no_grad():
        for number, given in enumerate(inputs):
            arguments = given if isinstance(given, tuple) else tuple(given.values())
            keys = () if isinstance(given, tuple) else tuple(given)
            unfused = _called(module, keys)(*arguments)
            reference = flat(_called(exact, keys)(*_wide(arguments)))
            expected = {at: _expected(t, reference.get(at)) for at, t in flat(unfused).items()}
            if not any(expected.values()):
                raise TypeError(f"check_fused(): the module returned {type(unfused).__name__}")
            findings, _ = judged("fused", _called(fused, keys), number, arguments, expected)
            report.findings += findings
    return report


def _called(module: nn.Module, keys: tuple[str, ...]) -> Callable[..., Any]:
    """The module as a function of positional arguments with these names."""

    def call(*arguments: Any) -> Any:
        return module(**dict(zip(keys, arguments))) if keys else module(*arguments)

    return call


def _expected(unfused: Any, reference: Any) -> Expected | None:
    """The requirements for a floating output; None, which accepts anything, for others."""
    if not isinstance(unfused, Tensor) or not unfused.is_floating_point():
        return None
    return Expected(reference, (unfused.dtype,), 0.0, _eager_rule(unfused, reference))


def _wide(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
    )


def _eager_rule(unfused: Tensor, reference: Tensor) -> Tensor:
    """The same bound for all elements that are finite; the others must be equal."""
    finite = unfused.isfinite() & reference.isfinite()
    if not finite.any():
        return torch.zeros_like(reference)
    ulp = numerics.ulp_of(reference[finite].abs().max().item(), unfused.dtype)
    error = (unfused.double() - reference)[finite].abs().max().item()
    return torch.full_like(reference, 2 * error + ulp)
