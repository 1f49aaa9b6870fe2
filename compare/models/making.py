"""Models by name: the architectures of this package, and those that a function of yours returns."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NamedTuple

import torch

from compare.models.architectures import ARCHITECTURES


class Made(NamedTuple):
    """A model, and the arguments of one call."""

    model: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]


def named(name: str, dtype: torch.dtype, device: str, layers: int) -> Made:
    """One of ``ARCHITECTURES``.

    Raises:
        ImportError: transformers is not installed.
    """
    chosen = ARCHITECTURES[name]
    return Made(chosen.make(dtype, device, layers), (), chosen.arguments(dtype, device))


def targeted(target: str) -> Made:
    """What ``module:factory`` returns: the model and its arguments, a tensor, a tuple or a dict.

    Raises:
        ValueError: no such function, or it returns something else.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise ValueError(f"--target {target}: MODULE:FACTORY, as in my_module:make")
    if (here := os.getcwd()) not in sys.path:  # an installed command does not have it there
        sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--target {target}: {error}") from None
    made = factory()
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(
            f"--target {target}: it must return the model and its arguments, a tensor, a tuple or "
            f"a dict, but returned {type(made).__name__}"
        )
    model, given = made
    if isinstance(given, dict):
        return Made(model, (), given)
    return Made(model, given if isinstance(given, tuple) else (given,), {})
