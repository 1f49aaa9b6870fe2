"""The outputs of a call, one tensor or several in tuples, lists and dicts, and what they must
be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compare.checking import judging
from compare.checking.judging import Comparison
from compare.copies import tensors


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested tuples, lists and dicts, by their path: ``[0]``, ``['lse'][1]``; a value
    that is not nested has the empty path."""
    if isinstance(value, Mapping):
        items = [(f"{name}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, (tuple, list)):
        items = [(f"{name}[{i}]", each) for i, each in enumerate(value)]
    else:
        return {name: value}
    return {at: leaf for inner, each in items for at, leaf in flat(each, inner).items()}


def _of_output(option: Any, argument: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The value of an option for every output. The option is one value for all outputs or is nested
    like them; one value for a nested part is for all outputs in it."""
    given = flat(option)
    values = {
        output: next((value for at, value in given.items() if output.startswith(at)), None)
        for output in outputs
    }
    if unknown := [at for at in given if not any(output.startswith(at) for output in outputs)]:
        raise ValueError(
            f"cross_check(): argument {argument!r} has a value for output {unknown[0]}, but the "
            f"oracle returned {listed(outputs)}"
        )
    return values


def listed(outputs: Mapping[str, Any]) -> str:
    """The names of outputs, for error texts."""
    return "one tensor" if list(outputs) == [""] else ", ".join(outputs) or "nothing"


@dataclass(frozen=True)
class Expected:
    """The requirements for one output on one set of inputs.

    Attributes:
        reference: the oracle's output.
        dtypes: the allowed dtypes; empty allows any floating dtype.
        max_ulps, bound: the tolerance; the bound if there is one.
    """

    reference: Tensor
    dtypes: tuple[torch.dtype, ...]
    max_ulps: float
    bound: Tensor | None = None

    def compare(self, result: Tensor) -> Comparison:
        """Judge every element of a result of the right shape."""
        result = result.detach()
        reference = self.reference.to(result.device)
        if self.bound is None:
            return judging.by_ulps(result, reference, self.max_ulps)
        return judging.by_bound(result, reference, self.bound.to(result.device))

    def refuse(self, result: Any) -> None:
        """Raise if a result is no tensor of the right shape and dtype."""
        if not isinstance(result, Tensor):
            raise TypeError(f"returned {type(result).__name__}, expected a tensor")
        shape = list(self.reference.shape)
        if list(result.shape) != shape:
            raise ValueError(f"returned shape {list(result.shape)}, expected {shape}")
        able = result.dtype in self.dtypes if self.dtypes else result.is_floating_point()
        if not able:
            expected = " or ".join(map(str, self.dtypes)) or "a floating dtype"
            raise TypeError(
                f"returned {result.dtype}, expected {expected}; if that is right, say "
                f"dtype={result.dtype}"
            )


Expectations = dict[str, Expected | None]  # by output; None accepts anything


def expected_outputs(
    returned: Any,
    arguments: tuple[Any, ...],
    given: Callable[[], tuple[Any, ...]],
    max_ulps: Any,
    bound: Any,
    dtype: Any,
) -> Expectations:
    """The expectations for one entry of ``inputs``, by output.

    Args:
        returned, given: the oracle's outputs; makes the arguments of a bound after its result.
        max_ulps, bound, dtype: one for all outputs, or nested like them.

    Raises:
        TypeError, ValueError: as :func:`compare.cross_check` does.
    """
    said = flat(returned)
    references = {at: each for at, each in said.items() if each is not None}
    for at, reference in references.items():
        _check_reference(at, reference)
    references = {at: reference.detach() for at, reference in references.items()}
    if not references:
        raise TypeError("cross_check(): the oracle returned no tensor: nothing would be checked")
    options = {"max_ulps": max_ulps, "bound": bound, "dtype": dtype}
    ulps, bounds, dtypes = (_of_output(value, name, said) for name, value in options.items())
    outputs: Expectations = dict.fromkeys(said)
    for at, reference in references.items():
        limit = None
        if bounds[at] is not None:
            limit = _limit(bounds[at](reference, *given()), reference, at)
        able = (dtypes[at],) if dtypes[at] is not None else _able(reference, arguments)
        most = 1.0 if ulps[at] is None else ulps[at]
        judging.check_max_ulps(most)
        outputs[at] = Expected(reference, able, most, limit)
    return outputs


def judged_outputs(expected: Expectations) -> list[tuple[str, Expected]]:
    """The outputs for which the oracle has a value."""
    return [(at, wanted) for at, wanted in expected.items() if wanted is not None]


def outputs_of(returned: Any, expected: Expectations) -> dict[str, Any]:
    """The outputs of a function, by path.

    Raises:
        TypeError: they are not those of the oracle.
    """
    outputs = {"": returned} if list(expected) == [""] else flat(returned)
    wrong = [at for at, wanted in expected.items() if wanted is not None and at not in outputs]
    wrong += [at for at in outputs if not any(at.startswith(known) for known in expected)]
    if wrong:
        raise TypeError(
            f"returned {listed(outputs)}, but the oracle returned {listed(expected)}; for an "
            "output that may hold anything it returns None"
        )
    return outputs


def _check_reference(at: str, reference: Any) -> None:
    where = f" for output {at}" if at else ""
    if not isinstance(reference, Tensor):
        raise TypeError(
            f"cross_check(): the oracle returned a {type(reference).__name__}{where}: it must be a "
            "tensor, or tuples, lists and dicts of tensors"
        )
    if reference.is_complex():
        raise TypeError(
            f"cross_check(): the oracle returned complex numbers{where}, which are not judged"
        )


def _limit(limit: Any, reference: Tensor, at: str) -> Tensor:
    try:
        wide = torch.as_tensor(limit, device=reference.device).double().expand(reference.shape)
        judging.check_bound(wide, reference)
    except (RuntimeError, ValueError) as error:
        where = f", for output {at}" if at else ""
        raise ValueError(f"cross_check(): argument 'bound'{where}: {error}") from None
    return wide


def _able(reference: Tensor, arguments: tuple[Any, ...]) -> tuple[torch.dtype, ...]:
    """The dtypes that a result may have by default."""
    if reference.dtype != torch.float64:
        return (reference.dtype,)
    given = [t.dtype for t in tensors(arguments) if t.is_floating_point()]
    return _as_wide_as(functools.reduce(_promoted, given)) if given else ()


def _as_wide_as(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    floats = torch.float16, torch.bfloat16, torch.float32, torch.float64
    able = (f for f in (dtype, *floats) if _promoted(dtype, f) == f)
    return tuple(dict.fromkeys(able))


def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch.promote_types of floating-point dtypes, extended to float8, which it refuses: two
    different float8 dtypes have float16 in common, and every wider dtype holds them."""
    if a == b:
        return a
    wide = [dtype for dtype in (a, b) if dtype.itemsize > 1]
    return torch.promote_types(*wide) if len(wide) == 2 else (wide or [torch.float16])[0]
