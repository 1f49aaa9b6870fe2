"""The oracle's results of a call, for the judge. Results of a huge call come in slices.

The float64 results of 2³¹ elements, and the intermediates for computing and comparing them, would
fill any GPU. So neither the results nor a bound exist as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from compare.cases import Arguments, Case
from compare.ops import words
from compare.specs import Spec


class Part(NamedTuple):
    """A slice of a call's results along one dimension.

    Attributes:
        arguments: of the call that computes only this slice.
        reference: the oracle's results.
        along, start: the dimension, or None for all results, and where the slice begins.
    """

    arguments: Arguments
    reference: Tensor
    along: int | None = None
    start: int = 0

    def of(self, result: Tensor) -> Tensor:
        """The same slice of a result."""
        if self.along is None:
            return result
        return result.narrow(self.along, self.start, self.reference.shape[self.along])

    def place(self, inside: tuple[int, ...]) -> tuple[int, ...]:
        """The index in the whole result of an element of the slice."""
        return tuple(i + self.start * (d == self.along) for d, i in enumerate(inside))


class OracleError(RuntimeError):
    """A spec's oracle failed on a case, so nothing can be checked with it."""


def results(spec: Spec, arguments: Arguments) -> Tensor:
    """All of the oracle's results.

    Raises:
        OracleError: the oracle of a spec from elsewhere raises, or returns no tensor.
    """
    args, kwargs = arguments
    try:
        result = spec.oracle(*args, **kwargs)
    except Exception as error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or not spec.own:
            raise
        raise OracleError(f"{spec.name}: its oracle raises {words(error)}") from error
    if not isinstance(result, Tensor):
        kind = type(result).__name__
        several = (
            "; several are named by the spec's argument 'outputs'" if kind != "NoneType" else ""
        )
        raise OracleError(f"{spec.name}: its oracle returns {kind}, which is no tensor{several}")
    return result


def check_precision(spec: Spec, case: Case, dtype: torch.dtype) -> None:
    """Refuse an oracle whose dtype is too narrow to judge the results.

    Raises:
        OracleError: a spec's own oracle is less precise than the results are.
    """
    of_results = spec.out_dtype(case) if spec.own and spec.bounded else dtype
    if not (of_results.is_floating_point and dtype.is_floating_point):
        return
    if torch.finfo(dtype).eps > torch.finfo(of_results).eps:
        told = f"its oracle returns {dtype}, and results are {of_results}"
        remedy = "return that or torch.float64, or say another out_dtype"
        raise OracleError(f"{spec.name}: {told}: {remedy}")


class Oracle:
    """The oracle's results of a call. Results that are not sliced are computed once.

    Args:
        spec, arguments: the op and the call.
        whole: the results, if they are already computed.

    Attributes:
        like: a tensor of the results' shape, dtype and device; its values may be arbitrary.
    """

    def __init__(self, spec: Spec, arguments: Arguments, whole: Tensor | None = None) -> None:
        self._spec, self._arguments = spec, arguments
        self._slices, self._whole = spec.slices(arguments), whole
        if whole is None and self._slices is None:
            self._whole = results(spec, arguments)
        if self._whole is not None:
            self.like = self._whole
        else:
            shape, some = spec.result_shape(arguments), next(self.parts()).reference
            self.like = torch.zeros((), dtype=some.dtype, device=some.device).expand(shape)

    @classmethod
    def of(cls, spec: Spec, arguments: Arguments, reference: Tensor | Oracle) -> Oracle:
        """An oracle for computed results; an Oracle is returned as it is."""
        return reference if isinstance(reference, Oracle) else cls(spec, arguments, reference)

    def parts(self) -> Iterator[Part]:
        """All results of the call, each once."""
        if self._slices is None:
            assert self._whole is not None
            yield Part(self._arguments, self._whole)
            return
        along, step = self._slices
        length, whole = self._spec.result_shape(self._arguments)[along], self._whole
        for start in range(0, length, step):
            size = min(step, length - start)
            args, kwargs = arguments = self._spec.part(self._arguments, along, start, size)
            if whole is None:
                reference = self._spec.oracle(*args, **kwargs)
            else:
                reference = whole.narrow(along, start, size)
            yield Part(arguments, reference, along, start)
