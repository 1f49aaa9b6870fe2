"""The GPU's state while bench times: NVML read, throttling flagged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest
import torch
from benched import SMALL, bench, flat
from simulated_gpu import Rig

from compare.timing import nvml


def test_throttling_is_flagged_and_the_power_cap_told(rig: Rig, tmp_path: Path) -> None:
    rig.state["throttling"] = ["power cap"]
    done = bench(*SMALL, "--json", str(tmp_path / "b.json"))
    assert "(power cap)" in done.output
    assert "slowed" not in done.output
    rig.state["throttling"] = ["power cap", "thermal"]
    done = bench(*SMALL, "--json", str(tmp_path / "b.json"))
    assert "the GPU was slowed meanwhile: thermal" in done.output
    assert "the GPU was slowed in 1 of 1 cases" in done.output
    (case,) = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert case["throttling"] == ["power cap", "thermal"]
    assert case["state_after"]["sm_clock_mhz"] == 1980.0


class FakeNvml(ModuleType):
    """The module pynvml: an H200 of this UUID."""

    class NVMLError(Exception):
        pass

    def __init__(self, reasons: int = 0, library: bool = True, driver: int = 580) -> None:
        super().__init__("pynvml")
        self._reasons, self._library, self._driver = reasons, library, driver

    def nvmlInit(self) -> None:
        if not self._library:
            raise self.NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-12ab":
            raise self.NVMLError("Not Found")
        return 7

    def nvmlDeviceGetClockInfo(self, device: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:
        assert (device, sensor) == (7, 0)
        return 41

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        return 123_220

    def nvmlDeviceGetEnforcedPowerLimit(self, device: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: int) -> int:
        if self._driver < 535:
            raise self.NVMLError("Function Not Found")
        return self._reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: int) -> int:
        if self._driver >= 535:
            raise AssertionError("asked by its old name")
        return self._reasons


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    class Properties:
        uuid = "12ab"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    nvml._opened.cache_clear()
    yield Properties
    nvml._opened.cache_clear()


@pytest.mark.parametrize("driver", [580, 525])
def test_the_state_by_nvml(driver: int, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    fake = FakeNvml(0x1 | 0x4 | 0x20 | 0x40, driver=driver)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvml.missing() == ""
    assert nvml.state() == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 41,
        "power_w": 123.22,
        "power_limit_w": None,
        "throttling": ["power cap", "thermal"],
    }


def test_nvidia_ml_py_has_every_function_that_is_asked() -> None:
    names = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    asked = {function for function, _, _ in nvml._NUMBERS.values()} | {*nvml._REASONS}
    assert asked | {"nvmlInit", "nvmlDeviceGetHandleByUUID"} == names
    assert all(callable(getattr(pynvml, name)) for name in names)
    assert issubclass(pynvml.NVMLError, Exception)


@pytest.mark.parametrize(
    ("module", "uuid", "says"),
    [
        (None, "12ab", "the package nvidia-ml-py is not installed"),
        (FakeNvml(library=False), "12ab", "NVML: NVML Shared Library Not Found"),
        (FakeNvml(), "unknown", "NVML: Not Found"),
    ],
)
def test_without_nvml_there_is_no_state(
    module: ModuleType | None, uuid: str, says: str, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)  # None: importing it fails
    device.uuid = uuid
    assert nvml.state() == {}
    assert nvml.missing() == says


def test_without_a_gpu_there_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nvml.state() == {}
    assert nvml.missing() == "no CUDA device"


def test_bench_says_that_nobody_watches_the_clocks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not watched" not in bench(*SMALL).output
    monkeypatch.setattr(nvml, "missing", lambda: "NVML: Driver Not Loaded")
    done = bench(*SMALL)
    assert done.exit_code == 0, done.output
    said = "clocks, power and throttling are not watched: NVML: Driver Not Loaded"
    assert said in flat(done.output)


def test_a_watch_collects_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([{"throttling": []}, {"throttling": ["thermal"]}, {"throttling": ["slowdown"]}])
    monkeypatch.setattr(nvml, "state", lambda: next(states))
    watch = nvml.Watch()
    watch.look()
    watch.look()
    assert watch.throttling == {"thermal", "slowdown"}
    assert (watch.before, watch.after) == ({"throttling": []}, {"throttling": ["slowdown"]})
