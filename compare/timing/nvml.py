"""The GPU's clocks, temperature, power and what slows it, by the NVML library of the driver.

It is asked through ctypes: starting nvidia-smi takes a good part of a second, too long amid a case.
Where there is no such library, or it does not know the device, nothing is told.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"
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


def state() -> dict[str, Any]:
    """Clocks, temperature, power, and ``throttling``: what slows the current device at this moment.

    What the device does not tell is None; all is empty without NVML.
    """
    opened = _opened(torch.cuda.current_device())
    if opened is None:
        return {}
    library, device = opened
    found: dict[str, Any] = {}
    for name, (function, arguments, unit) in _NUMBERS.items():
        number = ctypes.c_uint()
        failed = getattr(library, function)(device, *arguments, ctypes.byref(number))
        found[name] = None if failed else round(number.value * unit, 3)
    reasons = ctypes.c_ulonglong()
    failed = _reasons(library)(device, ctypes.byref(reasons))
    active = 0 if failed else reasons.value
    found["throttling"] = sorted({text for bit, text in SLOWED.items() if active & bit})
    return found


@cache
def _opened(index: int) -> tuple[Any, ctypes.c_void_p] | None:
    """The library and its handle of a CUDA device, which it numbers otherwise: found by UUID."""
    with contextlib.suppress(OSError, AttributeError):  # no library, or not these functions
        library = ctypes.CDLL(LIBRARY)
        device = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode()
        for function, _, _ in _NUMBERS.values():
            getattr(library, function)
        _reasons(library)
        failed = library.nvmlInit_v2()
        if not failed and not library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(device)):
            return library, device
    return None


def _reasons(library: Any) -> Any:
    """The function, by its new name or the one of old drivers."""
    new = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return new or library.nvmlDeviceGetCurrentClocksThrottleReasons


class Watch:
    """What slowed the GPU while something ran, and its state before and after."""

    def __init__(self) -> None:
        self.before = self.after = state()
        self.throttling: set[str] = set()

    def look(self) -> None:
        """Take note of the state of this moment; best when the GPU has just worked."""
        self.after = state()
        self.throttling.update(self.after.get("throttling", ()))
