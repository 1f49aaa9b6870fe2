"""An op whose CUDA side hangs, crashes or writes wildly at some sizes, in a worker process."""

from __future__ import annotations

import ctypes
from typing import Any

import toys
from torch import Tensor

from compare.cases import Case
from compare.checking import scheduling
from compare.ops import SPECS

HANG, SEGFAULT, WILD = 13, 17, 19  # the sizes


def square(x: Tensor, *, out: Tensor) -> Tensor:
    if x.numel() == HANG:
        toys.misbehave("hang")
    if x.numel() == SEGFAULT:
        toys.misbehave("segfault")
    if x.numel() == WILD:
        ctypes.memset(out.data_ptr(), 255, 1 << 40)
    return out.copy_(x * x)


def run_case(case: Case, names: list[str], attack: int) -> Any:
    """In place of the scheduling's own: plants the op in the worker, too."""
    SPECS["square"] = SPECS["square"].changed(cuda=square)
    return scheduling.run_case(case, names, attack)
