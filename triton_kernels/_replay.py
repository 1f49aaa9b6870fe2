"""Replays an op's call that equals an earlier one: only its launches are repeated.

The launches of a call follow from what :class:`Plan` compares, except for addresses and a few
numbers: the tensors' classes, dtypes, shapes, strides, devices, alignments, dispatch keys (which
differ for lazily negated views, wrappers and modes) and whether they require grad; and the other
arguments. So the second of such calls is recorded: every launch, with the origin of each of its
arguments. Later calls allocate new results and start the same kernels. They need no checks, because
these would have the same outcome as for the recorded call.

The comparison is done by torch's C++ code (the guards of torch.compile) and takes less time than
reading a tensor's shape. Nothing is replayed while something observes calls or launches: inside
:func:`triton_kernels.interpret` and ``annotate()``, under Triton's hooks, dispatch modes and
transforms, and with ``out=``. A call with an argument of unknown origin, such as a copy that an op
makes of an input, is not recorded, and runs as the first call did.

A call of an elementwise op on dense tensors is replayed on tensors of other sizes, too: nothing in
its launch depends on them but the number of elements and the grid. Of a size that comes again and
again, a call is recorded on its own, because comparing exact sizes takes less time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from triton_kernels import _known_calls, _launch, _modes, _plans, _starting
from triton_kernels._launch import REMEMBERED, Launch
from triton_kernels._plans import Counted, FlatPlan, Plan, getter, made_from

dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)

DEVICES = ("cuda",)
ALIKE = 8  # plans kept per key; a key has the first tensor's shape and dtype, not the others'
PATIENCE = 8  # calls of one size by a plan for every size, before one is recorded for this size
_CALL = Launch.__call__  # annotating replaces it

# (device, whether a plan is flat or has descriptors): the kinds of plans that failed, and that were
# tested.
_wrong: set[tuple[int, bool, bool]] = set()
_tested: set[tuple[int, bool, bool]] = set()


class Replays:
    """The recorded calls of one op.

    Args:
        launch: the op on plain tensors.
        count: the number of its arguments.
        tensors: the indices of tensors; the first of these is never None.
        numbers: index of a number that a kernel takes unchanged → its index among the kernel's
            arguments.
        counted: tells of a launch whether it fits other sizes, except for a number of elements.
    """

    def __init__(
        self,
        launch: Callable[..., Any],
        count: int,
        tensors: Sequence[int],
        numbers: Mapping[int, int],
        counted: Counted | None = None,
    ) -> None:
        self.plans: dict[Any, list[Plan]] = {}
        self._counted = counted
        self._launch, self._tensors, self._numbers = launch, tuple(tensors), numbers
        self._first = tensors[0]
        rest = [i for i in range(count) if i not in (*tensors, *numbers)]
        self._rest = getter(rest)
        # key → the number of its calls that were not replayed, or by a plan for every size
        self.seen: dict[Any, int] = {}
        _known_calls.every.add(self)

    def forget(self) -> None:
        """Forget the recorded calls."""
        self.plans.clear()
        self.seen.clear()

    def again(self, args: tuple[Any, ...]) -> Any:
        """Replay a call and return its results. None if no plan fits, or nothing may be replayed
        now. ``DIFFERENTIATED`` if a plan fits, but autograd must record the call."""
        first = args[self._first]
        kind = type(first)
        if (kind is not Tensor and kind is not Parameter) or _known_calls.suspensions:
            return None
        try:
            key = first.shape, first.dtype, self._rest(args)
            plans = self.plans.get(key)
        except (RuntimeError, TypeError):  # a NestedTensor has no shape; a list has no hash
            return None
        results = None if plans is None else self._by(plans, args)
        if results is None and self._counted is not None:
            plans = self.plans.get(_of_any_size(key))
            if plans is not None and (times := self.seen.get(key, 0)) != PATIENCE:
                results = self._by(plans, args)
                if results is not None:
                    self._see(key, times)
        return results

    def _by(self, plans: Sequence[Plan], args: tuple[Any, ...]) -> Any:
        for plan in plans:
            if plan.fits(args):
                if _observed(plan.kernel):
                    return None
                if plan.requires_grad and torch.is_grad_enabled():
                    return DIFFERENTIATED
                results = plan(args)
                if results is not None:
                    return results
        return None

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Run a call without replaying it and return its results. A repeated call is recorded,
        unless it is part of another call that is being recorded."""
        key = self._key(args) if _launch.recorder.now is None else None
        if key is None:
            return self._launch(*args)
        often = self.seen.get(key, 0) >= PATIENCE
        repeated = self._repeated(key)
        if self._counted is not None:
            repeated |= self._repeated(_of_any_size(key))
        if not repeated or torch.cuda.is_current_stream_capturing():
            return self._launch(*args)  # during the capture of a CUDA graph no plan can be tested
        with _launch.recording() as recording:
            results = self._launch(*args)
        taken = self._tensors, self._numbers, self._rest
        plan = made_from(recording, args, results, *taken, None if often else self._counted)
        if plan is not None and _right(plan, args, results):
            if len(self.plans) >= REMEMBERED:
                self.plans.clear()
            if isinstance(plan, FlatPlan):
                key = _of_any_size(key)
            self.plans[key] = [plan, *self.plans.get(key, ())][:ALIKE]
        return results

    def _repeated(self, key: Any) -> bool:
        """Whether calls of this key came before, but not so many that recording does not help."""
        times = self.seen.get(key, 0)
        self._see(key, times)
        return 1 <= times <= 2 * ALIKE

    def _see(self, key: Any, times: int) -> None:
        if len(self.seen) >= REMEMBERED:
            self.seen.clear()
        self.seen[key] = times + 1

    def _key(self, args: tuple[Any, ...]) -> Any:
        """The key of a call, or None if it cannot be recorded."""
        if None in (_plans.TensorGuards, _plans.empty, dispatch_modes) or _known_calls.suspensions:
            return None
        first = args[self._first]
        if type(first) not in (Tensor, Parameter) or first.device.type not in DEVICES:
            return None
        try:
            key = first.shape, first.dtype, self._rest(args)
            hash(key)
        except (RuntimeError, TypeError):  # as in again()
            return None
        return key


