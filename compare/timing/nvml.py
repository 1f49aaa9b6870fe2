"""The GPU's clocks, temperature, power and what slows it, by NVML: the driver's library.

nvidia-ml-py asks it within the process: starting nvidia-smi takes a good part of a second, too long
amid a case. Without the package, the library or a GPU nothing is told; :func:`missing` says why.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

POWER_CAP = "power cap"
# Bits of NVML's event reasons that mean slower than asked. The power cap is how large matrix
# products normally run; the others are a machine that is too hot, or lacks power.
SLOWED = {0x4: POWER_CAP, 0x8: "slowdown", 0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}

# Name → function, further arguments, and what makes the unit of it.
_NUMBERS: dict[str, tuple[str, tuple[int, ...], float]] = {
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", (1,), 1.0),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", (2,), 1.0),
    "temperature_c": ("nvmlDeviceGetTemperature", (0,), 1.0),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
}
# By its new name, and by the one of drivers before 535.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

Ask = Callable[..., Any]  # a function's name and its further arguments → NVML's answer, or None


def state() -> dict[str, Any]:
    """Clocks, temperature, power, and ``throttling``: what slows the current device at this moment.

    What the device does not tell is None; all is empty where :func:`missing` says why.
    """
    ask = _current()
    if isinstance(ask, str):
        return {}
    readings: dict[str, Any] = {}
    for name, (function, arguments, unit) in _NUMBERS.items():
        number = ask(function, *arguments)
        readings[name] = None if number is None else round(number * unit, 3)
    answers = (ask(function) for function in _REASONS)
    active = next((answer for answer in answers if answer is not None), 0)
    readings["throttling"] = sorted({text for bit, text in SLOWED.items() if active & bit})
    return readings


def missing() -> str:
    """What keeps :func:`state` from telling anything, in a few words; "" if nothing does."""
    ask = _current()
    return ask if isinstance(ask, str) else ""


def _current() -> Ask | str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    return _opened(torch.cuda.current_device())


@cache
def _opened(index: int) -> Ask | str:
    """Asks NVML about a CUDA device, which NVML numbers otherwise: found by its UUID. Or what is
    missing."""
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return "the package nvidia-ml-py is not installed"
    uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
    try:
        library.nvmlInit()
        device = library.nvmlDeviceGetHandleByUUID(uuid)
    except library.NVMLError as error:
        return f"NVML: {error}"

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(library, function)(device, *arguments)
        except library.NVMLError:  # not supported, or not in this driver
            return None

    return ask


class Watch:
    """What slowed the GPU while something ran, and its state before and after."""

    def __init__(self) -> None:
        self.before = self.after = state()
        self.throttling: set[str] = set()

    def look(self) -> None:
        """Take note of the state of this moment; best when the GPU has just worked."""
        self.after = state()
        self.throttling.update(self.after.get("throttling", ()))
