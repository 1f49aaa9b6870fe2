"""Compiled launches with other compiler settings, outside of all caches.

Inside :func:`recompiling` every launch of any kernel is compiled with the given settings. Settings
that are no launch options are not part of Triton's cache keys. Such launches get their own caches,
in memory and on disk, which are deleted at the end.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.language.semantic import TritonSemantic

DEFAULTS = {"num_warps": 4, "num_stages": 3}  # Triton's, for launches without these options


def fuses() -> bool:
    """Whether the compiler may by default contract x*y + z to an fma."""
    return bool(triton.knobs.language.default_fp_fusion)


@dataclass
class Seen:
    """The launches before the change.

    Attributes:
        options: num_warps and num_stages of each launch.
        precisions: the input precisions of every compiled tl.dot of float32.
    """

    options: list[dict[str, int]] = field(default_factory=list)
    precisions: set[str] = field(default_factory=set)


@contextlib.contextmanager
def recompiling(
    change: Callable[[dict[str, int]], dict[str, Any]] = lambda options: {},
    precision: Callable[[str], str] | None = None,
    optimise: bool = True,
) -> Iterator[Seen]:
    """Launches compile with other settings. Not thread-safe, like Triton's own knobs.

    Args:
        change: makes launch options from a launch's num_warps and num_stages.
        precision: makes the input precision of a tl.dot of float32 from the requested one.
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
