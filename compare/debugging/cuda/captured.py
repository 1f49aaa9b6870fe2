"""The call that a function makes of a loaded or inline CUDA function, to be debugged alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from compare.cases import CPU, Case, Guarded
from compare.checking import running
from compare.checking.implementations import Implementation, unavailable
from compare.copies import copies
from compare.debugging.cuda import calls
from compare.ops import spec_of
from cuda_reference import _replay
from cuda_reference._on_host import OnHost


class Recorder:
    """Records calls on CPU tensors.

    Attributes:
        calls: each with copies of its arguments from before the call.
        given: the tensors of the last call, by parameter.
        returned: the value that the last call returned.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[OnHost, tuple[Any, ...]]] = []
        self.given: dict[str, Tensor] = {}
        self.returned: Any = None

    def begin(self, call: OnHost, values: Sequence[Any]) -> None:
        """Called before a call."""
        self.calls.append((call, copies(tuple(values), CPU)))
        self.given = {each.name: each.argument for each in call.given(values)}

    def end(self, result: Any) -> None:
        """Called after a call."""
        self.returned = result

    def named(self, result: Tensor) -> str | None:
        """The name of a tensor in the last call; None if it is neither a result nor an argument."""
        returned = self.returned if isinstance(self.returned, (list, tuple)) else [self.returned]
        tensors = [t for t in returned if t is None or isinstance(t, Tensor)]
        known = {**self.given, **calls.named_results(tensors)}
        return next((name for name, t in known.items() if _same(t, result)), None)


def _same(a: Tensor, b: Tensor) -> bool:
    def place(t: Tensor) -> Any:
        return t.data_ptr(), t.shape, t.stride(), t.dtype

    return bool(place(a) == place(b))


def of_target(case: Case) -> bytes | None:
    """The single CUDA call in a case of a target, for the processes of the tools. None if there are
    several calls, or if the call does not make the result; then the whole case is run."""
    if "cuda-host" in unavailable():
        return None
    spec = spec_of(case.op)
    function = Implementation("cuda-host", None, spec.function("cuda", None))
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    recorder = Recorder()
    guards: list[Guarded] = []
    result: Tensor | None = None
    with _replay.recorded_by(recorder):
        try:
            result, _ = running.call(spec, case, function, arguments, reference, guards=guards)
        except Exception:  # noqa: BLE001 - the tools will examine the kernel's error
            result = None
    if len(recorder.calls) != 1:
        return None
    (call, values), expected, limits = recorder.calls[0], {}, {}
    if result is not None:
        name = recorder.named(result)
        if name is None or result.shape != reference.shape:
            return None
        expected[name] = reference
        bound = running.bounds(spec, case, function.name, arguments, result, reference)
        if bound is not None:
            limits[name] = bound
    fresh = {guarded.out.data_ptr() for guarded in guards} if case.layout != "inplace" else set()
    uninitialized = [name for name, t in recorder.given.items() if t.data_ptr() in fresh]
    max_ulps = 0.0 if spec.max_ulps is None else spec.max_ulps
    return calls.pack(call, values, expected, limits, max_ulps, uninitialized)
