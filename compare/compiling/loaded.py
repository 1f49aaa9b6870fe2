"""Finds the sources of cuda_reference.load and load_inline behind a Python function.

A launcher takes addresses and returns nothing, so the CUDA side of a spec is mostly a Python
function that calls it. To find the sources to compile, the function runs a small case on the CPU,
and its calls are recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from compare.checking.implementations import unavailable
from compare.checking.without_gpu import WithoutGpu
from compare.specs import Spec
from cuda_reference import _replay
from cuda_reference._on_host import OnHost


class _Calls:
    """Records calls on CPU tensors when they begin."""

    def __init__(self) -> None:
        self.begun: list[OnHost] = []

    def begin(self, call: OnHost, values: Sequence[Any]) -> None:
        self.begun.append(call)

    def end(self, result: Any) -> None:
        pass


@contextlib.contextmanager
def noted() -> Iterator[list[OnHost]]:
    """A list that is filled when the context ends: the first call of each set of sources."""
    calls: list[OnHost] = []
    recorder = _Calls()
    with _replay.recorded_by(recorder), WithoutGpu():
        yield calls
    calls += {tuple(call.sources.items()): call for call in reversed(recorder.begun)}.values()


@functools.cache
def of_spec(spec: Spec) -> list[Any]:
    """The objects with ``machine_code`` that the CUDA side of a spec from elsewhere calls."""
    if spec.cuda is None or hasattr(spec.cuda, "machine_code"):
        return [] if spec.cuda is None else [spec.cuda]
    if "cuda-host" in unavailable():
        return []
    function: Callable[..., Any] = spec.function("cuda")
    with noted() as calls:
        for dtype in spec.dtypes:
            case = next((each for each in spec.cases(dtype, "quick") if each.numel), None)
            if case is not None:
                arguments, options = spec.inputs(case)
                with contextlib.suppress(Exception):  # check and debug report these errors
                    spec.called(case, function)(*arguments, **options)
    return calls
