"""Implementations of an op on this machine: each side, in each available mode, in each variant."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import triton_kernels
from compare.cases import DISTANT, Case
from compare.specs import Spec
from cuda_reference import _build, _compilers

# Mode → (side, device). The order is the order of the table's columns.
MODES = {
    "triton-interpreted": ("triton", "cpu"),
    "triton-compiled": ("triton", "cuda"),
    "cuda-host": ("cuda", "cpu"),
    "cuda-gpu": ("cuda", "cuda"),
}

BUILD_TARGETS: dict[str, _compilers.Target] = {"cuda-host": "host", "cuda-gpu": "cuda"}


@dataclass(frozen=True)
class Implementation:
    """One implementation of one op: a mode, and a variant unless it is the default kernel."""

    mode: str
    variant: str | None
    function: Callable[..., Tensor]

    @property
    def name(self) -> str:
        return self.mode + (f"/{self.variant}" if self.variant else "")

    @property
    def side(self) -> str:
        return MODES[self.mode][0]

    @property
    def device(self) -> torch.device:
        return torch.device(MODES[self.mode][1])

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        interpreted = self.mode == "triton-interpreted"
        with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
            return self.function(*args, **kwargs)


def unavailable() -> dict[str, str]:
    """Modes that cannot run here: mode → reason."""
    reasons: dict[str, str] = {}
    if not torch.cuda.is_available():
        reasons["triton-compiled"] = "no CUDA device"
    elif os.environ.get("TRITON_INTERPRET") == "1":
        reasons["triton-compiled"] = "TRITON_INTERPRET=1 is set"
    for mode, target in BUILD_TARGETS.items():
        reason = _build.unavailable(target)
        if reason:
            reasons[mode] = reason
    return reasons


def implementations(spec: Spec, modes: list[str]) -> list[Implementation]:
    """All implementations of an op in the given modes, default kernels first."""
    modes = [mode for mode in modes if getattr(spec, MODES[mode][0]) is not None]
    defaults_first = [Implementation(mode, None, spec.function(MODES[mode][0])) for mode in modes]
    for mode in modes:
        variants = spec.variants(MODES[mode][0])
        if mode == "triton-compiled":
            variants |= spec.pinned()
        elif mode == "cuda-gpu":
            variants |= spec.library()
        defaults_first += [
            Implementation(mode, name, function)
            for name, function in variants.items()
            if name != spec.default_variant
        ]
    return defaults_first


def selected(implementation: Implementation, names: list[str]) -> bool:
    """Whether --impl selects it by side, mode or mode/variant; without names all are selected."""
    own = {implementation.side, implementation.mode, implementation.name}
    if implementation.variant:
        own.add(f"{implementation.side}/{implementation.variant}")
    return not names or bool(own & set(names))


def in_quick_level(implementation: Implementation, spec: Spec) -> bool:
    """Whether the quick level includes it. Of a CUDA side with rungs the quick level runs only the
    plain kernel, the best rung for dense tensors and those for other layouts."""
    best = spec.best_rungs()
    below = implementation.variant not in (None, *best)
    return not (implementation.side == "cuda" and best and below)


# The interpreter takes milliseconds per program, and the pinned variants have many small programs.
VARIANT_LIMIT = 5000  # elements
# A larger case finds too little for its time on the CPU. GPUs take every size.
CPU_LIMIT = 1 << 20  # bytes


def applies(implementation: Implementation, spec: Spec, case: Case) -> bool:
    """Whether the implementation supports the case."""
    # On the host a wrong stride over distant rows leaves mapped memory and ends the process. A GPU
    # and the interpreter report it.
    distant = case.lying & set(DISTANT)
    if implementation.mode == "cuda-host" and distant and distant != case.lying:
        return False
    # An autotuner chooses for compiled kernels, and CUDA has none: the first case is enough.
    if case.options.get("configuration") and implementation.mode != "triton-interpreted":
        return False
    return spec.takes(implementation.side, implementation.variant, case)


def is_quick(implementation: Implementation, spec: Spec, case: Case) -> bool:
    """Whether it runs the case in reasonable time. A case requested by name always runs."""
    if implementation.device.type == "cuda":  # allocates distant tensors in full: at most one
        distant = case.lying & set(DISTANT)
        return not distant or (distant != case.lying and case.torch_dtype.itemsize <= 2)
    if "multiprocessors" in case.options:  # sized for the interpreter
        return True
    if implementation.side == "triton" and implementation.variant and case.numel > VARIANT_LIMIT:
        return False
    return spec.cost(case)[1] <= CPU_LIMIT