def _of_any_size(key: tuple[torch.Size, torch.dtype, Any]) -> Any:
    """The key of flat plans, which fit tensors of any size."""
    shape, dtype, rest = key
    return len(shape), dtype, rest


def _observed(kernel: Any) -> bool:
    """Whether something observes calls or launches of a kernel, or changes how they run. That
    includes the recording of another op that calls this one."""
    return bool(
        dispatch_modes()
        or forward_ad._current_level >= 0
        or Launch.__call__ is not _CALL
        or _modes.interpreting_thread is not None
        or _modes.compiling_thread is not None
        or _launch.recorder.now is not None
        or _starting.watched(kernel)
    )


DIFFERENTIATED = object()


def _right(plan: Plan, args: tuple[Any, ...], results: Any) -> bool:
    """Whether a plan may be used. On each device the first plan, the first one with
    descriptors, and the first flat one, are run and compared with the recorded call."""
    by_maps = any(step.maps for step in plan._steps)
    kind = plan._device, by_maps, isinstance(plan, FlatPlan)
    if kind not in _tested:
        _tested.add(kind)
        try:
            with torch.no_grad():
                again = plan(args)
                pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (again, results)))
                same = again is not None and all(_same(a, b) for a, b in pairs)
            error = "" if same else "it gives another result"
        except torch.OutOfMemoryError:
            _tested.discard(kind)
            return False
        except Exception as raised:  # noqa: BLE001 - after any error, calls are not replayed
            error = f"{type(raised).__name__}: {raised}"
        if error:
            _wrong.add(kind)
            warnings.warn(
                "repeated calls take longer from now on, because starting a kernel by Triton's C "
                f"launcher fails; please report it: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return kind not in _wrong


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors have the same bits."""
    if a.stride() != b.stride():
        return False
    first, second = (t.clone(memory_format=torch.contiguous_format).view(-1) for t in (a, b))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
