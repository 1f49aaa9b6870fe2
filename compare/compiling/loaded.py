"""What cuda_reference.load or load_inline made, within functions that call it.

A launcher takes addresses and returns nothing, so a spec's CUDA side is mostly a function round it.
Its machine code is that of what it calls: a small case tells, on the CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from compare.checking import running
from compare.checking.implementations import unavailable
from compare.specs import Spec
from cuda_reference import _replay
from cuda_reference._on_host import OnHost


class _Calls:
    """The calls on CPU tensors, as they begin."""

    def __init__(self) -> None:
        self.begun: list[OnHost] = []

    def begin(self, call: OnHost, values: Sequence[Any]) -> None:
        self.begun.append(call)

    def end(self, result: Any) -> None:
        pass


@contextlib.contextmanager
def noted() -> Iterator[list[OnHost]]:
    """Inside, every call is noted, the first of each set of sources."""
    calls: list[OnHost] = []
    recorder = _Calls()
    with _replay.recorded_by(recorder), running.WithoutGpu():
        yield calls
    calls += {tuple(call.sources.items()): call for call in reversed(recorder.begun)}.values()


@functools.cache
def of_spec(spec: Spec) -> list[Any]:
    """What the CUDA side of a spec from elsewhere is made of: each has ``machine_code``."""
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
                with contextlib.suppress(Exception):  # check and debug tell of those
                    spec.called(case, function)(*arguments, **options)
    return calls
