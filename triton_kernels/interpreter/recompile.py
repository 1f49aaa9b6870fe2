"""Compiled launches under other settings of the compiler, beside everything that is cached.

Inside :func:`recompiling` every launch, of whichever kernel, is compiled with the settings asked
for. Settings that are no launch options are not part of Triton's cache keys: those launches get
caches of their own, in memory and on disk, which are thrown away at the end.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.language.semantic import TritonSemantic

DEFAULTS = {"num_warps": 4, "num_stages": 3}  # of Triton, where a launch does not say


def fuses() -> bool:
    """Whether launches that do not say let the compiler contract x*y + z to an fma."""
    return bool(triton.knobs.language.default_fp_fusion)


@dataclass
class Seen:
    """What the launches were before the change.

    Attributes:
        options: a dict a launch: num_warps and num_stages.
        precisions: the input precisions of every tl.dot of float32 that was compiled anew.
    """

    options: list[dict[str, int]] = field(default_factory=list)
    precisions: set[str] = field(default_factory=set)


@contextlib.contextmanager
def recompiling(
    change: Callable[[dict[str, int]], dict[str, Any]] = lambda options: {},
    precision: Callable[[str], str] | None = None,
    optimise: bool = True,
) -> Iterator[Seen]:
    """Inside, launches compile differently. Not thread-safe, as Triton's own knobs are not.

    Args:
        change: from a launch's num_warps and num_stages to the launch options to set.
        precision: from the input precision of a tl.dot of float32 to the one that it gets.
        optimise: whether ptxas optimises.
    """
    seen, inner_run, inner_dot = Seen(), triton.JITFunction.run, TritonSemantic.dot
    apart = precision is not None or not optimise
    caches: dict[int, Any] = {}

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = {name: kwargs.get(name, usual) for name, usual in DEFAULTS.items()}
        seen.options.append(options)
        kwargs |= change(options)
        if not apart:
            return inner_run(self, *args, **kwargs)
        kept = self.device_caches
        self.device_caches = caches.setdefault(id(self), type(kept)(kept.default_factory))
        try:
            return inner_run(self, *args, **kwargs)
        finally:
            self.device_caches = kept

    def dot(
        self: Any, lhs: Any, rhs: Any, acc: Any, input_precision: Any, *rest: Any, **named: Any
    ) -> Any:
        if precision is not None and lhs.dtype.is_fp32():
            seen.precisions.add(input_precision)
            input_precision = precision(input_precision)
        return inner_dot(self, lhs, rhs, acc, input_precision, *rest, **named)

    with contextlib.ExitStack() as stack:
        if apart:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(triton.knobs.cache.scope())
            triton.knobs.cache.dir = folder
        if not optimise:
            stack.enter_context(triton.knobs.nvidia.scope())
            triton.knobs.nvidia.disable_ptxas_opt = True
        triton.JITFunction.run, TritonSemantic.dot = run, dot
        try:
            yield seen
        finally:
            triton.JITFunction.run, TritonSemantic.dot = inner_run, inner_dot
