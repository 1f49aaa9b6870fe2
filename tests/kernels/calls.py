"""A good call of each op, on either side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_function import PAIRS
from torch import Tensor

from compare.ops import SPECS

Call = Callable[[str, dict[str, Any]], Tensor]


def good(op: str, device: torch.device) -> dict[str, Any]:
    """Arguments that the op takes; the result is float32 of shape [4, 5], or the first of two."""
    found = {
        name: torch.ones(value, device=device) if isinstance(value, tuple) else value
        for name, value in SPECS[op].sample().items()
    }
    if op not in PAIRS:
        found["out"] = torch.full((4, 5), math.nan, device=device)
    return found


def tensors(op: str) -> list[str]:
    return [name for name, t in good(op, torch.device("cpu")).items() if isinstance(t, Tensor)]


def refused(
    run: Callable[[], Any], op: str, error: type[Exception], words: tuple[str, ...]
) -> None:
    """The call raises exactly that class, and its message names the function and all words."""
    with pytest.raises(error) as caught:
        run()
    message = str(caught.value)
    assert caught.type is error, f"{caught.type.__name__}: {message}"
    assert message.startswith(f"{op}(): "), message
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"
