"""The GPU's clocks, temperature, power and throttling, from NVML, the driver's library.

nvidia-ml-py runs within the process; starting nvidia-smi within a case would take too long. Without
the package, the library or a GPU there are no readings; :func:`missing` says why.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

POWER_CAP = "power cap"
# Bits of NVML's event reasons that mean a lower clock. The power cap is normal for large matrix
# products; the others mean that the machine is too hot or lacks power.
SLOWED = {0x4: POWER_CAP, 0x8: "slowdown", 0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}

# Name → NVML function, further arguments, factor of the unit.
_NUMBERS: dict[str, tuple[str, tuple[int, ...], float]] = {
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", (1,), 1.0),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", (2,), 1.0),
    "temperature_c": ("nvmlDeviceGetTemperature", (0,), 1.0),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
}
# The current name, and that of drivers before 535.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

Ask = Callable[..., Any]  # a function's name and its further arguments → NVML's answer, or None


def state() -> dict[str, Any]:
    """Clocks, temperature, power, and ``throttling``: what slows the current device now.

    A reading that the device does not support is None; all is empty if :func:`missing` says why.
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
    """Why :func:`state` has no readings, in a few words; else ""."""
    ask = _current()
    return ask if isinstance(ask, str) else ""


def _current() -> Ask | str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    return _opened(torch.cuda.current_device())


@cache
def _opened(index: int) -> Ask | str:
    """A function that asks NVML about a CUDA device. NVML numbers devices differently, so the
    device is found by its UUID. If something is missing, its name."""
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
    """Records what slows the GPU while something runs, and its state before and after."""

    def __init__(self) -> None:
        self.before = self.after = state()
        self.throttling: set[str] = set()

    def look(self) -> None:
        """Record the current state; best when the GPU has just worked."""
        self.after = state()
        self.throttling.update(self.after.get("throttling", ()))
